"""Programs with repeats planted in them, and folded programs with mistakes planted in them."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core

import compilecut as cc
from compilecut._arguments import split


@dataclasses.dataclass(frozen=True)
class Fold:
    """A program as written, its plan, and the folded program."""

    original: Any
    plan: Any
    emitted: Any

    @property
    def blocks(self) -> list[int]:
        """How many blocks each repeat has."""
        return [len(repeat.calls) for repeat in self.plan.repeats]


def folded(f, *args, form: Any = "auto", min_blocks=3) -> Fold:
    """Traces and plans a function, and emits what runs."""
    run = cc.fold(f, form=form, min_blocks=min_blocks).trace(*split((args, {})))
    return Fold(run.closed, run.plan, run.emitted() if run.plan.folds else run.closed)


# --- mutants


def mutants(closed: Any) -> Iterator[tuple[str, Any]]:
    """Yields programs with one mistake each, well typed all of them."""
    for name, jaxpr in _of_jaxpr(closed.jaxpr):
        yield name, closed.replace(jaxpr=jaxpr)


def _of_jaxpr(jaxpr: Any) -> Iterator[tuple[str, Any]]:
    scope = [*jaxpr.constvars, *jaxpr.invars]
    for place, eqn in enumerate(jaxpr.eqns):
        for name, new in _of_equation(eqn, scope):
            eqns = [*jaxpr.eqns[:place], new, *jaxpr.eqns[place + 1 :]]
            yield f"{eqn.primitive} {place}: {name}", jaxpr.replace(eqns=eqns)
        scope.extend(eqn.outvars)
    for name, outvars in _others(jaxpr.outvars, scope):
        yield f"output {name}", jaxpr.replace(outvars=outvars)


def _of_equation(eqn: Any, scope: list[Any]) -> Iterator[tuple[str, Any]]:
    for name, invars in _others(eqn.invars, scope):
        yield f"operand {name}", eqn.replace(invars=invars)
    for name, params in _other_params(eqn.params):
        yield name, eqn.replace(params=params)
    for i in range(len(eqn.outvars) - 1):
        if _type(eqn.outvars[i]) == _type(eqn.outvars[i + 1]):
            outvars = list(eqn.outvars)
            outvars[i : i + 2] = outvars[i : i + 2][::-1]
            yield f"results {i} and {i + 1}", eqn.replace(outvars=outvars)


def _others(atoms: Any, scope: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    for place, atom in enumerate(atoms):
        alike = [v for v in scope if v is not atom and _type(v) == _type(atom)]
        for other in (*alike[:1], *alike[-1:]):  # the first and the latest of that type
            yield f"{place} is another value", [*atoms[:place], other, *atoms[place + 1 :]]
        if isinstance(atom, jex_core.Literal) and np.shape(atom.val) == ():
            value: Any = np.asarray(atom.val, _type(atom)[1])
            value = ~value if value.dtype == bool else (value + 1).astype(value.dtype)
            other = jex_core.Literal(value[()], atom.aval)
            yield f"{place} is another number", [*atoms[:place], other, *atoms[place + 1 :]]
        if place and atom is not atoms[place - 1] and _type(atom) == _type(atoms[place - 1]):
            swapped = list(atoms)
            swapped[place - 1 : place + 1] = swapped[place - 1 : place + 1][::-1]
            yield f"{place} and the one before", swapped


def _other_params(params: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if "reverse" in params:
        yield "reverse", {**params, "reverse": not params["reverse"]}
    if "start_indices" in params and "limit_indices" in params:
        start, limit = params["start_indices"], params["limit_indices"]
        if start and start[0]:
            yield (
                "slice",
                {
                    **params,
                    "start_indices": (start[0] - 1, *start[1:]),
                    "limit_indices": (limit[0] - 1, *limit[1:]),
                },
            )
    for name, param in params.items():
        if isinstance(param, jex_core.ClosedJaxpr):
            for inner, mutant in mutants(param):
                yield f"in {name}: {inner}", {**params, name: mutant}
        elif isinstance(param, jex_core.Jaxpr):
            for inner, mutant in _of_jaxpr(param):
                yield f"in {name}: {inner}", {**params, name: mutant}


def _type(atom: Any) -> Any:
    return (atom.aval.shape, atom.aval.dtype)


# --- programs


@dataclasses.dataclass(frozen=True)
class Generated:
    """A program with a planted repeat.

    Attributes:
        function: the program.
        args: what it takes.
        blocks: how many times the block occurs.
        size: how many operations were drawn for one block.
        plain: nothing was drawn that could keep the blocks from being found.
        story: what was drawn.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    blocks: int
    size: int
    plain: bool
    story: str


