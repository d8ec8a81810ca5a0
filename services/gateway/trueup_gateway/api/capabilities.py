"""Capabilities: short-lived signed permissions under a decision, never wider than it."""

from typing import Annotated, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.ids import new_id
from trueup_common.contracts.shape import rfc3339
from trueup_gateway.api.decisions import (
    Digest,
    Resource,
    RevocationAnswer,
    Text,
    take_back,
)
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import (
    Body,
    OpenBody,
    acts_reader_of,
    answer,
    caller_of,
    found,
    not_found,
    object_id,
    read_model,
)
from trueup_gateway.api.route import BODY, READ, LeanRoute, path_parameter, route
from trueup_gateway.core.capability import Bounds, Wanted, is_for_one_use, narrow
from trueup_gateway.core.records import CapabilityRow, DecisionRow
from trueup_gateway.core.refusal import forbidden
from trueup_gateway.tokens import START_PERMISSION, sign_capability


class CapabilityRequest(Body):
    """What the capability shall permit; empty means as wide as the decision."""

    decision_id: Text
    max_uses: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        strict=True,
        description="An approval that is bound to no payload is for one use, over all capabilities of its decision.",
    )
    ttl_seconds: int = Field(default=300, ge=1, le=86400, strict=True)
    command_types: list[Text] = Field(default=[], max_length=50)
    resource: Resource | None = None
    payload_sha256: Digest | None = None
    cnf_jkt: None = Field(default=None, description="Holder proofs are not part of this version.")


class CapabilityAnswer(Body):
    """A capability; `capability` is the bearer token for commands."""

    capability_id: str
    capability: str
    expires_at: str
    max_uses: int


class CapabilityTrace(OpenBody):
    """A capability without its token: what it lets its holder do, what is left of it, and the decision behind it."""

    capability_id: str
    decision_id: str
    subject: str
    command_types: list[str]
    workflow: str | None
    system: str
    resource: str
    payload_sha256: str | None
    expected_version: str | None
    max_uses: int
    uses_left: int
    created_at: str
    expires_at: str
    revoked_at: str | None
    revoked_by: str | None
    revocation_reason: str | None


class OptionalReason(Body):
    """Why."""

    reason: Annotated[str, Field(min_length=1, max_length=2000)] = "revoked"


async def create(request: Request) -> Response:
    """Turn an approved decision into a capability. It ends with the decision at the latest."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    wanted = await read_model(request, gateway, CapabilityRequest)
    async with gateway.store.transaction() as tx:
        decision = await tx.decision(wanted.decision_id, lock=True)
        if decision is None or decision.tenant != caller.tenant:
            raise not_found()
        if decision.subject != caller.subject:
            raise forbidden("decision", "The decision was made for another subject.")
        now = (await tx.moment()).business
        given = await tx.given_uses(decision.decision_id, now) if is_for_one_use(decision) else 0
        bounds = narrow(
            decision,
            Wanted(
                max_uses=wanted.max_uses,
                ttl_seconds=wanted.ttl_seconds,
                command_types=tuple(wanted.command_types),
                resource=wanted.resource,
                payload_sha256=wanted.payload_sha256,
            ),
            now,
            given,
        )
        row = CapabilityRow(
            capability_id=new_id("cap"),
            tenant=decision.tenant,
            decision_id=decision.decision_id,
            subject=decision.subject,
            command_types=list(bounds.command_types),
            workflow=decision.workflow,
            system=bounds.system,
            resource=bounds.resource,
            payload_sha256=bounds.payload_sha256,
            expected_version=bounds.expected_version,
            max_uses=wanted.max_uses,
            uses_left=wanted.max_uses,
            created_at=now,
            expires_at=bounds.expires_at,
        )
        await tx.save_capability(row)
    body = {
        "capability_id": row.capability_id,
        "capability": _signed(gateway, row, decision, bounds),
        "expires_at": rfc3339(row.expires_at),
        "max_uses": row.max_uses,
    }
    return answer(body, 201, {"Cache-Control": "no-store"})


def _signed(gateway: Gateway, row: CapabilityRow, decision: DecisionRow, bounds: Bounds) -> str:
    declared = [gateway.catalog.declaration(decision.declarations[name]) for name in bounds.command_types]
    permissions = [declaration.permission for declaration in declared if declaration is not None]
    workflow = None
    if decision.workflow is not None:
        workflow = {
            "workflow": decision.workflow,
            "version": decision.definition_version,
            "document_sha256": decision.document_sha256,
        }
    return sign_capability(
        gateway.signing_key,
        capability_id=row.capability_id,
        subject=row.subject,
        tenant=row.tenant,
        permissions=permissions if workflow is None else [START_PERMISSION],
        command_types=bounds.command_types,
        system=bounds.system,
        resource=bounds.resource,
        payload_sha256=bounds.payload_sha256,
        expected_version=bounds.expected_version,
        decision_id=row.decision_id,
        issued_at=row.created_at,
        expires_at=row.expires_at,
        workflow=workflow,
    )


async def read(request: Request) -> Response:
    """Read what a capability permits and what is left of it; the token itself was shown once, to its holder."""
    gateway = gateway_of(request)
    reader = acts_reader_of(caller_of(request, gateway))
    row = found(await gateway.reads.capability(reader, object_id(request, "capability_id", "cap")))
    return answer(row.model_dump(mode="json"), headers={"Cache-Control": "no-store"})


async def revoke(request: Request) -> Response:
    """Revoke a capability: no request is accepted under it any more, and no grant is minted for what it started."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    capability_id = object_id(request, "capability_id", "cap")
    wanted = await read_model(request, gateway, OptionalReason, optional=True)
    async with gateway.store.transaction() as tx:
        row = await tx.capability(capability_id)
        revoked = await take_back(tx, caller, row, "capability", capability_id, wanted.reason)
    gateway.governance_changed()
    return answer(revoked)


_ID: Final = path_parameter("capability_id", "The capability.", "cap_00000000000000000000000000000000")

ROUTES: Final[list[LeanRoute]] = [
    route(
        "POST",
        "/v1/capabilities",
        create,
        tag="capabilities",
        summary="Get a capability under a decision",
        answers={201: ("The capability", CapabilityAnswer)},
        body=CapabilityRequest,
        example={
            "decision_id": "dec_00000000000000000000000000000000",
            "max_uses": 10,
            "ttl_seconds": 3600,
            "command_types": [],
            "resource": None,
            "payload_sha256": None,
            "cnf_jkt": None,
        },
        problems=("tenant-invalid", "forbidden", "not-found", *BODY),
    ),
    route(
        "GET",
        "/v1/capabilities/{capability_id}",
        read,
        tag="capabilities",
        summary="Read what a capability permits",
        answers={200: ("The capability without its token", CapabilityTrace)},
        parameters=(_ID,),
        problems=READ,
    ),
    route(
        "POST",
        "/v1/capabilities/{capability_id}/revoke",
        revoke,
        tag="capabilities",
        summary="Revoke a capability",
        answers={200: ("It is revoked", RevocationAnswer)},
        body=OptionalReason,
        example={"reason": "no longer needed"},
        body_required=False,
        parameters=(_ID,),
        problems=(*READ, *BODY),
    ),
]
