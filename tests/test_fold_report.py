"""What `explain` and `report` say of a fold: places, counts, forms, reasons, and how it prints."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import compilecut as cc
from compilecut.testing import count_compiles, count_equations

pytestmark = pytest.mark.quick

N = 6
WS = [jnp.full((8, 8), 0.1 * (i + 1)) for i in range(N)]
X = jnp.linspace(-1.0, 1.0, 8)


def here(offset: int = 0) -> str:
    """`file:line` of the caller, with an offset."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"test_fold_report.py:{frame.f_back.f_lineno + offset}"


def layer(w, x):
    h = jnp.tanh(x @ w) * 0.3
    h = h + jnp.sin(x) / (1.0 + jnp.abs(x).sum())
    return h - jnp.cos(h) * jnp.exp(-x * x)


LAYER = f"test_fold_report.py:{(first := inspect.getsourcelines(layer)[1]) + 1}-{first + 3}"


def model(ws, x):
    for w in ws:
        x = layer(w, x)
    return x


def loss(ws, x):
    return (model(ws, x) ** 2).sum()


# --- what is folded


def test_a_repeat_says_where_how_many_and_how_large():
    (repeat,) = cc.explain(model)(WS, X).repeats
    assert (repeat.n, repeat.where, repeat.gradient) == (N, LAYER, False)
    assert repeat.equations == count_equations(layer, WS[0], X)
    assert repeat.inside == ()


def test_one_line_is_one_line():
    line = here(4)

    def flat(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w) * 0.3 + jnp.sin(x) / (1.0 + jnp.abs(x).sum())
        return x

    assert [repeat.where for repeat in cc.explain(flat)(WS, X).repeats] == [line]


def test_where_helpers_are_called_counts_not_what_is_in_them():
    def helper(w, x):
        return jnp.tanh(x @ w) * 0.3 + jnp.sin(x) * 2.0

    first = here(3)

    def two(w, x):
        x = helper(w, x) + helper(w, x * 2.0)
        x = jnp.cos(helper(w, x)) - jnp.abs(x).sum()
        return x / (1.0 + helper(w, x))

    def outer(ws, x):
        for w in ws:
            x = two(w, x)
        return x

    (repeat,) = cc.explain(outer)(WS, X).repeats
    assert repeat.where == f"{first}-{int(first.split(':')[1]) + 2}"


def test_a_gradient_is_told_from_what_it_is_of():
    report = cc.explain(jax.grad(loss))(WS, X)
    assert {(r.gradient, r.where) for r in report.repeats} == {(False, LAYER), (True, LAYER)}
    assert all(repeat.n >= N - 1 for repeat in report.repeats)


def test_what_moves_through_a_unit():
    (repeat,) = cc.fold(model, form="unit").report(WS, X).repeats
    assert repeat.form == "unit"
    assert (repeat.carried, repeat.stacked, repeat.shared) == (1, 1, 0)
    assert repeat.bytes_stacked == 0


def test_what_moves_through_a_scan():
    def shared(ws, b, x):
        for w in ws:
            x = layer(w, x) + b
        return x

    (repeat,) = cc.fold(shared, form="scan").report(WS, X, X).repeats
    assert repeat.form == "scan"
    assert (repeat.carried, repeat.stacked, repeat.ready, repeat.shared) == (1, 1, 0, 1)
    assert repeat.bytes_stacked == N * 8 * 8 * 4


def test_what_stands_in_a_stack_is_not_copied():
    def walking(stack, x):
        for i in range(N):
            x = layer(stack[i], x)
        return x

    report = cc.explain(walking)(jnp.stack(WS), X)
    (repeat,) = report.repeats
    assert repeat.form == "scan"
    assert (repeat.ready, repeat.bytes_stacked) == (1, 0)
    assert report.bytes_stacked == 0


def test_results_that_are_needed_alone_are_counted():
    def collecting(stack, x):
        out = []
        for i in range(N):
            x = layer(stack[i], x)
            out.append(x)
        return out

    (repeat,) = cc.explain(collecting)(jnp.stack(WS), X).repeats
    assert repeat.cut == N - 1  # the last one is what the loop ends with