@dataclasses.dataclass
class Block:
    """What one operation sees while a block is run.

    Attributes:
        place: which block it is.
        weights: the block's own weights, in the order in which operations ask for them.
        shared: arrays that all blocks use.
        key: a key that all blocks use.
    """

    place: int
    weights: Iterator[Any]
    shared: Any
    key: Any


Operation = Callable[[Block, Any, Any], Any]
OPERATIONS: dict[str, Operation] = {}
SHAPE = (2, 4)
CONSTANT = np.linspace(-1, 1, 4, dtype=np.float32)


def _operation(function: Operation) -> Operation:
    OPERATIONS[function.__name__] = function
    return function


def _simple(**functions: Callable[[Any, Any], Any]) -> None:
    for name, function in functions.items():
        OPERATIONS[name] = lambda block, a, b, function=function: function(a, b)


_simple(
    tanh=lambda a, b: jnp.tanh(a),
    gauss=lambda a, b: jnp.exp(-a * a),
    gelu=lambda a, b: jax.nn.gelu(a),
    add=lambda a, b: (a + b) * 0.5,
    sub=lambda a, b: a - b,
    mul=lambda a, b: a * jnp.sin(b),
    where=lambda a, b: jnp.where(a > b, a, b * 0.5),
    centre=lambda a, b: a - a.mean(-1, keepdims=True),
    softmax=lambda a, b: jax.nn.softmax(a) + b,
    norm=lambda a, b: a / jnp.sqrt((a * a).sum() + 1.0),
    roll=lambda a, b: jnp.concatenate([a[:, 1:], b[:, :1]], 1),
    flip=lambda a, b: a[::-1] - b,
    cast=lambda a, b: a.astype(jnp.bfloat16).astype(jnp.float32),
    inner_jit=lambda a, b: jax.jit(lambda a, b: jnp.cos(a) - b)(a, b),
    count=lambda a, b: a + (b > 0).astype(jnp.int32).sum().astype(jnp.float32),
    cumsum=lambda a, b: jnp.cumsum(a, 1) * 0.3,
    sort=lambda a, b: jnp.sort(a, 1),
    gram=lambda a, b: a @ (b.T @ b) * 0.1,
    cond=lambda a, b: lax.cond(a.sum() > 0, jnp.sin, jnp.cos, a),
    loop=lambda a, b: lax.scan(lambda c, r: (jnp.sin(c + r), c), a[0], b)[0] + a,
    fori=lambda a, b: lax.fori_loop(0, 2, lambda i, c: c * 0.5 + b, a),
    remat=lambda a, b: jax.checkpoint(lambda a: jnp.sin(jnp.cos(a)))(a),
    iota=lambda a, b: a + jnp.arange(4, dtype=jnp.float32),
    clip=lambda a, b: jnp.clip(a, -1.0, 1.0) + b,
    integers=lambda a, b: a + (jnp.round(b).astype(jnp.int32) % 3).astype(jnp.float32),
)


@_operation
def dot(block, a, b):
    return a @ next(block.weights).reshape(4, 4) * 0.3 + b


@_operation
def scale(block, a, b):
    return a * next(block.weights).reshape(16)[:4]


@_operation
def own_number(block, a, b):
    return a * (0.5 + 0.1 * block.place)


@_operation
def own_integer(block, a, b):
    return a + jnp.where(jnp.arange(4) < block.place, 0.5, 0.25)


@_operation
def normal(block, a, b):
    key = jax.random.fold_in(block.key, block.place)
    return a + 0.1 * jax.random.normal(key, SHAPE)


@_operation
def dropout(block, a, b):
    key = jax.random.fold_in(block.key, 7 * block.place)
    return jnp.where(jax.random.bernoulli(key, 0.7, SHAPE), a, b)


@_operation
def constant(block, a, b):
    return a * CONSTANT + b


@_operation
def shared(block, a, b):
    return a @ jnp.cos(block.shared) * 0.2


@_operation
def relu(block, a, b):
    return jax.nn.relu(a) + b


