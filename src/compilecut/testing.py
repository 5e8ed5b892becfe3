"""Assertions and counts for tests of a rewriting: same values, smaller program, fewer compiles.

For whoever rewrites a JAX program (folds its layers, stacks its initialisers, pads its batches)
and wants that held by tests. Values are compared bit for bit; size is counted in equations and HLO
instructions; work is counted in programs compiled. None of these depends on how busy the machine
is, so none of these tests is flaky. Seconds belong in a benchmark.

Two programs that differ in structure may round differently although both are right: XLA fuses
across what was a boundary, contracts `a * b + c` and simplifies `(x * c) * d`.
[`assert_equivalent`][compilecut.testing.assert_equivalent] therefore compiles both under
[`STRICT_COMPILER_OPTIONS`][compilecut.testing.STRICT_COMPILER_OPTIONS], under which XLA does what
was written and equality can be demanded. There is no tolerance to tune.

The comparison itself is in `compilecut._bits`, running and counting in `compilecut._testing`.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from . import _testing
from ._bits import Difference as Difference
from ._bits import differences
from ._bits import ulp_distance as ulp_distance
from ._errors import CheckError
from ._jaxpr import sub_jaxprs
from ._testing import CompileCounts as CompileCounts

__all__ = [
    "STRICT_COMPILER_OPTIONS",
    "CompileCounts",
    "Difference",
    "DifferenceError",
    "assert_bit_identical",
    "assert_equivalent",
    "count_compiles",
    "count_equations",
    "count_hlo_instructions",
    "ulp_distance",
]

_STRICT_OFF = (
    "algsimp",  # (x * c) * d becomes x * (c * d), across blocks in an unrolled program only
    "fusion",  # LLVM contracts a * b + c within a fusion, and fusions differ with the structure
    "convolution-canonicalization",  # sees the convolutions outside of loops alone
    "tree_reduction_rewriter",  # a sum of many becomes a sum of sums, but not everywhere alike
    "small-while-loop-hoisting",  # a small loop becomes one kernel, where LLVM contracts its dots
    "reshape-mover",  # harmless, but without algsimp it never settles: ten times the instructions
)

STRICT_COMPILER_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        # Half the time in LLVM. Without fusions no level changed a bit in any trial.
        "xla_backend_optimization_level": 0,
        "xla_disable_hlo_passes": ",".join(_STRICT_OFF),
        # Or a bfloat16 value stays float32 between blocks, where a loop's carry is rounded.
        "xla_allow_excess_precision": False,
        # Or a dot is split between threads, the sums with it.
        "xla_cpu_multi_thread_eigen": False,
    }
)
"""Options under which XLA on CPU computes what was written, for `lowered.compile(...)`.

```python
import jax
from compilecut.testing import STRICT_COMPILER_OPTIONS

lowered = jax.jit(lambda x: x * 3.3 * 1.7).lower(1.0)
compiled = lowered.compile(compiler_options=dict(STRICT_COMPILER_OPTIONS))
```

They are options of one compilation: no environment variable, no effect on other programs. For
that reason `xla_cpu_max_isa` isn't among them. XLA takes it from the process's flags alone, and a
program without fusions needs it no more: no multiply meets an add in one kernel.

