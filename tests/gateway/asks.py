"""Cases of workflows as the read model holds them, and what their orchestrator asks people and tells of signals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import httpx
import orjson
from tests.gateway.edge import EdgeUnderTest

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import ApprovalAsked, ApprovalDecided, CaseChanged, SignalDisposed
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.journal import HistoryEvent, InstanceRow
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import InstanceStatus
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.ports import Moment
from trueup_gateway.approval_handler import ApprovalHandler
from trueup_gateway.core.projection import CaseTold, read_case
from trueup_gateway.handler import ViewHandler

CONTENT = "c" * 64
EDITOR = {"sub": "operator:editor", "roles": ("approver",), "scopes": ("content:publish",)}
OPERATOR = {"sub": "operator:ops", "roles": ("operator",)}


def message_of(body: Any, tenant: str | None = None) -> Message:
    """A message of another service, under a new id."""
    return Message(
        id=new_id("msg"),
        type=type(body).__name__,
        subject="s",
        tenant=tenant or body.tenant,
        source="test",
        time=real_now(),
        data=body.model_dump_json().encode(),
    )


async def business_now(gateway: EdgeUnderTest) -> datetime:
    return await gateway.gateway.reads.business_now()


async def project(gateway: EdgeUnderTest, *events: Any, tenant: str = "acme") -> None:
    """Hand events to the projection."""
    now = real_now()
    async with gateway.gateway.store.transaction() as tx:
        await ViewHandler().handle(tx, Moment(now, now), [message_of(event, tenant) for event in events])


def told(change: CaseChanged) -> CaseTold:
    """A change as the projection reads it from the bus."""
    return read_case(orjson.loads(json_bytes(change)))


def waiting_case(now: datetime, **changes: Any) -> InstanceRow:
    """A workflow of agent:publisher that waits."""
    return InstanceRow(
        **{
            "workflow_id": new_id("wf"),
            "saga_id": new_id("saga"),
            "tenant": "acme",
            "definition": "seo-article-publish",
            "sha256": "d" * 64,
            "status": InstanceStatus.WAITING,
            "object_type": "article",
            "object_id": new_id("obs"),
            "subject": "agent:publisher",
            "mandate": {},
            "created_at": now,
            "deadline_at": now + timedelta(days=1),
            **changes,
        }
    )


async def running_case(gateway: EdgeUnderTest, **changes: Any) -> InstanceRow:
    """The same, projected."""
    instance = waiting_case(real_now(), **changes)
    await project(gateway, CaseChanged(instance=instance, operations=()), tenant=instance.tenant)
    return instance


async def changed(gateway: EdgeUnderTest, instance: InstanceRow, *events: HistoryEvent, **changes: Any) -> InstanceRow:
    """The case one version on."""
    newer: InstanceRow = instance.evolve(state_version=instance.state_version + 1, **changes)
    await project(gateway, CaseChanged(instance=newer, operations=(), history=events), tenant=instance.tenant)
    return newer


async def asked_of(gateway: EdgeUnderTest, instance: InstanceRow, **changes: Any) -> ApprovalAsked:
    """The question of a case's approval step, asked now."""
    return question_of(instance, await business_now(gateway), **changes)


def question_of(instance: InstanceRow, now: datetime, **changes: Any) -> ApprovalAsked:
    """The question of a case's approval step; half an hour to answer."""
    return ApprovalAsked(
        **{
            "approval_id": new_id("apr"),
            "workflow_id": instance.workflow_id,
            "saga_id": instance.saga_id,
            "tenant": instance.tenant,
            "step_id": "approval",
            "action": "open",
            "scope": "content:publish",
            "content_sha256": CONTENT,
            "binds": [CONTENT],
            "summary": {"title": "Article 0028"},
            "requested_by": instance.subject,
            "owner": "editors",
            "backup_owner": "operators",
            "definition": instance.definition,
            "version": 1,
            "document_sha256": instance.sha256,
            "state_version": 3,
            "asked_at": now,
            "expires_at": now + timedelta(minutes=30),
            **changes,
        }
    )


async def ask(gateway: EdgeUnderTest, *asks: ApprovalAsked) -> list[ApprovalDecided]:
    """Hand asks to the worker as its loop does; what it tells."""
    messages = [message_of(item) for item in asks]
    async with gateway.gateway.store.transaction() as tx:
        moment, fresh = await tx.claim("gateway-approvals", [message.id for message in messages])
        assert len(fresh) == len(messages)
        outgoing = await ApprovalHandler().handle(tx, moment, messages)
        await tx.post(outgoing)
    return decided(outgoing)


def decided(outgoing: Sequence[Outgoing]) -> list[ApprovalDecided]:
    """The approvals' ends among messages."""
    return [
        ApprovalDecided.model_validate_json(item.message.data)
        for item in outgoing
        if item.message.type == "ApprovalDecided"
    ]


async def open_approval(gateway: EdgeUnderTest, **changes: Any) -> tuple[InstanceRow, dict[str, Any]]:
    """A running case that waits for an approval, and that approval as its reviewer reads it."""
    instance = await running_case(gateway)
    asked = await asked_of(gateway, instance, **changes)
    assert await ask(gateway, asked) == []
    return instance, await approval(gateway, asked.approval_id)


async def approval(gateway: EdgeUnderTest, approval_id: str, **who: Any) -> dict[str, Any]:
    response = await gateway.client.get(f"/v1/approvals/{approval_id}", headers=gateway.headers(**(who or EDITOR)))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def decide(
    gateway: EdgeUnderTest, shown: dict[str, Any], decision: str = "approve", key: str | None = None, **changes: Any
) -> httpx.Response:
    """A person's answer to an approval as it was shown; `who` says who else it is, the rest changes the body."""
    who = changes.pop("who", EDITOR)
    body = {
        "decision": decision,
        "nonce": shown["nonce"],
        "content_sha256": shown["content_sha256"],
        "reason": "read",
        **changes,
    }
    headers = {**gateway.headers(**who), "Idempotency-Key": key or new_id("msg")}
    return await gateway.client.post(f"/v1/approvals/{shown['approval_id']}/decision", json=body, headers=headers)


def disposed(instance: InstanceRow, event_id: str, disposition: str, **changes: Any) -> SignalDisposed:
    """What the orchestrator tells of a signal."""
    return SignalDisposed(
        event_id=event_id,
        workflow_id=instance.workflow_id,
        tenant=instance.tenant,
        disposition=disposition,
        at=real_now(),
        **changes,
    )
