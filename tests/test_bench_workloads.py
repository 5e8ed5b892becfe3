"""The workloads themselves: each arm builds, and says what its docstring says."""

import dataclasses

import chex
import init as bench_init
import jax
import pytest
import sample

from workloads import PRESETS, WORKLOADS

pytestmark = pytest.mark.standard_promotion

INITS = ("init", "linen", "nnx", "equinox", "haiku")


def arms_of(name: str):
    """The arms of a workload, loaded as a sample loads them."""
    return sample.load_arms(WORKLOADS[name].source)


@pytest.mark.parametrize("name", WORKLOADS)
def test_files_define_the_arms_of_the_catalogue(name):
    assert set(arms_of(name)) == {arm.name for arm in WORKLOADS[name].arms}


@pytest.mark.quick
@pytest.mark.parametrize("name", INITS)
def test_initialisers_grow_with_layers(name):
    build = arms_of(name)["jit"]
    one, two, three = (jax.eval_shape(c.function, *c.args) for c in map(build, (1, 2, 3)))
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (one, two, three)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] > 0


def test_w1_has_224_sites_and_448_arrays_at_32_layers():
    call = arms_of("init")["jit"](32)
    shapes = jax.eval_shape(call.function, *call.args)
    assert len(shapes) == 224
    assert len(jax.tree.leaves(shapes)) == 448
    chex.assert_shape(shapes["layers.31.down"]["V"], (14336 // 64, 10240 // 64))


def test_known_recipes_give_the_same_values():
    results = {}
    for name in ("jit", "vmap+slice", "per-kind"):
        call = arms_of("init")[name](1)
        results[name] = call.function(*call.args)
    chex.assert_trees_all_equal(results["vmap+slice"], results["jit"])
    chex.assert_trees_all_equal(results["per-kind"], results["jit"])


def test_largest_group_is_the_share_the_claim_uses():
    sample.load_arms(WORKLOADS["init"].source)
    from workloads import init, init_large

    total = sum(4 * c * (i + o) for i, o, c in init.sites(4, init_large.DIVIDE).values())
    share = init_large.largest_group_bytes(4) / total
    assert share == pytest.approx(bench_init.LARGEST_GROUP)


def test_large_arms_keep_no_values_and_full_size_does_not_run():
    assert not arms_of("init-large")["stacked_init"](1).compare
    assert not arms_of("init-full")["stacked_init"](1).runs


def test_chunks_differ_and_the_step_learns():
    call = arms_of("chunks")["scan-by-hand"](2)
    from workloads import chunks

    masks = [chunks.routing_masks(jax.random.key(i))[0]["q"] for i in range(2)]
    assert not (masks[0] == masks[1]).all()
    kept = masks[0].astype("float32").sum(-1)
    assert kept.min() >= 1
    assert len(set(kept.ravel().tolist())) > 1
    shapes = jax.eval_shape(call.function, *call.args)
    chex.assert_trees_all_equal_shapes_and_dtypes(shapes[0], call.args[0])


def test_quick_preset_measures_what_the_readme_shows():
    for name in PRESETS["quick"]:
        workload = WORKLOADS[name]
        reference = set(workload.arm(workload.reference).quick)
        for arm in workload.arms:
            assert set(arm.quick) <= reference, f"{arm.name} would have nothing to compare with"


def test_an_arm_is_one_call():
    assert {field.name for field in dataclasses.fields(arms_of("init")["jit"](1))} == {
        "function",
        "args",
        "runs",
        "compare",
        "pick",
    }


def test_default_mode_is_the_scan_arm():
    """`bench/chunks.py` measures the default alone, on the strength of this."""
    calls = [arms_of("chunks")[arm](2) for arm in ("scan_chunks", "scan_chunks:scan")]
    auto, scan = (jax.jit(c.function).lower(*c.args).as_text() for c in calls)
    assert auto == scan