Only names that begin with `xla_cpu_` are special to the CPU, and `assert_equivalent` leaves these
out elsewhere. What the rest is worth on a GPU or TPU has not been measured.
"""


class DifferenceError(CheckError):
    """Two functions give different values.

    Attributes:
        difference: the first leaf that differs, as data.
    """

    def __init__(self, message: str, difference: Difference):
        super().__init__(message)
        self.difference = difference


def assert_bit_identical(
    f: Callable[..., Any],
    g: Callable[..., Any],
    *args: Any,
    static_argnums: Sequence[int] = (),
) -> None:
    """Asserts that two functions return the same bits, run as they would be in earnest.

    Both run jitted under the default compiler options. Structure, dtype, shape and every bit of
    every leaf have to agree: `-0.0` is not `0.0`, a NaN equals a NaN of the same bits, weak types
    are not looked at.

    Args:
        f: a function; what has its own `lower` (a jitted function, `stacked_init(...)`) is called
            as it is.
        g: the function to hold against it.
        *args: what both are called with.
        static_argnums: positions of arguments that are no data, as for `jax.jit`.

    Raises:
        DifferenceError: an `AssertionError` that names the first leaf that differs, the element,
            both values and their distance in ULP.

    Example:
        ```python
        import jax.numpy as jnp
        from compilecut.testing import assert_bit_identical

        assert_bit_identical(lambda x: {"y": x + x}, lambda x: {"y": 2 * x}, jnp.arange(3.0))
        ```

    Sharp edges:
        - A jitted function that donates its arguments leaves nothing for the other one to read.
        - Functions that compute the same in another structure may differ by rounding here; see
          `assert_equivalent`.
    """
    __tracebackhide__ = True
    static = tuple(static_argnums)
    left, right = _testing.run(f, args, static), _testing.run(g, args, static)
    found = next(differences(left, right), None)
    if found is not None:
        raise _different("assert_bit_identical", f, g, found, _ROUNDING)


def assert_equivalent(
    f: Callable[..., Any],
    g: Callable[..., Any],
    *args: Any,
    strict: bool = True,
    max_ulp: int = 0,
    static_argnums: Sequence[int] = (),
) -> None:
    """Asserts that two functions compute the same, whatever XLA would make of their structure.

    Both are compiled under `STRICT_COMPILER_OPTIONS` and have to return the same bits. With
    `strict=False` they are compiled as usual, and floats may be up to `max_ulp` apart.

    Args:
        f: a function, jitted or not.
        g: the function to hold against it.
        *args: what both are called with.
        strict: compile both under the strict options.
        max_ulp: largest distance of two floats that passes, with `strict=False` only. Integers,
            booleans and keys are always equal or not.
        static_argnums: positions of arguments that are no data, as for `jax.jit`.

    Raises:
        DifferenceError: an `AssertionError` that names the first leaf that differs too much, the
            element, both values and their distance in ULP.
        ValueError: `max_ulp` under `strict`, where no tolerance is needed.
        TypeError: a function that compiles its own programs, which the options wouldn't reach.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        from compilecut.testing import assert_equivalent

        def unrolled(scales, x):
            for i in range(4):
                x = jnp.sin(x) * scales[i] + x
            return x

        def scanned(scales, x):
            return jax.lax.scan(lambda x, s: (jnp.sin(x) * s + x, None), x, scales)[0]

        args = jnp.linspace(0.1, 0.7, 4), jnp.arange(5.0)
        assert_equivalent(jax.grad(lambda *a: unrolled(*a).sum()),
                          jax.grad(lambda *a: scanned(*a).sum()), *args)
        ```

    Sharp edges:
        - Strict compilation is for test-sized programs: each operation is a kernel of its own.
        - ULP are relative. Where terms cancel, an error of one rounding is thousands of ULP of
          what is left.
        - XLA computes a function of a literal (`exp(0.1)`) while compiling, with another `exp`
          than at run time. Where one side has a literal and the other an element of an array,
          the last bit may differ; float64 shows it.
        - Strict equality is measured on CPU. Elsewhere it may ask too much.
    """
    __tracebackhide__ = True
    if strict and max_ulp:
        raise ValueError(
            f"`max_ulp={max_ulp}` with `strict=True`: under the strict options a right rewriting "
            "is equal bit for bit. Drop `max_ulp`, or compile as usual with `strict=False`."
        )
    options = _strict_options() if strict else {}
    static = tuple(static_argnums)
    left = _testing.run_compiled(f, args, static, options)
    right = _testing.run_compiled(g, args, static, options)
    found = next((d for d in differences(left, right) if not _tolerable(d, max_ulp)), None)
    if found is not None:
        raise _different("assert_equivalent", f, g, found, _REAL if strict else _ROUNDING)


_ROUNDING = (
    "Programs of different structure may round differently under the default options. "
    "`assert_equivalent(f, g, ...)` compiles both under strict ones and tells rounding from a real "
    "difference."
)
_REAL = (
    "Both were compiled under the strict options, where XLA computes what was written: the two "
    "functions do different arithmetic, or the same in another order. Compare the parts of the "
    "functions that lead to this leaf."
)


def _different(
    assertion: str, f: Callable[..., Any], g: Callable[..., Any], found: Difference, advice: str
) -> DifferenceError:
    sides = f"left is {_testing.describe(f)}, right is {_testing.describe(g)}"
    return DifferenceError(f"`{assertion}` failed: {sides}.\n  {found}\n{advice}", found)


def _tolerable(found: Difference, max_ulp: int) -> bool:
    if not max_ulp or found.max_ulp is None:
        return False
    is_float = jnp.issubdtype(np.asarray(found.left).dtype, np.inexact)
    return bool(is_float) and found.max_ulp <= max_ulp


def _strict_options() -> dict[str, Any]:
    on_cpu = jax.default_backend() == "cpu"
    options = STRICT_COMPILER_OPTIONS.items()
    return {name: value for name, value in options if on_cpu or not name.startswith("xla_cpu_")}


def count_equations(
    f: Callable[..., Any] | jex_core.ClosedJaxpr | jex_core.Jaxpr,
    *args: Any,
    recursive: bool = True,
    primitive: jex_core.Primitive | None = None,
) -> int:
    """Counts the equations of a jaxpr, those in jaxprs inside it too.

    Args:
        f: a function to trace with `args`, or a jaxpr.
        *args: arrays or `jax.ShapeDtypeStruct`s.
        recursive: go into the jaxprs of `jit`, `scan`, `cond` and the like.
        primitive: count this one alone, from `jax.extend.core.primitives`.

    Returns:
        The number of equations. An inner jaxpr counts wherever it stands: the body of a `scan`
        once, whatever its length, and a jitted function at each of its calls. The equation that
        holds it counts too.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        from jax.extend.core.primitives import sin_p
        from compilecut.testing import count_equations

        def thrice(x):
            return jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=3)[0]

        assert count_equations(thrice, 1.0) == 2  # the scan, and the sin inside
        assert count_equations(thrice, 1.0, recursive=False) == 1
        assert count_equations(thrice, 1.0, primitive=sin_p) == 1
        ```
    """
    if isinstance(f, (jex_core.Jaxpr, jex_core.ClosedJaxpr)):
        jaxpr: Any = f
    else:
        jaxpr = jax.make_jaxpr(f)(*args)
    # JAX shares one jaxpr between the calls of a jitted function. Going into it at each call
    # would take time exponential in the depth of such calls, so its count is remembered.
    known: dict[int, int] = {}

    def count(jaxpr: Any) -> int:
        if id(jaxpr) not in known:
            own = sum(primitive is None or eqn.primitive is primitive for eqn in jaxpr.eqns)
            inner = (sub for eqn in jaxpr.eqns for sub in sub_jaxprs(eqn.params))
            known[id(jaxpr)] = own + (sum(map(count, inner)) if recursive else 0)
        return known[id(jaxpr)]

    return count(jaxpr)


def count_hlo_instructions(
    f: Callable[..., Any] | jax.stages.Lowered | jax.stages.Compiled,
    *args: Any,
    optimized: bool = True,
    opcode: str | None = None,
) -> int:
    """Counts the HLO instructions of a program, over all its computations.

    Args:
        f: a function to lower with `args`, or what `lower` or `compile` returned.
        *args: arrays or `jax.ShapeDtypeStruct`s.
        optimized: count what XLA made of the program, not what it was given.
        opcode: count this one alone, as HLO spells it: `"while"`, `"dot"`, `"all-reduce"`.

    Returns:
        The number of instructions, parameters and constants among them. A computation that is
        called from several places counts once, and instructions inside a fusion count.

    Raises:
        ValueError: a `Compiled` with `optimized=False`, or a backend that gives no text.
        TypeError: a function that lowers to more than one program.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        from compilecut.testing import count_hlo_instructions

        def scanned(x):
            return jax.lax.scan(lambda x, _: (x @ x, None), x, length=9)[0]

        x = jnp.ones((4, 4))
        assert count_hlo_instructions(scanned, x, opcode="while") == 1
        assert count_hlo_instructions(scanned, x, opcode="dot", optimized=False) == 1
        ```

    Sharp edges:
        - Optimised programs differ between versions and backends: compare two counts of the same
          session, or an opcode that means something (`"while"`, `"all-reduce"`).
        - On CPU a dot may have become a fusion or a library call by then.
    """
    opcodes = _testing.count_opcodes(_testing.hlo_text(f, args, optimized=optimized))
    return opcodes.total() if opcode is None else opcodes[opcode]


def count_compiles() -> contextlib.AbstractContextManager[CompileCounts]:
    """Counts what JAX compiles in a `with` block, in every thread.

    Returns:
        A context manager. What it binds goes on counting until the block ends, and can be read at
        any time.

    Example:
        ```python
        import jax
        import jax.numpy as jnp
        from compilecut.testing import count_compiles

        step, x = jax.jit(lambda x: x * 2), jnp.ones(3)
        with count_compiles() as first:
            step(x)
        with count_compiles() as second:
            step(x)
        assert (first.programs, first.names) == (1, ["jit(<lambda>)"])
        assert second.programs == 0
        ```

    Sharp edges:
        - Eager operations compile too: `jnp.ones(3)` may be a program. Make the arguments before
          the block.
        - Counts are of the process: another thread's compiles are in them. What ends in the block
          counts, and a compile that fails counts.
    """
    return _testing.listen()
