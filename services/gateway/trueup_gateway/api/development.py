"""POST /dev/token: the built-in issuer of a laptop. It exists in development mode only."""

from typing import Annotated, Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.ids import is_tenant
from trueup_common.runtime.clock import real_now
from trueup_gateway.api.gateway import gateway_of
from trueup_gateway.api.http import Body, answer, not_found, read_model
from trueup_gateway.api.route import BODY, LeanRoute, route
from trueup_gateway.core.refusal import Refused, invalid
from trueup_gateway.tokens import is_subject, sign_access

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9:._-]+$")]
Scope = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9:._*-]+$")]


class TokenRequest(Body):
    """Who the token shall stand for."""

    sub: str = Field(description="`agent:<name>`, `operator:<name>` or `service:<name>`")
    tenant: str
    roles: list[Name] = Field(min_length=1, max_length=20)
    ttl_seconds: int = Field(default=3600, ge=1, le=86400, strict=True)
    scopes: list[Scope] = Field(default=[], max_length=50)


class TokenAnswer(Body):
    """An access token."""

    access_token: str
    expires_in: int
    token_type: str = "Bearer"


async def token(request: Request) -> Response:
    """Mint an access token of the development issuer; this page takes it into *Authorize → access*.

    Roles: `agent` asks for decisions and sends commands, `viewer` and `operator` read everything of the tenant,
    `operator` and `admin` freeze and revoke, `approver` answers what its `scopes` cover, `admin` changes policies. Any
    other name may stand in a token, as it may in one of a foreign issuer: it permits nothing.
    """
    gateway = gateway_of(request)
    if gateway.dev_key is None:
        raise not_found()
    wanted = await read_model(request, gateway, TokenRequest)
    if not is_tenant(wanted.tenant):
        raise Refused("tenant-invalid", "The tenant id is not in its one accepted spelling.")
    if not is_subject(wanted.sub):
        raise invalid([("/sub", "must be agent:<name>, operator:<name> or service:<name>")])
    minted = sign_access(
        gateway.dev_key,
        subject=wanted.sub,
        tenant=wanted.tenant,
        roles=wanted.roles,
        scopes=wanted.scopes,
        ttl_seconds=wanted.ttl_seconds,
        real=real_now(),
    )
    body: dict[str, Any] = {"access_token": minted, "expires_in": wanted.ttl_seconds, "token_type": "Bearer"}
    return answer(body, headers={"Cache-Control": "no-store"})


ROUTES: Final[list[LeanRoute]] = [
    route(
        "POST",
        "/dev/token",
        token,
        tag="development",
        summary="Get an access token (development mode only)",
        answers={200: ("An access token", TokenAnswer)},
        body=TokenRequest,
        example={"sub": "agent:publisher", "tenant": "acme", "roles": ["agent"], "ttl_seconds": 3600},
        problems=("tenant-invalid", "not-found", *BODY),
        security=None,
    )
]
