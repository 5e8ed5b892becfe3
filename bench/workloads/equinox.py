"""The transformer of `transformers.py`, initialised in equinox."""

from workloads import transformers

ARMS = transformers.arms_of(transformers.equinox_init)
