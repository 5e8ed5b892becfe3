"""From a plan to compiled programs: one per distinct site, one that draws, compiled in threads."""

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._jaxpr import Value, as_weak_as, evaluate
from ._draw import ROW, draw_bits, read_bits
from ._group import Group
from ._keys import device_calls, lower_call, raw_struct, to_array
from ._plan import Plan
from ._split import Split
from ._views import View, lower_view


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The programs of a plan, lowered (`jax.stages.Lowered`) or compiled.

    Attributes:
        keys: for each distinct split or fold of keys, the program that computes it.
        draws: per bit width, the program that fills a block.
        sites: per group, the program that computes one site.
        views: by the key of a view, the program that cuts an output from a larger one.
    """

    keys: dict[Hashable, Any]
    draws: dict[int, Any]
    sites: tuple[Any, ...]
    views: dict[Hashable, Any]

    def all(self) -> tuple[Any, ...]:
        """Returns every program."""
        return (
            *self.keys.values(),
            *self.draws.values(),
            *self.sites,
            *self.views.values(),
        )


def lower(plan: Plan, arguments: Sequence[Any]) -> Programs:
    """Lowers the programs of a plan.

    Args:
        plan: the plan.
        arguments: flat arguments of the init function: arrays or anything with shape and dtype.
    """
    assert plan.split is not None
    device = plan.places.device
    return Programs(
        keys={k: lower_call(eqn, device) for k, eqn in device_calls(plan.split.host).items()},
        draws={w: _lower_draw(w, rows, plan) for w, rows in plan.layout.rows.items()},
        sites=tuple(_lower_site(plan, group, arguments) for group in plan.groups),
        views={k: lower_view(view, device) for k, view in distinct_views(plan.split).items()},
    )


def compile_in_threads(programs: Programs) -> Programs:
    """Compiles lowered programs, several at a time: XLA releases the interpreter lock."""
    workers = min(len(programs.all()), _cores()) or 1
    with concurrent.futures.ThreadPoolExecutor(workers, "compilecut") as pool:
        done = iter([pool.submit(program.compile) for program in programs.all()])
        return Programs(
            keys={key: next(done).result() for key in programs.keys},
            draws={width: next(done).result() for width in programs.draws},
            sites=tuple(next(done).result() for _ in programs.sites),
            views={key: next(done).result() for key in programs.views},
        )


def distinct_views(split: Split) -> dict[Hashable, View]:
    """Returns one view for each program that cuts."""
    return {view.key: view for views in split.views.values() for view in views}


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # a job may own fewer cores than the machine has
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _lower_draw(width: int, rows: int, plan: Plan) -> Any:
    table = jax.ShapeDtypeStruct((rows, 4), jnp.uint32, sharding=plan.places.device)
    return jax.jit(draw_bits, static_argnums=1).lower(table, width)


def _lower_site(plan: Plan, group: Group, arguments: Sequence[Any]) -> Any:
    assert plan.split is not None
    site, device = group.pattern, plan.places.device
    blocks = {
        width: jax.ShapeDtypeStruct((plan.layout.rows[width], ROW), f"uint{width}", sharding=device)
        for width in sorted({draw.width for draw in site.draws})
    }
    starts = jax.ShapeDtypeStruct((len(site.draws),), jnp.int32, sharding=device)
    positions = {value: i for i, value in enumerate(plan.split.program.arguments)}
    inputs = [
        arguments[positions[v]] if v in positions else raw_struct(v.aval, device)
        for v in site.inputs
    ]
    shardings = [plan.places.of(leaf) for leaf in site.leaves]
    program = jax.jit(_site_function(plan, group), out_shardings=shardings, keep_unused=True)
    return program.lower(blocks, starts, inputs)


def _site_function(plan: Plan, group: Group) -> Callable[..., list[Any]]:
    assert plan.split is not None
    site, constants = group.pattern, plan.split.program.constants

    def init_site(blocks, starts, inputs):
        env: dict[Value, Any] = {value: constants[value] for value in site.constants}
        env.update((v, to_array(x, v.aval)) for v, x in zip(site.inputs, inputs, strict=True))
        for i, draw in enumerate(site.draws):
            bits = read_bits(blocks[draw.width], starts[i], draw)
            env.update(dict.fromkeys((draw.value, *draw.twins), bits))
        results = evaluate(site.equations, env, site.outputs)
        return [as_weak_as(r, o.aval) for r, o in zip(results, site.outputs, strict=True)]

    return init_site
