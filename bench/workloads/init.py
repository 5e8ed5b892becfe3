"""W1: initialise 32 layers of 7 kinds of low-rank sites, at a 64th of the published sizes.

Each site holds V (d_in, C) and U (C, d_out), normals scaled by 1/sqrt(d_in) and 1/sqrt(C), from two
keys of its own. n is the number of layers; the sites of n layers are 7 n and the arrays 14 n.
"""

import math

import jax
import jax.numpy as jnp

from harness.registry import ArmTable, Call

Spec = tuple[int, int, int]  # d_in, d_out, C
Params = dict[str, dict[str, jax.Array]]

KINDS: dict[str, Spec] = {
    "q": (4096, 4096, 2048),
    "k": (4096, 1024, 2048),
    "v": (4096, 1024, 4096),
    "o": (4096, 4096, 4096),
    "gate": (4096, 14336, 8192),
    "up": (4096, 14336, 8192),
    "down": (14336, 4096, 10240),
}


def sites(n: int, divide: int = 64) -> dict[str, Spec]:
    """Name to dimensions of every site of `n` layers."""
    return {
        f"layers.{layer}.{kind}": (d_in // divide, d_out // divide, c // divide)
        for layer in range(n)
        for kind, (d_in, d_out, c) in KINDS.items()
    }


def init_site(keys: jax.Array, spec: Spec) -> dict[str, jax.Array]:
    """One site's arrays from its two keys."""
    d_in, d_out, c = spec
    return {
        "V": jax.random.normal(keys[0], (d_in, c)) / math.sqrt(d_in),
        "U": jax.random.normal(keys[1], (c, d_out)) / math.sqrt(c),
    }


def site_keys(key: jax.Array, count: int) -> jax.Array:
    """Two keys for each site, all from one split."""
    return jax.random.split(key, (count, 2))


def make_init(specs: dict[str, Spec]):
    """The init as people write it: a loop over the sites."""

    def init(key: jax.Array) -> Params:
        keys = site_keys(key, len(specs))
        return {name: init_site(keys[i], spec) for i, (name, spec) in enumerate(specs.items())}

    return init


def jit(n: int, divide: int = 64) -> Call:
    """One program for everything."""
    return Call(function=jax.jit(make_init(sites(n, divide))), args=(jax.random.key(0),))


def stacked_init(n: int, divide: int = 64) -> Call:
    """The same function, handed to compilecut."""
    import compilecut as cc

    return Call(function=cc.stacked_init(make_init(sites(n, divide))), args=(jax.random.key(0),))


def vmap_then_slice(n: int, divide: int = 64) -> Call:
    """The known recipe: one vmap for all sites of a shape, then one jit that slices them out."""
    specs = sites(n, divide)
    groups: dict[Spec, list[int]] = {}
    for index, spec in enumerate(specs.values()):
        groups.setdefault(spec, []).append(index)
    rows = {spec: jnp.asarray(indices) for spec, indices in groups.items()}

    @jax.jit
    def stacked(keys, rows):
        return [jax.vmap(lambda k, s=spec: init_site(k, s))(keys[rows[spec]]) for spec in groups]

    @jax.jit
    def slices(stacks):
        where = {i: (g, j) for g, rows in enumerate(groups.values()) for j, i in enumerate(rows)}
        return {
            name: {leaf: stacks[where[i][0]][leaf][where[i][1]] for leaf in ("V", "U")}
            for i, name in enumerate(specs)
        }

    def init(key: jax.Array) -> Params:
        return slices(stacked(site_keys(key, len(specs)), rows))

    return Call(function=init, args=(jax.random.key(0),))


def per_kind(n: int, divide: int = 64) -> Call:
    """One compiled program for each kind of site, called once per site."""
    specs = sites(n, divide)
    site = jax.jit(init_site, static_argnums=1)

    def init(key: jax.Array) -> Params:
        keys = site_keys(key, len(specs))
        return {name: site(keys[i], spec) for i, (name, spec) in enumerate(specs.items())}

    return Call(function=init, args=(jax.random.key(0),))


ARMS: ArmTable = {
    "jit": jit,
    "vmap+slice": vmap_then_slice,
    "per-kind": per_kind,
    "stacked_init": stacked_init,
}
