"""`scan_chunks`: what the body captures, accumulation types, devices, a real training step."""

import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compiler
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from compilecut import _units
from compilecut._chunks import scan_chunks
from compilecut._jaxpr import sub_jaxprs
from compilecut.testing import assert_bit_identical, assert_equivalent, count_hlo_instructions

MODES = ("auto", "scan", "unit", "unroll")
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")

# --- captured operands


def inner_constants(jaxpr) -> list:
    """The arrays that jaxprs inside a jaxpr hold as constants."""
    found = []
    for eqn in jaxpr.eqns:
        for param in eqn.params.values():
            found += [c for c in getattr(param, "consts", ()) if np.ndim(c)]
        for inner in sub_jaxprs(eqn.params):
            found += inner_constants(inner)
    return found


@pytest.mark.quick
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("library", [np, jnp])
def test_a_captured_array_is_an_operand_of_the_block(mode, library):
    captured = library.asarray(np.linspace(0.1, 9.9, 1000, dtype=np.float32))

    def program(x):
        return scan_chunks(lambda c, s: (c + captured * s, None), x, [1.0, 2.0, 3.0], mode=mode)[0]

    x = jnp.ones(1000)
    closed = jax.make_jaxpr(program)(x)
    assert sum(np.shape(c) == (1000,) for c in closed.consts) == 1
    assert inner_constants(closed.jaxpr) == []
    # What jit makes of a constant of the outermost jaxpr is JAX's to say: one, outside the block.
    main, *functions = jax.jit(program).lower(x).as_text().split("func.func private")
    assert main.count('dense<"0x') == 1
    assert not any('dense<"0x' in function for function in functions)


@pytest.mark.parametrize("mode", MODES)
def test_captured_arguments_make_no_constants(mode):
    def gradient(weights, chunks):
        def loss(w):
            return scan_chunks(lambda c, x: (c + jnp.sum(w * x), None), 0.0, chunks, mode=mode)[0]

        return jax.grad(loss)(weights)

    chunks = [jnp.arange(1000.0) * i for i in range(3)]
    text = jax.jit(gradient).lower(jnp.arange(1000.0), chunks).as_text()
    assert 'dense<"0x' not in text
    result = jax.jit(gradient)(jnp.arange(1000.0), chunks)
    chex.assert_trees_all_equal(result, jnp.arange(1000.0) * 3)


@pytest.mark.parametrize("mode", MODES)
def test_captured_arrays_are_arguments_when_called_eagerly(mode, monkeypatch):
    captured = jnp.linspace(0.1, 9.9, 1000)
    lowered = []
    original = compiler.backend_compile_and_load

    def spy(backend, module, *args, **kwargs):
        lowered.append(str(module))
        return original(backend, module, *args, **kwargs)

    monkeypatch.setattr(compiler, "backend_compile_and_load", spy)
    chunks = [jnp.float32(i) for i in range(3)]
    scan_chunks(lambda c, s: (c + captured * s, None), jnp.zeros(1000), chunks, mode=mode)
    assert lowered or mode == "unroll"
    assert not any('dense<"0x' in text for text in lowered)


# --- accumulation


@pytest.mark.quick
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("jitted", [False, True])
def test_gradients_of_shared_operands_accumulate_wide(mode, jitted):
    # 256 + 1 is no bfloat16: a sum in bfloat16 stays at 256.
    chunks = [jnp.asarray(v, jnp.bfloat16) for v in (1.0, 1.0, 1.0, 1.0, 256.0)]

    def loss(w, accum_dtype):
        def body(total, x):
            return total + (w * x).astype(jnp.float32), None

        return scan_chunks(body, 0.0, chunks, mode=mode, accum_dtype=accum_dtype)[0]

    gradient = jax.grad(loss)
    gradient = jax.jit(gradient, static_argnums=1) if jitted else gradient
    w = jnp.asarray(1.0, jnp.bfloat16)
    assert gradient(w, jnp.float32).dtype == jnp.bfloat16
    assert float(gradient(w, jnp.float32)) == 260.0
    if not jitted:  # compiled, XLA may keep the narrow sum wide of its own accord
        assert float(gradient(w, None)) == 256.0


