"""Runs `bench/compare.py` as a user does, on fake workloads."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import records

ROOT = Path(__file__).parents[1]
FAKES = Path(__file__).parent / "fake_workloads.py"
COMMAND = [sys.executable, str(ROOT / "bench" / "compare.py"), "--extra", str(FAKES)]


def compare(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command and returns how it ended."""
    return subprocess.run(
        [*COMMAND, *options],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess, Path]:
    """One run without faults, with its record and its picture."""
    folder = tmp_path_factory.mktemp("good")
    options = ["--json", str(folder / "out.json"), "--plot", str(folder / "out.png")]
    done = compare("--workload", "good", *options, XLA_FLAGS="--xla_backend_optimization_level=1")
    return done, folder


@pytest.mark.quick
def test_a_good_run_ends_well(good):
    done, folder = good
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal bits" in done.stdout
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.quick
def test_record_holds_every_measure(good):
    record = records.load(good[1] / "out.json")
    assert {sample.key for sample in record.samples} == {
        ("good", "double", 3),
        ("good", "otherwise", 3),
    }
    for sample in record.samples:
        measures = sample.measures
        assert measures["programs"] == 1
        assert measures["live_programs"] == 1
        assert measures["hlo_instructions"] >= 2
        assert measures["output_bytes"] == 12
        assert measures["cache_files"] == 0
        assert measures["peak_growth"] > 0
        assert len(measures["steady"]) >= 1
        stages = sum(measures[stage] for stage in ("trace", "lower", "compile", "first_run"))
        assert stages == pytest.approx(measures["cold"])
    for name in ("processor", "load_before", "commit", "versions", "command", "date"):
        assert record.machine[name]


def test_flags_are_read_back_from_the_compiler(good):
    for sample in records.load(good[1] / "out.json").samples:
        assert sample.measures["settings"]["xla_backend_optimization_level"] == 1
        assert sample.measures["settings"]["jax_enable_compilation_cache"] is False


def test_same_result_again_is_no_regression(good):
    options = ["--workload", "good", "--baseline", str(good[1] / "out.json")]
    done = compare(*options, XLA_FLAGS="--xla_backend_optimization_level=1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_regression_exits_with_3(good, tmp_path):
    data = json.loads((good[1] / "out.json").read_text())
    for sample in data["samples"]:
        sample["measures"]["programs"] = 0
    better = tmp_path / "better.json"
    better.write_text(json.dumps(data))
    done = compare("--workload", "good", "--arm", "double", "--baseline", str(better))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "WORSE: good, double, n=3: programs 0 -> 1" in done.stdout


def test_differing_values_exit_with_1():
    done = compare("--workload", "wrong")
    assert done.returncode == 1
    assert "double and nearly must agree bit for bit and differ by 1 ULP" in done.stdout


def test_differing_values_that_may_differ_are_measured():
    done = compare("--workload", "loose")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 ULP" in done.stdout


def test_identical_arms_are_an_error():
    done = compare("--workload", "twins")
    assert done.returncode == 1
    assert "double and twin compiled the same programs" in done.stdout


def test_crashes_are_results_with_a_reason():
    done = compare("--workload", "broken")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exit 1: RuntimeError: out of cheese" in done.stdout
    assert "killed by SIGKILL" in done.stdout
    assert "reference" in done.stdout


def test_a_crash_that_leaves_equality_open_exits_with_1():
    done = compare("--workload", "bound", "--arm", "crash")
    assert done.returncode == 1
    assert "crash could not be compared" in done.stdout


def test_timeout_is_a_result_and_ends_the_whole_group(tmp_path):
    pid_file = tmp_path / "pid"
    options = ["--workload", "slow", "--arm", "sleep", "--timeout", "8"]
    done = compare(*options, FAKE_PID_FILE=str(pid_file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped after 8 s" in done.stdout
    assert _gone(int(pid_file.read_text()))


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_finished_samples(tmp_path, signal_number):
    pid_file, out = tmp_path / "pid", tmp_path / "out.json"
    process = subprocess.Popen(
        [*COMMAND, "--workload", "slow", "--json", str(out)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FAKE_PID_FILE": str(pid_file)},
    )
    _wait_for(pid_file)  # the first arm is done, the second sleeps
    process.send_signal(signal_number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    record = records.load(out)
    assert record.interrupted
    assert [sample.key for sample in record.samples] == [("slow", "double", 3)]
    assert "Interrupted" in printed
    assert "double" in printed
    assert _gone(int(pid_file.read_text()))


def test_interrupt_keeps_finished_samples_without_being_asked(tmp_path):
    pid_file, kept = tmp_path / "pid", tmp_path / "kept"
    process = subprocess.Popen(
        [*COMMAND, "--workload", "slow", "--keep", str(kept)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FAKE_PID_FILE": str(pid_file)},
    )
    _wait_for(pid_file)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    (file,) = kept.iterdir()
    assert str(file) in printed
    assert [sample.key for sample in records.load(file).samples] == [("slow", "double", 3)]


def test_an_interrupt_before_the_first_sample_keeps_nothing(tmp_path):
    pid_file, kept = tmp_path / "pid", tmp_path / "kept"
    process = subprocess.Popen(
        [*COMMAND, "--workload", "slow", "--arm", "sleep", "--keep", str(kept)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FAKE_PID_FILE": str(pid_file)},
    )
    _wait_for(pid_file)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not kept.exists()


@pytest.mark.parametrize("columns", ["80", "120"])
def test_everything_printed_fits_the_terminal(columns):
    done = compare("--workload", "good", COLUMNS=columns)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= int(columns), max(lines, key=len)
    assert "2 samples in turn" in lines[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workload", "nonsense"], "no workload 'nonsense'"),
        (["--workload", "good", "--arm", "nonsense"], "no arm nonsense"),
        (["--preset", "nonsense"], "quick, full"),
        (["--workload", "good", "--baseline", "/nonexistent.json"], "nonexistent"),
    ],
)
def test_wrong_options_say_so(options, message):
    done = compare(*options, COLUMNS="200")
    assert done.returncode == 2
    assert message in done.stderr


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline, f"{file} was never written"
        time.sleep(0.05)


def _gone(pid: int) -> bool:
    """Whether a process ended, with a moment of grace for the kernel."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False
