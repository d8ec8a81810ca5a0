"""Reports and moments for the planner's tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel

from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import ExceptionReported, MessageQuarantined
from trueup_common.contracts.journal import ObligationRow
from trueup_common.runtime.ports import Moment

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TENANT = "acme"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def moment(seconds: float) -> Moment:
    return Moment(business=at(seconds), real=at(seconds))


def reported(
    name: str = "1",
    *,
    kind: str = "dead_letter",
    version: int = 1,
    status: str = "open",
    resolution_type: str | None = None,
    failure_class: str | None = None,
    envelope: dict[str, Any] | None = None,
    owner: str = "operators",
    deadline_seconds: float = 600,
    tenant: str = TENANT,
) -> ExceptionReported:
    return ExceptionReported(
        reported_by="orchestrator",
        obligation=ObligationRow(
            obligation_id=f"obl_{name}",
            tenant=tenant,
            workflow_id=f"wf_{name}",
            saga_id=f"saga_{name}",
            command_id=f"cmd_{name}",
            kind=kind,
            status=status,
            failure_class=failure_class,
            owner=owner,
            opened_at=T0,
            deadline_at=at(deadline_seconds),
            closed_at=at(50) if status == "closed" else None,
            resolution_type=resolution_type,
            version=version,
            envelope=envelope or {},
        ),
        command_type="wordpress.create_draft",
        target_system="wordpress",
        target_resource="site",
        trace_id="t" * 32,
    )


def closed(
    name: str = "1", resolution: str = "operation_success", *, version: int = 2, **options: Any
) -> ExceptionReported:
    return reported(name, version=version, status="closed", resolution_type=resolution, **options)


def quarantine(name: str = "1", *, tenant: str = TENANT) -> MessageQuarantined:
    return MessageQuarantined(
        quarantine_id=f"obl_q{name}",
        tenant=tenant,
        service="orchestrator",
        consumer="orchestrator-events",
        subject=f"trueup.evt.adapter.wordpress.receipt.{tenant}",
        message_id=f"msg_{name}",
        message_type="Receipt",
        reason="ValidationError: fence is missing",
        sha256="a" * 64,
        size_bytes=12,
        at=T0,
    )


def message(body: BaseModel, message_id: str, tenant: str = TENANT) -> Message:
    return Message(
        id=message_id,
        type=type(body).__name__,
        subject=f"trueup.evt.orchestrator.exception.{tenant}",
        tenant=tenant,
        source="orchestrator",
        time=T0,
        data=body.model_dump_json().encode(),
    )
