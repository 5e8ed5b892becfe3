"""The workloads there are. To add one, write its file beside this one and an entry here.

This table is read by the parent process, so it imports no JAX; the files it names are loaded by the
samples alone. Sizes in `quick` are chosen for `make compare`: under four minutes on two cores.
"""

from pathlib import Path

from harness.registry import Arm, Workload

HERE = Path(__file__).resolve().parent


_JIT = "jax.jit(init)"


def _transformer(library: str) -> Workload:
    return Workload(
        name=library,
        summary=f"parameter initialisation of a {library} transformer",
        unit="layers",
        source=HERE / f"{library}.py",
        reference="jit",
        equal=(("jit", "stacked_init"),),
        arms=(
            Arm(name="jit", quick=(6,), full=(6, 24), hint=(0.55, 2.0), label=_JIT),
            Arm(name="stacked_init", quick=(6,), full=(6, 24), hint=(0.02, 3.5)),
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
        Arm(name="jit", quick=(8,), full=(8, 16, 32), hint=(1.5, 2.5), label=_JIT),
        Arm(
            name="vmap+slice",
            quick=(8,),
            full=(8, 16, 32, 64),
            hint=(0.3, 3.0),
            label="vmap per shape, then a jit that slices",
        ),
        Arm(
            name="per-kind",
            quick=(8,),
            full=(8, 16, 32, 64),
            hint=(0.02, 3.2),
            label="a jit per kind, called per site",
        ),
        Arm(name="stacked_init", quick=(8,), full=(8, 16, 32, 64), hint=(0.03, 2.3)),
    ),
)

_INIT_LARGE = Workload(
    name="init-large",
    summary="7 low-rank sites a layer, dimensions / 8",
    unit="layers",
    source=HERE / "init_large.py",
    reference="stacked_init",
    arms=(Arm(name="stacked_init", quick=(8,), full=(32,), hint=(0.8, 6.0)),),
)

_INIT_FULL = Workload(
    name="init-full",
    summary="7 low-rank sites a layer, full size, compiled only",
    unit="layers",
    source=HERE / "init_full.py",
    reference="stacked_init",
    arms=(Arm(name="stacked_init", quick=(8,), full=(32,), hint=(0.05, 1.0)),),
)

_SIZES = (2, 8, 32)

_CHUNKS = Workload(
    name="chunks",
    summary="a reconstruction step, 8 unrolled layers a chunk, gradient and Adam",
    unit="chunks",
    source=HERE / "chunks.py",
    reference="loop",
    equal=(("scan_chunks", "scan_chunks:scan", "scan_chunks:unit"),),
    may_match=(
        ("scan_chunks", "scan_chunks:scan", "scan-by-hand"),
        ("scan_chunks", "scan_chunks:unit"),
    ),
    arms=(
        Arm(name="loop", quick=(4,), full=(2, 4, 8), hint=(5.5, 7.0), label="Python loop"),
        Arm(
            name="scan-by-hand",
            quick=(4,),
            full=_SIZES,
            hint=(0.05, 14.0),
            label="lax.scan by hand",
        ),
        Arm(name="scan_chunks", quick=(4,), full=_SIZES, hint=(0.05, 14.0)),
        Arm(
            name="scan_chunks:scan",
            quick=(),
            full=(8,),
            hint=(0.05, 14.0),
            label='scan_chunks, mode="scan"',
        ),
        Arm(
            name="scan_chunks:unit",
            quick=(),
            full=(2, 8),
            hint=(2.3, 11.0),
            label='scan_chunks, mode="unit"',
        ),
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


def words(workload: str, arm: str) -> str:
    """What an arm is, in plain words; its name where the workload is not one of these."""
    return WORKLOADS[workload].arm(arm).words if workload in WORKLOADS else arm
