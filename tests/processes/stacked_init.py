"""One of several processes: a sharded init on a mesh over all of them, compared with its own.

Usage: python stacked_init.py PROCESS PROCESSES PORT
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import compilecut as cc


def init(key):
    keys = jax.random.split(key, 6)
    return [{"w": jax.random.normal(k, (8, 16)) / 4, "b": jnp.zeros((8,))} for k in keys]


def main(process: int, processes: int, port: str) -> None:
    """Runs the comparison and prints how many shards were looked at."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    mesh = jax.make_mesh((processes, 2), ("host", "device"))
    place = NamedSharding(mesh, P(("host", "device")))
    key = jax.random.key(3)
    expected = jax.tree.map(np.asarray, jax.jit(init)(key))
    result = cc.stacked_init(init, out_shardings=place)(key)
    stacks = cc.stacked_init(init, out_shardings=place, fan_out="stacks")(key)
    shards = 0
    for tree in (result, stacks.unstack()):
        for mine, whole in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
            assert mine.sharding.is_equivalent_to(place, mine.ndim), mine.sharding
            assert not mine.is_fully_addressable
            for shard in mine.addressable_shards:
                np.testing.assert_array_equal(shard.data, whole[shard.index])
                shards += 1
    print(f"process {process}: {shards} shards equal")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
