"""What stays as written, in words: the reason, the equations, the user's lines, the remedy."""

from collections.abc import Sequence

from .._jaxpr import Equation
from .._match import FoundRepeat, Mismatch, weights
from .._report import SkipReason, source_line
from ._data import FoldSkip, Setting
from ._lines import block_line, describe
from ._near import Near

_PACK = (
    "If it is a step called again and again: `fold(step).packed(...)` keeps its state in stacks."
)
_ALIKE = "Make the blocks alike: see `Make blocks match` in the docs."
_EFFECT = "Take prints and callbacks out of the blocks, or leave them: the rest of a block folds."


def cost_skip(repeat: FoundRepeat, setting: Setting) -> FoldSkip:
    """Returns why a repeat that was proven isn't folded."""
    n, operands = len(repeat.calls), len(repeat.block.arguments) + len(repeat.block.outputs)
    detail = (
        f"{n} blocks of {_equations(repeat.weight)}, with {operands} inputs and results each: "
        "handing these over costs as much as folding saves."
    )
    return FoldSkip(
        reason=SkipReason.COST,
        detail=detail,
        lines=_lines(block_line(repeat.block.equations)),
        equations=repeat.saved,
        remedy=_remedy_of_cost(setting),
    )


def near_skip(repeat: FoundRepeat, near: Near) -> FoldSkip:
    """Returns what tells equations from the blocks that they are almost like."""
    place = block_line(repeat.block.equations)
    n = len(repeat.calls)
    what = "1 block" if near.n == 1 else f"{near.n} blocks"
    whom = f"1 of {n} blocks" if near.inside else f"{what} beside {n} others"
    return FoldSkip(
        reason=SkipReason.DIFFERS,
        detail=f"{whom}: {_contrast(near)}.",
        lines=_lines(place, _line_of(near.other or near.block)),
        equations=int(weights(near.equations).sum()) * (1 if near.n == 1 else 0),
        remedy=_ALIKE,
    )


def _contrast(near: Near) -> str:
    theirs = describe(near.block) if near.block is not None else "nothing"
    if near.other is None:
        return f"the others have {theirs}, which it lacks"
    here = describe(near.other)
    if here == theirs:
        return f"{here} stands in both, with other parameters"
    return f"it has {here} where the others have {theirs}"


def mismatch_skip(mismatch: Mismatch) -> FoldSkip:
    """Returns why blocks that look alike are not the same."""
    model, other = mismatch.model, mismatch.other
    return FoldSkip(
        reason=SkipReason.DIFFERS,
        detail=f"Two blocks are wired differently at {describe(other)}: {mismatch.detail}.",
        lines=_lines(_line_of(model), _line_of(other)),
        equations=0,
        remedy=_ALIKE,
    )


def effect_skip(effects: Sequence[Equation]) -> FoldSkip:
    """Returns that equations with effects stay."""
    return FoldSkip(
        reason=SkipReason.EFFECT,
        detail=f"{_equations(len(effects))} with effects (prints, callbacks), such as "
        f"{describe(effects[0])}.",
        lines=_lines(*map(_line_of, effects[:2])),
        equations=len(effects),
        remedy=_EFFECT,
    )


def _remedy_of_cost(setting: Setting) -> str:
    if setting.form == "scan":
        return 'Let `form="auto"` choose: a unit is called without stacking.'
    return "Nothing to do: it is small." if setting.packed or setting.form == "unit" else _PACK


def _line_of(eqn: Equation | None) -> str:
    return source_line(eqn) if eqn is not None else ""


def _lines(*lines: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for line in lines if line))


def _equations(n: int) -> str:
    return f"{n:,} equation" if n == 1 else f"{n:,} equations"
