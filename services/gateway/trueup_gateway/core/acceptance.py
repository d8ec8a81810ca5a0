"""Accepting commands: what becomes of requests that wait together, given the locked rows they concern.

A key is accepted once; its repetitions get the first answer and consume nothing, but every other check still applies to
them. Of many requests on one capability exactly as many as it has uses left are accepted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.declaration import CommandDeclaration, identified
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.pointer import Absent, resolve
from trueup_common.contracts.shape import record
from trueup_common.contracts.states import ANSWERED, REPLACEABLE, SETTLED, CompensationState, OperationState
from trueup_common.contracts.task import PayloadRef
from trueup_gateway.core.capability import check_standing
from trueup_gateway.core.records import DecisionRow
from trueup_gateway.core.refusal import Refused, forbidden, invalid, unauthorized

DEADLINE_SECONDS: Final = 3600
DEADLINE_SECONDS_MAX: Final = 30 * 86400
SHOWN_CHARACTERS_MAX: Final = 200


@record
class Submission:
    """One request that passed every check that needs no row. Ids are made with it."""

    tenant: str
    key: str
    fingerprint: str
    identity: str | None
    capability_id: str
    command_type: str
    declaration: CommandDeclaration
    system: str
    resource: str
    """The label of the target, as the caller wrote it."""
    expected_version: str | None
    payload: Any
    payload_sha256: str
    workflow_id: str
    saga_id: str
    command_id: str
    deadline_at: datetime | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    trace_id: str | None = None
    reply_to: str | None = None
    payload_ref: PayloadRef | None = None
    """Where the whole payload is kept; `payload` is then the reduced one, and the hashes are those of the whole."""
    supersedes: str | None = None
    """The ended command that this one takes the place of."""
    acts_on: str | None = None
    """The object that the payload names; None where the type does not say."""


@record
class Standing:
    """A capability's row as locked, with the decision it hangs on."""

    capability_id: str
    tenant: str
    subject: str
    uses_left: int
    revoked: bool
    expires_at: datetime
    decision: DecisionRow


@record
class Edge:
    """What a key or an identity of a tenant stands for already."""

    tenant: str
    key: str
    fingerprint: str
    identity: str | None
    command_id: str
    workflow_id: str
    saga_id: str
    state: str


@record
class Accepted:
    """A new command; `deadline_at` is its effective deadline."""

    submission: Submission
    standing: Standing
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class Replayed:
    """A repetition: the answer is what became of the first request."""

    edge: Edge


Verdict = Accepted | Replayed | Refused


@dataclass(frozen=True, slots=True)
class Known:
    """The rows that a batch concerns, and governance as it stands in the same transaction.

    `frozen` names what holds back a request (None = nothing); `permitted` says whether policy still admits it.
    """

    now: datetime
    standings: Mapping[str, Standing]
    by_key: Mapping[tuple[str, str], Edge]
    by_identity: Mapping[tuple[str, str], Edge]
    frozen: Callable[[Submission], str | None]
    permitted: Callable[[Submission, Standing], bool]
    held: frozenset[tuple[str, str]] = frozenset()
    """Artifacts, as (tenant, id), that are there and that nobody can delete during this transaction."""
    superseded: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """States of the commands, by (tenant, id), that a request wants to take the place of."""


def decide(submissions: Sequence[Submission], known: Known) -> list[Verdict]:
    """One verdict per submission, in order; earlier ones of the batch count for later ones."""
    by_key = dict(known.by_key)
    by_identity = dict(known.by_identity)
    uses: dict[str, int] = {}
    verdicts: list[Verdict] = []
    for submission in submissions:
        verdict = _one(submission, known, by_key, by_identity, uses)
        verdicts.append(verdict)
        if isinstance(verdict, Accepted):
            edge = edge_of(submission)
            by_key[submission.tenant, submission.key] = edge
            if submission.identity is not None:
                by_identity[submission.tenant, submission.identity] = edge
            uses[submission.capability_id] = uses.get(submission.capability_id, 0) + 1
    return verdicts


def edge_of(submission: Submission) -> Edge:
    """The edge that an accepted submission makes."""
    return Edge(
        tenant=submission.tenant,
        key=submission.key,
        fingerprint=submission.fingerprint,
        identity=submission.identity,
        command_id=submission.command_id,
        workflow_id=submission.workflow_id,
        saga_id=submission.saga_id,
        state=OperationState.RECEIVED.value,
    )


