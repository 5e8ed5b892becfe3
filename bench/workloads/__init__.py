"""The workloads there are. To add one, write its file beside this one and an entry here.

This table is read by the parent process, so it imports no JAX; the files it names are loaded by the
samples alone. Sizes in `quick` are chosen for `make compare`: under four minutes on two cores.
"""

from pathlib import Path

from harness.registry import Arm, Workload

HERE = Path(__file__).resolve().parent


def _transformer(library: str) -> Workload:
    return Workload(
        name=library,
        summary=f"parameter initialisation of a {library} transformer",
        unit="layers",
        source=HERE / f"{library}.py",
        reference="jit",
        equal=(("jit", "stacked_init"),),
        arms=(
            Arm(name="jit", quick=(6,), full=(6, 24), hint=(1.2, 6.0)),
            Arm(name="stacked_init", quick=(6,), full=(6, 24), hint=(0.05, 8.0)),
        ),
    )


_INIT = Workload(
    name="init",
    summary="7 low-rank sites a layer, dimensions / 64",
    unit="layers",
    source=HERE / "init.py",
    reference="jit",
    equal=(("jit", "vmap+slice", "per-kind", "stacked_init"),),
    arms=(
        Arm(name="jit", quick=(4, 32), full=(8, 16, 32), hint=(2.0, 3.0)),
        Arm(name="vmap+slice", quick=(32,), full=(8, 16, 32, 64), hint=(0.2, 6.0)),
        Arm(name="per-kind", quick=(32,), full=(8, 16, 32, 64), hint=(0.02, 5.0)),
        Arm(name="stacked_init", quick=(4, 32), full=(8, 16, 32, 64), hint=(0.02, 5.0)),
    ),
)

_INIT_LARGE = Workload(
    name="init-large",
    summary="7 low-rank sites a layer, dimensions / 8",
    unit="layers",
    source=HERE / "init_large.py",
    reference="stacked_init",
    arms=(Arm(name="stacked_init", quick=(8,), full=(32,), hint=(0.2, 6.0)),),
)

_INIT_FULL = Workload(
    name="init-full",
    summary="7 low-rank sites a layer, full size, compiled only",
    unit="layers",
    source=HERE / "init_full.py",
    reference="stacked_init",
    arms=(Arm(name="stacked_init", quick=(8,), full=(32,), hint=(0.1, 6.0)),),
)

_SIZES = (2, 8, 32)

_CHUNKS = Workload(
    name="chunks",
    summary="a reconstruction step, 8 unrolled layers a chunk, gradient and Adam",
    unit="chunks",
    source=HERE / "chunks.py",
    reference="loop",
    equal=(("scan", "unit", "auto"),),
    may_match=(("scan", "auto", "lax.scan"), ("unit", "auto")),
    arms=(
        Arm(name="loop", quick=(8,), full=(2, 4, 8), hint=(6.0, 8.0)),
        Arm(name="lax.scan", quick=(), full=_SIZES, hint=(0.05, 12.0)),
        Arm(name="scan", quick=(8,), full=_SIZES, hint=(0.05, 12.0)),
        Arm(name="unit", quick=(), full=(2, 8), hint=(1.0, 10.0)),
        Arm(name="auto", quick=(), full=(8,), hint=(0.1, 12.0)),
    ),
)

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        _INIT,
        _CHUNKS,
        *(_transformer(library) for library in ("linen", "nnx", "equinox", "haiku")),
        _INIT_LARGE,
        _INIT_FULL,
    )
}

# What `--preset` runs unless `--workload` says otherwise.
PRESETS: dict[str, tuple[str, ...]] = {
    "quick": ("init", "chunks"),
    "full": ("init", "chunks", "linen", "nnx", "equinox", "haiku"),
}
