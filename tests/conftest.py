"""Settings every test runs under, chosen so that a sloppy program fails here first.

JAX is configured before any backend exists: eight CPU devices (sharding is tested without a
cluster), strict dtype promotion, JAX's own checks on, and no persistent compilation cache, since a
cache hit would hide a compile from the tests that count them. Warnings are errors (pyproject.toml).
"""

import os
from collections.abc import Iterator

import hypothesis
import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_enable_checks", True)
jax.config.update("jax_enable_compilation_cache", False)

# Compiling inside a property makes its time jump by orders of magnitude: no deadline. In CI the
# examples are the same each time, so that a red run is about the change.
hypothesis.settings.register_profile("default", deadline=None, max_examples=25)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--run-slow`."""
    parser.addoption("--run-slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips slow tests unless they were asked for."""
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="slow: `make test-slow` runs it")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _dtype_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives tests marked `standard_promotion` JAX's usual promotion.

    Flax, Haiku and Optax mix dtypes in their own code; the mark lets a test run them as users do.
    """
    if request.node.get_closest_marker("standard_promotion"):
        with jax.numpy_dtype_promotion("standard"):
            yield
    else:
        yield


@pytest.fixture
def x64() -> Iterator[None]:
    """Runs one test with 64-bit types enabled."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", autouse=True)
def _drop_executables() -> Iterator[None]:
    """Drops a module's compiled programs when it is done, so that memory stays bounded."""
    yield
    jax.clear_caches()
