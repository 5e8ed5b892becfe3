"""Workloads for the tests of the bench: quick, and wrong in every way that it has to notice."""

import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from harness.registry import Arm, ArmTable, Call, Workload


def double(n: int) -> Call:
    """The reference: 2 x."""
    return Call(function=jax.jit(lambda x: x + x), args=(jnp.arange(1.0, n + 1),))


def double_otherwise(n: int) -> Call:
    """The same bits, from another program."""
    return Call(function=jax.jit(lambda x: x * 2 * jnp.sign(x)), args=(jnp.arange(1.0, n + 1),))


def nearly_double(n: int) -> Call:
    """One ULP above in each element."""
    double_up = jax.jit(lambda x: jnp.nextafter(x + x, jnp.full_like(x, jnp.inf)))
    return Call(function=double_up, args=(jnp.arange(1.0, n + 1),))


def crash(_: int) -> Call:
    """Fails as a program with a bug does."""
    raise RuntimeError("out of cheese")


def vanish(_: int) -> Call:
    """Ends as a process does that the kernel kills."""
    os.kill(os.getpid(), 9)
    raise AssertionError


def sleep(_: int) -> Call:
    """Never ends, and has a child that must not outlive it."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    if pid_file := os.environ.get("FAKE_PID_FILE"):
        Path(pid_file).write_text(str(pid))
    time.sleep(600)
    raise AssertionError


ARMS: ArmTable = {
    "double": double,
    "twin": double,
    "otherwise": double_otherwise,
    "nearly": nearly_double,
    "crash": crash,
    "vanish": vanish,
    "sleep": sleep,
}


def _workload(name: str, *arms: str, equal: tuple[tuple[str, ...], ...] = ()) -> Workload:
    return Workload(
        name=name,
        summary="a fake",
        unit="elements",
        source=Path(__file__),
        arms=tuple(Arm(name=arm, quick=(3,), full=(3, 5), hint=(0.0, 2.0)) for arm in arms),
        reference="double",
        equal=equal,
    )


WORKLOADS = {
    workload.name: workload
    for workload in (
        _workload("good", "double", "otherwise", equal=(("double", "otherwise"),)),
        _workload("wrong", "double", "nearly", equal=(("double", "nearly"),)),
        _workload("loose", "double", "nearly"),
        _workload("twins", "double", "twin"),
        _workload("broken", "double", "crash", "vanish"),
        _workload("bound", "double", "crash", equal=(("double", "crash"),)),
        _workload("slow", "double", "sleep"),
    )
}
