"""Where the leaves of an init live: shardings asked for, or implied by the arguments."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from .. import _compat, _errors


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where results go.

    Attributes:
        leaves: per flat output, its sharding; `None` leaves it to JAX's default device.
        asked: whether the user gave shardings.
        spread: whether some leaf lives on more than one device or is asked to.
        device: the one device that the arguments are committed to, if any.
        unclear: set when JAX would choose (arguments sharded over devices, no `out_shardings`).
    """

    leaves: tuple[Sharding | None, ...]
    asked: bool = False
    spread: bool = False
    device: Sharding | None = None
    unclear: bool = False

    def of(self, leaf: int) -> Sharding | None:
        """Returns the place of an output of a site, be it a leaf or what leaves are cut from."""
        return self.leaves[leaf] if leaf < len(self.leaves) else self.device


def resolve(out_shardings: Any, out_tree: Any, avals: Sequence[Any], arguments: Iterable[Any]):
    """Decides where each leaf goes.

    Args:
        out_shardings: what the user asked for, as `jax.jit` takes it, or `None`.
        out_tree: structure of the results.
        avals: abstract value per leaf.
        arguments: flat arguments (arrays, numbers or `ShapeDtypeStruct`s).

    Raises:
        ShardingError: the shardings don't fit the tree, or a dimension doesn't tile.
    """
    asked = _flatten_prefix(out_shardings, out_tree)
    if any(s is not None for s in asked):
        leaves = _fill(asked)
        _check_tiling(leaves, out_tree, avals)
        return Places(leaves=leaves, asked=True, spread=True)
    return _implied(avals, arguments)


def _flatten_prefix(out_shardings: Any, out_tree: Any) -> list[Sharding | None]:
    skeleton = jax.tree.unflatten(out_tree, range(out_tree.num_leaves))
    try:
        full = jax.tree.broadcast(out_shardings, skeleton, is_leaf=_is_place)
    except ValueError as error:
        where = _compat.departure(out_shardings, skeleton, _is_place) or str(error)
        raise _errors.shardings_do_not_fit(where) from error
    places = jax.tree.leaves(full, is_leaf=_is_place)
    return [_as_sharding(place) for place in places]


def _is_place(thing: Any) -> bool:
    return thing is None or isinstance(thing, (Sharding, PartitionSpec))


def _as_sharding(place: Any) -> Sharding | None:
    if isinstance(place, PartitionSpec):
        mesh = jax.sharding.get_mesh()
        if mesh.empty:
            raise _errors.spec_without_mesh(place)
        return NamedSharding(mesh, place)
    if place is None or isinstance(place, Sharding):
        return place
    raise _errors.not_a_sharding(place)


def _fill(asked: list[Sharding | None]) -> tuple[Sharding, ...]:
    """Gives leaves that were left open a replica on each of the devices the others use."""
    for sharding in asked:
        if isinstance(sharding, NamedSharding):
            open_place: Sharding = NamedSharding(sharding.mesh, PartitionSpec())
            break
    else:
        open_place = next(s for s in asked if s is not None)
    return tuple(open_place if s is None else s for s in asked)


def _check_tiling(leaves: Sequence[Sharding], out_tree: Any, avals: Sequence[Any]) -> None:
    paths = leaf_paths(out_tree)
    for path, sharding, aval in zip(paths, leaves, avals, strict=True):
        try:
            _check_rank(sharding, aval.ndim)
            sharding.shard_shape(aval.shape)
        except (ValueError, IndexError) as error:
            raise _errors.does_not_tile(path, aval, sharding, error) from error


def _check_rank(sharding: Sharding, rank: int) -> None:
    # On one device `shard_shape` doesn't look.
    if isinstance(sharding, NamedSharding) and len(sharding.spec) > rank:
        raise ValueError(f"its spec is for {len(sharding.spec)} dimensions, there are {rank}")


def leaf_paths(tree: Any) -> list[str]:
    """Returns the path of each leaf of a tree structure, as JAX prints it."""
    skeleton = jax.tree.unflatten(tree, range(tree.num_leaves))
    with_paths, _ = jax.tree_util.tree_flatten_with_path(skeleton)
    return [jax.tree_util.keystr(path) for path, _ in with_paths]


def _implied(avals: Sequence[Any], arguments: Iterable[Any]) -> Places:
    """Results follow committed arguments, and explicit axes in their types, as under `jax.jit`."""
    found = {s for s in map(_committed_to, arguments) if s is not None}
    spread = [s for s in found if len(s.device_set) > 1]
    typed = any(not aval.sharding.mesh.empty for aval in avals)
    if len({device for s in found for device in s.device_set}) > 1 and not spread:
        # Only some are used, or it is an error: `jax.jit` knows.
        return Places(leaves=(None,) * len(avals), unclear=True)
    if not spread and not typed:
        device = next((SingleDeviceSharding(*s.device_set) for s in found), None)
        return Places(leaves=(device,) * len(avals), device=device)
    mesh = next((s.mesh for s in spread if isinstance(s, NamedSharding)), jax.sharding.get_mesh())
    if mesh.empty or not all(s.is_fully_replicated for s in found):
        return Places(leaves=(None,) * len(avals), unclear=True)
    leaves = tuple(NamedSharding(mesh, _typed_spec(aval)) for aval in avals)
    return Places(leaves=leaves, spread=True)


def _typed_spec(aval: Any) -> PartitionSpec:
    return PartitionSpec() if aval.sharding.mesh.empty else aval.sharding.spec


def _committed_to(argument: Any) -> Sharding | None:
    if isinstance(argument, jax.Array):
        return argument.sharding if argument.committed else None
    return getattr(argument, "sharding", None)
