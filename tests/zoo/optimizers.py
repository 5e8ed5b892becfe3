"""Optax on many leaves: the update alone, as `jax.tree.map` makes it."""

import optax
import optax.contrib

from .program import Program, adamw, normal, optimizer_state

LAYERS = 6


def _params(seed):
    return [
        {
            "attention": {n: normal(8, 8, seed=f"{seed}{n}{i}", scale=0.2) for n in "qkvo"},
            "mlp": {
                "up": normal(8, 16, seed=f"{seed}up{i}", scale=0.2),
                "down": normal(16, 8, seed=f"{seed}down{i}", scale=0.2),
                "bias": normal(8, seed=f"{seed}bias{i}", scale=0.2),
            },
        }
        for i in range(LAYERS)
    ]


def _update(make_tx):
    def make():
        tx = make_tx()

        def step(params, opt_state, grads):
            updates, opt_state = tx.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        params = _params("p")
        return step, (params, optimizer_state(tx, params), _params("g"))

    return make


def _chain():
    schedule = optax.join_schedules(
        [optax.linear_schedule(0.0, 1e-2, 5), optax.exponential_decay(1e-2, 10, 0.9)], [5]
    )
    decayed = [{"attention": True, "mlp": False}] * LAYERS
    return optax.chain(
        optax.clip(1.0),
        optax.scale_by_adam(mu_dtype="bfloat16"),
        optax.add_decayed_weights(1e-2, mask=decayed),
        optax.scale_by_learning_rate(schedule),
    )


OPTIMIZERS = {
    "adamw": adamw,
    "adamw-plain": lambda: optax.adamw(1e-3),
    "lion": lambda: optax.lion(1e-3, weight_decay=0.1),
    "adafactor": lambda: optax.adafactor(1e-3, min_dim_size_to_factor=4),
    "muon": lambda: optax.contrib.muon(1e-3),
    "momentum": lambda: optax.sgd(1e-2, momentum=0.9, nesterov=True),
    "rmsprop": lambda: optax.rmsprop(1e-3, centered=True),
    "lamb": lambda: optax.lamb(1e-3),
    "chain": _chain,
    "multisteps": lambda: optax.MultiSteps(optax.adamw(1e-3), 4),
}

PROGRAMS = [
    Program(
        name=f"optimizer-{name}",
        make=_update(tx),
        blocks=LAYERS,
        strict=name in ("adamw-plain", "chain"),
    )
    for name, tx in OPTIMIZERS.items()
]
