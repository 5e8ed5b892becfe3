"""Solvers, filters and likelihoods: Python loops of numerical work."""

import diffrax
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import log_density

from .program import WIDTH, Program, gradient, normal


def _field(w, t, y):
    return jnp.tanh(w @ y) - 0.1 * y * jnp.cos(t)


def runge_kutta(differentiate):
    """Classical RK4 with a fixed step."""

    def final(w, y):
        h, t = 0.1, 0.0
        for _ in range(6):
            k1 = _field(w, t, y)
            k2 = _field(w, t + h / 2, y + h / 2 * k1)
            k3 = _field(w, t + h / 2, y + h / 2 * k2)
            k4 = _field(w, t + h, y + h * k3)
            y, t = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), t + h
        return jnp.square(y).sum() if differentiate else y

    args = normal(WIDTH, WIDTH, scale=0.4), normal(WIDTH, seed=1)
    return gradient(final) if differentiate else final, args


def diffrax_step_loop():
    """A Diffrax solver stepped by hand, as for a custom loop."""
    term, solver = diffrax.ODETerm(lambda t, y, w: _field(w, t, y)), diffrax.Tsit5()

    def loss(w, y):
        t, h = jnp.float32(0), jnp.float32(0.1)
        state = solver.init(term, t, t + h, y, w)
        for _ in range(4):
            y, _, _, state, _ = solver.step(term, t, t + h, y, w, state, made_jump=False)
            t = t + h
        return jnp.square(y).sum()

    return gradient(loss), (normal(WIDTH, WIDTH, scale=0.4), normal(WIDTH, seed=1))


def diffrax_solves():
    """Four whole solves in turn, as in multiple shooting; each is a loop already."""
    term, solver = diffrax.ODETerm(lambda t, y, w: _field(w, t, y)), diffrax.Heun()

    def final(ws, y):
        for w in ws:
            solution = diffrax.diffeqsolve(
                term, solver, 0.0, 0.4, 0.1, y, args=w, saveat=diffrax.SaveAt(t1=True), max_steps=8
            )
            assert solution.ys is not None
            y = solution.ys[0]
        return y

    ws = [normal(WIDTH, WIDTH, seed=i, scale=0.4) for i in range(4)]
    return final, (ws, normal(WIDTH, seed=9))


def kalman_filter(differentiate):
    """Log-likelihood of a series, predict and update unrolled."""

    def likelihood(a, c, q, r, series):
        mean, cov, total = jnp.zeros(3), jnp.eye(3), 0.0
        for y in series:
            mean, cov = a @ mean, a @ cov @ a.T + q @ q.T + 0.1 * jnp.eye(3)
            s = c @ cov @ c.T + r @ r.T + 0.1 * jnp.eye(2)
            gain = jnp.linalg.solve(s, c @ cov).T
            error = y - c @ mean
            total = total - 0.5 * (error @ jnp.linalg.solve(s, error) + jnp.linalg.slogdet(s)[1])
            mean, cov = mean + gain @ error, cov - gain @ c @ cov
        return total

    args = [normal(*s, seed=i, scale=0.4) for i, s in enumerate([(3, 3), (2, 3), (3, 3), (2, 2)])]
    return gradient(likelihood) if differentiate else likelihood, (*args, normal(5, 2, seed=9))


def newton():
    """Newton's method on a convex function, with its Hessian."""

    def objective(a, x):
        return jnp.log1p(jnp.exp(a @ x)).sum() + 0.5 * jnp.square(x).sum()

    def minimum(a, x):
        for _ in range(4):
            g = jax.grad(objective, argnums=1)(a, x)
            x = x - jnp.linalg.solve(jax.hessian(objective, argnums=1)(a, x), g)
        return x

    return minimum, (normal(6, 4), normal(4, seed=1))


def conjugate_gradients(differentiate):
    """Eight steps of CG, unrolled to be differentiated."""

    def solve(m, b):
        a = m @ m.T + jnp.eye(WIDTH)
        x, r = jnp.zeros(WIDTH), b
        p, rr = r, r @ r
        for _ in range(6):
            ap = a @ p
            alpha = rr / (p @ ap)
            x, r = x + alpha * p, r - alpha * ap
            rr, old = r @ r, rr
            p = r + rr / old * p
        return jnp.square(x).sum() if differentiate else x

    args = normal(WIDTH, WIDTH, scale=0.4), normal(WIDTH, seed=1)
    return gradient(solve) if differentiate else solve, args


