"""Accepting commands: a batch is decided on the rows that one transaction holds, and stored with the first grants.

Most requests are new ones under a capability that this process knows. They are decided without reading, and the one
statement that writes finds out where that was wrong: then the batch is decided again, by what is read (ADR 0037).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.topology import command_subject
from trueup_common.runtime.grants import GrantKeys
from trueup_common.runtime.ports import CrashPoints, Moment, Publisher, Schedule, Store, VersionConflict
from trueup_gateway.batching import Batching
from trueup_gateway.core.acceptance import Accepted, Known, Replayed, Standing, Submission, Verdict, decide
from trueup_gateway.core.artifact import ArtifactUseRow
from trueup_gateway.core.case import DEFINITION, NewCase, first_claims, mandate_row, new_case
from trueup_gateway.core.grants import question_of
from trueup_gateway.core.records import LineageRow
from trueup_gateway.rules import RuleBook, Rules
from trueup_gateway.store import AcceptRows, GatewayTransaction

STANDINGS_MAX: Final = 1000
"""Capabilities that a process remembers."""


class Acceptor(Batching[Submission, Accepted | Replayed]):
    """Decides and stores submissions in shared transactions."""

    name = "gateway-accept"

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
        super().__init__(publisher=publisher, crash=crash, schedule=schedule, queue_max=queue_max)
        self._store = store
        self._rules = rules
        self._keys = keys
        self._standings: dict[str, Standing] = {}

    async def _once(self, submissions: Sequence[Submission]) -> tuple[list[Verdict], list[Outgoing]]:
        kept = None
        try:
            kept = await self._decide(submissions, presumed=True)
        except VersionConflict:
            for item in submissions:
                self._standings.pop(item.capability_id, None)
        found = kept or await self._decide(submissions, presumed=False)
        assert found is not None
        return found

    def _presume(self, tx: GatewayTransaction, submissions: Sequence[Submission]) -> AcceptRows | None:
        """What is not read and most likely so: known capabilities, governance as of late, and keys that are new."""
        rules, standings = self._rules.latest, {}
        for item in submissions:
            standing = self._standings.get(item.capability_id)
            if standing is None or item.payload_ref is not None or item.supersedes is not None:
                return None
            standings[item.capability_id] = standing
        claimed = tx.presume(self.name, []) if rules is not None else None
        if rules is None or claimed is None:
            return None
        return AcceptRows(claimed[0], rules.epoch, standings, by_key={}, by_identity={})

    async def _read(self, tx: GatewayTransaction, submissions: Sequence[Submission]) -> AcceptRows:
        rows = await tx.accept_rows(
            [item.capability_id for item in submissions],
            [item.tenant for item in submissions],
            [item.key for item in submissions],
            [item.identity for item in submissions],
            lock=False,  # what was read is checked again where it is written
        )
        if len(self._standings) > STANDINGS_MAX:
            self._standings.clear()
        self._standings.update(rows.standings)
        return rows

    async def _decide(
        self, submissions: Sequence[Submission], *, presumed: bool
    ) -> tuple[list[Verdict], list[Outgoing]] | None:
        """Decide and store in one transaction. None where nothing may be presumed: only a read can refuse or replay."""
        outgoing: list[Outgoing] = []
        async with self._store.transaction() as tx:
            rows = self._presume(tx, submissions) if presumed else await self._read(tx, submissions)
            if rows is None:
                return None
            rules = await self._rules.at(tx, rows.epoch)
            now = rows.moment.business
            held = await _held(tx, submissions)
            superseded = await _superseded(tx, submissions)

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
                    superseded=superseded,
                ),
            )
            accepted = [verdict for verdict in verdicts if isinstance(verdict, Accepted)]
            if presumed and len(accepted) < len(verdicts):
                return None
            if accepted:
                cases = [self._case(verdict, rows.moment, rules) for verdict in accepted]
                outgoing = [
                    _outgoing(case, verdict.submission, rows.moment)
                    for case, verdict in zip(cases, accepted, strict=True)
                ]
                await _replace(tx, accepted, now)
                await tx.save_cases(cases, rows.epoch)
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


async def _superseded(tx: GatewayTransaction, submissions: Sequence[Submission]) -> dict[tuple[str, str], str]:
    """States of the commands that requests of a batch want to take the place of."""
    wanted = {(item.tenant, item.supersedes) for item in submissions if item.supersedes is not None}
    return await tx.states_of(sorted(wanted)) if wanted else {}


async def _replace(tx: GatewayTransaction, accepted: Sequence[Accepted], now: datetime) -> None:
    """Keep which command took the place of which; a business identity that the older one holds passes on."""
    lines = [
        (
            LineageRow(command_id=item.command_id, tenant=item.tenant, supersedes=item.supersedes, created_at=now),
            item.identity,
        )
        for item in (verdict.submission for verdict in accepted)
        if item.supersedes is not None
    ]
    if lines:
        await tx.save_lineage(lines)


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
        question_of(
            decision,
            item.declaration,
            resource=item.acts_on or item.resource,
            approved=decision.approved_at is not None,
        )
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