def test_independent_blocks_run_at_once():
    def update(stack):
        return jnp.stack([jnp.tanh(stack[i]) * 2.0 - jnp.exp(stack[i]) for i in range(N)])

    report = cc.explain(update)(jnp.stack(WS))
    assert [repeat.form for repeat in report.repeats] == ["batch"]


def test_repeats_inside_a_block_are_told_with_it():
    def nested(ws, x):
        for w in ws:
            for v in (w, w.T, w + 1.0, w * 2.0):
                x = layer(v, x)
            x = jnp.sort(x)
        return x

    repeats = cc.explain(nested)(WS, X).repeats
    assert [repeat.n for repeat in repeats] == [N]
    assert [repeat.n for repeat in repeats[0].inside] == [4]
    assert repeats[0].inside[0].where == LAYER


def test_what_is_inside_an_equation_is_told():
    def in_a_scan(ws, x):
        return jax.lax.scan(lambda x, _: (model(ws, x), None), x, length=3)[0]

    (repeat,) = cc.explain(in_a_scan)(WS, X).repeats
    assert (repeat.n, repeat.where) == (N, LAYER)


# --- totals


def test_totals_are_the_programs_sizes():
    folded = cc.fold(model, form="scan")
    report = folded.report(WS, X)
    assert report.equations == count_equations(model, WS, X)
    assert report.equations_left == count_equations(folded, WS, X)
    assert report.left == report.equations_left / report.equations
    assert report.seconds_left < report.seconds


def test_a_unit_counts_once():
    unit = cc.fold(model, form="unit")
    twice = unit.report(WS * 2, X)
    assert twice.equations_left == unit.report(WS, X).equations_left + N
    assert twice.equations == 2 * unit.report(WS, X).equations


def test_nothing_to_fold_leaves_everything():
    report = cc.explain(lambda x: jnp.sin(x) + 1.0)(X)
    assert (report.repeats, report.skips) == ((), ())
    assert report.equations == report.equations_left == 2
    assert report.left == 1.0
    assert "nothing is folded of 2 equations" in str(report)
    assert "nothing repeats" in str(report)


def test_nothing_is_computed():
    specs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (WS, X))
    cc.explain(model)(*specs)  # the first asks XLA whether it knows units
    with count_compiles() as counts:
        report = cc.explain(model)(*specs)
    assert counts.programs == 0
    assert report == cc.explain(model)(WS, X)


# --- what isn't folded


def only(report: cc.FoldReport, reason: cc.SkipReason) -> cc.FoldSkip:
    (skip,) = (skip for skip in report.skips if skip.reason is reason)
    return skip


def test_a_block_of_another_type_is_named_with_both_equations():
    line = inspect.getsourcelines(cast_layer)[1] + 1
    ws = [w.astype(jnp.bfloat16) if i == 3 else w for i, w in enumerate(WS * 2)]
    skip = only(cc.explain(cast_model)(ws, X), cc.SkipReason.DIFFERS)
    assert skip.lines[-1] == f"test_fold_report.py:{line}"
    assert "bfloat16[8,8]" in skip.detail
    assert "float32[8,8]" in skip.detail
    assert skip.equations > 0
    assert "Make blocks match" in skip.remedy


def cast_layer(w, x):
    h = jnp.tanh(jax.lax.dot(x[None], w, preferred_element_type=jnp.float32))[0]
    return h + jnp.sin(x) / (1.0 + jnp.abs(x).sum()) - jnp.cos(h) * jnp.exp(-x * x)


def cast_model(ws, x):
    for w in ws:
        x = cast_layer(w, x)
    return x


def test_another_operation_in_one_block_is_named():
    def odd(ws, x):
        for i, w in enumerate(ws):
            h = jnp.tanh(x @ w) * 0.3 - jnp.cos(x)
            h = jnp.sinh(h) if i == 4 else jnp.sin(h)
            x = h * jnp.exp(-x * x) + h.sum() * 0.1
        return x

    skip = only(cc.explain(odd)(WS * 2, X), cc.SkipReason.DIFFERS)
    assert "`sinh`" in skip.detail
    assert "`sin`" in skip.detail


