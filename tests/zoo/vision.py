"""Convolutional networks: ResNet and U-Net stages, skips, concatenations."""

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp

from .program import Program, fill, gradient, normal

CHANNELS, SIZE, BLOCKS = 4, 4, 4


def _images():
    return normal(1, SIZE, SIZE, CHANNELS, seed=2)


class ResBlock(nn.Module):
    channels: int

    @nn.compact
    def __call__(self, x):
        h = nn.GroupNorm(2)(nn.Conv(self.channels, (3, 3), use_bias=False)(x))
        h = nn.GroupNorm(2)(nn.Conv(self.channels, (3, 3), use_bias=False)(nn.relu(h)))
        return nn.relu(x + h)


class ResNetStage(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(BLOCKS):
            x = ResBlock(CHANNELS)(x)
        return x.mean((1, 2))


class BatchNormStage(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(BLOCKS):
            h = nn.Conv(CHANNELS, (3, 3), use_bias=False)(x)
            x = x + nn.relu(nn.BatchNorm(use_running_average=False)(h))
        return x.mean((1, 2))


class UNet(nn.Module):
    """Three blocks at each resolution, down and up again, joined by concatenation."""

    @nn.compact
    def __call__(self, x):
        skips = []
        for level in range(2):
            for _ in range(3):
                x = ResBlock(CHANNELS * 2**level)(x)
            skips.append(x)
            x = nn.Conv(CHANNELS * 2 ** (level + 1), (2, 2), (2, 2))(x)
        for level in reversed(range(2)):
            x = nn.ConvTranspose(CHANNELS * 2**level, (2, 2), (2, 2))(x)
            x = nn.Conv(CHANNELS * 2**level, (1, 1))(jnp.concatenate([x, skips.pop()], -1))
            for _ in range(3):
                x = ResBlock(CHANNELS * 2**level)(x)
        return nn.Conv(CHANNELS, (1, 1))(x)


class DenseNet(nn.Module):
    """Each block is wider than the one before: blocks differ, but for the growth they make."""

    @nn.compact
    def __call__(self, x):
        for _ in range(BLOCKS):
            x = jnp.concatenate([x, nn.Conv(2, (3, 3))(nn.relu(nn.GroupNorm(1)(x)))], -1)
        return x.mean((1, 2))


class SkipDecoder(nn.Module):
    """Encoder and decoder of one width; decoder block i reads encoder block n - i."""

    @nn.compact
    def __call__(self, x):
        skips = []
        for _ in range(5):
            x = x + nn.Dense(CHANNELS)(nn.gelu(nn.Dense(8)(nn.LayerNorm()(x))))
            skips.append(x)
        for _ in range(5):
            h = nn.LayerNorm()(jnp.concatenate([x, skips.pop()], -1))
            x = x + nn.Dense(CHANNELS)(nn.gelu(nn.Dense(8)(h)))
        return x


def _linen(model, *, loss):
    def make():
        variables = fill(jax.eval_shape(model.init, jax.random.key(0), _images()), positive=True)
        params = variables.pop("params")

        def apply(params, images):
            out = model.apply({"params": params, **variables}, images, mutable=["batch_stats"])
            return jnp.square(out[0]).mean() if loss else out

        return gradient(apply) if loss else apply, (params, _images())

    return make


def haiku_resnet():
    def model(images):
        x = images
        for _ in range(BLOCKS):
            h = jax.nn.relu(hk.Conv2D(CHANNELS, 3)(x))
            x = jax.nn.relu(x + hk.Conv2D(CHANNELS, 3)(h))
        return x.sum()

    transformed = hk.without_apply_rng(hk.transform(model))
    shapes = jax.eval_shape(transformed.init, jax.random.key(0), _images())
    return gradient(transformed.apply), (fill(shapes), _images())


PROGRAMS = [
    Program(name="resnet-linen", make=_linen(ResNetStage(), loss=False), blocks=BLOCKS),
    Program(name="resnet-linen-gradient", make=_linen(ResNetStage(), loss=True), blocks=BLOCKS),
    Program(name="resnet-batchnorm", make=_linen(BatchNormStage(), loss=False), blocks=BLOCKS),
    Program(
        name="resnet-batchnorm-gradient", make=_linen(BatchNormStage(), loss=True), blocks=BLOCKS
    ),
    Program(name="resnet-haiku-gradient", make=haiku_resnet, blocks=BLOCKS, strict=True),
    Program(name="unet-linen", make=_linen(UNet(), loss=False), blocks=3),
    Program(name="unet-linen-gradient", make=_linen(UNet(), loss=True), blocks=3),
    Program(name="densenet-linen", make=_linen(DenseNet(), loss=False), blocks=0),
    Program(name="skips-linen", make=_linen(SkipDecoder(), loss=False), blocks=5),
    Program(name="skips-linen-gradient", make=_linen(SkipDecoder(), loss=True), blocks=5),
]
