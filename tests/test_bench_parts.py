"""The parts of the bench that need no process: values, stages, records, checks, figures, tables."""

import dataclasses
import io
import json

import fake_workloads
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness import baseline, checks, figures, plot, records, runner, stages, table, values
from harness.records import Record, Sample
from harness.registry import Cell
from workloads import PRESETS, WORKLOADS


def sample(workload="good", arm="double", n=3, status="ok", **measures) -> Sample:
    """A sample, with just the measures a test is about."""
    reason = "" if status == "ok" else "because"
    return Sample(workload=workload, arm=arm, n=n, status=status, reason=reason, measures=measures)


def record(*samples: Sample, **machine) -> Record:
    """A record of these."""
    return Record(machine=machine, samples=samples)


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("start", [1.0, -1.0, 0.0])
def test_distance_counts_representable_numbers(dtype, start):
    a = np.asarray([start], dtype)
    b = a
    for _ in range(3):
        b = np.nextafter(b, np.asarray([2], dtype))
    found = values.distance({"x": a}, {"x": b})
    assert found.ulp == 3
    assert found.path == "x"
    assert not found.equal


def test_distance_across_zero_and_from_end_to_end():
    tiny = np.nextafter(np.float32(0), np.float32(1))
    assert values.distance({"x": np.array([-tiny])}, {"x": np.array([tiny])}).ulp == 2
    ends = np.array([-np.inf]), np.array([np.inf])
    assert values.distance({"x": ends[0]}, {"x": ends[1]}).ulp == pytest.approx(2**64, rel=0.01)


def test_signed_zeros_are_not_equal_bits():
    leaves = [("x", np.array([0.0]))], [("x", np.array([-0.0]))]
    assert values.digest(leaves[0]) != values.digest(leaves[1])
    assert not values.distance(dict(leaves[0]), dict(leaves[1])).equal


def test_distance_names_the_worst_leaf_and_scales_by_its_largest():
    a = {"x": np.array([1, 2], np.float32), "y": np.array([1e-9, 1024], np.float32)}
    b = {"x": np.array([1, 2], np.float32), "y": np.array([-1e-9, 1024], np.float32)}
    found = values.distance(a, b)
    assert found.path == "y"
    assert found.ulp > 1e6
    assert found.scaled_ulp < 1e-3


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({}, "other leaves: x"),
        ({"x": np.zeros(3)}, "other type: x"),
        ({"x": np.zeros(2, np.float32)}, "other type: x"),
    ],
)
def test_incomparable_results_say_why(other, reason):
    assert str(values.distance({"x": np.zeros(2)}, other)) == reason


def test_integers_differ_without_a_distance():
    assert values.distance({"x": np.array([1])}, {"x": np.array([2])}).ulp == np.inf


@pytest.mark.parametrize(
    "leaf",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.ones((2, 1), ml_dtypes.bfloat16),
        np.asarray(True),
        np.zeros((0, 3), np.int8),
        np.asarray(7, np.uint32),
    ],
)
def test_values_survive_a_file(tmp_path, leaf):
    values.save(tmp_path / "v.npz", [("['a'].b", leaf), ("c", leaf)])
    found = values.load(tmp_path / "v.npz")
    assert list(found) == ["['a'].b", "c"]
    assert values.digest(list(found.items())) == values.digest([("['a'].b", leaf), ("c", leaf)])


# -- stages ----------------------------------------------------------------------------------------

moments = st.integers(0, 40).map(float)


@given(st.lists(st.tuples(moments, moments).map(sorted).map(tuple), max_size=8))
def test_covered_is_the_measure_of_the_union(intervals):
    seconds = range(10, 30)
    expected = sum(any(a <= s and s + 1 <= b for a, b in intervals) for s in seconds)
    assert stages.covered(intervals, 10.0, 30.0) == expected


def test_stages_add_up_and_overlapping_compiles_count_once():
    log = stages.Log(
        intervals={
            stages.TRACE: [(0.0, 4.0), (1.0, 2.0)],
            stages.LOWER: [(4.0, 5.0)],
            stages.COMPILE: [(5.0, 8.0), (6.0, 9.0)],
        },
        cache_hits=1,
    )
    found = log.stages(0.0, 10.0)
    parts = (found.trace, found.lower, found.compile, found.first_run)
    assert parts == (4.0, 1.0, 4.0, 1.0)
    assert found.compile_sum == 6.0
    assert found.programs == 1


@pytest.mark.quick
def test_listening_hears_one_compile_and_then_none():
    double = jax.jit(lambda x: x + x)
    x = jnp.ones(7)
    for expected in (1, 0):
        with stages.listening() as log:
            double(x).block_until_ready()
        found = log.stages(0.0, 1.0)
        assert found.programs == expected
        assert bool(log.intervals.get(stages.TRACE)) == bool(expected)


# -- records ---------------------------------------------------------------------------------------


