"""One attempt, one look, one round of probes: the adapter's code called under the service's rules.

Awaits nothing but the adapter, so that the simulation can run it too. What an adapter raises is judged by one fact:
whether it had passed `may_send`.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from trueup_adapters.core.job import LookJob, ProbeJob, SendJob
from trueup_adapters.core.survey import is_survey
from trueup_common.contracts.adapter import (
    Call,
    EndsWith,
    LeaseLost,
    Outcome,
    SlotLost,
    Target,
    not_sent,
    rejected,
    unknown,
)
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.shape import Instant
from trueup_common.contracts.states import ErrorClass, FindVerdict, ProbeVerdict, ReceiptStatus
from trueup_common.contracts.survey import NOT_SURVEYABLE, Surveyable
from trueup_common.runtime.tracing import current_traceparent

log = logging.getLogger("trueup.attempts")

Progress = Callable[[dict[str, Any]], Awaitable[None]]


class Transmission:
    """One attempt in flight. `is_sent` turns true directly before the first byte of its first write."""

    __slots__ = ("cursor", "is_sent", "job", "monotonic", "progress_count", "started_at_seconds", "stop_at_seconds")

    def __init__(self, job: SendJob, monotonic: Callable[[], float], timeout_seconds: float) -> None:
        self.job = job
        self.monotonic = monotonic
        self.is_sent = False
        self.cursor = job.row.cursor
        self.progress_count = 0
        self.started_at_seconds = monotonic()
        self.stop_at_seconds = job.send_by_seconds + timeout_seconds

    def may_send(self) -> None:
        """Raises SlotLost when `send_by` has passed before the first byte; later writes have until the timeout."""
        limit = self.stop_at_seconds if self.is_sent else self.job.send_by_seconds
        if self.monotonic() > limit:
            raise SlotLost
        self.is_sent = True

    def doubt(self, code: str, detail: str = "") -> Outcome:
        """What an end without an answer means."""
        return unknown(code, detail) if self.is_sent else not_sent(code, detail)

    def checked(self, outcome: Outcome) -> Outcome:
        """An outcome that its own evidence allows: "not sent" after a byte left is UNKNOWN."""
        if outcome.status is ReceiptStatus.NOT_SENT and self.is_sent:
            return unknown(outcome.error_code or "contradictory", outcome.error_detail or "")
        if outcome.status is ReceiptStatus.STALE:
            return self.doubt("contradictory")
        return outcome


async def perform(transmission: Transmission, target: Target, timeout_seconds: float, progress: Progress) -> Outcome:
    """Transmit one attempt."""
    job = transmission.job
    call = Call(
        operation=job.row.operation,
        declaration=job.declaration,
        attempt_id=job.attempt.attempt_id,
        fence=job.attempt.fence,
        timeout_seconds=timeout_seconds,
        may_send=transmission.may_send,
        progress=progress,
        cursor=transmission.cursor,
        traceparent=current_traceparent(job.traceparent),
    )
    try:
        return transmission.checked(await target.perform(call))
    except SlotLost:
        return transmission.doubt("send_by_passed")
    except LeaseLost:
        return transmission.doubt("lease_lost")
    except Exception as error:  # the boundary: an adapter's own failure is judged by what had left
        log.exception(
            "adapter failed",
            extra={
                "attempt_id": job.attempt.attempt_id,
                "sent": transmission.is_sent,
                "traceparent": job.traceparent,
            },
        )
        detail = f"{type(error).__name__}"
        if transmission.is_sent:
            return unknown("adapter_failed", detail)
        return rejected(ErrorClass.TRANSIENT, "adapter_failed", detail)


async def find(job: LookJob, target: Target, timeout_seconds: float) -> Finding:
    """Look for one operation's effect."""
    call = Call(
        operation=job.row.operation,
        declaration=job.declaration,
        attempt_id=job.look.answer_attempt_id,
        fence=job.look.fence,
        timeout_seconds=timeout_seconds,
        may_send=_never,
        progress=_no_progress,
        cursor=job.row.cursor,
        traceparent=current_traceparent(job.traceparent),
        sent_before=job.row.sent_at,
    )
    try:
        return await target.find(call)
    except Exception:  # the boundary: a look that failed says nothing
        log.exception("look-up failed", extra={"command_id": job.row.command_id, "traceparent": job.traceparent})
        return undecided("adapter_failed")


async def probe(job: ProbeJob, target: Target, now: Callable[[], Instant]) -> Sequence[Observation]:
    """Read the elements of one resource; exactly one observation for each, in order."""
    try:
        if is_survey(job.task):
            return [await _survey(job, target, now)]
        found = await target.probe(job.task.elements)
    except Exception:  # the boundary: a read that failed says nothing
        log.exception("probe failed", extra={"visit_id": job.task.visit_id, "traceparent": job.traceparent})
        return unread(job, "adapter_failed", now())
    wanted = [element.element for element in job.task.elements]
    if [observation.element for observation in found] != wanted:
        return unread(job, "adapter_failed", now())
    return found


async def _survey(job: ProbeJob, target: Target, now: Callable[[], Instant]) -> Observation:
    """List marks: one page."""
    element = job.task.elements[0]
    if not isinstance(target, Surveyable):
        return unread(job, NOT_SURVEYABLE, now())[0]
    try:
        page = await target.survey(element.params.get("cursor"), dict(element.params))
    except EndsWith as ends:
        return unread(job, ends.reason, now())[0]
    return Observation(
        element=element.element,
        verdict=ProbeVerdict.CONFIRMED,
        value=page.model_dump(mode="json"),
        observed_at=now(),
        source=f"adapter.{job.task.system}",
        proof_of_access=True,
    )


def undecided(reason: str) -> Finding:
    """A look-up that says nothing."""
    return Finding(verdict=FindVerdict.UNKNOWN, reason=reason)


def unread(job: ProbeJob, reason: str, now: Instant) -> list[Observation]:
    """Reads that say nothing."""
    return [
        Observation(
            element=element.element,
            verdict=ProbeVerdict.UNKNOWN,
            observed_at=now,
            source=f"adapter.{job.task.system}",
            reason=reason,
        )
        for element in job.task.elements
    ]


def _never() -> None:
    raise SlotLost


async def _no_progress(_: dict[str, Any]) -> None:
    raise LeaseLost
