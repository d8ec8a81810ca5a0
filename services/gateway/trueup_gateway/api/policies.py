"""Policies: the set in force, and taking a new version into force with effect at once."""

from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.shape import rfc3339
from trueup_gateway.api.calls import once
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import Body, answer, caller_of, found, idempotency_key, read_model, require
from trueup_gateway.api.route import BODY, LeanRoute, key_parameter, route
from trueup_gateway.core import roles
from trueup_gateway.core.records import PolicyRow
from trueup_gateway.core.refusal import forbidden, invalid
from trueup_gateway.policy import DEFAULT_TEXT, GUARDS_TEXT, SCHEMA_TEXT, TEXT_CHARACTERS_MAX, PolicyInvalid, PolicySet
from trueup_gateway.store import GatewayTransaction
from trueup_gateway.tokens import Caller


class PolicyRequest(Body):
    """A whole policy set in Cedar; every policy needs an `@id`."""

    policies: Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS_MAX)]
    reason: Annotated[str, Field(min_length=1, max_length=2000)] = "changed"


class PolicySetAnswer(Body):
    """The policy set in force."""

    version: int
    sha256: str
    policies: str
    ids: list[str]
    policy_schema: str = Field(alias="schema")
    guards: str = Field(description="Policies that stand beside every set and cannot be taken away.")
    reason: str | None
    created_by: str | None = Field(description="Null for tenants that policies are not made by.")
    created_at: str


def _governs(gateway: Gateway, caller: Caller) -> bool:
    """Policies hold for every tenant, so one tenant makes them; in development, unless it is named, any."""
    named = gateway.settings.policy_tenant
    return caller.tenant == named if named else gateway.settings.development


def _body(row: PolicyRow, *, told: bool = True) -> dict[str, Any]:
    return {
        "version": row.version,
        "sha256": row.sha256,
        "policies": row.text,
        "ids": list(PolicySet(row.text).ids),
        "schema": SCHEMA_TEXT,
        "guards": GUARDS_TEXT,
        "reason": row.reason if told else None,
        "created_by": row.created_by if told else None,
        "created_at": rfc3339(row.created_at),
    }


async def read(request: Request) -> Response:
    """Read the policy set in force and the schema that it fits."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.READ_CONTROLS)
    return answer(_body(found(await gateway.reads.policy()), told=_governs(gateway, caller)))


async def change(request: Request) -> Response:
    """Take a validated policy set into force; running cases are judged by it from their next effect on."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.CHANGE_POLICY)
    if not _governs(gateway, caller):
        raise forbidden("tenant", "Policies hold for all tenants; only admins of TRUEUP_POLICY_TENANT change them.")
    wanted = await read_model(request, gateway, PolicyRequest)
    key = idempotency_key(request)
    try:
        policies = PolicySet(wanted.policies)
    except PolicyInvalid as error:
        raise invalid([("/policies", text) for text in error.errors[:50]]) from None

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        epoch = await tx.next_epoch()  # locks the row of governance: versions are given one after another
        present = await tx.policy()
        row = PolicyRow(
            version=(present.version if present else 0) + 1,
            sha256=policies.sha256,
            text=policies.text,
            reason=wanted.reason,
            created_by=caller.subject,
            created_at=(await tx.moment()).business,
            epoch=epoch,
        )
        await tx.save_policy(row)
        return 200, _body(row)

    response = await once(gateway, caller, key, {"call": "policies", **wanted.model_dump()}, act)
    gateway.governance_changed()
    return response


ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/v1/policies",
        read,
        tag="controls",
        summary="Read the policy set in force",
        answers={200: ("The policy set", PolicySetAnswer)},
        problems=("tenant-invalid", "forbidden", "not-found"),
    ),
    route(
        "PUT",
        "/v1/policies",
        change,
        tag="controls",
        summary="Take a new policy set into force",
        answers={200: ("It is in force", PolicySetAnswer)},
        body=PolicyRequest,
        example={"policies": DEFAULT_TEXT, "reason": "the default set again"},
        parameters=(key_parameter("policies-2"),),
        problems=(
            "tenant-invalid",
            "forbidden",
            "idempotency-key-missing",
            "idempotency-key-invalid",
            "idempotency-in-flight",
            "idempotency-key-reused",
            *BODY,
        ),
    ),
]