def test_record_survives_a_file(tmp_path):
    kept = Record(
        machine={"processor": "x"},
        samples=(sample(cold=1.5, steady=[0.1, 0.2]), sample(status="timeout")),
        problems=("one",),
        figures=({"name": "f", "measured": None},),
        interrupted=True,
    )
    file = tmp_path / "new" / "r.json"
    records.save(file, kept)
    assert records.load(file) == kept
    assert [entry.name for entry in file.parent.iterdir()] == ["r.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}'])
def test_other_files_are_refused(tmp_path, text):
    file = tmp_path / "r.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"not a record|schema 99"):
        records.load(file)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "r.json"
    records.save(file, record())
    with pytest.raises(TypeError):
        records.save(file, record(sample(cold=object())))
    assert records.load(file) == record()
    assert len(list(tmp_path.iterdir())) == 1


def test_median_ignores_failures_and_takes_lists_by_their_median():
    kept = record(sample(cold=1.0), sample(cold=3.0), sample(status="crash"), sample(cold=9.0))
    assert kept.median("good", "double", 3, "cold") == 3.0
    assert record(sample(steady=[1.0, 5.0, 9.0])).median("good", "double", 3, "steady") == 5.0
    assert kept.median("good", "nothing", 3, "cold") is None


# -- runner ----------------------------------------------------------------------------------------


def test_samples_are_interleaved():
    workload = fake_workloads.WORKLOADS["good"]
    first, second = workload.arms
    cells = [
        Cell(workload=workload, arm=first, n=3, repeat=3),
        Cell(workload=workload, arm=second, n=3, repeat=2),
    ]
    order = [(index, cell.arm.name) for index, cell in runner.schedule(cells)]
    assert order == [
        (0, "double"),
        (0, "otherwise"),
        (1, "double"),
        (1, "otherwise"),
        (2, "double"),
    ]


# -- checks ----------------------------------------------------------------------------------------


def test_an_arm_must_return_the_same_values_each_time():
    found = checks.problems([sample(digest="a"), sample(digest="b")], fake_workloads.WORKLOADS)
    assert found == ["good, n=3: double returned other values each time"]


def test_differing_settings_and_a_used_cache_are_problems():
    samples = [sample(settings={"x": 1}, cache_files=0), sample(settings={"x": 2}, cache_files=4)]
    found = checks.problems(samples, fake_workloads.WORKLOADS)
    assert len(found) == 2
    assert "cache was in use" in found[0]
    assert "x was 1 and 2" in found[1]


def test_equal_programs_may_be_allowed():
    workload = fake_workloads.WORKLOADS["twins"]
    twins = [sample("twins", arm, fingerprint="f", programs=1) for arm in ("double", "twin")]
    assert checks.problems(twins, {"twins": workload})
    allowed = dataclasses.replace(workload, may_match=(("double", "twin"),))
    assert checks.problems(twins, {"twins": allowed}) == []


# -- baseline --------------------------------------------------------------------------------------

CALM = {"processor": "p", "cores": 2, "versions": {"jaxlib": "1"}}


def times(*seconds: float, **machine) -> Record:
    """Samples of one cell that took so long."""
    return record(*(sample(cold=s, settings={}) for s in seconds), **(CALM | machine))


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        (times(10, 10, 10), times(13, 13, 13), True),
        (times(10, 10, 10), times(12, 12, 12), False),  # within the ratio
        (times(9, 10, 14), times(13, 13, 13), False),  # within the spread
        (times(0.01, 0.01, 0.01), times(0.05, 0.05, 0.05), False),  # below the floor
        (times(10), times(13), False),  # one sample says little
        (times(10), times(17), True),
        (times(13, 13, 13), times(10, 10, 10), False),  # better
        (times(10, 10, 10), times(20, 20, 20, processor="q"), False),  # another machine
        (times(10, 10, 10), record(sample(status="timeout"), **CALM), True),
        (record(sample(status="timeout"), **CALM), times(10, 10, 10), False),
    ],
)
def test_regressions_in_time(old, new, worse):
    assert any(change.worse for change in baseline.compare(old, new)) == worse


@pytest.mark.parametrize(
    ("measure", "old", "new", "worse"),
    [
        ("programs", 3, 4, True),
        ("programs", 4, 3, False),
        ("hlo_instructions", 1000, 1040, False),
        ("hlo_instructions", 1000, 1100, True),
        ("peak_growth", 100e6, 120e6, False),
        ("peak_growth", 100e6, 140e6, True),
        ("peak_growth", 1e6, 9e6, False),
    ],
)
def test_regressions_in_size(measure, old, new, worse):
    found = [record(sample(**{measure: value}), **CALM) for value in (old, new)]
    assert any(change.worse for change in baseline.compare(*found)) == worse


def test_lost_equality_is_a_regression():
    old = record(dataclasses.replace(sample(), distance="equal bits"))
    new = record(dataclasses.replace(sample(), distance="1 ULP"))
    assert [change.worse for change in baseline.compare(old, new)] == [True]
    assert baseline.compare(old, old) == []


# -- figures ---------------------------------------------------------------------------------------


