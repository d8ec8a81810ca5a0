"""Accepting commands: requests that wait at the same moment share one transaction.

A request is answered after the commit of its batch and before its publication; what is not published then, the relay
sends from the outbox. The queue is bounded: past its limit a request is refused with 429, never kept waiting.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.topology import command_subject
from trueup_common.runtime import tracing
from trueup_common.runtime.grants import GrantKeys
from trueup_common.runtime.ports import CrashPoints, Moment, Publisher, Schedule, Store, StoreBusy
from trueup_gateway.core.acceptance import Accepted, Known, Replayed, Standing, Submission, Verdict, decide
from trueup_gateway.core.artifact import ArtifactUseRow
from trueup_gateway.core.case import DEFINITION, NewCase, first_claims, mandate_row, new_case
from trueup_gateway.core.grants import question_of
from trueup_gateway.core.refusal import Refused
from trueup_gateway.rules import RuleBook, Rules
from trueup_gateway.store import GatewayTransaction, lock_timed_out

log = logging.getLogger("trueup.gateway.accept")

BATCH_MAX: Final = 100
FLUSHERS: Final = 1
TRIES_MAX: Final = 5
PAUSE_SECONDS: Final = 0.02


@dataclass(slots=True)
class _Waiting:
    submission: Submission
    verdict: "asyncio.Future[Verdict]"


class Acceptor:
    """Decides and stores submissions in shared transactions."""

    def __init__(
        self,
        *,
        store: Store[GatewayTransaction],
        publisher: Publisher,
        rules: RuleBook,
        keys: GrantKeys,
        crash: CrashPoints,
        schedule: Schedule,
        queue_max: int,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._rules = rules
        self._keys = keys
        self._crash = crash
        self._schedule = schedule
        self._queue_max = queue_max
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.batches_count = 0
        self.accepted_count = 0

    def start(self) -> None:
        """Begin to take submissions."""
        self._tasks = [asyncio.create_task(self._flush(), name=f"accept {number}") for number in range(FLUSHERS)]

    async def close(self) -> None:
        """Stop; what still waits was never accepted and is answered as unavailable."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for item in self._waiting:
            if not item.verdict.done():
                item.verdict.set_result(_unavailable())
        self._waiting.clear()

    @property
    def alive(self) -> bool:
        """True while submissions are taken."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    async def submit(self, submission: Submission) -> Accepted | Replayed:
        """The verdict on one submission, after its commit. Raises Refused."""
        verdict = await self.enqueue(submission)
        if isinstance(verdict, Refused):
            raise verdict
        return verdict

    def enqueue(self, submission: Submission) -> "asyncio.Future[Verdict]":
        """Put a submission into the next batch. Raises Refused where too many wait already."""
        if len(self._waiting) >= self._queue_max:
            raise Refused("rate-limited", "Too many requests wait to be accepted.", retry_after_seconds=1)
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(submission, future))
        self._wake.set()
        return future

    async def _flush(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            outgoing = await self._accept(batch)
            if outgoing:
                await self._publisher.publish(outgoing)
                self._crash.reach("gateway-accept.published")

    async def _accept(self, batch: Sequence[_Waiting]) -> list[Outgoing]:
        """Accept a batch, whole where possible; one by one where a lock was held too long or something broke."""
        try:
            verdicts, outgoing = await self._commit([item.submission for item in batch])
        except StoreBusy as busy:
            if lock_timed_out(busy):
                return await self._apart(batch, _in_flight())
            log.warning("not accepted: store busy", extra={"reason": str(busy), "requests": len(batch)})
            _answer(batch, [_unavailable()] * len(batch))
            return []
        except Exception as error:
            if len(batch) == 1:
                log.exception("not accepted")
                batch[0].verdict.set_exception(error)
                return []
            return await self._apart(batch, None)
        self._crash.reach("gateway-accept.committed")
        _answer(batch, verdicts)
        return outgoing

    async def _apart(self, batch: Sequence[_Waiting], alone: Refused | None) -> list[Outgoing]:
        if len(batch) == 1 and alone is not None:
            _answer(batch, [alone])
            return []
        outgoing: list[Outgoing] = []
        for item in batch:
            outgoing += await self._accept([item])
        return outgoing

    async def _commit(self, submissions: Sequence[Submission]) -> tuple[list[Verdict], list[Outgoing]]:
        """One transaction, repeated for passing reasons. Raises StoreBusy when they do not pass."""
        for number in range(1, TRIES_MAX + 1):
            begun = tracing.instant()
            try:
                kept = await self._once(submissions)
                tracing.record_commits([item.traceparent for item in submissions] if begun else (), begun)
                return kept
            except StoreBusy as busy:
                if number == TRIES_MAX or lock_timed_out(busy):
                    raise
                await self._schedule.pause(PAUSE_SECONDS * number)
        raise AssertionError("unreachable")

    async def _once(self, submissions: Sequence[Submission]) -> tuple[list[Verdict], list[Outgoing]]:
        outgoing: list[Outgoing] = []
        async with self._store.transaction() as tx:
            rows = await tx.accept_rows(
                [item.capability_id for item in submissions],
                [item.tenant for item in submissions],
                [item.key for item in submissions],
                [item.identity for item in submissions],
            )
            rules = await self._rules.at(tx, rows.epoch)
            now = rows.moment.business
            held = await _held(tx, submissions)

            def frozen(item: Submission) -> str | None:
                return rules.freeze_of(_fields(item), now)

            def permitted(item: Submission, standing: Standing) -> bool:
                return still_permitted(rules, item, standing)

            verdicts = decide(
                submissions,
                Known(
                    now=now,
                    standings=rows.standings,
                    by_key=rows.by_key,
                    by_identity=rows.by_identity,
                    frozen=frozen,
                    permitted=permitted,
                    held=held,
                ),
            )
            accepted = [verdict for verdict in verdicts if isinstance(verdict, Accepted)]
            if accepted:
                cases = [self._case(verdict, rows.moment, rules) for verdict in accepted]
                outgoing = [
                    _outgoing(case, verdict.submission, rows.moment)
                    for case, verdict in zip(cases, accepted, strict=True)
                ]
                await tx.save_cases(cases)
                await _save_uses(tx, accepted, now)
                await tx.post(outgoing)
            self._crash.reach("gateway-accept.before_commit")
        self.batches_count += 1
        self.accepted_count += len(accepted)
        return verdicts, outgoing

    def _case(self, accepted: Accepted, moment: Moment, rules: Rules) -> NewCase:
        mandate = mandate_row(accepted, rules.policy_sha256, moment.business)
        grant = ""
        if accepted.submission.system in self._keys.systems:
            claims = first_claims(
                accepted, mandate, real=moment.real, policy_sha256=rules.policy_sha256, epoch=rules.epoch
            )
            grant = self._keys.sign(accepted.submission.system, claims)
        return new_case(accepted, mandate, now=moment.business, real=moment.real, grant=grant)


async def _held(tx: GatewayTransaction, submissions: Sequence[Submission]) -> frozenset[tuple[str, str]]:
    """Of the artifacts that payloads are kept in, those that are there; they stay there until the commit."""
    refs = [(item.tenant, item.payload_ref.artifact_id) for item in submissions if item.payload_ref is not None]
    if not refs:
        return frozenset()
    rows = await tx.hold_artifacts([tenant for tenant, _ in refs], [artifact_id for _, artifact_id in refs])
    return frozenset((row.tenant, row.artifact_id) for row in rows)


async def _save_uses(tx: GatewayTransaction, accepted: Sequence[Accepted], now: datetime) -> None:
    """Keep which artifacts the accepted commands need."""
    uses = [
        ArtifactUseRow(artifact_id=ref.artifact_id, command_id=item.command_id, tenant=item.tenant, first_at=now)
        for item in (verdict.submission for verdict in accepted)
        if (ref := item.payload_ref) is not None
    ]
    if uses:
        await tx.save_artifact_uses(uses)


def still_permitted(rules: Rules, item: Submission, standing: Standing) -> bool:
    """True where the policy in force admits the request: as it decided, or evaluated again after a change."""
    decision = standing.decision
    unchanged = decision.declarations.get(item.command_type) == item.declaration.sha256
    if decision.policy_sha256 == rules.policy_sha256 and unchanged:
        return True
    answer = rules.ask(
        question_of(decision, item.declaration, resource=item.resource, approved=decision.approved_at is not None)
    )
    return answer.allowed and not answer.errors


def _fields(item: Submission) -> dict[str, object]:
    return {
        "tenant": item.tenant,
        "system": item.system,
        "command_type": item.command_type,
        "definition": DEFINITION,
        "version": 1,
    }


def _outgoing(case: NewCase, submission: Submission, moment: Moment) -> Outgoing:
    return Outgoing(
        Message(
            id=case.start.workflow_id,
            type="StartCase",
            subject=command_subject(case.start.tenant),
            tenant=case.start.tenant,
            source="gateway",
            time=moment.real,
            data=json_bytes(case.start),
            traceparent=submission.traceparent,
            reply_to=submission.reply_to,
        )
    )


def _answer(batch: Sequence[_Waiting], verdicts: Sequence[Verdict]) -> None:
    for item, verdict in zip(batch, verdicts, strict=True):
        if not item.verdict.done():
            item.verdict.set_result(verdict)


def _in_flight() -> Refused:
    return Refused(
        "idempotency-in-flight", "Another request holds this key or capability right now.", retry_after_seconds=1
    )


def _unavailable() -> Refused:
    return Refused("unavailable", "The gateway's store does not answer right now.", retry_after_seconds=1)
