"""The transformer of `transformers.py`, initialised in nnx."""

from workloads import transformers

ARMS = transformers.arms_of(transformers.nnx_init)
