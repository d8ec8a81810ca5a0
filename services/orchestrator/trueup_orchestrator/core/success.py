"""Success: what an operation established, what of it is verified already, and what stays owed until it is observed.

Where an element's window is zero and the receipt's independent read-back equals the desired value, it is verified in
the commit of the receipt, with the same comparison that the reconciler uses later.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from trueup_common.contracts.compare import same
from trueup_common.contracts.declaration import CommandDeclaration, Establishes
from trueup_common.contracts.events import ElementVerified, Established, EstablishedElement, RepairOffer
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.pointer import fill, take
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import InstanceStatus, Phase, ProbeVerdict
from trueup_common.contracts.task import ProbeElement
from trueup_common.contracts.topology import event_subject
from trueup_orchestrator.core.fold import SOURCE, Fold
from trueup_orchestrator.core.operation import Trigger


def document(
    target: dict[str, Any], payload: Any, command_id: str, result: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What the pointers of a declaration point into."""
    known: dict[str, Any] = {"target": target, "payload": payload, "command_id": command_id}
    if result is not None:
        known["receipt"] = result
    return known


def document_of(row: JournalRow, result: dict[str, Any] | None = None) -> dict[str, Any]:
    """The same for a journal row."""
    target = {"system": row.target_system, "resource": row.target_resource, "expected_version": row.expected_version}
    return document(target, row.payload, row.command_id, result)


def desired_of(declaration: CommandDeclaration, known: dict[str, Any]) -> dict[str, Any] | None:
    """The desired value of each element, as far as it is known."""
    if not declaration.establishes:
        return None
    values = {item.element: take(known, item.value) for item in declaration.establishes}
    return {element: value for element, value in values.items() if value is not None}


def repair_of(declaration: CommandDeclaration, item: Establishes, known: dict[str, Any]) -> RepairOffer | None:
    """The command that would bring this one element back; None where the declaration knows none for it."""
    repair = declaration.repair_of(item)
    if repair is None or (repair.only_if is not None and not take(known, repair.only_if)):
        return None
    return RepairOffer(
        command_type=repair.command_type,
        resource=known["target"]["resource"],
        payload=fill(known, repair.payload),
        mends=tuple(repair.mends),
        binds=dict(repair.binds),
        verification=repair.verification,
    )


def _element(
    declaration: CommandDeclaration, item: Establishes, known: dict[str, Any], seen: Observation | None
) -> EstablishedElement:
    value = take(known, item.value)
    verified = (
        item.window_seconds == 0
        and seen is not None
        and seen.verdict is ProbeVerdict.CONFIRMED
        and same(item.normaliser, value, seen.value)
    )
    return EstablishedElement(
        element=item.element,
        resource=str(take(known, item.resource)),
        desired=value,
        recorded=value,
        normaliser=item.normaliser,
        window_seconds=item.window_seconds,
        probe=ProbeElement(element=item.element, kind=item.probe.kind, params=fill(known, item.probe.params)),
        verified=verified,
        observation=seen,
        repair=repair_of(declaration, item, known),
        downstream_of=item.downstream_of,
    )


def _observed(known: dict[str, Any] | None, observations: Sequence[Observation]) -> dict[str, Any] | None:
    values = {item.element: item.value for item in observations if item.verdict is ProbeVerdict.CONFIRMED}
    return {**(known or {}), **values} if known or values else None


