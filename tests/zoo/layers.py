"""Stacks of layers in plain JAX, and what makes them irregular: cycles, experts, shared weights."""

import functools
import itertools

import jax
import jax.numpy as jnp

from .program import TOKENS, VOCAB, WIDTH, Program, gradient, normal, tokens


def _weights(layers, **shapes):
    return [
        {name: normal(*s, seed=f"{name}{i}", scale=0.3) for name, s in shapes.items()}
        for i in range(layers)
    ]


def _attention(p, x, window):
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    i = jnp.arange(len(x))
    mask = i[:, None] >= i[None, :]
    if window is not None:
        mask = mask & (i[:, None] - i[None, :] < window)
    scores = jnp.where(mask, q @ k.T / jnp.sqrt(WIDTH).astype(x.dtype), -jnp.inf)
    return jax.nn.softmax(scores) @ v


def _block(p, x, window=None):
    x = x + _attention(p, x / (1e-6 + jnp.abs(x).mean(-1, keepdims=True)), window)
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


_SQUARE = (WIDTH, WIDTH)
_BLOCK = {
    "q": _SQUARE,
    "k": _SQUARE,
    "v": _SQUARE,
    "up": (WIDTH, 2 * WIDTH),
    "down": (2 * WIDTH, WIDTH),
}


def cycles(layers, differentiate):
    """Five layers with local attention, one with global, and again."""

    def forward(layers, x):
        for number, p in enumerate(layers):
            x = _block(p, x, window=None if number % 6 == 5 else 2)
        return jnp.square(x).mean() if differentiate else x

    args = _weights(layers, **_BLOCK), normal(TOKENS, WIDTH)
    return gradient(forward) if differentiate else forward, args


def shared_weights(differentiate):
    """ALBERT: one set of weights, used by every layer."""

    def forward(p, x):
        for _ in range(5):
            x = _block(p, x)
        return jnp.square(x).mean() if differentiate else x

    args = _weights(1, **_BLOCK)[0], normal(TOKENS, WIDTH)
    return gradient(forward) if differentiate else forward, args


def two_shared_weights():
    """Two sets of weights in turn."""

    def forward(pair, x):
        for number in range(8):
            x = _block(pair[number % 2], x)
        return jnp.square(x).mean()

    return gradient(forward), (_weights(2, **_BLOCK), normal(TOKENS, WIDTH))


def dense_experts():
    """Every token through every expert, weighted by a gate; the experts in a Python loop too."""

    def loss(layers, x):
        for p in layers:
            gates = jax.nn.softmax(x @ p["gate"])
            y = jnp.zeros_like(x)
            for e in range(4):
                y = y + gates[:, e, None] * (jax.nn.relu(x @ p["up"][e]) @ p["down"][e])
            x = x + y
        return jnp.square(x).mean()

    shapes = {"gate": (WIDTH, 4), "up": (4, WIDTH, 6), "down": (4, 6, WIDTH)}
    return gradient(loss), (_weights(4, **shapes), normal(TOKENS, WIDTH))


def routed_experts():
    """Top two of four experts, by dispatch and combine tensors, with a load-balancing loss."""

    def loss(layers, x):
        balance = 0.0
        for p in layers:
            gates = jax.nn.softmax(x @ p["gate"])
            top, which = jax.lax.top_k(gates, 2)
            combine = (jax.nn.one_hot(which, 4) * top[..., None]).sum(1)
            h = jnp.einsum("te,td->etd", (combine > 0).astype(x.dtype), x)
            h = jnp.einsum("etf,efd->etd", jax.nn.relu(h @ p["up"]), p["down"])
            x = x + jnp.einsum("te,etd->td", combine, h)
            balance = balance + 4 * (gates.mean(0) * (combine > 0).mean(0)).sum()
        return jnp.square(x).mean() + 0.01 * balance

    shapes = {"gate": (WIDTH, 4), "up": (4, WIDTH, 6), "down": (4, 6, WIDTH)}
    return gradient(loss), (_weights(4, **shapes), normal(TOKENS, WIDTH))


