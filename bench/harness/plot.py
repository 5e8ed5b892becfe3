"""A picture of a run: compile seconds against n, one panel a workload, one line an arm."""

from collections.abc import Mapping
from pathlib import Path

from harness.records import Record, numbers
from harness.registry import Workload

MARKERS = "osD^vPX*"


def save(file: Path, record: Record, workloads: Mapping[str, Workload]) -> None:
    """Writes a PNG. Bars reach from the fastest to the slowest sample."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [w for w in workloads.values() if any(s.workload == w.name for s in record.samples)]
    size = (1 + 4.5 * max(len(shown), 1), 4.2)
    figure, axes = pyplot.subplots(1, max(len(shown), 1), figsize=size, squeeze=False)
    for panel, workload in zip(axes[0], shown, strict=False):
        _draw(panel, record, workload)
    versions = record.machine.get("versions", {})
    footer = f"{record.machine.get('processor', '')}, jax {versions.get('jax', '?')}"
    figure.text(0.01, 0.01, footer, fontsize=7, color="grey")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _draw(panel, record: Record, workload: Workload) -> None:
    for arm, marker in zip(workload.arms, MARKERS * 2, strict=False):
        sizes = sorted({s.n for s in record.samples if s.key[:2] == (workload.name, arm.name)})
        points = [(n, numbers(record.cell(workload.name, arm.name, n), "compile")) for n in sizes]
        points = [(n, sorted(seconds)) for n, seconds in points if seconds]
        if not points:
            continue
        middles = [seconds[len(seconds) // 2] for _, seconds in points]
        below = [m - seconds[0] for m, (_, seconds) in zip(middles, points, strict=True)]
        above = [seconds[-1] - m for m, (_, seconds) in zip(middles, points, strict=True)]
        where = [n for n, _ in points]
        panel.errorbar(where, middles, yerr=[below, above], marker=marker, label=arm.words)
    panel.set_title(workload.name)
    panel.set_xlabel(f"n ({workload.unit})")
    panel.set_ylabel("compile seconds")
    panel.set_yscale("log")
    panel.grid(visible=True, which="both", alpha=0.25)
    if panel.get_legend_handles_labels()[1]:
        panel.legend()
