"""Where and under which settings a number was taken.

Settings are read back from the process that took it, not copied from what was asked for: a wrapper
that overwrites `XLA_FLAGS` once made an on/off comparison compare on with on.
"""

import datetime
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("jax", "jaxlib", "numpy", "compilecut", "equinox", "flax", "dm-haiku", "optax")
CONFIG = (
    "jax_compilation_cache_dir",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_enable_checks",
    "jax_enable_compilation_cache",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_platforms",
    "jax_threefry_partitionable",
)
DEBUG_OPTIONS = (
    "xla_backend_optimization_level",
    "xla_cpu_enable_fast_math",
    "xla_disable_hlo_passes",
    "xla_enable_hlo_passes_only",
    "xla_llvm_disable_expensive_passes",
)


def machine() -> dict[str, Any]:
    """The run's surroundings, read once by the parent before anything is started."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *(_from_root(arg) for arg in sys.argv)]),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_before": load(),
        "system": f"{platform.system()} {platform.machine()}",
        "commit": commit(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in LIBRARIES},
    }


def read_back() -> dict[str, Any]:
    """The settings that hold in this process; call it in the sample, once JAX is up."""
    import jax

    settings: dict[str, Any] = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    for name in CONFIG:
        settings[name] = getattr(jax.config, name, None)
    # Another folder each time: what matters is that there is one.
    settings["jax_compilation_cache_dir"] = bool(settings["jax_compilation_cache_dir"])
    settings["backend"] = jax.default_backend()
    settings["devices"] = jax.device_count()
    return settings | _debug_options()


def _debug_options() -> dict[str, Any]:
    """XLA's options as the compiler parsed them, where jaxlib lets us look."""
    try:
        from jaxlib import xla_client

        options = xla_client.CompileOptions().executable_build_options.debug_options
        return {name: getattr(options, name) for name in DEBUG_OPTIONS}
    except (ImportError, AttributeError) as error:
        return {"debug_options": f"not readable: {error}"}


def load() -> list[float]:
    """How many processes wanted a core, over the last 1, 5 and 15 minutes."""
    return [round(average, 2) for average in os.getloadavg()]


def processor() -> str:
    """The processor's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str:
    """The commit this checkout stands at, marked where files differ from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    return f"{head}-dirty" if _git("status", "--porcelain") else head


def _git(*args: str) -> str:
    try:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _from_root(arg: str) -> str:
    return os.path.relpath(arg, ROOT) if os.path.isabs(arg) and arg.startswith(str(ROOT)) else arg
