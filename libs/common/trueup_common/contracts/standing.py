"""Which effects of a case a person must speak about who closes it: every one that happened or may have, and no other.

Asked by the gateway of what it is told, and again by the orchestrator of what is true.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.states import CompensationState, EffectClass, OperationState

S = OperationState
_NOTHING: Final = frozenset({"NOT_SENT", "ABSENT", "REJECTED"})
"""Ends of an attempt that prove that it had no effect."""
_OVER: Final = frozenset({S.RESOLVED, S.CANCELLED})


def barred(row: JournalRow) -> bool:
    """True where an attempt is known to have landed although the operation did not succeed, and nobody settled it."""
    if row.resolution_type is not None:
        return False
    return row.state is not S.SUCCESS and any(item["state"] == "CONFIRMED" for item in row.attempts)


def stands(row: JournalRow, declaration: CommandDeclaration | None) -> bool:
    """True where an operation left something in the world, or may have; undoing speaks for what it undid."""
    if row.compensates is not None or row.state in _OVER:
        return False
    if row.compensation_state is CompensationState.COMPENSATED:
        return False
    if declaration is not None and declaration.effect_class is EffectClass.READ:
        return False
    if row.state is S.SUCCESS:
        return True
    if row.state is S.FAILED:
        return barred(row)  # failed means known not to have happened, but for what is known to have landed
    return any(item["state"] not in _NOTHING for item in row.attempts)


def standing(rows: Sequence[JournalRow], declarations: Mapping[str, CommandDeclaration]) -> list[str]:
    """The commands whose effects stand, or may; `declarations` by hash."""
    return [row.command_id for row in rows if stands(row, declarations.get(row.declaration_sha256))]


def said_of(params: Mapping[str, Any]) -> list[str]:
    """The effects that a disposition names, as often as it names them."""
    return [str(item.get("effect")) for item in params.get("disposition") or ()]


def unspoken(owed: Sequence[str], named: Sequence[str], seen: Collection[str] = ()) -> list[str]:
    """What a disposition gets wrong: effects that it leaves out, names twice, or that are none of this case's.

    `seen` are effects of which every element was just observed to be as it should be: they speak for themselves.
    """
    wrong = [f"says nothing of {name}" for name in owed if name not in named and name not in seen]
    wrong += [f"{name} is no effect of this case that stands" for name in dict.fromkeys(named) if name not in owed]
    wrong += [f"speaks of {name} more than once" for name in dict.fromkeys(named) if named.count(name) > 1]
    return wrong
