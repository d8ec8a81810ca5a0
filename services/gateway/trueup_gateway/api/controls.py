"""Controls: freezes hold back new effects of a scope, everywhere, with effect at once; lifting ends them."""

from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.governance import BREAK_GLASS, FREEZE, FreezeScope
from trueup_common.contracts.ids import new_id
from trueup_gateway.api.acts import authorize
from trueup_gateway.api.calls import once
from trueup_gateway.api.decisions import Text
from trueup_gateway.api.gateway import gateway_of
from trueup_gateway.api.http import (
    Body,
    Item,
    caller_of,
    idempotency_key,
    listing,
    not_found,
    object_id,
    page_of,
    query_flag,
    read_model,
    require,
)
from trueup_gateway.api.route import BODY, PAGE, READ, LeanRoute, key_parameter, path_parameter, query_parameter, route
from trueup_gateway.core import roles
from trueup_gateway.core.approval import PERSON
from trueup_gateway.core.operators import OPERATE
from trueup_gateway.core.policy import Act
from trueup_gateway.core.records import FreezeRow
from trueup_gateway.core.refusal import forbidden, invalid
from trueup_gateway.core.timestamps import Timestamp
from trueup_gateway.store import GatewayTransaction
from trueup_gateway.tokens import Caller

MINUTES_MAX: Final = 240
"""How long a glass stays broken, at most."""


class Scope(Body):
    """What a freeze holds back; what is not named is covered. `tenant` is the caller's."""

    tenant: Text | None = None
    system: Text | None = None
    command_type: Text | None = None
    definition: Text | None = None
    version: int | None = Field(default=None, ge=1, strict=True)
    compensation: bool = Field(default=False, strict=True, description="Hold back compensations as well.")


class FreezeRequest(Body):
    """What to freeze, why, and until when (until lifted where no time is given)."""

    scope: Scope
    reason: Annotated[str, Field(min_length=1, max_length=2000)]
    expires_at: Timestamp | None = None


class BreakGlassRequest(Body):
    """What shall go through every freeze, why, and for how many minutes."""

    scope: Scope
    reason: Annotated[str, Field(min_length=1, max_length=2000)]
    minutes: int = Field(ge=1, le=MINUTES_MAX, strict=True)


class LiftRequest(Body):
    """Which freezes to lift: those with exactly this scope, or one by id."""

    scope: Scope | None = None
    freeze_id: Text | None = None
    reason: Annotated[str, Field(max_length=2000)] | None = None
    expires_at: Timestamp | None = None


class FreezeAnswer(Body):
    """One freeze; of the kind `break_glass`, a way through all of them."""

    freeze_id: str
    kind: str
    decision_id: str | None
    scope: dict[str, Any]
    reason: str
    created_by: str
    created_at: str
    expires_at: str | None
    lifted_at: str | None
    lifted_by: str | None
    active: bool


class FreezeList(Body):
    """A page of freezes."""

    items: list[FreezeAnswer]
    next_cursor: str | None


class LiftAnswer(Body):
    """The freezes that were lifted."""

    items: list[FreezeAnswer]


def _body(row: FreezeRow, *, active: bool) -> dict[str, Any]:
    return {**row.model_dump(mode="json", exclude={"tenant", "epoch"}), "active": active}


def _scope(caller: Caller, wanted: Scope) -> FreezeScope:
    """The scope within the caller's tenant. Raises Refused for another tenant's."""
    if wanted.tenant is not None and wanted.tenant != caller.tenant:
        raise forbidden("tenant", "A freeze covers the caller's own tenant.")
    return FreezeScope.model_validate({**wanted.model_dump(), "tenant": caller.tenant})


async def freeze(request: Request) -> Response:
    """Freeze a scope: no new effect of it is accepted or granted; reads, reconciliation and timers go on."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.FREEZE)
    wanted = await read_model(request, gateway, FreezeRequest)
    key = idempotency_key(request)
    scope = _scope(caller, wanted.scope)

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        now = (await tx.moment()).business
        if wanted.expires_at is not None and wanted.expires_at <= now:
            raise invalid([("/expires_at", "lies in the past")])
        row = FreezeRow(
            freeze_id=new_id("frz"),
            tenant=caller.tenant,
            scope=scope,
            reason=wanted.reason,
            created_by=caller.subject,
            created_at=now,
            expires_at=wanted.expires_at,
            epoch=await tx.next_epoch(),
        )
        await tx.save_freeze(row)
        return 201, _body(row, active=True)

    response = await once(gateway, caller, key, {"call": "freeze", **wanted.model_dump(mode="json")}, act)
    gateway.governance_changed()
    return response


async def break_glass(request: Request) -> Response:
    """Let effects of a scope through every freeze for some minutes: for the one urgent act in a frozen plane. A person
    does it, under a decision of its own, with a reason; it ends by itself, or is lifted like a freeze."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.BREAK_GLASS)
    if not caller.subject.startswith(PERSON):
        raise forbidden("role", "Only a person breaks the glass; this token stands for an agent or a service.")
    wanted = await read_model(request, gateway, BreakGlassRequest)
    key = idempotency_key(request)
    scope = _scope(caller, wanted.scope)

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        now = (await tx.moment()).business
        name = new_id("frz")
        asked = Act(
            subject=caller.subject,
            tenant=caller.tenant,
            roles=caller.roles,
            action=OPERATE,
            target_tenant=caller.tenant,
            system="trueup",
            resource=f"break_glass/{name}",
            facts=(("operation", "BREAK_GLASS"), ("own", False)),
        )
        admitted = await authorize(gateway, tx, caller, asked, request, now)
        row = FreezeRow(
            freeze_id=name,
            kind=BREAK_GLASS,
            decision_id=admitted.decision_id,
            tenant=caller.tenant,
            scope=scope,
            reason=wanted.reason,
            created_by=caller.subject,
            created_at=now,
            expires_at=now + timedelta(minutes=wanted.minutes),
            epoch=await tx.next_epoch(),
        )
        await tx.save_authorization(admitted)
        await tx.save_freeze(row)
        return 201, _body(row, active=True)

    response = await once(gateway, caller, key, {"call": "break-glass", **wanted.model_dump(mode="json")}, act)
    gateway.governance_changed()
    return response