@_operation
def nested(block, a, b):
    weight = next(block.weights).reshape(4, 4)
    for row in range(3):
        a = jnp.tanh(a * 0.7 + weight[row]) - b * 0.1
    return a


# Operations that need something the finder doesn't have yet, or that hide a block from it.
HARD = frozenset({"relu", "nested"})


def generate(seed: int) -> Generated:
    """Draws a program."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 7))
    cycle = int(rng.choice([1, 1, 1, 1, 2, 3]))
    kinds = [_draw_block(rng) for _ in range(cycle)]
    options = {
        "weights": str(rng.choice(["list", "stack", "backwards", "tree"])),
        "skip": bool(rng.random() < 0.2),
        "second": bool(rng.random() < 0.3),
        "keep": str(rng.choice(["nothing", "nothing", "list", "sum", "stack"])),
        "foreign": bool(rng.random() < 0.2),
        "apart": bool(rng.random() < 0.15),
        "transform": str(rng.choice(["none", "none", "grad", "value_and_grad"])),
    }
    function = _program(kinds, n, options)
    args = _arguments(rng, kinds, n, options["weights"])
    if options["transform"] != "none":
        transform = {"grad": jax.grad, "value_and_grad": jax.value_and_grad}[options["transform"]]
        function = transform(_summed(function), argnums=(0, 1))
    names = [name for kind in kinds for name, *_ in kind]
    plain = not (
        HARD.intersection(names)
        or options["foreign"]
        or options["apart"]
        or options["transform"] != "none"
    )
    story = f"seed {seed}: {n} times {kinds}, {options}"
    return Generated(function, args, n, len(names), plain, story)


_Kind = list[tuple[str, float, float]]


def _draw_block(rng) -> _Kind:
    count = int(rng.integers(2, 6))
    names = rng.choice(sorted(OPERATIONS), count).tolist()
    return [(name, rng.random(), rng.random()) for name in names]


_WEIGHTS = {"dot": 1, "scale": 1, "nested": 1}


def _arguments(rng, kinds: list[_Kind], n: int, layout: str) -> tuple[Any, ...]:
    def array(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    weights = []
    for kind in kinds:
        count = sum(_WEIGHTS.get(name, 0) for name, *_ in kind)
        if layout in ("stack", "backwards"):
            weights.append([array(n, 4, 4) for _ in range(count)])
        else:
            weights.append([[array(4, 4) for _ in range(count)] for _ in range(n)])
    return weights, array(*SHAPE), array(4, 4), jax.random.key(int(rng.integers(100)))


def _program(kinds: list[_Kind], n: int, options: dict[str, Any]) -> Callable[..., Any]:
    def own(weights: Any, place: int) -> Any:
        if options["weights"] == "stack":
            return [stack[place] for stack in weights]
        if options["weights"] == "backwards":
            return [stack[n - 1 - place] for stack in weights]
        return weights[place]

    def program(weights, x, shared, key):
        history, kept, other = [x, x], [], x * 0.5
        start = x
        for place in range(n):
            for number, kind in enumerate(kinds):
                block = Block(place, iter(own(weights[number], place)), shared, key)
                values = [x, other] if options["second"] else [x]
                if options["skip"]:
                    values.append(history[-2])
                for name, first, second in kind:
                    a = values[-1 - int(first * min(2, len(values)))]
                    b = values[int(second * len(values))]
                    values.append(OPERATIONS[name](block, a, b))
                new = values[-1] * 0.7 + values[0]
                if options["second"]:
                    other = values[len(values) // 2] - other
                kept.append(values[-1] - x)
                x = start if options["apart"] else new
                if options["foreign"] and place % 2:
                    x = [jnp.sin, jnp.cos, jnp.tanh, jnp.exp2][place % 4](x) + place
                history.append(new)
        outputs = [x, other] if options["second"] else [x]
        if options["keep"] == "list" or options["apart"]:
            outputs.append(kept)
        elif options["keep"] == "sum":
            outputs.append(sum(kept))
        elif options["keep"] == "stack":
            outputs.append(jnp.stack(kept))
        return outputs

    return program


def _summed(function: Callable[..., Any]) -> Callable[..., Any]:
    def total(*args: Any) -> Any:
        return sum((leaf * leaf).mean() for leaf in jax.tree.leaves(function(*args)))

    return total
