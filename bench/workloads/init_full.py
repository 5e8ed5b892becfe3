"""W1 at its published sizes: 18.3 billion parameters, lowered and compiled but not run."""

import jax

from harness.registry import ArmTable, Call
from workloads import init


def stacked_init(n: int) -> Call:
    """Traces, lowers and compiles from a key's shape alone; nothing of full size is ever held."""
    import compilecut as cc

    lazy = cc.stacked_init(init.make_init(init.sites(n, divide=1)))
    key = jax.eval_shape(lambda: jax.random.key(0))
    return Call(function=lambda key: lazy.lower(key).compile(), args=(key,), runs=False)


ARMS: ArmTable = {"stacked_init": stacked_init}
