"""The proof that rows of equations are calls of one block.

Every operand of a slot must be, in all rows alike, the result of one slot of the same row
(*internal*), or come from outside the row. What comes from outside is an argument of the block: it
may be anything, because a block is a function. Where a row breaks this, the equation in question
and all that depend on it are no part of that row; a row that loses too much is no block.

Three kinds of equation are taken out of a block: those with effects; those that differ between
rows in a parameter (a slice's start) and so are only alike; those that compute the same from the
same in every row, which are computed once (*shared*). If what is left depends on itself through
them, the order finds out (`_order.py`).
"""

import dataclasses
from collections.abc import Hashable, Iterator

import numpy as np

from .._jaxpr import Equation, Literal, Operand, Program, Value
from ._index import Index
from ._repeat import Call, FoundRepeat, Mismatch
from ._rows import ENOUGH, MISSING, Rows


def prove(index: Index, rows: Rows, min_blocks: int) -> FoundRepeat | Mismatch | None:
    """Returns the repeat that rows are, or why they are none."""
    proof = _Proof(index, rows)
    first = proof.drop_what_differs()
    if len(proof.table) < min_blocks:
        return first
    proof.share()
    return proof.repeat() if proof.slots else None


# Where an operand comes from: (slot, result) inside the row, or something outside.
_Internal = tuple[int, int]


class _Proof:
    def __init__(self, index: Index, rows: Rows):
        self._index = index
        self.table = rows.table.copy()
        self._model = rows.model
        self._columns = self._slot_of(rows.model)
        self._same: dict[Operand, Operand] = {}
        loose = self._loose_slots()
        self.slots = [slot for slot in range(self.table.shape[1]) if slot not in loose]

    def _slot_of(self, row: int) -> dict[int, int]:
        return {int(p): slot for slot, p in enumerate(self.table[row]) if p != MISSING}

    def _equation(self, row: int, slot: int) -> Equation | None:
        position = int(self.table[row, slot])
        return None if position == MISSING else self._index.equations[position]

    def _present(self, slot: int) -> Iterator[tuple[int, Equation]]:
        for row in range(len(self.table)):
            eqn = self._equation(row, slot)
            if eqn is not None:
                yield row, eqn

    def _loose_slots(self) -> set[int]:
        """Slots that can't be in a block: with effects, or only alike."""
        loose = set()
        for slot in range(self.table.shape[1]):
            keys = {(eqn.key, bool(eqn.effects)) for _, eqn in self._present(slot)}
            if len(keys) > 1 or any(effects for _, effects in keys):
                loose.add(slot)
        return loose

    # --- internal edges

    def drop_what_differs(self) -> Mismatch | None:
        """Removes equations that aren't connected as in the model, then rows that lost too much."""
        first: Mismatch | None = None
        inside = set(self.slots)
        for row in range(len(self.table)):
            columns = self._slot_of(row)
            for slot in self.slots:
                eqn, model = self._equation(row, slot), self._equation(self._model, slot)
                if eqn is None or model is None:
                    continue
                detail = self._difference(model, eqn, columns, inside)
                if detail is not None:
                    first = first or Mismatch(model=model, other=eqn, detail=detail)
                    del columns[int(self.table[row, slot])]
                    self.table[row, slot] = MISSING
        self._drop_rows()
        return first

    def _difference(
        self, model: Equation, eqn: Equation, columns: dict[int, int], inside: set[int]
    ) -> str | None:
        pairs = zip(model.inputs, eqn.inputs, strict=True)
        for number, (expected, given) in enumerate(pairs):
            here = self._source(expected, self._columns, inside)
            there = self._source(given, columns, inside)
            if here != there:
                return f"operand {number} {_origin(here)} in one and {_origin(there)} in the other"
        return None

    def _source(
        self, operand: Operand, columns: dict[int, int], inside: set[int]
    ) -> _Internal | None:
        made = self._index.producer.get(operand)
        if made is None:
            return None
        slot = columns.get(made[0])
        return None if slot is None or slot not in inside else (slot, made[1])

    def _drop_rows(self) -> None:
        weights = self._index.weights[self.table[self._model]]
        inside = np.zeros(self.table.shape[1], bool)
        inside[self.slots] = True
        kept = ((self.table != MISSING) & inside) @ weights
        enough = kept >= ENOUGH * weights[inside].sum()
        self._model = int(enough[: self._model].sum())
        self.table = self.table[enough]

    # --- what is the same in every block

    def share(self) -> None:
        """Takes slots out of the block whose equations compute the same from the same."""
        kept = []
        for slot in self.slots:
            present = list(self._present(slot))
            operands = {tuple(map(self._identity, eqn.inputs)) for _, eqn in present}
            first = present[0][1]
            if len(operands) > 1 or len(present) == 1 or not _takes_values(first):
                kept.append(slot)
                continue
            for _, eqn in present[1:]:
                self._same.update(zip(eqn.outputs, first.outputs, strict=True))
        self.slots = kept

    def _identity(self, operand: Operand) -> Hashable:
        return operand.key if isinstance(operand, Literal) else self._same.get(operand, operand)

    # --- the block as a function

    def repeat(self) -> FoundRepeat:
        """Builds the block and its calls."""
        return _Builder(self._index, self.table[:, self.slots], self._model, self._same).build()


