"""W6: the likelihood of a mixture of m elliptical Gaussians, and its gradient.

Each Gaussian is an image, convolved with a point spread function by FFT; a linear inversion finds
their weights; the likelihood follows. m is the number of Gaussians; all are written in a Python
loop, as lens modellers do.
"""

import jax
import jax.numpy as jnp
import numpy as np

from harness.registry import ArmTable, Call

SIDE = 24
NOISE = 0.1
_AXIS = np.linspace(-1, 1, SIDE, dtype=np.float32)
Y, X = np.meshgrid(_AXIS, _AXIS, indexing="ij")
_PSF = np.exp(-(X**2 + Y**2) / 0.02)
PSF = np.fft.ifftshift(_PSF / _PSF.sum())
DATA = np.random.default_rng(0).normal(size=(SIDE, SIDE)).astype(np.float32)

Gaussian = dict[str, jax.Array]


def image(gaussian: Gaussian, width: float) -> jax.Array:
    """One Gaussian on the grid, cut off at three widths."""
    cos, sin = jnp.cos(gaussian["angle"]), jnp.sin(gaussian["angle"])
    dx, dy = X - gaussian["x"], Y - gaussian["y"]
    along, across = cos * dx + sin * dy, cos * dy - sin * dx
    r2 = (along**2 + (across / gaussian["ratio"]) ** 2) / width
    return jnp.where(r2 < 9.0, jnp.exp(-0.5 * r2), 0.0) / gaussian["ratio"]


def convolve(picture: jax.Array) -> jax.Array:
    """With the point spread function."""
    transformed = jnp.fft.rfft2(picture) * jnp.fft.rfft2(PSF)
    return jnp.fft.irfft2(transformed, s=(SIDE, SIDE))


def log_likelihood(gaussians: list[Gaussian]) -> jax.Array:
    """Of the data, with the best weight for each Gaussian."""
    columns = []
    for i, gaussian in enumerate(gaussians):
        columns.append(convolve(image(gaussian, 0.01 * 1.1**i)).reshape(-1))
    design = jnp.stack(columns, axis=1) / NOISE
    data = DATA.reshape(-1) / NOISE
    curvature = design.T @ design + jnp.eye(len(gaussians))
    weights = jnp.linalg.solve(curvature, design.T @ data)
    residual = data - design @ weights
    return -0.5 * residual @ residual - 0.5 * jnp.linalg.slogdet(curvature)[1]


def make_arguments(m: int) -> tuple[list[Gaussian]]:
    """m Gaussians, all different."""
    draw = np.random.default_rng(1).uniform
    return (
        [
            {
                name: jnp.float32(draw(low, high))
                for name, low, high in (
                    ("x", -0.3, 0.3),
                    ("y", -0.3, 0.3),
                    ("ratio", 0.5, 1.0),
                    ("angle", 0.0, 3.0),
                )
            }
            for _ in range(m)
        ],
    )


def jit(m: int) -> Call:
    """As written."""
    return Call(function=jax.jit(jax.value_and_grad(log_likelihood)), args=make_arguments(m))


def fold(m: int) -> Call:
    """Folded after differentiating."""
    import compilecut as cc

    folded = cc.fold(jax.value_and_grad(log_likelihood))
    return Call(function=jax.jit(folded), args=make_arguments(m))


def fold_first(m: int) -> Call:
    """Folded before differentiating."""
    import compilecut as cc

    return Call(
        function=jax.jit(jax.value_and_grad(cc.fold(log_likelihood))), args=make_arguments(m)
    )


ARMS: ArmTable = {"jit": jit, "fold": fold, "fold-first": fold_first}