def succeed(
    fold: Fold,
    declaration: CommandDeclaration,
    *,
    result: dict[str, Any] | None,
    reference: str,
    external_resource_id: str | None,
    external_version: str | None,
    observations: Sequence[Observation] = (),
    trigger: Trigger = Trigger.CONFIRM,
    **changes: Any,
) -> None:
    """Into SUCCESS, with what is established told to the reconciler and what is not yet verified owed."""
    row, now = fold.operation, fold.moment.business
    known = document_of(row, result if result is not None else {})
    seen = {item.element: item for item in observations}
    elements = tuple(_element(declaration, item, known, seen.get(item.element)) for item in declaration.establishes)
    desired = {item.element: item.desired for item in elements} or None
    fold.move(
        trigger,
        receipt=result,
        result_reference=reference,
        external_resource_id=external_resource_id,
        external_version=external_version,
        desired_state=desired,
        recorded_state=desired,
        observed_state=_observed(row.observed_state, observations),
        human_review_required=False,
        **changes,
    )
    if not elements:
        return
    owed = [
        {
            "command_id": row.command_id,
            "system": row.target_system,
            "resource": item.resource,
            "element": item.element,
        }
        for item in elements
        if not item.verified
    ]
    if owed:
        longest = max(item.window_seconds for item in elements)
        patience = timedelta(seconds=longest + fold.terms.exception_sla_seconds)
        deadline = max(fold.instance.deadline_at, now + patience)
        if fold.workflow is not None:
            deadline = fold.instance.deadline_at
        fold.instance = fold.instance.evolve(owed=[*fold.instance.owed, *owed], deadline_at=deadline)
        fold.notes[-1].payload["owed"] = [item["element"] for item in owed]
    _tell(fold, elements, now)


def _tell(fold: Fold, elements: tuple[EstablishedElement, ...], now: datetime) -> None:
    row = fold.operation
    fold.send(
        Established(
            command_id=row.command_id,
            workflow_id=row.workflow_id,
            tenant=row.tenant,
            system=row.target_system,
            command_type=row.command_type,
            declaration_sha256=row.declaration_sha256,
            revision=fold.instance.revision,
            sequence=row.dispatch_sequence,
            elements=elements,
            established_at=now,
            saga_id=row.saga_id,
            step_id=row.step_id,
            decision_id=row.decision_id,
            capability_id=row.capability_id,
            payload_sha256=row.payload_sha256,
            external_status=row.last_external_status,
            attempt_count=row.attempt_count,
            trace_id=row.trace_id,
            object_type=fold.instance.object_type,
            object_id=fold.instance.object_id,
            supersedes=row.supersedes,
        ),
        message_id=f"{row.command_id}:{fold.version}:established",
        subject=event_subject(SOURCE, "established", row.tenant),
    )


def fold_verified(fold: Fold, verified: ElementVerified, cause: str | None) -> None:
    """The reconciler observed an element healthy, or a newer operation owns it now: that much less is owed."""
    if verified.phase is not Phase.HEALTHY and verified.superseded_by is None:
        return

    def paid(item: dict[str, Any]) -> bool:
        own = (verified.command_id, verified.resource, verified.element)
        return own == (item["command_id"], item["resource"], item["element"])

    left = [item for item in fold.instance.owed if not paid(item)]
    if len(left) == len(fold.instance.owed):
        return
    fold.note(
        "ElementVerified",
        actor="reconciler",
        at=verified.at,
        cause=cause,
        element=verified.element,
        resource=verified.resource,
        superseded_by=verified.superseded_by,
        owed=[item["element"] for item in left],
    )
    fold.instance = fold.instance.evolve(owed=left)
    if verified.observation is not None and verified.superseded_by is None:
        fold.set(
            observed_state=_observed(fold.operation.observed_state, (verified.observation,)),
            last_reconciled_at=verified.at,
        )


def fold_overdue(fold: Fold) -> None:
    """Verification is still owed at the case's deadline: a person hears of it, and the next deadline is set."""
    waiting = fold.instance.status is InstanceStatus.VERIFYING
    if fold.workflow is not None:
        waiting = waiting or fold.instance.status is InstanceStatus.COMPENSATING
    if not waiting or fold.instance.deadline_at > fold.moment.business:
        return
    deadline: datetime = fold.moment.business + timedelta(seconds=fold.terms.exception_sla_seconds)
    owed = [item["element"] for item in fold.instance.owed]
    if fold.workflow is None:
        fold.own_note("VerificationOverdue", owed=owed, next=rfc3339(deadline))
    else:
        fold.case_note("VerificationOverdue", owed=owed, next=rfc3339(deadline))
    fold.unverified = True
    fold.instance = fold.instance.evolve(deadline_at=deadline)
