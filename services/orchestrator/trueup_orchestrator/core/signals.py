"""Events from outside: taken by the wait that is open for them, held for one to come, or late.

Events come at least once and in any order; each is disposed of once, and a repetition gets the same answer.
"""

from typing import Any, Final

from trueup_common.contracts.events import SignalDisposed, SignalReceived
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import INSTANCE_TERMINAL
from trueup_common.contracts.topology import event_subject
from trueup_common.contracts.workflow import Direction, Step, StepPhase
from trueup_common.documents.expressions import ExpressionFailed
from trueup_orchestrator.core.fold import SOURCE, Fold
from trueup_orchestrator.core.steps import SCHEMAS, scope_of

HELD_MAX: Final = 20
_TOO_EARLY: Final = "it does not wait yet"
REASON_MAX: Final = 500
TOLD_MAX: Final = 5
"""Faults of an event, or events that a document names, that are told to who sent it."""
SIGNALS_MAX: Final = 100


def open_wait(fold: Fold, step: Step) -> None:
    """Wait for an event; one that came early and fits ends the wait at once."""
    assert step.wait is not None
    now = fold.moment.business
    deadline = min(now + step.wait.timeout, fold.instance.deadline_at)
    fold.case_note("WaitOpened", step_id=step.id, expects=step.wait.event, deadline=rfc3339(deadline))
    fold.step(step.id, phase=StepPhase.WAITING, started_at=now, deadline_at=deadline, wake_at=deadline)
    for item in list(fold.instance.held):
        if item["type"] == step.wait.event and _misfit(fold, step, item["data"]) is None:
            held = [other for other in fold.instance.held if other is not item]
            fold.instance = fold.instance.evolve(held=held)
            _accept(fold, step, item["event_id"], item["data"], item["actor"])
            _dispose(fold, item["event_id"], "accepted", None, version=2)
            return


def _misfit(fold: Fold, step: Step, data: Any) -> str | None:
    """Why a step does not take this data: it is not as the document says, or not what its condition asks for."""
    assert fold.workflow is not None and step.wait is not None
    if step.wait.data:
        name = f"{fold.workflow.document.sha256}:{step.id}"
        wrong = SCHEMAS.errors_of(name, step.wait.data, data, "data")
        if wrong:
            told = "; ".join(f"{pointer}: {detail}" for pointer, detail in wrong[:TOLD_MAX])
            return f"the data does not fit: {told[:REASON_MAX]}"
    if step.wait.match is None:
        return None
    try:
        held = fold.workflow.expressions.holds(step.wait.match, {**scope_of(fold), "event": data}, fold.effort)
    except ExpressionFailed as error:
        return f"match cannot be evaluated: {str(error)[:REASON_MAX]}"
    return None if held else "match is false"


def _accept(fold: Fold, step: Step, event_id: str, data: Any, actor: str) -> None:
    fold.case_note("SignalAccepted", actor=actor, step_id=step.id, event_id=event_id)
    fold.step(
        step.id,
        phase=StepPhase.DONE,
        wake_at=None,
        ended_at=fold.moment.business,
        output={"data": data, "actor": actor, "event_id": event_id},
    )


def fold_signal(fold: Fold, signal: SignalReceived, cause: str | None) -> None:
    """An event for this case: taken by the wait that is open for it, held for one to come, or late."""
    earlier = next((item for item in fold.instance.signals if item["event_id"] == signal.event_id), None)
    if earlier is not None:
        _dispose(fold, signal.event_id, earlier["disposition"], None, version=earlier.get("version", 1))
        return
    disposition, reason = _taken(fold, signal)
    if disposition != "accepted":
        fold.case_note(
            "SignalHeld" if disposition == "held" else "LateSignalReceived",
            actor=signal.actor,
            at=signal.received_at,
            cause=cause,
            event_id=signal.event_id,
            signal=signal.type,
            reason=reason,
        )
    _dispose(fold, signal.event_id, disposition, reason)


def _taken(fold: Fold, signal: SignalReceived) -> tuple[str, str | None]:
    if fold.workflow is None or fold.instance.status in INSTANCE_TERMINAL:
        return "late", "the case waits for nothing more"
    named = {step.wait.event for step in fold.workflow.document.steps if step.wait is not None}
    if signal.type not in named:
        return "late", _unnamed(signal.type, named)
    wanted = [step for step in fold.workflow.document.steps if step.wait is not None and step.wait.event == signal.type]
    misfits: dict[str, str] = {}
    for step in wanted:
        if fold.steps[step.id].phase is StepPhase.WAITING:
            misfit = _misfit(fold, step, signal.data)
            if misfit is None:
                _accept(fold, step, signal.event_id, signal.data, signal.actor)
                return "accepted", None
            misfits[step.id] = misfit
    forward = fold.instance.direction == Direction.FORWARD
    to_come = [step for step in wanted if fold.steps[step.id].phase in (StepPhase.PENDING, StepPhase.WAITING)]
    if not forward or not to_come:
        return "late", "no step of this case waits for it any more"
    if len(fold.instance.held) >= HELD_MAX:
        return "late", f"{HELD_MAX} events are held already"
    owner = to_come[0].wait.owner if to_come[0].wait else fold.terms.exception_owner
    held = {
        "event_id": signal.event_id,
        "type": signal.type,
        "data": signal.data,
        "actor": signal.actor,
        "owner": owner,
        "deadline": rfc3339(fold.instance.deadline_at),
    }
    fold.instance = fold.instance.evolve(held=[*fold.instance.held, held])
    return "held", "; ".join(f"held for {step.id}: {misfits.get(step.id, _TOO_EARLY)}" for step in to_come[:TOLD_MAX])


def _unnamed(event: str, named: set[str]) -> str:
    known = ", ".join(sorted(named)[:TOLD_MAX])
    return f"no step waits for {event}; this document waits for {known or 'no event at all'}"


def let_go(fold: Fold) -> None:
    """The case is over: what was held for a wait that never came is late, and its senders are told so."""
    for item in fold.instance.held:
        _dispose(fold, item["event_id"], "late", "the case waits for nothing more", version=2)
    if fold.instance.held:
        fold.instance = fold.instance.evolve(held=[])


def _dispose(fold: Fold, event_id: str, disposition: str, reason: str | None, *, version: int = 1) -> None:
    """Remember what became of a signal and tell it."""
    others = [item for item in fold.instance.signals if item["event_id"] != event_id]
    entry = {"event_id": event_id, "disposition": disposition, "version": version}
    fold.instance = fold.instance.evolve(signals=[*others, entry][-SIGNALS_MAX:])
    fold.send(
        SignalDisposed(
            event_id=event_id,
            workflow_id=fold.instance.workflow_id,
            tenant=fold.instance.tenant,
            disposition=disposition,
            reason=reason,
            version=version,
            at=fold.moment.business,
        ),
        message_id=derived_id("sig", fold.instance.workflow_id, event_id, version, fold.instance.state_version + 1),
        subject=event_subject(SOURCE, "signal", fold.instance.tenant),
    )
