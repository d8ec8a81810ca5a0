"""What the planner asks of the gateway, in which order, and what each answer means. The same chain as any agent's:

evidence → decision → capability → command for what drifted, an operator command for what is stuck. An answer that did
not come says nothing: the same call is made again under the same key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import InstanceStatus, RiskLevel
from trueup_repair_planner.core.repair import RepairRow, Step

CALLS_MAX: Final = 60
"""So often a repair may be put off before a person gets it."""
PAUSE_SECONDS_MAX: Final = 120.0
APPROVAL_SECONDS: Final = 5.0
TTL_SECONDS: Final = 300
_PASSING: Final = frozenset({401, 408, 425, 429, 500, 502, 503, 504})
_PASSING_PROBLEMS: Final = frozenset({"idempotency-in-flight"})
_PASSING_CHECKS: Final = frozenset({"frozen", "time"})
_STALE_CHECKS: Final = frozenset({"decision", "revoked", "uses", "policy"})


class Ask(StrEnum):
    """One question to the gateway."""

    DECIDE = "decide"
    AUTHORIZE = "authorize"
    APPROVAL = "approval"
    COMMAND = "command"
    OPERATE = "operate"
    RECALL = "recall"


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `capability` stands in place of the access token where it is given."""

    tenant: str
    method: str
    path: str
    body: dict[str, Any] | None = None
    key: str | None = None
    capability: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `status` 0 means that nothing did, and nothing is known."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a repair's turn at the gateway came to: a step, what it changes, and when to look again."""

    step: Step
    changes: dict[str, Any] = field(default_factory=dict)
    code: str | None = None
    detail: str | None = None
    again: timedelta | None = None


def first(row: RepairRow) -> Ask:
    """Where a repair begins, or goes on after a pause."""
    if row.request is None:
        return Ask.OPERATE
    return Ask.AUTHORIZE if row.decision_id is not None else Ask.DECIDE


def call(row: RepairRow, ask: Ask, known: Mapping[str, Any]) -> Call:
    """The request for a question; `known` is what this turn has learned: decision and capability."""
    match ask:
        case Ask.DECIDE:
            key = f"repair:{row.repair_id}:decision:{row.decisions_count + 1}"
            return Call(row.tenant, "POST", "/v1/decisions", _decision(row), key)
        case Ask.AUTHORIZE:
            body = {"decision_id": known.get("decision_id") or row.decision_id, "max_uses": 1}
            return Call(row.tenant, "POST", "/v1/capabilities", {**body, "ttl_seconds": TTL_SECONDS})
        case Ask.APPROVAL:
            return Call(row.tenant, "GET", f"/v1/approvals/{known.get('approval_id') or row.approval_id}")
        case Ask.COMMAND:
            key = f"repair:{row.repair_id}"
            return Call(row.tenant, "POST", "/v1/commands", _command(row), key, str(known["capability"]))
        case Ask.OPERATE:
            return Call(row.tenant, "POST", "/v1/operator-commands", _operation(row), f"repair:{row.repair_id}")
        case Ask.RECALL:
            return Call(row.tenant, "GET", f"/v1/operator-commands?target={row.exception_id}")


def look(row: RepairRow) -> Call | None:
    """How to see what became of the repair command; None where it tells by itself."""
    return Call(row.tenant, "GET", f"/v1/commands/{row.command_id}") if row.command_id is not None else None


def _decision(row: RepairRow) -> dict[str, Any]:
    request = row.request or {}
    return {
        "action": {"command_types": [request["command_type"]], "workflow": None},
        "resource": {"system": request["system"], "resource": request["resource"]},
        "purpose": f"{row.repair_id}: {row.root_cause}"[:2000],
        "evidence": row.evidence,
        "context": {"payload_sha256": digest(request["payload"]), "supersedes": request["supersedes"]},
        "agent_version": f"{row.playbook}@{row.playbook_version}",
    }


def _command(row: RepairRow) -> dict[str, Any]:
    request = row.request or {}
    return {
        "command_type": request["command_type"],
        "target": {"system": request["system"], "resource": request["resource"]},
        "payload": request["payload"],
        "correlation_id": row.repair_id,
        "supersedes": request["supersedes"],
    }


def _operation(row: RepairRow) -> dict[str, Any]:
    """The deadline is that of the repair, fixed when it began: asked again, the same key stands for the same body."""
    until = {"deadline": rfc3339(row.verify_until)} if row.verify_until is not None else {}
    return {
        "action": row.repair_action,
        "target": {"kind": "exception", "id": row.exception_id},
        "reason": f"{row.playbook}: {row.explanation}"[:2000],
        "evidence": row.evidence,
        "params": {"repair_id": row.repair_id, **until},
    }


