"""W5: one AdamW step of a small pre-norm transformer in Flax linen, n blocks in a Python loop.

The step is `value_and_grad`, a clip by the global norm and AdamW, as in any trainer. The arms
differ in what is done to it: nothing; `fold`; `fold` with the state packed; `nn.scan` written by
hand, with the state stacked; the block marked by `nn.jit`; both. n is the number of blocks.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from harness.registry import ArmTable, Call

WIDTH, HEADS, INNER, VOCABULARY = 32, 4, 128, 64
BATCH, TOKENS = 2, 16
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


class Block(nn.Module):
    """One pre-norm block."""

    width: int

    @nn.compact
    def __call__(self, x):
        """From `[batch, tokens, width]` to the same."""
        h = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=HEADS)(h, h)
        h = nn.LayerNorm()(x)
        h = nn.gelu(nn.Dense(INNER // WIDTH * self.width)(h))
        return x + nn.Dense(self.width)(h)


class ScannedBlock(nn.Module):
    """A block as `nn.scan` wants it."""

    width: int

    @nn.compact
    def __call__(self, x, _):
        """One step of the scan."""
        return Block(self.width)(x), None


MarkedBlock = nn.jit(Block)


class Model(nn.Module):
    """A language model of n blocks.

    Attributes:
        layers: how many blocks.
        width: of the residual stream.
        way: "loop", "scan" or "marked".
    """

    layers: int
    width: int
    way: str

    @nn.compact
    def __call__(self, tokens):
        """Logits of each token."""
        x = nn.Embed(VOCABULARY, self.width)(tokens)
        x = x + self.param("positions", nn.initializers.normal(0.02), (TOKENS, self.width))
        if self.way == "scan":
            scanned = nn.scan(
                ScannedBlock,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=self.layers,
            )
            x, _ = scanned(self.width)(x, None)
        else:
            block = MarkedBlock if self.way == "marked" else Block
            for layer in range(self.layers):
                x = block(self.width, name=f"Block_{layer}")(x)
        return nn.Dense(VOCABULARY)(nn.LayerNorm()(x))


def make_step(model: Model) -> Callable[..., Any]:
    """The train step, as a trainer writes it."""

    def train_step(params, state, tokens):
        def loss_of(params):
            logits: Any = model.apply(params, tokens[:, :-1])
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
            return -jnp.mean(picked)

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, state = OPTIMIZER.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return train_step


def make_arguments(n: int, width: int, way: str):
    """A step and what it is called with. The scanned model gets the others' weights, stacked."""
    tokens = jax.random.randint(jax.random.key(1), (BATCH, TOKENS + 1), 0, VOCABULARY)
    params = _random_params(n, width, way)
    return make_step(Model(n, width, way)), (params, OPTIMIZER.init(params), tokens)


def _random_params(n: int, width: int, way: str) -> Any:
    """Weights drawn one by one with numbers of their own, so that nothing large is compiled."""
    loop = Model(n, width, "loop")
    shapes = jax.eval_shape(loop.init, jax.random.key(0), jnp.zeros((1, TOKENS), jnp.int32))
    leaves, tree = jax.tree.flatten(shapes)
    draw = jax.jit(lambda key, i, like: _weight(jax.random.fold_in(key, i), like), static_argnums=2)
    arrays = [draw(jax.random.key(0), i, (leaf.shape, leaf.dtype)) for i, leaf in enumerate(leaves)]
    params = jax.tree.unflatten(tree, arrays)
    if way != "scan":
        return params
    inner = dict(params["params"])
    blocks = [inner.pop(f"Block_{layer}") for layer in range(n)]
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *blocks)
    return {"params": inner | {"ScanScannedBlock_0": {"Block_0": stacked}}}


def _weight(key: jax.Array, like: tuple[tuple[int, ...], Any]) -> jax.Array:
    shape, dtype = like
    scale = 0.3 / (shape[0] if shape else 1) ** 0.5
    return 0.5 * (len(shape) == 1) + scale * jax.random.normal(key, shape, dtype)


def written(way: str, width: int):
    """The step in `jax.jit`."""

    def arm(n: int) -> Call:
        step, args = make_arguments(n, width, way)
        return Call(function=jax.jit(step), args=args, pick=_result)

    return arm


def folded(way: str, width: int):
    """The step in `jax.jit(cc.fold(...))`."""

    def arm(n: int) -> Call:
        import compilecut as cc

        step, args = make_arguments(n, width, way)
        return Call(function=jax.jit(cc.fold(step)), args=args, pick=_result)

    return arm


def packed(way: str, width: int):
    """The folded step with its state packed: the first call traces, plans and packs."""

    def arm(n: int) -> Call:
        step, args = make_arguments(n, width, way)
        return Call(function=_PackedLoop(step, args[:2]), args=args[2:], pick=_result)

    return arm


class _PackedLoop:
    """A trainer that keeps a packed state between the calls."""

    def __init__(self, step: Callable[..., Any], state: Any):
        self._step = step
        self._start = state
        self._packed: Any = None
        self._state: Any = None

    def __call__(self, tokens: jax.Array) -> Any:
        import compilecut as cc

        if self._packed is None:
            self._packed = cc.fold(self._step).packed(*self._start, tokens, state=2)
            self._state = self._packed.pack(*self._start)
        self._state, loss = self._packed(self._state, tokens)
        return self._state, loss


def _result(out: Any) -> Any:
    """What all arms return alike: the loss, and a weight that all gradients went into."""
    *state, loss = out
    if isinstance(state[0], dict) and "params" in state[0]:
        weight = state[0]["params"]["Embed_0"]["embedding"]
    else:
        weight = state[0]["0/params/Embed_0/embedding"]
    return {"loss": loss, "embedding": weight}


def arms_at(width: int) -> ArmTable:
    """The arms at one width."""
    return {
        "jit": written("loop", width),
        "fold": folded("loop", width),
        "packed": packed("loop", width),
        "nn.scan": written("scan", width),
        "marked": written("marked", width),
        "marked+packed": packed("marked", width),
    }


ARMS: ArmTable = arms_at(WIDTH)