async def _lift(request: Request, wanted: LiftRequest) -> Response:
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.FREEZE)
    key = idempotency_key(request)
    scope = _scope(caller, wanted.scope) if wanted.scope is not None else None
    if (scope is None) == (wanted.freeze_id is None):
        raise invalid([("/scope", "name either a scope or a freeze_id")])

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        now = (await tx.moment()).business
        chosen = [
            row.evolve(lifted_at=now, lifted_by=caller.subject)
            for row in await tx.freezes_of(caller.tenant)
            if row.freeze_id == wanted.freeze_id or (row.kind == FREEZE and row.scope == scope)
        ]
        if not chosen:
            raise not_found()
        await tx.next_epoch()
        await tx.lift(chosen)
        return 200, {"items": [_body(row, active=False) for row in chosen]}

    response = await once(gateway, caller, key, {"call": "lift", **wanted.model_dump(mode="json")}, act)
    gateway.governance_changed()
    return response


async def lift(request: Request) -> Response:
    """Lift the freezes with exactly this scope, or one by its id."""
    gateway = gateway_of(request)
    caller_of(request, gateway)
    return await _lift(request, await read_model(request, gateway, LiftRequest))


async def lift_one(request: Request) -> Response:
    """Lift one freeze."""
    gateway = gateway_of(request)
    caller_of(request, gateway)
    return await _lift(request, LiftRequest(freeze_id=object_id(request, "freeze_id", "frz")))


async def listed(request: Request) -> Response:
    """List freezes, newest first; by default those in force."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.READ_CONTROLS)
    page = page_of(request)
    active = query_flag(request, "active") is not False
    rows = await gateway.reads.freezes(caller.tenant, page, active=active)
    now = await gateway.reads.business_now()
    return listing(
        [
            Item(
                row.created_at,
                row.freeze_id,
                _body(row, active=row.lifted_at is None and (row.expires_at is None or row.expires_at > now)),
            )
            for row in rows
        ],
        page,
    )


_EXAMPLE: Final = {
    "scope": {"tenant": None, "system": "wordpress", "command_type": None, "definition": None, "version": None},
    "reason": "the site is being migrated",
    "expires_at": None,
}
_CHANGE: Final = (
    "tenant-invalid",
    "forbidden",
    "idempotency-key-missing",
    "idempotency-key-invalid",
    "idempotency-in-flight",
    "idempotency-key-reused",
    *BODY,
)

ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/v1/controls/freezes",
        listed,
        tag="controls",
        summary="List freezes",
        answers={200: ("A page of freezes", FreezeList)},
        parameters=(
            query_parameter("active", "`false` also lists those that ended.", {"type": "boolean", "default": True}),
            *PAGE,
        ),
        problems=READ,
    ),
    route(
        "POST",
        "/v1/controls/freezes",
        freeze,
        tag="controls",
        summary="Freeze a scope",
        answers={201: ("It is frozen", FreezeAnswer)},
        body=FreezeRequest,
        example=_EXAMPLE,
        parameters=(key_parameter("freeze-wordpress-1"),),
        problems=_CHANGE,
    ),
    route(
        "POST",
        "/v1/controls/break-glass",
        break_glass,
        tag="controls",
        summary="Let a scope through every freeze for some minutes",
        answers={201: ("The glass is broken", FreezeAnswer)},
        body=BreakGlassRequest,
        example={"scope": _EXAMPLE["scope"], "reason": "the recall notice must go out", "minutes": 15},
        parameters=(key_parameter("break-glass-1"),),
        problems=_CHANGE,
    ),
    route(
        "DELETE",
        "/v1/controls/freezes",
        lift,
        tag="controls",
        summary="Lift freezes by scope",
        answers={200: ("They are lifted", LiftAnswer)},
        body=LiftRequest,
        example={"scope": _EXAMPLE["scope"], "reason": "the migration is over"},
        parameters=(key_parameter("unfreeze-wordpress-1"),),
        problems=("not-found", *_CHANGE),
    ),
    route(
        "DELETE",
        "/v1/controls/freezes/{freeze_id}",
        lift_one,
        tag="controls",
        summary="Lift one freeze",
        answers={200: ("It is lifted", LiftAnswer)},
        parameters=(
            path_parameter("freeze_id", "The freeze.", "frz_00000000000000000000000000000000"),
            key_parameter("lift-freeze-1"),
        ),
        problems=("not-found", *_CHANGE),
    ),
]