def test_figures_hold_or_not():
    kept = record(
        sample(arm="double", cold=40.0, compile=1.0),
        sample(arm="otherwise", cold=2.0, run_peak_growth=90, output_bytes=50),
        sample(arm="double", n=9, compile=1.2),
    )
    less = figures.less(kept, "good", 3, "double", "otherwise", "cold", 20)
    assert (less.measured, less.holds) == (20.0, True)
    grown = figures.growth(kept, "good", "double", (3, 9), "compile", 1.15)
    assert (grown.measured, grown.holds) == (pytest.approx(1.2), False)
    share = figures.share(kept, ("good", "otherwise", 3), "run_peak_growth", lambda b: 2 * b)
    assert (share.measured, share.holds) == (0.9, True)
    missing = figures.less(kept, "good", 4, "double", "otherwise", "cold", 20)
    assert (missing.measured, missing.holds) == (None, False)
    assert figures.less(kept, "good", 3, "double", "otherwise", "cold").holds is None
    json.dumps([figure.as_data() for figure in (less, grown, share, missing)])


def test_figures_say_how_far_samples_are_apart():
    kept = record(
        *(sample(arm="double", cold=cold) for cold in (9.0, 10.0, 14.0)),
        *(sample(arm="otherwise", cold=cold) for cold in (1.0, 2.0)),
    )
    found = figures.less(kept, "good", 3, "double", "otherwise", "cold")
    assert found.measured == pytest.approx(10 / 1.5)
    assert (found.low, found.high, found.samples) == (4.5, 14.0, 2)


def test_figures_name_arms_in_plain_words():
    name = figures.less(record(), "init", 32, "jit", "stacked_init", "cold").name
    assert name == ("init, 32 layers: cold call of stacked_init, times less than jax.jit(init)")


# -- what is shown ---------------------------------------------------------------------------------


def shown(kept: Record, width: int) -> str:
    """The tables as text."""
    out = io.StringIO()
    table.print_record(Console(width=width, file=out), kept, fake_workloads.WORKLOADS)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 170])
def test_losses_and_failures_are_shown_like_wins(width):
    text = shown(
        record(
            sample(arm="double", n=3, cold=2.0),
            sample(arm="otherwise", n=3, cold=3.0),
            sample(arm="double", n=4, cold=3.0),
            sample(arm="otherwise", n=4, cold=2.0),
            sample(arm="double", n=5, status="timeout"),
        ),
        width,
    )
    assert "1.5x SLOWER" in text
    assert "1.5x faster" in text
    assert "TIMEOUT" in text
    assert "double, n=5: 1 of 1 samples failed: because" in text


def full(arm: str, cold: float) -> Sample:
    """A sample with everything that the table shows."""
    stages = dict.fromkeys(("trace", "lower", "compile", "first_run", "compile_sum"), cold / 4)
    sizes = {"peak_growth": 4e9, "programs": 12, "hlo_instructions": 160_490}
    return sample(arm=arm, cold=cold, cold_cpu=cold, steady=[0.2, 0.3, 0.4, 0.5], **stages, **sizes)


@pytest.mark.parametrize("repeat", [1, 3])
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_tables_fit_the_terminal_and_lose_nothing(width, repeat):
    samples = [full(arm, 12.5 + i) for arm in ("double", "otherwise") for i in range(repeat)]
    lines = shown(record(*samples), width).splitlines()
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "…" not in text
    for heading in ("cold", "trace", "first run", "steady ms", "HLO", "values"):
        assert heading in text
    assert ("cpu" in text) == (width >= table.WIDE)
    assert text.count("160,490") == 2
    assert ("lowest" in text) == (repeat > 1)


def test_ranges_that_overlap_are_called_parity():
    def of(*otherwise):
        theirs = [full("double", cold) for cold in (10.0, 12.0, 14.0)]
        return shown(record(*theirs, *(full("otherwise", cold) for cold in otherwise)), 170)

    assert "parity" in of(8.0, 9.0, 11.0)
    assert "1.5x faster" in of(7.0, 8.0, 9.0)
    assert "2.0x SLOWER" in of(24.0)


def test_steady_shows_its_spread():
    assert table.steady([sample(steady=[0.001, 0.002, 0.003, 0.004, 0.005])]) == "3 ±1.5"
    assert table.steady([sample(steady=[0.001])]) == "1"
    assert table.steady([sample()]) == "-"


def test_plot_draws_a_line_per_arm(tmp_path):
    kept = record(*(sample(arm=a, n=n, compile=n) for a in ("double", "otherwise") for n in (3, 5)))
    plot.save(tmp_path / "p.png", kept, fake_workloads.WORKLOADS)
    assert (tmp_path / "p.png").stat().st_size > 10_000


# -- the catalogue ---------------------------------------------------------------------------------


def test_catalogue_is_consistent():
    for name, workload in WORKLOADS.items():
        arms = {arm.name for arm in workload.arms}
        named = {a for group in (*workload.equal, *workload.may_match) for a in group}
        assert workload.name == name
        assert workload.source.exists()
        assert {workload.reference, *named} <= arms
    assert all(name in WORKLOADS for names in PRESETS.values() for name in names)
