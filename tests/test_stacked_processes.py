"""`stacked_init` under `jax.distributed`: two processes on this machine, two devices each."""

import pathlib
import socket
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parent / "processes" / "stacked_init.py"
PROCESSES = 2


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_each_process_makes_its_own_shards():
    port = str(free_port())
    running = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(process), str(PROCESSES), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(PROCESSES)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    for number, (process, output) in enumerate(zip(running, outputs, strict=True)):
        assert process.returncode == 0, output
        assert f"process {number}: 48 shards equal" in output
