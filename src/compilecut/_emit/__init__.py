"""Emitting: from a plan back to a function that JAX traces, through its public calls."""

from ._run import Emitter as Emitter