def jitted_blocks(differentiate):
    """The block is marked by `jax.jit`."""
    block = jax.jit(_block)

    def forward(layers, x):
        for p in layers:
            x = block(p, x)
        return jnp.square(x).mean() if differentiate else x

    args = _weights(5, **_BLOCK), normal(TOKENS, WIDTH)
    return gradient(forward) if differentiate else forward, args


def checkpointed_policy():
    """Per-layer `jax.checkpoint` with a policy."""
    policy = jax.checkpoint_policies.dots_saveable
    block = jax.checkpoint(_block, policy=policy)

    def loss(layers, x):
        for p in layers:
            x = block(p, x)
        return jnp.square(x).mean()

    return gradient(loss), (_weights(5, **_BLOCK), normal(TOKENS, WIDTH))


def scaled_layers():
    """Layers differ in numbers alone: depth-scaled residuals, a drop rate that grows."""

    def loss(layers, x, key):
        for number, p in enumerate(layers):
            h = jnp.tanh(x @ p["w"]) * (1.0 / (number + 1) ** 0.5)
            keep = jax.random.bernoulli(jax.random.fold_in(key, number), 0.9 - 0.05 * number, ())
            x = x + jnp.where(keep, h, 0.0)
        return jnp.square(x).mean()

    return gradient(loss), (_weights(5, w=_SQUARE), normal(TOKENS, WIDTH), jax.random.key(1))


def stacked_slices():
    """Parameters come as one stack, cut by the loop."""

    def loss(stack, x):
        for number in range(len(stack)):
            x = x + jnp.tanh(x @ stack[number]) + jnp.sin(x * x)
        return jnp.square(x).mean()

    return gradient(loss), (normal(6, *_SQUARE, scale=0.3), normal(TOKENS, WIDTH))


def nested_loops():
    """Two Python loops: sweeps of three updates each, with weights of their own."""

    def loss(sweeps, x):
        for sweep in sweeps:
            for p in sweep["inner"]:
                x = x + jnp.tanh(x @ p["w"] + p["b"]) * 0.5
            x = x / jnp.linalg.norm(x, axis=-1, keepdims=True) * sweep["scale"]
        return jnp.square(x).mean()

    sweeps = [
        {
            "inner": [
                {"w": normal(*_SQUARE, seed=f"w{i}{j}"), "b": normal(WIDTH, seed=f"b{i}{j}")}
                for j in range(3)
            ],
            "scale": normal(seed=i),
        }
        for i in range(4)
    ]
    return gradient(loss), (sweeps, normal(TOKENS, WIDTH))


def jvp_of_layers():
    """Forward-mode derivative of a stack."""

    def forward(layers, x):
        for p in layers:
            x = _block(p, x)
        return x

    def tangent(layers, x, v):
        return jax.jvp(functools.partial(forward, layers), (x,), (v,))

    args = _weights(5, **_BLOCK), normal(TOKENS, WIDTH), normal(TOKENS, WIDTH, seed=1)
    return tangent, args


def hessian_vector():
    """Forward over reverse."""

    def loss(layers, x):
        for p in layers:
            x = jnp.tanh(x @ p["w"] + p["b"])
        return jnp.square(x).mean()

    def product(layers, x, v):
        return jax.jvp(jax.grad(functools.partial(loss, layers)), (x,), (v,))

    shapes = {"w": _SQUARE, "b": (WIDTH,)}
    args = _weights(6, **shapes), normal(TOKENS, WIDTH), normal(TOKENS, WIDTH, seed=1)
    return product, args


def custom_rule():
    """Blocks with a derivative of their own: a straight-through estimator."""

    @jax.custom_vjp
    def round_through(x):
        return jnp.round(x * 4) / 4

    round_through.defvjp(lambda x: (round_through(x), None), lambda _, g: (jnp.clip(g, -1, 1),))

    def loss(layers, x):
        for p in layers:
            x = x + jnp.tanh(round_through(x) @ round_through(p["w"]))
        return jnp.square(x).mean()

    return gradient(loss), (_weights(5, w=_SQUARE), normal(TOKENS, WIDTH))


