"""Capability rules: a capability is never wider than its decision, and a request never wider than its capability."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trueup_common.contracts.problems import AWAITS_APPROVAL
from trueup_common.contracts.resource import covers
from trueup_gateway.core.records import DecisionRow
from trueup_gateway.core.refusal import Refused, forbidden


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a capability is asked for. None and () mean: as wide as the decision."""

    max_uses: int
    ttl_seconds: int
    command_types: tuple[str, ...] = ()
    resource: str | None = None
    payload_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a capability permits."""

    command_types: tuple[str, ...]
    system: str
    resource: str
    payload_sha256: str | None
    expected_version: str | None
    expires_at: datetime


def check_standing(decision: DecisionRow, now: datetime) -> None:
    """Raise Refused where the decision does not (or no longer) let anything happen."""
    if decision.revoked_at is not None:
        raise forbidden("revoked", "The decision was revoked.")
    if decision.outcome == "denied":
        raise forbidden("decision", "The decision denies this.")
    if decision.expires_at <= now:
        raise forbidden("decision", "The decision has expired.")
    if decision.outcome != "approved" and decision.approved_at is None:
        raise Refused(
            "forbidden",
            "The decision needs an approval that was not given.",
            check="approval",
            extra={"approval_id": decision.approval_id, "decision_id": decision.decision_id},
            advice=AWAITS_APPROVAL,
        )


def is_for_one_use(decision: DecisionRow) -> bool:
    """True where a person approved an intent that is bound to no payload: they said yes to one effect, not to many."""
    return decision.approved_at is not None and decision.payload_sha256 is None


def narrow(decision: DecisionRow, wanted: Wanted, now: datetime, given_uses: int = 0) -> Bounds:
    """The bounds of a capability under a decision. Raises Refused where more is wanted than was decided.

    `given_uses` are those of the decision's other capabilities that were used or may be.
    """
    check_standing(decision, now)
    if is_for_one_use(decision) and wanted.max_uses + given_uses > 1:
        raise forbidden("uses", "The approval is bound to no payload, and so it is for one use in all.")
    types = wanted.command_types or tuple(decision.command_types)
    if decision.workflow is not None and set(types) != set(decision.command_types):
        raise forbidden("command_type", "A capability for a workflow covers exactly the command types of its document.")
    foreign = sorted(set(types) - set(decision.command_types))
    if foreign:
        raise forbidden("command_type", "The decision does not cover every command type asked for.")
    resource = wanted.resource if wanted.resource is not None else decision.resource
    if not covers(decision.resource, resource):
        raise forbidden("resource", "The decision does not cover the resource asked for.")
    payload = wanted.payload_sha256 or decision.payload_sha256
    if decision.payload_sha256 is not None and payload != decision.payload_sha256:
        raise forbidden("payload_hash", "The decision is bound to another payload.")
    return Bounds(
        command_types=tuple(sorted(set(types))),
        system=decision.system,
        resource=resource,
        payload_sha256=payload,
        expected_version=decision.expected_version,
        expires_at=min(now + timedelta(seconds=wanted.ttl_seconds), decision.expires_at),
    )


@dataclass(frozen=True, slots=True)
class Request:
    """The part of a command request that a capability speaks about."""

    tenant: str
    command_type: str
    permission: str
    system: str
    resource: str
    payload_sha256: str
    expected_version: str | None


def check_request(
    *,
    permissions: Collection[str],
    command_types: Sequence[str],
    system: str,
    resource: str,
    payload_sha256: str | None,
    expected_version: str | None,
    request: Request,
) -> Refused | None:
    """None where the signed bounds of a capability cover the request; else the refusal with the check that failed."""
    if request.command_type not in command_types:
        return forbidden("command_type", "The capability does not cover this command type.")
    if request.permission not in permissions:
        return forbidden("scope", "The capability lacks the permission that this command type needs.")
    if request.system != system or not covers(resource, request.resource):
        return forbidden("resource", "The capability does not cover this target.")
    if payload_sha256 is not None and payload_sha256 != request.payload_sha256:
        return forbidden("payload_hash", "The capability is bound to another payload.")
    if expected_version is not None and expected_version != request.expected_version:
        return forbidden("resource_version", "The capability is bound to another version of the target.")
    return None