@pytest.mark.parametrize("mode", MODES)
def test_forward_mode_goes_through_the_wide_copy(mode):
    def loss(w):
        def body(total, x):
            return total + jnp.sum((w * x).astype(jnp.float32)), None

        chunks = [jnp.ones(3, jnp.bfloat16) * i for i in range(3)]
        return scan_chunks(body, 0.0, chunks, mode=mode, accum_dtype=jnp.float32)[0]

    w = jnp.ones(3, jnp.bfloat16)
    assert [float(v) for v in jax.jvp(loss, (w,), (w,))] == [9.0, 9.0]
    chex.assert_trees_all_equal(
        jax.vmap(jax.grad(loss))(jnp.stack([w, w])), jnp.full((2, 3), 3, w.dtype)
    )


@pytest.mark.quick
@pytest.mark.parametrize("mode", MODES)
def test_carries_accumulate_wide(mode):
    def body(total, x):
        return total + x.astype(total.dtype), None

    chunks = [jnp.asarray(v, jnp.bfloat16) for v in (256.0, 1.0, 1.0, 1.0, 1.0)]
    start = jnp.zeros((), jnp.bfloat16)
    narrow, _ = scan_chunks(body, start, chunks, mode=mode)
    wide, _ = scan_chunks(body, start, chunks, mode=mode, accum_dtype=jnp.float32)
    assert (narrow.dtype, float(narrow)) == (jnp.bfloat16, 256.0)
    assert (wide.dtype, float(wide)) == (jnp.float32, 260.0)


@pytest.mark.quick
@pytest.mark.parametrize("start", [0, 0.0])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.standard_promotion
def test_a_number_as_carry_accumulates_wide(start, wide):
    chunks = [jnp.asarray(v, jnp.bfloat16) for v in (256.0, 1.0, 1.0, 1.0, 1.0)]
    with jax.enable_x64(wide):
        total, _ = scan_chunks(lambda c, x: (c + x, None), start, chunks, accum_dtype=jnp.float32)
    assert (total.dtype, float(total)) == (jnp.float32, 260.0)


def test_accumulation_never_narrows():
    state = {"wide": jnp.float32(1), "count": 0, "narrow": jnp.asarray(1, jnp.float16)}

    def body(carry, x):
        return carry, None

    after, _ = scan_chunks(body, state, [1.0, 2.0], accum_dtype=jnp.bfloat16)
    chex.assert_trees_all_equal_dtypes(after, jax.tree.map(jnp.asarray, state))


# --- devices


def mesh_of(kind: AxisType):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))


def sharded_arguments(n: int, mesh):
    first = jax.device_put(jnp.ones((16, 32)), NamedSharding(mesh, P(None, "model")))
    second = jax.device_put(jnp.ones((32, 16)), NamedSharding(mesh, P("model", None)))
    chunks = [
        jax.device_put(jnp.full((8, 16), 0.1 * i), NamedSharding(mesh, P("data"))) for i in range(n)
    ]
    return (first, second), chunks


def gradient_of(walk):
    def loss(weights, chunks):
        def body(total, x):
            y = jnp.tanh(x @ weights[0]) @ weights[1]
            return total + jnp.sum(y * y), None

        return walk(body, 0.0, chunks)

    return jax.value_and_grad(loss)


def python_loop(body, carry, chunks):
    for chunk in chunks:
        carry, _ = body(carry, chunk)
    return carry


