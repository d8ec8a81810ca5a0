"""People's acts: each is admitted by an authorization decision that is kept; what follows is sent after the commit."""

import asyncio
from collections.abc import MutableMapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.shape import ForwardContract, json_bytes, rfc3339
from trueup_common.contracts.topology import event_subject
from trueup_common.documents.payloads import PayloadSchemas
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.ports import Moment
from trueup_common.runtime.tracing import trace_id_of
from trueup_gateway.api.gateway import Gateway
from trueup_gateway.core.person_records import AuthorizationRow
from trueup_gateway.core.policy import Act
from trueup_gateway.core.refusal import forbidden
from trueup_gateway.rules import RuleBook
from trueup_gateway.store import GatewayTransaction
from trueup_gateway.tokens import Caller

SOURCE = "gateway"


class Ruled(Protocol):
    """What admitting an act needs of the gateway."""

    @property
    def rules(self) -> RuleBook:
        """The rules in force."""
        ...

    @property
    def catalog(self) -> Catalog:
        """The declarations."""
        ...

    @property
    def payloads(self) -> PayloadSchemas:
        """Compiled schemas."""
        ...


class Asked(Protocol):
    """What an act has of the request that asks for it: where it is traced."""

    @property
    def scope(self) -> MutableMapping[str, Any]:
        """The request's scope."""
        ...


async def authorize(  # noqa: PLR0917 - one act and what it rests on
    gateway: Ruled, tx: GatewayTransaction, caller: Caller, act: Act, request: Asked, now: datetime
) -> AuthorizationRow:
    """The authorization decision of an act, not kept yet. Raises Refused where policy does not admit it."""
    rules = await gateway.rules.at(tx, await tx.epoch())
    answer = rules.ask(act)
    if not answer.allowed or answer.errors:
        raise forbidden("policy", "The policy in force does not permit this.")
    return AuthorizationRow(
        decision_id=new_id("dec"),
        tenant=caller.tenant,
        action=act.action,
        subject=act.subject,
        roles=list(act.roles),
        scopes=list(caller.scopes),
        resource=act.resource,
        detail=dict(act.facts),
        outcome="approved",
        policy_version=rules.version,
        policy_sha256=rules.policy_sha256,
        determining_policies=list(answer.policies),
        trace_id=trace_id_of(request.scope.get("trueup.traceparent")),
        created_at=now,
    )


def authorization_body(row: AuthorizationRow) -> dict[str, Any]:
    """An authorization decision in the shape of every decision's trace."""
    return {
        "decision_id": row.decision_id,
        "outcome": row.outcome,
        "risk": {"score": 0, "level": "low"},
        "policy": {"version": row.policy_version, "sha256": row.policy_sha256},
        "determining_policies": row.determining_policies,
        "obligations": [],
        "approval_id": None,
        "expires_at": rfc3339(row.created_at),
        "subject": row.subject,
        "tenant": row.tenant,
        "roles": row.roles,
        "scopes": row.scopes,
        "agent_version": None,
        "action": {"command_types": [], "workflow": None, "act": row.action},
        "resource": {"system": "trueup", "resource": row.resource},
        "purpose": row.action,
        "evidence": [],
        "context": row.detail,
        "risk_factors": [],
        "risks": {},
        "declarations": {},
        "effect_class_max": "READ",
        "policy_errors": row.policy_errors,
        "trace_id": row.trace_id,
        "created_at": rfc3339(row.created_at),
        "revoked_at": None,
        "revoked_by": None,
        "revocation_reason": None,
    }


def telling(  # noqa: PLR0917 - the parts of one message
    body: ForwardContract, kind: str, tenant: str, message_id: str, moment: Moment, traceparent: str | None
) -> Outgoing:
    """An event of the gateway for the orchestrator; `kind` ∈ approval, signal, control."""
    return Outgoing(
        Message(
            id=message_id,
            type=type(body).__name__,
            subject=event_subject(SOURCE, kind, tenant),
            tenant=tenant,
            source=SOURCE,
            time=moment.real,
            data=json_bytes(body),
            traceparent=traceparent,
        )
    )


def send_soon(gateway: Gateway, outgoing: Sequence[Outgoing]) -> None:
    """Publish what was committed without making the caller wait; the relay sends what gets lost here."""
    task = asyncio.create_task(gateway.publisher.publish(outgoing))
    gateway.sending.add(task)
    task.add_done_callback(gateway.sending.discard)
