"""Programs as terms: what each output is, written out from the inputs.

A term is a number that stands for one primitive applied to terms; the same application always gets
the same number. An array that is known element by element along its leading axis is held as `Rows`.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from jax.extend import core as jex_core
from jax.extend.core import primitives as prim

from .. import _compat
from ._params import constant_key, key_of


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """An array of which each element along the leading axis is known.

    Attributes:
        elements: the elements.
    """

    elements: tuple["Term", ...]


Term = int | Rows


@dataclasses.dataclass(slots=True)
class Known:
    """What is remembered of a term beyond its number.

    Attributes:
        key: the application that it stands for.
        shape: of the array.
        constant: the array itself, where the term is a captured constant.
        where: where it was written, for messages.
    """

    key: Hashable
    shape: tuple[int, ...]
    constant: Any = None
    where: Any = None


class Terms:
    """Numbers terms, and reads programs into them.

    Attributes:
        known: what each number stands for.
        effects: what talks to the outside, in order.
    """

    def __init__(self):
        self.known: list[Known] = []
        self.effects: list[Hashable] = []
        self._numbers: dict[Hashable, int] = {}
        self._jaxprs: dict[tuple[int, bool], tuple[Any, Hashable]] = {}
        self._loops: set[Hashable] = set()
        self._original = True

    # --- numbering

    def number(self, key: Hashable, shape: Sequence[int], **more: Any) -> int:
        """Returns the number of a term."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.known)
            self.known.append(Known(key, tuple(shape), **more))
        return found

    def literal(self, value: Any, aval: Any) -> int:
        """Returns the term of a number or a captured constant, by its content."""
        if aval.shape == () and not isinstance(value, jex_core.Var):
            key = constant_key(np.asarray(value, aval.dtype) if _plain(value) else value)
        else:
            key = constant_key(value)
        return self.number(("constant", key), aval.shape, constant=value)

    def whole(self, term: Term) -> int:
        """Returns an array known by its elements as one term."""
        if isinstance(term, int):
            return term
        elements = tuple(map(self.whole, term.elements))
        shape = self.known[elements[0]].shape if elements else ()
        return self.number(("stack", elements), (len(elements), *shape))

    def shape(self, term: Term) -> tuple[int, ...]:
        """Returns the shape of an array."""
        if isinstance(term, int):
            return self.known[term].shape
        return (len(term.elements), *self.shape(term.elements[0]))

    def element(self, term: Term, place: int) -> Term:
        """Returns one element of an array along its leading axis."""
        if isinstance(term, Rows):
            return term.elements[place]
        known = self.known[term]
        if known.constant is not None:
            part = known.constant[place]
            return self.literal(part, _Typed(np.shape(part), known.constant.dtype))
        return self.number(("element", term, place), known.shape[1:])

    # --- reading programs

    def now_the_folded(self) -> None:
        """From here on, loops that the programs before didn't have are run through."""
        self._original = False

    def read(self, closed: Any, inputs: Sequence[Term]) -> list[Term]:
        """Returns the terms of a program's outputs."""
        body = getattr(closed, "jaxpr", closed)
        consts = getattr(closed, "consts", ())
        env: dict[Any, Term] = dict(zip(body.invars, inputs, strict=True))
        for var, const in zip(body.constvars, consts, strict=True):
            env[var] = self.literal(const, var.aval)

        def term(atom: Any) -> Term:
            if isinstance(atom, jex_core.Literal):
                return self.literal(atom.val, atom.aval)
            return env[atom]

        for eqn in body.eqns:
            outputs = self._apply(eqn, [term(atom) for atom in eqn.invars])
            env.update(zip(eqn.outvars, outputs, strict=True))
        return [term(atom) for atom in body.outvars]

    def _apply(self, eqn: Any, inputs: list[Term]) -> Sequence[Term]:
        if eqn.primitive in _CALLS:
            return self.read(eqn.params[_CALLS[eqn.primitive]], inputs)
        if eqn.primitive is prim.scan_p and not self._original:
            if self._key(eqn) not in self._loops:
                return self._run_through(eqn, inputs)
        elif eqn.primitive is prim.scan_p:
            self._loops.add(self._key(eqn))
        rule = RULES.get(eqn.primitive)
        found = None if rule is None else rule(self, eqn, inputs)
        return self._opaque(eqn, inputs) if found is None else found

    def _opaque(self, eqn: Any, inputs: list[Term]) -> list[Term]:
        arguments = tuple(map(self.whole, inputs))
        key = (self._key(eqn), arguments)
        if eqn.effects:
            self.effects.append(key)
        return [
            self.number((key, place), var.aval.shape, where=eqn.source_info)
            for place, var in enumerate(eqn.outvars)
        ]

    def apply_one(self, eqn: Any, params: dict[str, Any], inputs: Sequence[int], shape) -> int:
        """Returns the term of a primitive with one result, applied with other parameters."""
        key = ((eqn.primitive, self._params(params), _context(eqn)), tuple(inputs))
        return self.number((key, 0), shape, where=eqn.source_info)

    def _key(self, eqn: Any) -> Hashable:
        return (eqn.primitive, self._params(eqn.params), _context(eqn))

    def _params(self, params: dict[str, Any]) -> Hashable:
        return key_of(params, self._jaxpr_key)

    def _jaxpr_key(self, jaxpr: Any) -> Hashable:
        """Returns a key of a program inside an equation: what its outputs are, of its inputs."""
        known = self._jaxprs.get((id(jaxpr), self._original))
        if known is None:
            body = getattr(jaxpr, "jaxpr", jaxpr)
            inputs = [
                self.number(("input", place, str(var.aval)), var.aval.shape)
                for place, var in enumerate(body.invars)
            ]
            before = len(self.effects)
            outputs = tuple(map(self.whole, self.read(jaxpr, inputs)))
            effects = tuple(self.effects[before:])
            del self.effects[before:]
            known = (jaxpr, ("jaxpr", len(inputs), outputs, effects))
            self._jaxprs[id(jaxpr), self._original] = known
        return known[1]

    def _run_through(self, eqn: Any, inputs: list[Term]) -> list[Term]:
        """Reads a loop once for each step."""
        params = eqn.params
        consts, carries = _compat.scan_counts(params)
        body, length = params["jaxpr"], params["length"]
        carry = inputs[consts : consts + carries]
        steps: list[list[Term]] = []
        for step in range(length):
            place = length - 1 - step if params["reverse"] else step
            elements = [self.element(xs, place) for xs in inputs[consts + carries :]]
            outputs = self.read(body, [*inputs[:consts], *carry, *elements])
            carry = outputs[:carries]
            steps.append(outputs[carries:])
        if params["reverse"]:
            steps.reverse()
        return [*carry, *(Rows(tuple(ys)) for ys in zip(*steps, strict=True))]


@dataclasses.dataclass(frozen=True, slots=True)
class _Typed:
    shape: tuple[int, ...]
    dtype: Any


def _plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex, np.generic, np.ndarray))


def _context(eqn: Any) -> Hashable:
    return (eqn.ctx.compute_type, eqn.ctx.threefry_partitionable)


# Calls that mean their body and nothing else, with the parameter that holds it.
_CALLS = {prim.jit_p: "jaxpr", prim.closed_call_p: "call_jaxpr"}
if _compat.xla_metadata_call_p is not None:
    _CALLS[_compat.xla_metadata_call_p] = "jaxpr"
# Primitives that move elements or act on each of them: (terms, equation, inputs) -> outputs.
RULES: dict[Any, Any] = {}
