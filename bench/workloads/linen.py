"""The transformer of `transformers.py`, initialised in linen."""

from workloads import transformers

ARMS = transformers.arms_of(transformers.linen_init)