def answered(row: RepairRow, ask: Ask, known: dict[str, Any], answer: Answer) -> Ask | Outcome:
    """The next question, or what this turn came to. `known` takes up what the answer tells."""
    status, body = answer.status, answer.body
    if _is_passing(answer):
        return put_off(row, str(body.get("check") or body.get("title") or f"status_{status}"), **_decision_of(known))
    if ask is Ask.OPERATE and body.get("workflow_status") == InstanceStatus.PAUSED:
        return put_off(row, "paused")  # somebody holds the case: nothing is sent before it is resumed
    match ask:
        case Ask.DECIDE if status == 201:
            return _decided(known, body)
        case Ask.AUTHORIZE if status == 201:
            known["capability"] = body["capability"]
            return Ask.COMMAND
        case Ask.AUTHORIZE if row.approval_id is not None and body.get("check") in ("approval", "decision"):
            known["over"] = body["check"] == "decision"
            return Ask.APPROVAL
        case Ask.APPROVAL:
            return _waited(row, known, body)
        case Ask.COMMAND if status in (200, 202):
            return Outcome(Step.SEND, {**_decision_of(known), "command_id": str(body["command_id"])})
        case Ask.OPERATE if status in (200, 202):
            return Outcome(Step.SEND, _names_of(body))
        case Ask.OPERATE if _slug(body) == "idempotency-key-reused":
            return Ask.RECALL  # accepted long ago, with another deadline: whoever asked died before keeping the answer
        case Ask.RECALL if status == 200:
            return _recalled(row, body)
    if _is_stale(row, ask, body):
        return _anew(row, str(body["check"]))
    code = str(body.get("check") or _slug(body) or f"status_{status}")
    return Outcome(Step.REFUSE, _decision_of(known), code=code, detail=_detail(body))


def _names_of(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("operator_command_id", "decision_id") if body.get(name)}


def _recalled(row: RepairRow, body: Mapping[str, Any]) -> Outcome:
    """The operator command that this repair asked for before, among those about its exception."""
    items = [item for item in body.get("items") or () if (item.get("params") or {}).get("repair_id") == row.repair_id]
    if not items:
        return Outcome(Step.REFUSE, code="idempotency-key-reused", detail="the key stands for something else")
    return Outcome(Step.SEND, _names_of(items[0]))


def _decided(known: dict[str, Any], body: Mapping[str, Any]) -> Ask | Outcome:
    known["decision_id"] = str(body["decision_id"])
    known |= _risk_of(body)
    match body.get("outcome"):
        case "approved":
            return Ask.AUTHORIZE
        case "approval_required":
            known["approval_id"] = body.get("approval_id")
            changes = {**_decision_of(known), "approval_id": known["approval_id"]}
            return Outcome(Step.ASK, changes, again=timedelta(seconds=APPROVAL_SECONDS))
        case other:
            return Outcome(Step.REFUSE, _decision_of(known), code=str(other), detail="the policy in force denies it")


def _waited(row: RepairRow, known: Mapping[str, Any], body: Mapping[str, Any]) -> Outcome:
    """Where an approval stands: a no is final, silence until the decision was over is asked again."""
    if body.get("status") == "rejected":
        return Outcome(Step.REFUSE, _decision_of(known), code="rejected", detail=str(body.get("reason") or "") or None)
    if known.get("over"):
        return _anew(row, "approval_expired")
    return Outcome(Step.ASK, again=timedelta(seconds=APPROVAL_SECONDS))


def _is_stale(row: RepairRow, ask: Ask, body: Mapping[str, Any]) -> bool:
    """True where the decision is an old one: kept in the row, or told again after its time."""
    if ask is Ask.DECIDE or row.approval_id is not None or body.get("check") not in _STALE_CHECKS:
        return False
    return row.decision_id is not None or (ask is Ask.AUTHORIZE and body["check"] == "decision")


def _anew(row: RepairRow, reason: str) -> Outcome:
    """Another decision is asked for. Until then one repair has one: asked again, the same key tells the same."""
    return put_off(row, reason, decision_id=None, approval_id=None, decisions_count=row.decisions_count + 1)


def put_off(row: RepairRow, reason: str, **changes: Any) -> Outcome:
    """Later again, at growing distances; at the limit a person gets it."""
    if row.calls_count + 1 >= CALLS_MAX:
        return Outcome(Step.REFUSE, changes, code="put_off_too_often", detail=reason)
    pause = min(PAUSE_SECONDS_MAX, 1.0 * 2 ** min(row.calls_count, 10))
    return Outcome(Step.POSTPONE, changes, code=reason, again=timedelta(seconds=pause))


def _is_passing(answer: Answer) -> bool:
    """True where the gateway said nothing about the request itself."""
    if answer.status == 0 or answer.status in _PASSING:
        return True
    return _slug(answer.body) in _PASSING_PROBLEMS or answer.body.get("check") in _PASSING_CHECKS


def _decision_of(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: known[name] for name in ("decision_id", "risk_level") if known.get(name)}


def _risk_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The risk as it was decided. A playbook only estimates it, for as long as nobody was asked."""
    risk = body.get("risk")
    level = risk.get("level") if isinstance(risk, Mapping) else None
    return {"risk_level": RiskLevel(level)} if level in set(RiskLevel) else {}


def _slug(body: Mapping[str, Any]) -> str | None:
    kind = body.get("type")
    return str(kind).rpartition("/")[2] if kind else None


def _detail(body: Mapping[str, Any]) -> str | None:
    allowed = body.get("allowed_actions")
    detail = str(body.get("detail") or body.get("title") or "") or None
    return f"{detail} Allowed: {', '.join(map(str, allowed))}." if allowed else detail


ENDED_BADLY: Final = frozenset({"FAILED", "CONFLICT", "DEAD_LETTERED", "NEEDS_REVIEW", "CANCELLED"})
"""States of a repair command after which nothing will be seen to be true."""


def miss_of(answer: Answer) -> str | None:
    """Why a repair command will not bring about what it is for; None while it may."""
    if answer.status != 200 or answer.body.get("state") not in ENDED_BADLY:
        return None
    return str(answer.body.get("error_code") or answer.body["state"]).lower()