def _one(
    submission: Submission,
    known: Known,
    by_key: Mapping[tuple[str, str], Edge],
    by_identity: Mapping[tuple[str, str], Edge],
    uses: Mapping[str, int],
) -> Verdict:
    standing = known.standings.get(submission.capability_id)
    try:
        if standing is None or standing.tenant != submission.tenant:
            raise forbidden("revoked", "The capability is not known here.")
        _authority(submission, standing, known)
    except Refused as refused:
        return refused
    edge = by_key.get((submission.tenant, submission.key))
    if edge is not None:
        if edge.fingerprint != submission.fingerprint:
            return Refused("idempotency-key-reused", "This key stands for another request.")
        return Replayed(edge)
    replaced = _superseding(submission, standing, known)
    if replaced is not None:
        return replaced
    if submission.identity is not None:
        owner = by_identity.get((submission.tenant, submission.identity))
        if owner is not None and owner.command_id != submission.supersedes:
            return Refused(
                "identity-in-use",
                f"The command {owner.command_id} owns this business identity.",
                extra={"command_id": owner.command_id, "workflow_id": owner.workflow_id, **_named(submission)},
            )
    ref = submission.payload_ref
    if ref is not None and (submission.tenant, ref.artifact_id) not in known.held:
        return invalid([("/payload_ref", "there is no such artifact")])
    latest = known.now + timedelta(seconds=DEADLINE_SECONDS_MAX)
    deadline_at = submission.deadline_at or known.now + timedelta(seconds=DEADLINE_SECONDS)
    if deadline_at <= known.now:
        return Refused("payload-invalid", "The deadline has passed.", errors=[("/deadline", "lies in the past")])
    if uses.get(submission.capability_id, 0) >= standing.uses_left:
        return forbidden("uses", "The capability has no uses left.")
    return Accepted(submission, standing, min(deadline_at, latest))


def _named(submission: Submission) -> dict[str, Any]:
    """What identifies a command of this type, in the caller's own words."""
    target = {name: getattr(submission, name) for name in ("system", "resource", "expected_version")}
    shown = dict(_identifying(submission.declaration, target, submission.payload))
    return {"identity": {pointer: _brief(value) for pointer, value in shown.items()}}


def _brief(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float) else str(value)[:SHOWN_CHARACTERS_MAX]


def _superseding(submission: Submission, standing: Standing, known: Known) -> Refused | None:
    """None where the command to take the place of, if any, has ended and its outcome is known."""
    if submission.supersedes is None:
        return None
    state = known.superseded.get((submission.tenant, submission.supersedes))
    if state is None:
        return invalid([("/supersedes", "there is no such command")])
    if OperationState(state) not in REPLACEABLE:
        detail = f"The command {submission.supersedes} is {state}: until its outcome is known nothing takes its place."
        return Refused("conflict", detail, extra={"command_id": submission.supersedes, "state": state})
    if state == OperationState.SUCCESS and standing.decision.supersedes != submission.supersedes:
        return forbidden("decision", "What succeeded is replaced only under a decision about exactly that.")
    return None


def check_capability(standing: Standing, now: datetime) -> None:
    """Raise Refused where a capability or its decision no longer lets anything happen."""
    if standing.revoked:
        raise forbidden("revoked", "The capability was revoked.")
    if standing.expires_at <= now:
        raise unauthorized("time", "The capability has expired.")
    check_standing(standing.decision, now)


def _authority(submission: Submission, standing: Standing, known: Known) -> None:
    check_capability(standing, known.now)
    bound = standing.decision.supersedes
    if bound is not None and bound != submission.supersedes:
        raise forbidden("decision", "The decision is for a command that takes the place of another one.")
    if not known.permitted(submission, standing):
        raise forbidden("policy", "The policy in force no longer permits this.")
    holder = known.frozen(submission)
    if holder is not None:
        raise forbidden("frozen", f"A freeze ({holder}) holds this back.")


def identity_of(declaration: CommandDeclaration, target: Mapping[str, Any], payload: Any) -> str | None:
    """The business identity that the declared pointers give, or None where the type declares none or all are absent."""
    values = [value for _, value in _identifying(declaration, target, payload)]
    if all(value is None for value in values):
        return None
    return f"{declaration.type}:{digest(values)}"


def _identifying(declaration: CommandDeclaration, target: Mapping[str, Any], payload: Any) -> Iterator[tuple[str, Any]]:
    """What the declared pointers show, None where nothing is there."""
    known = identified(declaration, target, payload)
    for pointer in declaration.identity:
        try:
            yield pointer, resolve(known, pointer)
        except Absent:
            yield pointer, None


_AGAIN: Final = ANSWERED - SETTLED
"""States from which an operation may be sent again."""


def given_up(row: JournalRow, declaration: CommandDeclaration | None) -> str | None:
    """The business identity that an operation let go of and would need again to be sent; None where it needs none."""
    if row.identity is not None or row.state not in _AGAIN or declaration is None or row.compensates is not None:
        return None
    target = {"system": row.target_system, "resource": row.target_resource, "expected_version": row.expected_version}
    return identity_of(declaration, target, row.payload)


_HELD: Final = frozenset(OperationState) - {
    OperationState.FAILED,
    OperationState.CONFLICT,
    OperationState.CANCELLED,
    OperationState.RESOLVED,
}


def is_free(state: OperationState, compensation_state: CompensationState) -> bool:
    """True where an operation may have let go of its business identity: nothing of it stands in the world."""
    return state not in _HELD or compensation_state is CompensationState.COMPENSATED