def sinkhorn():
    """Entropic transport in the log domain, differentiated through."""

    def cost(x, y):
        c = jnp.square(x[:, None] - y[None, :]).sum(-1)
        f, g = jnp.zeros(len(x)), jnp.zeros(len(y))
        for _ in range(6):
            f = -jax.nn.logsumexp(g[None, :] - c, axis=1)
            g = -jax.nn.logsumexp(f[:, None] - c, axis=0)
        return (jnp.exp(f[:, None] + g[None, :] - c) * c).sum()

    return gradient(cost), (normal(5, 2), normal(6, 2, seed=1))


def iterated_softmax():
    """A matrix normalised by rows and columns in turn."""

    def normalise(logits):
        for _ in range(6):
            logits = jax.nn.log_softmax(logits, axis=1)
            logits = jax.nn.log_softmax(logits, axis=0)
        return jnp.exp(logits)

    return normalise, (normal(5, 5),)


def leapfrog():
    """Hamiltonian dynamics of a small posterior: gradients inside a loop."""

    def energy(q, data):
        return 0.5 * jnp.square(q).sum() + jnp.log1p(jnp.exp(-data @ q)).sum()

    def trajectory(q, p, data):
        for _ in range(6):
            p = p - 0.05 * jax.grad(energy)(q, data)
            q = q + 0.1 * p
            p = p - 0.05 * jax.grad(energy)(q, data)
        return q, p, energy(q, data) + 0.5 * jnp.square(p).sum()

    return trajectory, (normal(4), normal(4, seed=1), normal(6, 4, seed=2))


