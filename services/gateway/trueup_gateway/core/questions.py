"""Questions: what a person reads who is asked to approve an intent. Nobody approves a hash without what is behind it.

Of a repair the gateway knows the whole content: the open drift offered it, and its hash is the one that is approved. Of
an agent's intent it knows what the intent named; the content itself only where it comes with a case.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_gateway.core.offers import Asked
from trueup_gateway.core.records import DecisionRow
from trueup_gateway.core.view_records import ExceptionView, RepairView

_DRIFT: Final = {
    "element": "element",
    "desired": "desired",
    "observed": "observed",
    "observed_at": "observed_at",
    "observed_version": "observed_version",
    "failure_code": "failure_code",
    "last_known_good_at": "last_known_good_at",
}
PAYLOAD: Final = "payload"
ONE_USE: Final = "uses"
"""What bounds an approved intent: its very payload, or where none was hashed one use, whatever its content."""
_OF_REPAIR: Final = (
    "repair_id",
    "exception_id",
    "status",
    "number",
    "root_cause",
    "repair_action",
    "verification_plan",
    "rollback_or_compensation",
    "explanation",
    "playbook",
    "playbook_version",
    "planned_by",
)
"""What of the plan an approver reads; what is sent and where it drifted stands in the approval itself, unchangeably."""


def intent_of(decision: DecisionRow) -> dict[str, Any]:
    """What an intent names: the content that is approved where no payload was hashed."""
    return {
        "command_types": decision.command_types,
        "workflow": decision.workflow,
        "document_sha256": decision.document_sha256,
        "system": decision.system,
        "resource": decision.resource,
        "purpose": decision.purpose,
        "expected_version": decision.expected_version,
        "declarations": decision.declarations,
    }


def offering(decision: DecisionRow, drifts: Iterable[ExceptionView]) -> ExceptionView | None:
    """The open drift that offers exactly what was decided; None of what is no repair."""
    asked = Asked(tuple(decision.command_types), (decision.system, decision.resource), decision.payload_sha256)
    return next((view for view in drifts if asked.is_offered(view.envelope.get("repair") or {})), None)


def summary_of(
    decision: DecisionRow, declared: Mapping[str, CommandDeclaration], drift: ExceptionView | None = None
) -> dict[str, Any]:
    """What the approval of an intent shows: what it names, at which risk and why, what it can do and what takes it
    back; of a repair also what it sends, and the drift that it is for."""
    undone = {name: declared[name].compensation for name in decision.command_types if name in declared}
    return {
        **intent_of(decision),
        "risk_score": decision.risk_score,
        "risk_level": decision.risk_level.value,
        "risk_factors": decision.risk_factors,
        "effect_class": decision.effect_class_max.value,
        "binds": PAYLOAD if decision.payload_sha256 is not None else ONE_USE,
        "taken_back_by": {name: by.command_type if by is not None else None for name, by in undone.items()},
        **(_repair(drift) if drift is not None else {}),
    }


def _repair(drift: ExceptionView) -> dict[str, Any]:
    """A repair as it was offered when its approval was asked for."""
    envelope, offer = drift.envelope, drift.envelope["repair"]
    place = {"system": envelope.get("target_system"), "resource": envelope.get("target_resource")}
    return {
        "payload": offer.get("payload"),
        "verification": offer.get("verification") or None,
        "drift": {
            "exception_id": drift.exception_id,
            "workflow_id": drift.workflow_id,
            "supersedes": offer.get("supersedes"),
            **place,
            **{name: envelope.get(source) for name, source in _DRIFT.items()},
        },
    }


def exception_of(summary: Mapping[str, Any]) -> str | None:
    """The exception of a repair that is to be approved."""
    named = (summary.get("drift") or {}).get("exception_id")
    return str(named) if named else None


def plan_of(repair: RepairView) -> dict[str, Any]:
    """The plan of a repair as its approver reads it."""
    return {name: repair.row.get(name) for name in _OF_REPAIR}
