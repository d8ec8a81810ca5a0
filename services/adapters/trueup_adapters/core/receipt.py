"""Receipts: the one place where an outcome, a finding or a refusal becomes what the orchestrator is told.

Foreign text is made storable here, once: an effect that happened is never repeated because its result could not be
stored.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.adapter import Outcome
from trueup_common.contracts.clean import clean, clean_text
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import ErrorClass, FindVerdict, ProbeVerdict, ReceiptStatus
from trueup_common.contracts.task import Operation, Receipt

DETAIL_CHARACTERS_MAX: Final = 1000
NAME_CHARACTERS_MAX: Final = 500
RESULT_BYTES_MAX: Final = 500_000
"""A receipt travels: with everything around it, it must fit one message of the bus."""
VALUE_BYTES_MAX: Final = 100_000
LEFT_OUT: Final = "left_out"
NEGLIGIBLE: Final = timedelta(seconds=1)


def storable(outcome: Outcome) -> Outcome:
    """The outcome with every foreign value in a form that all stores accept."""
    return Outcome(
        status=outcome.status,
        error_class=outcome.error_class,
        error_code=_short(outcome.error_code),
        error_detail=clean_text(outcome.error_detail, DETAIL_CHARACTERS_MAX) if outcome.error_detail else None,
        external_status=_short(outcome.external_status),
        retry_after_seconds=outcome.retry_after_seconds,
        result=_bounded(outcome.result),
        external_resource_id=_short(outcome.external_resource_id),
        external_version=_short(outcome.external_version),
        observations=tuple(storable_observation(item) for item in outcome.observations),
    )


def storable_observation(observation: Observation) -> Observation:
    """An observation whose value and texts every store accepts; a value that only claims to be MISSING is UNKNOWN.

    MISSING needs proof of access, whatever an adapter says.
    """
    unproven = observation.verdict is ProbeVerdict.MISSING and not observation.proof_of_access
    value, reason = clean(observation.value), _short(observation.reason)
    if value is not None and len(json_bytes(value)) > VALUE_BYTES_MAX:
        unproven, value, reason = True, None, "value_too_large"
    kept: Observation = observation.evolve(
        verdict=ProbeVerdict.UNKNOWN if unproven else observation.verdict,
        value=value,
        reason=(reason or "no proof of access") if unproven else reason,
        version=_short(observation.version),
        etag=_short(observation.etag),
    )
    return kept


def _bounded(result: dict[str, Any] | None) -> dict[str, Any] | None:
    """A result in storable form. What makes it too large is left out whole and named, never cut: half a value would
    be taken for the value, by an undoing above all."""
    if not result:
        return result
    kept: dict[str, Any] = clean(result)
    size = len(json_bytes(kept))
    if size <= RESULT_BYTES_MAX:
        return kept
    sizes = {name: len(json_bytes({name: value})) for name, value in kept.items()}
    gone: list[str] = []
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        if size <= RESULT_BYTES_MAX:
            break
        del kept[name]
        size -= sizes[name]
        gone.append(clean_text(name, 100))
    return {**kept, LEFT_OUT: sorted(gone)[:100]}


def storable_finding(finding: Finding) -> Finding:
    """A finding in storable form, with the verdict that its own evidence allows.

    MISSING without proof of access is UNKNOWN; more than one candidate is AMBIGUOUS.
    """
    verdict, reason = finding.verdict, finding.reason
    if finding.candidates > 1:
        verdict, reason = FindVerdict.AMBIGUOUS, reason or "effects_duplicated"
    elif verdict is FindVerdict.MISSING and not finding.proof_of_access:
        verdict, reason = FindVerdict.UNKNOWN, reason or "no_proof_of_access"
    kept: Finding = finding.evolve(
        verdict=verdict,
        reason=_short(reason),
        result=_bounded(finding.result),
        external_resource_id=_short(finding.external_resource_id),
        external_version=_short(finding.external_version),
        observations=tuple(storable_observation(item) for item in finding.observations),
    )
    return kept


def _short(value: str | None) -> str | None:
    return None if value is None else clean_text(str(value), NAME_CHARACTERS_MAX)


def receipt_of_outcome(
    operation: Operation,
    outcome: Outcome,
    *,
    attempt_id: str,
    fence: int,
    ended_at: datetime,
    sent_at: datetime | None = None,
    late_until: datetime | None = None,
    worker: str | None = None,
) -> Receipt:
    """The receipt of one attempt's own answer (`sent_at` is None where nothing was sent)."""
    return Receipt.trusted(
        command_id=operation.command_id,
        workflow_id=operation.workflow_id,
        tenant=operation.tenant,
        system=operation.target.system,
        command_type=operation.command_type,
        attempt_id=attempt_id,
        fence=fence,
        status=outcome.status,
        error_class=outcome.error_class,
        error_code=outcome.error_code,
        error_detail=outcome.error_detail,
        external_status=outcome.external_status,
        external_resource_id=outcome.external_resource_id,
        external_version=outcome.external_version,
        retry_after_seconds=outcome.retry_after_seconds,
        result=outcome.result,
        observations=outcome.observations,
        started_at=sent_at,
        sent_at=sent_at if outcome.status is not ReceiptStatus.NOT_SENT else None,
        ended_at=ended_at,
        found=False,
        late_until=late_until if outcome.status is ReceiptStatus.UNKNOWN else None,
        worker=worker,
    )


def receipt_of_finding(
    operation: Operation,
    finding: Finding,
    *,
    attempt_id: str,
    fence: int,
    ended_at: datetime,
    sent_at: datetime | None,
    late_until: datetime | None,
    worker: str | None = None,
) -> Receipt:
    """The receipt of a look-up: CONFIRMED where the effect was found, else UNKNOWN. A look-up rejects nothing."""
    found = finding.verdict is FindVerdict.CONFIRMED
    return Receipt.trusted(
        command_id=operation.command_id,
        workflow_id=operation.workflow_id,
        tenant=operation.tenant,
        system=operation.target.system,
        command_type=operation.command_type,
        attempt_id=attempt_id,
        fence=fence,
        status=ReceiptStatus.CONFIRMED if found else ReceiptStatus.UNKNOWN,
        error_class=None if found else ErrorClass.UNKNOWN,
        error_code=None if found else f"looked_up_{finding.verdict.value.lower()}",
        error_detail=None if found else finding.reason,
        external_status=None,
        retry_after_seconds=None,
        external_resource_id=finding.external_resource_id,
        external_version=finding.external_version,
        result=finding.result if found else None,
        observations=finding.observations if found else (),
        started_at=sent_at,
        sent_at=sent_at,
        ended_at=ended_at,
        found=True,
        late_until=None if found else late_until,
        worker=worker,
    )


def finding_of_receipt(receipt: Receipt) -> Finding:
    """The stored receipt of a confirmed effect as the answer to a find."""
    return Finding.model_construct(
        verdict=FindVerdict.CONFIRMED,
        proof_of_access=True,
        evidence="ledger",
        candidates=1,
        result=receipt.result,
        external_resource_id=receipt.external_resource_id,
        external_version=receipt.external_version,
        observations=receipt.observations,
        reason=None,
    )


def shifted(observation: Observation, by: timedelta) -> Observation:
    """An observation stamped in business time: targets answer in real time, visits are planned in business time."""
    if abs(by) < NEGLIGIBLE:
        return observation
    moved: Observation = observation.evolve(observed_at=observation.observed_at + by)
    return moved