def coordinate_network():
    """A SIREN: coordinates to colours."""

    def loss(layers, coordinates, colours):
        h = jnp.sin(30.0 * (coordinates @ layers["first"]))
        for p in layers["hidden"]:
            h = jnp.sin(30.0 * (h @ p["w"] + p["b"]))
        return jnp.square(h @ layers["last"] - colours).mean()

    params = {
        "first": normal(2, WIDTH, scale=0.5),
        "hidden": _weights(6, w=_SQUARE, b=(WIDTH,)),
        "last": normal(WIDTH, 3, seed=1),
    }
    return gradient(loss), (params, normal(5, 2, seed=2), normal(5, 3, seed=3))


def graph_network():
    """Rounds of message passing, each with weights of its own."""

    def loss(rounds, nodes, senders, receivers):
        for p in rounds:
            messages = jax.nn.relu(
                jnp.concatenate([nodes[senders], nodes[receivers]], -1) @ p["edge"]
            )
            gathered = jax.ops.segment_sum(messages, receivers, len(nodes))
            nodes = nodes + jnp.tanh(jnp.concatenate([nodes, gathered], -1) @ p["node"])
        return jnp.square(nodes).mean()

    shapes = {"edge": (2 * WIDTH, WIDTH), "node": (2 * WIDTH, WIDTH)}
    edges = tokens(12, seed=1) % 6, tokens(12, seed=2) % 6
    return gradient(loss), (_weights(4, **shapes), normal(6, WIDTH), *edges)


def different_widths():
    """An autoencoder whose layers all have other widths: nothing to fold."""

    def forward(layers, x):
        for w in layers:
            x = jnp.tanh(x @ w)
        return x

    widths = (8, 7, 6, 5, 3, 9)
    layers = [normal(a, b, seed=a) for a, b in itertools.pairwise(widths)]
    return forward, (layers, normal(4, 8))


def one_expression():
    """A formula: nothing to fold."""

    def forward(x, y):
        return jnp.exp(-jnp.square(x - y).sum()) * jnp.cos(x).mean() + jnp.linalg.norm(y)

    return forward, (normal(8), normal(8, seed=1))


def embedding_only():
    """A bag of words: a lookup, a sum, a loss."""

    def loss(table, words, labels):
        logits = table[words].mean(1) @ table.T
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    return gradient(loss), (normal(VOCAB, WIDTH), tokens(3, 5), tokens(3, seed=1))


PROGRAMS = [
    Program(name="cycles-12", make=lambda: cycles(12, False), blocks=5),
    Program(name="cycles-12-gradient", make=lambda: cycles(12, True), blocks=5),
    Program(name="cycles-18-gradient", make=lambda: cycles(18, True), blocks=5),
    Program(name="albert", make=lambda: shared_weights(False), blocks=5),
    Program(name="albert-gradient", make=lambda: shared_weights(True), blocks=5, strict=True),
    Program(name="albert-two-gradient", make=two_shared_weights, blocks=4),
    Program(name="experts-dense-gradient", make=dense_experts, blocks=4),
    Program(name="experts-routed-gradient", make=routed_experts, blocks=4, strict=True),
    Program(name="marked-jit", make=lambda: jitted_blocks(False), blocks=5),
    Program(name="marked-jit-gradient", make=lambda: jitted_blocks(True), blocks=5, strict=True),
    Program(name="remat-policy-gradient", make=checkpointed_policy, blocks=5),
    Program(name="scaled-layers-gradient", make=scaled_layers, blocks=5),
    Program(name="stacked-slices-gradient", make=stacked_slices, blocks=6),
    Program(name="nested-loops-gradient", make=nested_loops, blocks=4),
    Program(name="jvp", make=jvp_of_layers, blocks=5),
    Program(name="hessian-vector", make=hessian_vector, blocks=6),
    Program(name="custom-vjp-gradient", make=custom_rule, blocks=5),
    Program(name="siren-gradient", make=coordinate_network, blocks=6),
    Program(name="graph-network-gradient", make=graph_network, blocks=4),
    Program(name="nothing-widths", make=different_widths, blocks=0),
    Program(name="nothing-formula", make=one_expression, blocks=0),
    Program(name="nothing-embedding", make=embedding_only, blocks=0),
]
