"""Emitting: from a plan back to a function that JAX traces, through its public calls."""

from ._run import Emitter as Emitter
from ._stacks import Element as Element
from ._stacks import Stack as Stack
from ._stacks import alone as alone
from ._stacks import collect as collect
