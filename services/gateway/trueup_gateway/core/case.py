"""The rows and the message that an acceptance makes, all from one verdict: edge, mandate, first view, StartCase."""

from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.events import Mandate, StartCase
from trueup_common.contracts.grant import ISSUER, GrantClaims, audience
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.shape import record
from trueup_common.contracts.states import OperationState
from trueup_common.contracts.task import Target
from trueup_gateway.core.acceptance import Accepted
from trueup_gateway.core.records import EdgeRow, MandateRow
from trueup_gateway.core.view_records import ReceivedRow

DEFINITION: Final = "command"
DEFINITION_SHA256: Final = digest({"definition": DEFINITION, "version": 1})
STEP_ID: Final = "command"
GRANT_SLACK_SECONDS: Final = 60
"""How long a grant of acceptance may wait for its dispatch and still cover the attempt."""


@record
class NewCase:
    """Everything that one acceptance stores and sends."""

    edge: EdgeRow
    mandate: MandateRow
    received: ReceivedRow
    start: StartCase
    capability_id: str


def grant_expiry(declaration: Any, real: datetime) -> datetime:
    """When a grant of acceptance ends: it must still cover start window and timeout after a short wait."""
    seconds = declaration.start_window_seconds + declaration.timeout_seconds + GRANT_SLACK_SECONDS
    return real + timedelta(seconds=seconds)


def first_claims(
    accepted: Accepted, mandate: MandateRow, *, real: datetime, policy_sha256: str, epoch: int
) -> GrantClaims:
    """The claims of the grant for the first attempt (fence 1)."""
    submission = accepted.submission
    return GrantClaims(
        iss=ISSUER,
        aud=audience(submission.system),
        sub=accepted.standing.subject,
        tenant=submission.tenant,
        op=submission.command_id,
        fence=1,
        command_type=submission.command_type,
        resource=submission.resource,
        payload_sha256=submission.payload_sha256,
        expected_version=submission.expected_version,
        declaration_sha256=submission.declaration.sha256,
        decision=mandate.decision_id,
        mandate=mandate.mandate_id,
        capability=mandate.capability_id,
        policy=policy_sha256,
        approval=mandate.approval_id,
        epoch=epoch,
        iat=int(real.timestamp()),
        exp=int(grant_expiry(submission.declaration, real).timestamp()),
        jti=derived_id("grt", submission.command_id, 1),
    )


def mandate_row(accepted: Accepted, policy_sha256: str, now: datetime) -> MandateRow:
    """The mandate that a capability becomes when it is used."""
    submission, decision = accepted.submission, accepted.standing.decision
    return MandateRow.trusted(
        mandate_id=derived_id("man", submission.workflow_id),
        tenant=submission.tenant,
        subject=accepted.standing.subject,
        decision_id=decision.decision_id,
        capability_id=submission.capability_id,
        command_types=[submission.command_type],
        system=submission.system,
        resource=submission.resource,
        effect_class_max=submission.declaration.effect_class,
        effects_max=1,
        approval_id=decision.approval_id if decision.approved_at is not None else None,
        risk=decision.risk_level,
        policy_sha256=policy_sha256,
        expires_at=accepted.deadline_at,
        workflow_id=submission.workflow_id,
        command_id=submission.command_id,
        payload_sha256=submission.payload_sha256,
        expected_version=submission.expected_version,
        definition=DEFINITION,
        version=1,
        declarations={submission.command_type: submission.declaration.sha256},
        within_system=None,
        within_resource=None,
        created_at=now,
        document_sha256=None,
        documents=[],
        revoked_at=None,
        renewed_by=None,
        agent_version=decision.agent_version,
    )


def new_case(accepted: Accepted, row: MandateRow, *, now: datetime, real: datetime, grant: str) -> NewCase:
    """All rows of one accepted command under its mandate. `now` is business, `real` real time of the transaction.

    Every value was checked with the request or is our own, so none is checked again.
    """
    submission = accepted.submission
    start = StartCase.trusted(
        workflow_id=submission.workflow_id,
        saga_id=submission.saga_id,
        command_id=submission.command_id,
        tenant=submission.tenant,
        definition=DEFINITION,
        mandate=Mandate.trusted(**{name: getattr(row, name) for name in Mandate.model_fields}),
        command_type=submission.command_type,
        declaration_sha256=submission.declaration.sha256,
        target=Target(
            system=submission.system, resource=submission.resource, expected_version=submission.expected_version
        ),
        payload=submission.payload,
        payload_sha256=submission.payload_sha256,
        payload_ref=submission.payload_ref,
        request_fingerprint=submission.fingerprint,
        idempotency_key=submission.key,
        deadline_at=accepted.deadline_at,
        correlation_id=submission.correlation_id,
        trace_id=submission.trace_id,
        accepted_at=now,
        grant=grant,
        grant_expires_at=grant_expiry(submission.declaration, real) if grant else None,
        supersedes=submission.supersedes,
    )
    return NewCase(
        edge=EdgeRow.trusted(
            tenant=submission.tenant,
            key=submission.key,
            fingerprint=submission.fingerprint,
            identity=submission.identity,
            command_id=submission.command_id,
            workflow_id=submission.workflow_id,
            saga_id=submission.saga_id,
            capability_id=submission.capability_id,
            created_at=now,
            expires_at=now + timedelta(seconds=submission.declaration.key_lifetime_seconds),
        ),
        mandate=row,
        received=_received(accepted, row, now),
        start=start,
        capability_id=submission.capability_id,
    )


def _received(accepted: Accepted, mandate: MandateRow, now: datetime) -> ReceivedRow:
    """What is shown of a command until the orchestrator tells of it; any journal row is newer."""
    submission = accepted.submission
    row = {
        "command_id": submission.command_id,
        "tenant": submission.tenant,
        "workflow_id": submission.workflow_id,
        "saga_id": submission.saga_id,
        "step_id": STEP_ID,
        "state_version": 0,
        "execution_id": submission.workflow_id,
        "supersedes": submission.supersedes,
        "decision_id": mandate.decision_id,
        "capability_id": mandate.capability_id,
        "mandate_id": mandate.mandate_id,
        "command_type": submission.command_type,
        "declaration_sha256": submission.declaration.sha256,
        "effect_class": submission.declaration.effect_class,
        "risk": mandate.risk,
        "target_system": submission.system,
        "target_resource": submission.resource,
        "expected_version": submission.expected_version,
        "payload": submission.payload,
        "payload_sha256": submission.payload_sha256,
        "payload_ref": submission.payload_ref,
        "idempotency_key": submission.key,
        "identity": submission.identity,
        "request_fingerprint": submission.fingerprint,
        "state": OperationState.RECEIVED,
        "created_at": now,
        "last_transition_at": now,
        "deadline_at": accepted.deadline_at,
        "correlation_id": submission.correlation_id,
        "trace_id": submission.trace_id,
    }
    return ReceivedRow.trusted(
        command_id=submission.command_id,
        tenant=submission.tenant,
        subject=mandate.subject,
        workflow_id=submission.workflow_id,
        command_type=submission.command_type,
        system=submission.system,
        resource=submission.resource,
        created_at=now,
        deadline_at=accepted.deadline_at,
        row=row,
    )
