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

_LAYERS = Workload(
    name="layers",
    summary="an AdamW step of a Flax linen transformer, width 32",
    unit="blocks",
    source=HERE / "layers.py",
    reference="jit",
    arms=(
        Arm(name="jit", quick=(24,), full=(1, 24, 48), hint=(0.5, 4.0), label="as written"),
        Arm(name="fold", quick=(), full=(24, 48), hint=(0.5, 5.0), label="fold"),
        Arm(
            name="packed",
            quick=(24,),
            full=(24, 48, 96),
            hint=(0.12, 5.0),
            label="fold, state packed",
        ),
        Arm(
            name="nn.scan",
            quick=(24,),
            full=(24, 48, 96),
            hint=(0.01, 6.0),
            label="nn.scan by hand, state stacked",
        ),
        Arm(
            name="marked",
            quick=(),
            full=(24, 48),
            hint=(0.4, 5.0),
            label="as written, block in nn.jit",
        ),
        Arm(
            name="marked+packed",
            quick=(),
            full=(24, 48),
            hint=(0.1, 5.0),
            label="block in nn.jit, folded, state packed",
        ),
    ),
)

_LAYERS_WIDE = Workload(
    name="layers-wide",
    summary="an AdamW step of a Flax linen transformer, width 128",
    unit="blocks",
    source=HERE / "layers_wide.py",
    reference="jit",
    arms=_LAYERS.arms,
)

_RESIDUAL = Workload(
    name="residual",
    summary="the gradient of a stack of residual MLPs, in the caller's layout",
    unit="layers",
    source=HERE / "residual.py",
    reference="jit",
    may_match=(("jit", "fold"),),  # few layers aren't worth folding
    arms=(
        Arm(name="jit", quick=(24,), full=(24,), hint=(0.4, 3.0), label="as written"),
        Arm(name="fold", quick=(24,), full=(24,), hint=(0.05, 4.0)),
        Arm(name="lax.scan", quick=(24,), full=(24,), hint=(0.0, 6.0), label="lax.scan by hand"),
    ),
)

_GAUSSIANS = Workload(
    name="gaussians",
    summary="the likelihood of a mixture of Gaussians and its gradient",
    unit="Gaussians",
    source=HERE / "gaussians.py",
    reference="jit",
    arms=(
        Arm(name="jit", quick=(10,), full=(10, 40), hint=(1.0, 4.0), label="as written"),
        Arm(name="fold", quick=(10,), full=(10, 40), hint=(0.1, 6.0)),
        Arm(
            name="fold-first",
            quick=(),
            full=(10, 40),
            hint=(0.1, 6.0),
            label="fold before differentiating",
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
        _LAYERS,
        _LAYERS_WIDE,
        _RESIDUAL,
        _GAUSSIANS,
    )
}

# What `--preset` runs unless `--workload` says otherwise.
PRESETS: dict[str, tuple[str, ...]] = {
    "quick": ("init", "chunks"),
    "full": ("init", "chunks", "layers", "gaussians", "linen", "nnx", "equinox", "haiku"),
}


def words(workload: str, arm: str) -> str:
    """What an arm is, in plain words; its name where the workload is not one of these."""
    return WORKLOADS[workload].arm(arm).words if workload in WORKLOADS else arm
