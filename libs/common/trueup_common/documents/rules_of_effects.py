"""Rules about effects: what may come before and after a step that cannot be taken back (requirement S2).

Before the pivot a case goes backwards, after it forwards. So whatever may end backwards must be over before the pivot
begins, and what happens before the pivot must be possible to undo.
"""

from collections.abc import Iterator

from trueup_common.contracts.states import EffectClass
from trueup_common.contracts.workflow import GoTo, Reaction, Step, StepKind
from trueup_common.documents.ground import PIVOTS, Found, Ground
from trueup_common.documents.reactions import BACKWARD, gotos

_GUARDS = frozenset({StepKind.APPROVAL, StepKind.CHECK})


def effect_order(ground: Ground) -> Iterator[Found]:
    """A step that may fail backwards is not over before a step that cannot be taken back."""
    for pointer, step in ground.steps:
        outcome = ground.fails_backwards(step)
        late = [pivot for pivot in ground.pivots if pivot != step.id and step.id not in ground.order.before[pivot]]
        if outcome is None or not late or (step.id in ground.past_pivot and outcome in step.on):
            continue  # the last one is told by undo_after_pivot, at its very line
        where = "after" if late[0] in ground.order.before[step.id] else "beside"
        yield (
            pointer,
            f"{step.id!r} stands {where} {late[0]!r}, which cannot be taken back, and may still end backwards "
            f"({outcome.value}): put it before {late[0]!r}, or give it a forward way (on: {outcome.value}: takeover)",
        )


def undo_after_pivot(ground: Ground) -> Iterator[Found]:
    """A step after the pivot asks for `compensate` or `cancel`: nothing is undone there."""
    for pointer, step in ground.steps:
        for outcome, answer in step.on.items():
            if step.id in ground.past_pivot and answer in BACKWARD:
                yield (
                    f"{pointer}/on/{outcome.value}",
                    f"{step.id!r} comes after the pivot, where nothing is undone: answer {outcome.value} with "
                    "takeover, safe_stop, continue or goto",
                )


def pivot_left_behind(ground: Ground) -> Iterator[Found]:
    """A step that cannot be taken back may fail, and what comes after it goes on as if it had happened."""
    for pointer, step in ground.steps:
        if step.id not in ground.pivots:
            continue
        after = [other.id for _, other in ground.steps if step.id in ground.order.before[other.id]]
        for outcome, answer in step.on.items():
            if after and (answer is Reaction.CONTINUE or isinstance(answer, GoTo)):
                yield (
                    f"{pointer}/on/{outcome.value}",
                    f"{after[0]!r} comes after {step.id!r} and relies on it: answer {outcome.value} with compensate, "
                    "cancel, takeover or safe_stop",
                )


def two_pivots(ground: Ground) -> Iterator[Found]:
    """Two steps cannot be taken back, and the document does not say why."""
    if ground.document.pivots_reason is None:
        for pointer, step, _ in ground.commands:
            if step.id in ground.pivots[1:]:
                yield (
                    f"{pointer}/command",
                    f"{ground.pivots[0]!r} and {step.id!r} both cannot be taken back: one of them has to be the point "
                    "of no return, or pivots_reason says why there are two",
                )


def no_compensation(ground: Ground) -> Iterator[Found]:
    """A compensable command has no compensation that exists."""
    for pointer, step, declaration in ground.commands:
        undo = declaration.compensation
        if undo is None and declaration.effect_class is EffectClass.COMPENSABLE:
            yield f"{pointer}/command", f"{step.command} is compensable, but nothing is declared that undoes it"
        elif undo is not None and undo.command_type not in ground.declarations:
            yield f"{pointer}/command", f"{step.command} is undone by {undo.command_type}, which does not exist"


def cannot_be_undone(ground: Ground) -> Iterator[Found]:
    """An effect without compensation comes before something that may take the case backwards.

    A retryable command counts as harmless before the pivot only where its declaration names what makes it good.
    """
    for pointer, step, declaration in ground.commands:
        if declaration.effect_class is not EffectClass.RETRYABLE or declaration.compensation is not None:
            continue
        if step.id in ground.past_pivot:
            continue
        for _, other in ground.steps:
            later = other.id != step.id and other.id not in ground.order.before[step.id]
            if later and other.id not in ground.past_pivot and ground.turns_back(other):
                yield (
                    f"{pointer}/command",
                    f"{step.command} cannot be undone, and {other.id!r} may still take the case backwards: let "
                    f"{step.id!r} need the pivot, or {other.id!r} be over before it",
                )
                break


def findability(ground: Ground) -> Iterator[Found]:
    """An effect that nobody can find again has no policy for the people who must decide about it."""
    for pointer, step, declaration in ground.commands:
        if declaration.findability.value == "none" and not declaration.manual_policy:
            yield f"{pointer}/command", f"{step.command} cannot be found again and has no manual policy"


