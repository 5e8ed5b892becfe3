"""The transformer of `transformers.py`, initialised in haiku."""

from workloads import transformers

ARMS = transformers.arms_of(transformers.haiku_init)