def _takes_values(eqn: Equation) -> bool:
    # Zeros made from a literal cost nothing inside a block, but an argument if they are outside.
    return any(not isinstance(operand, Literal) for operand in eqn.inputs)


def _origin(source: _Internal | None) -> str:
    return "comes from outside the block" if source is None else "is computed in the block"


@dataclasses.dataclass(slots=True)
class _Port:
    """An argument of a block: its value there, and what each row passes."""

    value: Value
    given: list[Operand | None]


class _Builder:
    """Turns a proven table into a block and calls."""

    def __init__(self, index: Index, table: np.ndarray, model: int, same: dict[Operand, Operand]):
        self._index = index
        self._table = table
        self._model = model
        self._same = same
        self._columns = [{int(p): s for s, p in enumerate(row) if p != MISSING} for row in table]
        self._ports: dict[tuple[Hashable, ...], _Port] = {}
        self._inside: dict[tuple[int, int], Value] = {}

    def build(self) -> FoundRepeat:
        equations = [self._rebuild(slot) for slot in range(self._table.shape[1])]
        outputs = self._outputs()
        ports = list(self._ports.values())
        block = Program(
            arguments=tuple(port.value for port in ports),
            constants={},
            equations=equations,
            outputs=tuple(self._inside[output] for output in outputs),
        )
        calls = tuple(self._call(row, ports, outputs) for row in range(len(self._table)))
        return FoundRepeat(
            block=block,
            key=block_key(block),
            calls=calls,
            shared=self._same,
            weight=int(self._index.weights[self._table[self._model]].sum()),
            completed=int((self._table == MISSING).sum()),
        )

    def _rebuild(self, slot: int) -> Equation:
        model = self._index.equations[int(self._table[self._model, slot])]
        inputs = tuple(self._input(slot, k, operand) for k, operand in enumerate(model.inputs))
        outputs = tuple(Value(value.aval) for value in model.outputs)
        for number, value in enumerate(outputs):
            self._inside[slot, number] = value
        return dataclasses.replace(model, inputs=inputs, outputs=outputs)

    def _input(self, slot: int, number: int, operand: Operand) -> Operand:
        made = self._index.producer.get(operand)
        feeds = None if made is None else self._columns[self._model].get(made[0])
        if made is not None and feeds is not None:
            return self._inside[feeds, made[1]]
        given = [self._given(row, slot, number) for row in range(len(self._table))]
        literals = {g.key for g in given if isinstance(g, Literal)}
        if len(literals) == 1 and all(g is None or isinstance(g, Literal) for g in given):
            return operand
        return self._port(given, operand.aval).value

    def _given(self, row: int, slot: int, number: int) -> Operand | None:
        position = int(self._table[row, slot])
        if position == MISSING:
            return None
        operand = self._index.equations[position].inputs[number]
        return operand if isinstance(operand, Literal) else self._same.get(operand, operand)

    def _port(self, given: list[Operand | None], aval) -> _Port:
        key = (aval, *(g.key if isinstance(g, Literal) else g for g in given))
        port = self._ports.get(key)
        if port is None:
            port = self._ports[key] = _Port(Value(aval), given)
        return port

    def _outputs(self) -> list[tuple[int, int]]:
        """Returns which results of the block are used outside of it, in any row."""
        wanted: dict[tuple[int, int], None] = {}
        for row, columns in zip(self._table, self._columns, strict=True):
            for slot, position in enumerate(row):
                if position == MISSING:
                    continue
                for number, value in enumerate(self._index.equations[int(position)].outputs):
                    if any(user not in columns for user in self._index.users[value]):
                        wanted[slot, number] = None
        return sorted(wanted)

    def _call(self, row: int, ports: list[_Port], outputs: list[tuple[int, int]]) -> Call:
        results = []
        for slot, number in outputs:
            position = int(self._table[row, slot])
            results.append(
                Value(self._inside[slot, number].aval)
                if position == MISSING
                else self._index.equations[position].outputs[number]
            )
        return Call(
            inputs=tuple(port.given[row] for port in ports),
            outputs=tuple(results),
            positions=tuple(sorted(int(p) for p in self._table[row] if p != MISSING)),
        )


def block_key(block: Program) -> Hashable:
    """Returns a key of a block: equal keys mean the same function of its arguments."""
    names: dict[Operand, Hashable] = {}

    def name(operand: Operand) -> Hashable:
        if isinstance(operand, Literal):
            return operand.key
        return names.setdefault(operand, len(names))

    heads = tuple((name(v), v.aval) for v in block.arguments)
    body = tuple(
        (eqn.key, tuple(map(name, eqn.inputs)), tuple(map(name, eqn.outputs)))
        for eqn in block.equations
    )
    return (heads, body, tuple(map(name, block.outputs)))