def coupling_flow():
    """RealNVP: affine couplings whose halves swap from layer to layer."""

    def nll(layers, x):
        half, total = WIDTH // 2, 0.0
        for number, p in enumerate(layers):
            a, b = x[:, :half], x[:, half:]
            a, b = (b, a) if number % 2 else (a, b)
            h = jnp.tanh(a @ p["w1"] + p["b1"])
            shift, scale = jnp.split(h @ p["w2"], 2, axis=-1)
            scale = jnp.tanh(scale)
            b, total = b * jnp.exp(scale) + shift, total + scale.sum(-1)
            x = jnp.concatenate((b, a) if number % 2 else (a, b), -1)
        return -(total - 0.5 * jnp.square(x).sum(-1)).mean()

    layers = [
        {
            "w1": normal(WIDTH // 2, 6, seed=f"w1{i}", scale=0.3),
            "b1": normal(6, seed=f"b1{i}"),
            "w2": normal(6, WIDTH, seed=f"w2{i}", scale=0.3),
        }
        for i in range(6)
    ]
    return gradient(nll), (layers, normal(5, WIDTH))


def gaussian_mixture(differentiate):
    """W6: elliptical Gaussians, each convolved with a point spread function, a linear inversion."""
    size, m = 8, 5

    def likelihood(gaussians, psf, image):
        grid = jnp.stack(jnp.meshgrid(jnp.linspace(-1, 1, size), jnp.linspace(-1, 1, size)), -1)
        columns = []
        for number, p in enumerate(gaussians):
            mask = jnp.asarray((grid**2).sum(-1) < 1.5)
            x, y = jnp.moveaxis(grid - p["centre"], -1, 0)
            cos, sin = jnp.cos(p["angle"]), jnp.sin(p["angle"])
            u, v = cos * x + sin * y, (cos * y - sin * x) / p["ratio"]
            sigma = p["size"] * (0.5 + 0.25 * number)
            light = jnp.where(mask, jnp.exp(-(u**2 + v**2) / (2 * sigma**2)), 0.0)
            blurred = jnp.fft.irfft2(jnp.fft.rfft2(light) * jnp.fft.rfft2(psf), (size, size))
            columns.append(blurred.ravel())
        design = jnp.stack(columns, axis=1)
        normal_matrix = design.T @ design + 1e-2 * jnp.eye(m)
        weights = jnp.linalg.solve(normal_matrix, design.T @ image.ravel())
        return -0.5 * jnp.square(image.ravel() - design @ weights).sum()

    gaussians = [
        {
            "centre": normal(2, seed=i, scale=0.2),
            "angle": normal(seed=10 + i),
            "ratio": jnp.float32(0.5 + 0.07 * i),
            "size": jnp.float32(0.4 + 0.05 * i),
        }
        for i in range(m)
    ]
    args = gaussians, jnp.abs(normal(size, size, seed=20)), normal(size, size, seed=21)
    return gradient(likelihood) if differentiate else likelihood, args


def numpyro_groups(differentiate):
    """A hierarchical regression, one sample statement a group."""

    def model(groups):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        for number, (x, y) in enumerate(groups):
            slope = numpyro.sample(f"slope{number}", dist.Normal(mu, tau))
            offset = numpyro.sample(f"offset{number}", dist.StudentT(4.0, 0.0, 1.0))
            numpyro.sample(f"y{number}", dist.Normal(slope * x + offset, 0.5), obs=y)

    def density(values, groups):
        return log_density(model, (groups,), {}, values)[0]

    names = [f"{name}{i}" for i in range(5) for name in ("slope", "offset")]
    values = {name: normal(seed=name) for name in ["mu", *names]} | {"tau": jnp.float32(0.7)}
    groups = [(normal(6, seed=i), normal(6, seed=50 + i)) for i in range(5)]
    return gradient(density) if differentiate else density, (values, groups)


def spectral_steps():
    """A Burgers equation, split steps by FFT."""

    def final(u):
        k = jnp.fft.rfftfreq(16, 1 / 16).astype(jnp.float32)
        for _ in range(5):
            u = u - 0.01 * u * jnp.fft.irfft(1j * k * jnp.fft.rfft(u), 16)
            u = jnp.fft.irfft(jnp.exp(-0.01 * k**2) * jnp.fft.rfft(u), 16)
        return jnp.square(u).sum()

    return gradient(final), (normal(16),)


def householder_qr():
    """QR by reflections of shrinking columns, written with masks so that all steps are alike."""

    def triangle(a):
        for j in range(5):
            column = jnp.where(jnp.arange(6) >= j, a[:, j], 0.0)
            v = column.at[j].add(jnp.sign(column[j]) * jnp.linalg.norm(column))
            v = v / jnp.linalg.norm(v)
            a = a - 2 * jnp.outer(v, v @ a)
        return a

    return triangle, (normal(6, 5),)


PROGRAMS = [
    Program(name="runge-kutta", make=lambda: runge_kutta(False), blocks=6),
    Program(name="runge-kutta-gradient", make=lambda: runge_kutta(True), blocks=6, strict=True),
    Program(name="diffrax-steps-gradient", make=diffrax_step_loop, blocks=4),
    Program(name="diffrax-solves", make=diffrax_solves, blocks=4),
    Program(name="kalman", make=lambda: kalman_filter(False), blocks=5),
    Program(name="kalman-gradient", make=lambda: kalman_filter(True), blocks=5, strict=True),
    Program(name="newton", make=newton, blocks=4),
    Program(name="cg", make=lambda: conjugate_gradients(False), blocks=6),
    Program(name="cg-gradient", make=lambda: conjugate_gradients(True), blocks=6),
    Program(name="sinkhorn-gradient", make=sinkhorn, blocks=6),
    Program(name="softmax-iterated", make=iterated_softmax, blocks=6),
    Program(name="leapfrog", make=leapfrog, blocks=6),
    Program(name="flow-gradient", make=coupling_flow, blocks=3),
    Program(name="gaussians", make=lambda: gaussian_mixture(False), blocks=5),
    Program(name="gaussians-gradient", make=lambda: gaussian_mixture(True), blocks=5, strict=True),
    Program(name="numpyro", make=lambda: numpyro_groups(False), blocks=5),
    Program(name="numpyro-gradient", make=lambda: numpyro_groups(True), blocks=5),
    Program(name="spectral-gradient", make=spectral_steps, blocks=5),
    Program(name="householder", make=householder_qr, blocks=5),
]
