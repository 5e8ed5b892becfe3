"""One sample: runs one arm at one size in this process and writes what it measured.

Started by `harness.runner`, once per sample, in a fresh process:

    python bench/sample.py SOURCE ARM N OUT_DIR

It leaves `OUT_DIR/sample.json` and, for arms that return values, `OUT_DIR/values.npz`.
"""

import importlib.util
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness import environment, memory, programs, stages, values
from harness.registry import ArmTable, Call

STEADY_RUNS = 15
STEADY_SECONDS = 0.5


def main(source: str, arm: str, n: str, out: str) -> None:
    """Measures and writes."""
    call = load_arms(Path(source))[arm](int(n))
    start_backend()
    result, leaves = measure(call)
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    result["cache_files"] = sum(1 for _ in Path(cache).rglob("*")) if cache else 0
    result["settings"] = environment.read_back()
    if call.compare and call.runs:
        result["digest"] = values.digest(leaves)
        values.save(Path(out) / "values.npz", leaves)
    Path(out, "sample.json").write_text(json.dumps(result))


def load_arms(source: Path) -> ArmTable:
    """The `ARMS` of a workload's file."""
    spec = importlib.util.spec_from_file_location("workload", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["workload"] = module
    spec.loader.exec_module(module)
    return module.ARMS


def start_backend() -> None:
    """Brings up the backend and XLA's threads, which would else be charged to the arm."""
    jax.block_until_ready(jax.jit(lambda x: x + 1)(np.float32(0)))


def measure(call: Call) -> tuple[dict[str, Any], values.Leaves]:
    """The cold call with its stages, then the steady runs, then the programs."""
    before = programs.live_executables()
    with stages.listening() as log, memory.watching() as cold_memory:
        start, start_cpu = time.perf_counter(), time.process_time()
        out = call.function(*call.args)
        if call.runs:
            jax.block_until_ready(out)
        end, end_cpu = time.perf_counter(), time.process_time()
    leaves = to_leaves(out if call.pick is None else call.pick(out)) if call.runs else []
    known = {id(executable) for executable in before}
    result = asdict(log.stages(start, end)) | {
        "cold_cpu": end_cpu - start_cpu,
        "peak_growth": cold_memory.growth,
        "peak_exact": cold_memory.exact,
        "output_bytes": sum(leaf.nbytes for _, leaf in leaves),
    }
    described = programs.describe([e for e in programs.live_executables() if id(e) not in known])
    result |= {
        "hlo_instructions": described.instructions,
        "live_programs": described.live,
        "fingerprint": described.fingerprint,
    }
    del out
    return result | (steady(call) if call.runs else {}), leaves


def steady(call: Call) -> dict[str, Any]:
    """Warm calls: their seconds, and what one of them takes in memory beyond the arguments."""
    with memory.watching() as run_memory:
        jax.block_until_ready(call.function(*call.args))
    seconds: list[float] = []
    while len(seconds) < STEADY_RUNS and sum(seconds) < STEADY_SECONDS:
        start = time.perf_counter()
        jax.block_until_ready(call.function(*call.args))
        seconds.append(time.perf_counter() - start)
    return {"steady": seconds, "run_peak_growth": run_memory.growth}


def to_leaves(out: Any) -> values.Leaves:
    """Leaves by path, as NumPy arrays; keys as the words they are made of."""
    leaves = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(out)[0]:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        leaves.append((jax.tree_util.keystr(path), np.asarray(leaf)))
    return leaves


if __name__ == "__main__":
    main(*sys.argv[1:])
