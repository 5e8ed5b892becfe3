"""Programs as terms: what each output is, written out from the inputs.

A term is a number that stands for one primitive applied to terms; the same application always gets
the same number. An array that is known element by element along its leading axis is held as `Rows`.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core
from jax.extend.core import primitives as prim

from .. import _compat
from ._derivative import RULED, derivative
from ._params import constant_key, key_of, readable


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

    def __init__(self, through_all: bool = False):
        """Starts without any term.

        Args:
            through_all: run through the loops that both programs have, too.
        """
        self.known: list[Known] = []
        self.effects: list[Hashable] = []
        self._numbers: dict[Hashable, int] = {}
        self._jaxprs: dict[tuple[int, bool, bool], tuple[Any, Hashable]] = {}
        self._loops: set[Hashable] = set()
        self._rules: dict[Hashable, tuple[Any, Hashable]] = {}
        self._in_rule = False
        self._through_all = through_all
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
        if _plain(value):
            value = np.asarray(value, aval.dtype)
        return self.number(("constant", constant_key(value)), aval.shape, constant=value)

    def whole(self, term: Term) -> int:
        """Returns an array known by its elements as one term."""
        if isinstance(term, int):
            return term
        elements = tuple(map(self.whole, term.elements))
        shape = self.known[elements[0]].shape
        return self.number(("stack", elements), (len(elements), *shape))

    def rows(self, elements: Sequence[Term]) -> Term:
        """Returns an array made of elements; the one they are all of, if they are all of it."""
        origin = self._origin(elements[0])
        if origin is not None and self.known[origin].shape[0] == len(elements):
            names = [("element", origin, place) for place in range(len(elements))]
            if all(
                isinstance(element, int) and self.known[element].key == name
                for element, name in zip(elements, names, strict=True)
            ):
                return origin
        return Rows(tuple(elements))

    def _origin(self, element: Term) -> int | None:
        key: Any = self.known[element].key if isinstance(element, int) else ("",)
        return key[1] if key[0] == "element" else None

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
        head: Any = known.key
        if head[0] == "stack":
            return head[1][place]
        if isinstance(known.constant, (np.ndarray, jax.Array)) and readable(known.constant):
            part = np.asarray(known.constant)[place]
            return self.literal(part, _Typed(np.shape(part), part.dtype))
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
            outputs = self.apply(eqn, [term(atom) for atom in eqn.invars])
            env.update(zip(eqn.outvars, outputs, strict=True))
        return [term(atom) for atom in body.outvars]

    def apply(self, eqn: Any, inputs: list[Term]) -> Sequence[Term]:
        if eqn.primitive in _CALLS:
            return self._placed(eqn, self.read(eqn.params[_CALLS[eqn.primitive]], inputs))
        if eqn.primitive is prim.scan_p and self._opens(eqn):
            return self._run_through(eqn, inputs)
        rule = RULES.get(eqn.primitive)
        found = None if rule is None else rule(self, eqn, inputs)
        return self._opaque(eqn, inputs) if found is None else found

    def _opens(self, eqn: Any) -> bool:
        """Says whether a loop is run through. One that both programs have need not be."""
        length = eqn.params["length"]
        if not length:
            return False
        if self._through_all:
            return length * len(eqn.params["jaxpr"].jaxpr.eqns) <= _TOO_LONG
        if self._original:
            self._loops.add(self._key(eqn))
        return self._key(eqn) not in self._loops

    def _placed(self, eqn: Any, outputs: list[Term]) -> list[Term]:
        """A call that says where its results live is more than its body."""
        if eqn.primitive is not prim.jit_p or _compat.jit_only_groups(eqn.params):
            return outputs
        rest = {name: v for name, v in eqn.params.items() if name not in _ONLY_GROUPS}
        call = self.number(("call", self._params(rest), tuple(map(self.whole, outputs))), ())
        return [
            self.number(("placed", call, place), self.shape(term), where=eqn.source_info)
            for place, term in enumerate(outputs)
        ]

    def _opaque(self, eqn: Any, inputs: list[Term]) -> list[Term]:
        arguments = tuple(map(self.whole, inputs))
        key: Hashable = (self._key(eqn), arguments)
        if eqn.effects:  # the same again is something else: two reads of a file, say
            key = ((*self._key(eqn), len(self.effects)), arguments)
            self.effects.append(key)
        return [
            self.number((key, place), var.aval.shape, where=eqn.source_info)
            for place, var in enumerate(eqn.outvars)
        ]

    def apply_one(self, eqn: Any, params: dict[str, Any], inputs: list[Term]) -> Term:
        """Returns what an equation with one result, of whole stacks, is for one element."""
        result = eqn.outvars[0].aval
        aval = _Typed(result.shape[1:], result.dtype)
        return self.apply(_Inner(eqn.primitive, params, (_Result(aval),), eqn), inputs)[0]

    def _key(self, eqn: Any) -> tuple[Hashable, ...]:
        params = eqn.params
        if eqn.primitive in RULED:
            params = {name: v for name, v in params.items() if name not in RULED[eqn.primitive]}
            params["derivative"] = self._derivative(eqn)
        return (eqn.primitive, self._params(params), _context(eqn))

    def _derivative(self, eqn: Any) -> Hashable:
        """Returns a key of a rule: what the derivative is, of the first order.

        JAX makes the rule's function anew whenever the call is bound. So it is called.
        """
        if self._in_rule:
            return None
        same = (*map(id, eqn.params.values()), *(str(atom.aval) for atom in eqn.invars))
        if same not in self._rules:
            closed = derivative(eqn)
            self._in_rule = True
            key = closed if isinstance(closed, str) else self._jaxpr_key(closed)
            self._in_rule = False
            self._rules[same] = (eqn, key)
        return self._rules[same][1]

    def _params(self, params: dict[str, Any]) -> Hashable:
        return key_of(params, self._jaxpr_key)

    def _jaxpr_key(self, jaxpr: Any) -> Hashable:
        """Returns a key of a program inside an equation: what its outputs are, of its inputs."""
        at = (id(jaxpr), self._original, self._in_rule)
        known = self._jaxprs.get(at)
        if known is None:
            body = getattr(jaxpr, "jaxpr", jaxpr)
            inputs = [
                self.number(("input", place, str(var.aval)), var.aval.shape)
                for place, var in enumerate(body.invars)
            ]
            outside, self.effects = self.effects, []
            outputs = tuple(map(self.whole, self.read(jaxpr, inputs)))
            effects, self.effects = tuple(self.effects), outside
            known = (jaxpr, ("jaxpr", len(inputs), outputs, effects))
            self._jaxprs[at] = known
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
        return [*carry, *(self.rows(ys) for ys in zip(*steps, strict=True))]


@dataclasses.dataclass(frozen=True, slots=True)
class _Typed:
    shape: tuple[int, ...]
    dtype: Any


@dataclasses.dataclass(frozen=True, slots=True)
class _Result:
    aval: _Typed


@dataclasses.dataclass(frozen=True, slots=True)
class _Inner:
    """An equation as it is for one element of the stacks that it was written for."""

    primitive: Any
    params: dict[str, Any]
    outvars: tuple[_Result, ...]
    whole: Any
    effects: frozenset[Any] = frozenset()

    @property
    def invars(self) -> Any:
        return self.whole.invars

    @property
    def ctx(self) -> Any:
        return self.whole.ctx

    @property
    def source_info(self) -> Any:
        return self.whole.source_info


def _plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex, np.generic, np.ndarray))


def _context(eqn: Any) -> Hashable:
    return (eqn.ctx.compute_type, eqn.ctx.threefry_partitionable)


# Calls that mean their body and nothing else, with the parameter that holds it.
_CALLS = {prim.jit_p: "jaxpr", prim.closed_call_p: "call_jaxpr"}
if _compat.xla_metadata_call_p is not None:
    _CALLS[_compat.xla_metadata_call_p] = "jaxpr"
# What is no more than the call's grouping, or looked into.
_ONLY_GROUPS = frozenset({"jaxpr", "name", "inline", "keep_unused", "donated_invars"})
# Equations: a loop of more is not run through unless it has to be.
_TOO_LONG = 100_000
# Primitives that move elements or act on each of them: (terms, equation, inputs) -> outputs.
RULES: dict[Any, Any] = {}
