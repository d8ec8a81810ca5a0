"""Messages and moments for the reconciler's tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel

from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import Established, EstablishedElement, RepairOffer, SettleRequested
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.states import FindVerdict, ProbeVerdict
from trueup_common.contracts.task import FindTask, Found, Operation, ProbeElement, Target
from trueup_common.runtime.ports import Moment

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TENANT = "acme"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def moment(seconds: float) -> Moment:
    return Moment(business=at(seconds), real=at(seconds))


def operation(name: str = "1", tenant: str = TENANT) -> Operation:
    return Operation(
        command_id=f"cmd_{name}",
        workflow_id=f"wf_{name}",
        tenant=tenant,
        command_type="wordpress.create_draft",
        declaration_sha256="d" * 64,
        target=Target(system="wordpress", resource="site"),
        payload={"slug": name},
        payload_sha256="p" * 64,
        idempotency_key=f"key-{name}",
    )


def settle_requested(
    name: str = "1",
    *,
    fence: int = 1,
    late_until: datetime | None = None,
    deadline_seconds: float = 3600,
    tenant: str = TENANT,
) -> SettleRequested:
    return SettleRequested(
        operation=operation(name, tenant),
        fence=fence,
        reason="timeout",
        late_until=late_until,
        requested_at=T0,
        deadline_at=at(deadline_seconds),
    )


def finding(verdict: FindVerdict, *, proof: bool = False, candidates: int | None = None) -> Finding:
    counted = candidates if candidates is not None else int(verdict is FindVerdict.CONFIRMED)
    return Finding(verdict=verdict, proof_of_access=proof, candidates=counted, evidence="marker")


def found(
    task: FindTask,
    answer: Finding,
    *,
    seconds: float,
    provable_at: datetime | None = None,
    fence: int | None = None,
    ledger_status: str = "ABSENT",
) -> Found:
    return Found(
        find_id=task.find_id,
        settlement_id=task.settlement_id,
        command_id=task.operation.command_id,
        workflow_id=task.operation.workflow_id,
        tenant=task.operation.tenant,
        system=task.operation.target.system,
        fence=task.fence if fence is None else fence,
        finding=answer,
        ledger_status=ledger_status,
        provable_at=provable_at,
        found_at=at(seconds),
    )


def seen(
    value: Any = "publish",
    *,
    element: str = "wordpress.status",
    verdict: ProbeVerdict = ProbeVerdict.CONFIRMED,
    seconds: float = 0,
    proof: bool = True,
) -> Observation:
    return Observation(
        element=element,
        verdict=verdict,
        value=value if verdict is ProbeVerdict.CONFIRMED else None,
        observed_at=at(seconds),
        source="wordpress",
        version="v1",
        proof_of_access=proof,
        reason=None if verdict is not ProbeVerdict.UNKNOWN else "timeout",
    )


def established(
    name: str = "1",
    *,
    desired: Any = "publish",
    elements: tuple[str, ...] = ("wordpress.status",),
    resource: str = "post/1",
    revision: int = 1,
    sequence: int = 1,
    window_seconds: float = 0,
    verified: bool = False,
    observation: Observation | None = None,
    seconds: float = 0,
    tenant: str = TENANT,
    repair: RepairOffer | None = None,
    supersedes: str | None = None,
) -> Established:
    return Established(
        command_id=f"cmd_{name}",
        workflow_id=f"wf_{name}",
        tenant=tenant,
        system="wordpress",
        command_type="wordpress.publish_post",
        declaration_sha256="d" * 64,
        revision=revision,
        sequence=sequence,
        elements=tuple(
            EstablishedElement(
                element=element,
                resource=resource,
                desired=desired,
                recorded=desired,
                normaliser="exact",
                window_seconds=window_seconds,
                probe=ProbeElement(element=element, kind="post_field", params={"id": 1}),
                verified=verified,
                observation=observation,
                repair=repair,
            )
            for element in elements
        ),
        supersedes=supersedes,
        established_at=at(seconds),
        saga_id=f"saga_{name}",
        decision_id="dec_1",
        capability_id="cap_1",
    )


def offer(*, mends: tuple[str, ...] = ("missing", "different"), **payload: Any) -> RepairOffer:
    """The repair that a declaration offers for an element; it binds the version that was seen."""
    return RepairOffer(
        command_type="wordpress.publish_post",
        resource="post",
        payload={"post_id": 1, **payload},
        mends=mends,
        binds={"expected_modified_gmt": "version"},
        verification="the post is public again",
    )


def message(body: BaseModel, message_id: str, tenant: str = TENANT) -> Message:
    return Message(
        id=message_id,
        type=type(body).__name__,
        subject=f"trueup.evt.test.any.{tenant}",
        tenant=tenant,
        source="test",
        time=T0,
        data=body.model_dump_json().encode(),
        traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    )