@pytest.mark.parametrize("mode", ["auto", "scan", "unit"])
def test_sharded_operands_keep_their_collectives(mode):
    ours = gradient_of(lambda body, c, xs: scan_chunks(body, c, xs, mode=mode)[0])
    theirs = gradient_of(python_loop)

    def collectives(f, n):
        compiled = jax.jit(f).lower(*sharded_arguments(n, mesh_of(AxisType.Auto))).compile()
        counts = {op: count_hlo_instructions(compiled, opcode=op) for op in COLLECTIVES}
        return {op: n for op, n in counts.items() if n}

    unrolled, folded = collectives(theirs, 4), collectives(ours, 4)
    assert unrolled, "nothing is communicated: the test shows nothing"
    assert set(folded) <= set(unrolled)
    # XLA combines the chunks' reduces where they stand side by side, one forward and one backward;
    # in a loop the backward pass has one for the carry and one for the weights.
    assert sum(folded.values()) <= sum(unrolled.values()) + 1
    assert folded == collectives(ours, 8)
    args = sharded_arguments(4, mesh_of(AxisType.Auto))
    chex.assert_trees_all_close(jax.jit(ours)(*args), jax.jit(theirs)(*args), rtol=1e-5)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_units_give_way_to_a_scan_for_sharded_operands(kind):
    _, chunks = sharded_arguments(3, mesh_of(kind))

    def program(chunks):
        return scan_chunks(lambda c, x: (c + x.sum(), None), 0.0, chunks, mode="unit")[0]

    if not _units.unit_support():
        pytest.skip("this XLA has no compilation units")
    assert "compilation_unit" not in jax.jit(program).lower(chunks).as_text()
    alone = [jnp.ones((8, 16))] * 3
    assert "compilation_unit" in jax.jit(program).lower(alone).as_text()
    chex.assert_trees_all_close(program(chunks), jax.jit(program)(chunks), rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_under_shard_map(mode, kind):
    mesh = mesh_of(kind)
    chunks = [jnp.arange(8.0) * i for i in range(3)]
    weight = jnp.float32(2.0)

    def inside(weight, chunks):
        def body(total, x):
            return total + jnp.sum(x * weight), x * weight

        total, outs = scan_chunks(body, 0.0, chunks, mode=mode)
        return jax.lax.psum(total, "data"), outs

    mapped = jax.shard_map(inside, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P("data")))
    if kind is AxisType.Explicit:
        chunks = jax.device_put(chunks, NamedSharding(mesh, P("data")))
        weight = jax.device_put(weight, NamedSharding(mesh, P()))
    total, outs = jax.jit(mapped)(weight, chunks)
    assert float(total) == 2 * 28 * 3
    chex.assert_trees_all_close(outs, [2 * c for c in chunks])
    with jax.set_mesh(mesh):
        assert float(jax.grad(lambda w: mapped(w, chunks)[0])(weight)) == 28 * 3


def test_an_xla_without_units_gets_a_scan(monkeypatch):
    monkeypatch.setattr(_units, "unit_support", lambda: False)

    def program(chunks):
        return scan_chunks(lambda c, x: (c + x.sum(), None), 0.0, chunks, mode="unit")[0]

    chunks = [jnp.ones(3)] * 3
    text = jax.jit(program).lower(chunks).as_text()
    assert "compilation_unit" not in text
    assert "stablehlo.while" in text


# --- a real training step


@pytest.fixture(scope="module")
def workload():
    """W4, the benchmark's chunked step, with two layers so that it compiles in seconds."""
    bench = str(Path(__file__).parents[1] / "bench")
    sys.path.insert(0, bench)
    try:
        from workloads import chunks
    finally:
        sys.path.remove(bench)
    layers, chunks.LAYERS = chunks.LAYERS, 2
    yield chunks
    chunks.LAYERS = layers


def w4_step(workload, mode):
    def walk(body, carry, n):
        if mode == "loop":
            return workload.loop(body, carry, n)
        return scan_chunks(body, carry, list(range(n)), mode=mode)[0]

    return workload.make_step(walk, 3)


@pytest.mark.standard_promotion
@pytest.mark.parametrize("mode", ["scan", "unit"])
def test_a_training_step_equals_the_python_loop(workload, mode):
    args = workload.make_arguments()
    assert_equivalent(w4_step(workload, mode), w4_step(workload, "loop"), *args)


@pytest.mark.standard_promotion
def test_a_training_step_is_the_same_as_scan_and_as_units(workload):
    args = workload.make_arguments()
    assert_bit_identical(w4_step(workload, "scan"), w4_step(workload, "unit"), *args)