def guard_bypassed(ground: Ground) -> Iterator[Found]:
    """The way on leads past an approval or a check that guards a pivot."""
    for pointer, step in ground.steps:
        for outcome, answer in step.on.items():
            if answer is Reaction.CONTINUE:
                missed = _unguarded(ground, frozenset({step.id}))
                place = f"{pointer}/on/{outcome.value}"
            elif not isinstance(answer, Reaction) and step.id in ground.order.before[answer.goto]:
                missed = _unguarded(ground, ground.order.between(step.id, answer.goto) | {step.id})
                place = f"{pointer}/on/{outcome.value}/goto"
            else:
                continue
            if missed:
                guard, pivot = missed
                yield place, f"this leads to {pivot!r} without {guard!r}, which guards it"


def _unguarded(ground: Ground, passed: frozenset[str]) -> tuple[str, str] | None:
    """A guard that is passed over, and the pivot behind it that is not."""
    for guard in sorted(passed):
        if ground.document.by_id[guard].kind in _GUARDS:
            for pivot in ground.pivots:
                if guard in ground.order.before[pivot] and pivot not in passed:
                    return guard, pivot
    return None


def goto_target(ground: Ground) -> Iterator[Found]:
    """A `goto` leads to a step that is neither before nor after, or would touch steps beside its way."""
    for place, step, target in _gotos(ground):
        if target in ground.order.after[step.id]:
            first, last = step.id, target
        elif target in ground.order.before[step.id]:
            first, last = target, step.id
        else:
            yield place, f"{target!r} is neither before nor after {step.id!r}"
            continue
        aside = set(ground.order.slice(first, last)) ^ ground.order.between(first, last)
        if aside:
            yield (
                place,
                f"between {first!r} and {last!r} stands what does not lie on the way: {', '.join(sorted(aside))}",
            )


def goto_repeats(ground: Ground) -> Iterator[Found]:
    """A `goto` back would cause effects again."""
    for place, step, target in _gotos(ground):
        if target in ground.order.before[step.id]:
            again = ground.order.between(target, step.id) | {target, step.id}
            effects = sorted(item for item in again if ground.effect(ground.document.by_id[item]) != EffectClass.READ)
            if effects:
                yield place, f"going back to {target!r} would do {', '.join(effects)} again"


def hot_loop(ground: Ground) -> Iterator[Found]:
    """A `goto` back waits for nothing on its way, so it would turn in circles."""
    for place, step, target in _gotos(ground):
        if target in ground.order.before[step.id]:
            again = ground.order.between(target, step.id) | {target, step.id}
            if all(ground.document.by_id[item].kind in (StepKind.CHECK, StepKind.COMMAND) for item in again):
                yield place, f"between {target!r} and {step.id!r} nothing is waited for: nothing would be different"


def _gotos(ground: Ground) -> Iterator[tuple[str, Step, str]]:
    for pointer, step in ground.steps:
        for outcome, target in gotos(step).items():
            yield f"{pointer}/on/{outcome.value}/goto", step, target


def unbound_hash(ground: Ground) -> Iterator[Found]:
    """The content hash that a pivot is given is not among the values that its approval binds (requirement S6)."""
    for pointer, step, declaration in ground.commands:
        wanted = _normal(ground, f"{pointer}/with/content_sha256")
        if declaration.effect_class not in PIVOTS or "content_sha256" not in (step.payload or {}):
            continue
        before = ground.order.before[step.id]
        approvals = [(place, other) for place, other in ground.steps if other.approval and other.id in before]
        bound = {
            _normal(ground, f"{place}/approval/binds/{index}")
            for place, other in approvals
            if other.approval
            for index in range(len(other.approval.binds))
        }
        if approvals and (wanted is None or wanted not in bound):
            names = ", ".join(repr(other.id) for _, other in approvals)
            yield (
                f"{pointer}/with/content_sha256",
                f"the hash given to {step.id!r} is not what {names} binds: changed content would keep its approval",
            )


def _normal(ground: Ground, pointer: str) -> str | None:
    for reading in ground.readings:
        if reading.place.pointer == pointer and reading.template is not None:
            return reading.template.normal
    return None


def approval_binds(ground: Ground) -> Iterator[Found]:
    """An approval binds a constant, which binds nothing."""
    reads = {reading.place.pointer for reading in ground.readings if reading.roots & {"input", "steps"}} | {
        pointer for pointer, _ in ground.unreadable
    }
    for pointer, step in ground.steps:
        for index in range(len(step.approval.binds) if step.approval else 0):
            place = f"{pointer}/approval/binds/{index}"
            if not any(read == place or read.startswith(place + "/") for read in reads):
                yield place, "this is the same whatever is approved: bind a value of the input or of a step before"
