"""One sample's process: started apart from everything, stopped whole.

The process leads a group of its own, so that whatever it starts ends with it, and Ctrl-C at the
terminal reaches the parent alone, which then decides. It gets an empty cache folder with the cache
turned off (a cache hit would be measured as a compile) and the caller's `XLA_FLAGS`, which it reads
back.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.environment import ROOT
from harness.records import Sample
from harness.registry import Cell

SCRIPT = ROOT / "bench" / "sample.py"
POLL_SECONDS = 0.05
LAST_WORDS = 200


def run(cell: Cell, folder: Path, tick: Callable[[float], None] = lambda _: None) -> Sample:
    """Runs one sample and returns its outcome, whatever that is.

    Args:
        cell: What to run.
        folder: An empty folder of its own; `values.npz` is left there.
        tick: Called with the seconds since the start while waiting.
    """
    cache = folder / "cache"
    cache.mkdir(parents=True)
    start = time.monotonic()
    with open(folder / "stderr", "w+") as stderr, _started(cell, folder, cache, stderr) as process:
        while (code := process.poll()) is None and time.monotonic() - start < cell.timeout:
            tick(time.monotonic() - start)
            time.sleep(POLL_SECONDS)
    status, reason, measures = _outcome(code, folder, cell.timeout)
    return Sample(
        workload=cell.workload.name,
        arm=cell.arm.name,
        n=cell.n,
        status=status,
        reason=reason,
        wall=time.monotonic() - start,
        measures=measures,
    )


@contextmanager
def _started(cell: Cell, folder: Path, cache: Path, stderr) -> Iterator[subprocess.Popen]:
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    command = [sys.executable, str(SCRIPT), str(cell.workload.source)]
    command += [cell.arm.name, str(cell.n), str(folder)]
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _outcome(code: int | None, folder: Path, timeout: float) -> tuple[str, str, dict[str, Any]]:
    if code is None:
        return "timeout", f"stopped after {timeout:.0f} s", {}
    if code < 0:
        return "killed", f"killed by {signal.Signals(-code).name}", {}
    if code > 0:
        words = (folder / "stderr").read_text(errors="replace").strip().splitlines()
        last = words[-1][:LAST_WORDS] if words else "no message"
        return "crash", f"exit {code}: {last}", {}
    try:
        return "ok", "", json.loads((folder / "sample.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        return "crash", f"wrote no result: {error}"[:LAST_WORDS], {}