def test_prints_are_named():
    line = here(4)

    def printing(ws, x):
        for w in ws:
            jax.debug.print("{}", x.sum())
            x = layer(w, x)
        return x

    report = cc.explain(printing)(WS, X)
    skip = only(report, cc.SkipReason.EFFECT)
    assert (skip.lines, skip.equations) == ((line,), N)


def tiny(ws):
    out = []
    for w in ws[:5]:
        out += [w[0] + w[1], w[2] * w[3]]
    return out


@pytest.mark.parametrize(("form", "remedy"), [("auto", "packed"), ("scan", '`form="auto"`')])
def test_what_would_not_pay_is_named(form, remedy):
    report = cc.fold(tiny, form=form).report([[w, w, w, w] for w in WS])
    assert report.repeats == ()
    assert report.equations_left == report.equations
    skip = only(report, cc.SkipReason.COST)
    assert skip.equations > 0
    assert remedy in skip.remedy


def test_blocks_that_read_others_results_are_no_skip():
    report = cc.explain(jax.grad(loss))(WS, X)
    assert report.skips == ()


def test_the_report_says_where_units_do_not_serve():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(X, NamedSharding(mesh, P("x")))
    report = cc.explain(model)(WS, x)
    assert {repeat.form for repeat in report.repeats} <= {"scan"}
    assert len(report.notes) == 1
    assert cc.explain(model)(WS, X).notes == ()


# --- packed


def test_a_packed_step_reads_its_state_from_stacks():
    def loss_of(params, x):
        return loss(params["ws"], x + params["b"])

    def step(params, x):
        grads = jax.grad(loss_of)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), x.sum()

    params = {"b": X, "ws": WS}
    packed = cc.fold(step).packed(params, X, state=1)
    report = packed.report()
    assert report.packed
    assert report.bytes_stacked < WS[0].nbytes  # activations: the first comes from elsewhere
    assert report.equations == count_equations(step, params, X)
    assert report.equations_left < cc.explain(step)(params, X).equations_left
    assert packed.report(X) == report


# --- printing


def lines(report: cc.FoldReport) -> list[str]:
    return str(report).splitlines()


def test_the_headline_is_the_answer():
    report = cc.explain(model)(WS, X)
    text = " ".join(" ".join(lines(report)[:3]).split())
    size = count_equations(layer, WS[0], X)
    assert f"model: {N} blocks of {size} equations at {LAYER} are compiled once;" in text
    assert f"{report.left:.0%} of the program is left." in text


@pytest.mark.parametrize("function", [model, jax.grad(loss)])
def test_it_fits_a_terminal(function):
    assert max(map(len, lines(cc.explain(function)(WS, X)))) <= 80


def test_a_long_report_is_cut_short():
    def many(ws, x):
        for width in range(2, 20):
            for w in ws:
                x = layer(w, x)
            x = jnp.concatenate([x[:width], x[width:]]) * width
        return x

    report = cc.explain(many)(WS, X)
    assert len(lines(report)) < 80


def test_seconds_are_guessed_only_where_they_are_many():
    report = cc.explain(model)(WS, X)
    assert "a few seconds at most either way" in " ".join(str(report).split())
    large = cc.explain(model)(WS * 100, X)
    assert large.seconds == pytest.approx(100 * report.seconds)
    assert f"about {large.seconds:.0f} s before" in " ".join(str(large).split())


def test_it_prints_in_a_notebook():
    html = cc.explain(model)(WS, X)._repr_html_()
    assert html.lstrip().startswith("<!DOCTYPE html>")
    assert LAYER in html


def test_a_folded_function_explains_itself():
    folded = cc.fold(model, form="scan")
    assert cc.explain(folded)(WS, X) == folded.report(WS, X)
    assert folded.report(WS, x=X).repeats == folded.report(WS, X).repeats
