"""The catalog: which command types exist, what each demands, and which systems the caller's tenant is connected to."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from trueup_gateway.api.gateway import gateway_of
from trueup_gateway.api.http import Body, OpenBody, answer, caller_of
from trueup_gateway.api.route import LeanRoute, route


class CommandType(OpenBody):
    """One declaration. `acts_on` names the object that a payload is about: the resource of the target is that object or
    what encloses it. `identity` are the pointers that make up the business identity."""

    type: str
    system: str
    title: str
    permission: str
    effect_class: str
    payload_schema: dict[str, Any]
    acts_on: str | None
    identity: list[str]
    key_lifetime_seconds: int
    sha256: str
    connected: bool


class CatalogAnswer(Body):
    """All command types."""

    items: list[CommandType]
    next_cursor: str | None


async def commands(request: Request) -> Response:
    """List the command types with everything their declarations say, and whether the tenant can use them."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    items = [
        {
            **declaration.model_dump(mode="json"),
            "sha256": declaration.sha256,
            "connected": gateway.catalog.has_connection(caller.tenant, declaration.system),
        }
        for declaration in gateway.catalog.current()
    ]
    return answer({"items": items, "next_cursor": None})


ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/v1/catalog/commands",
        commands,
        tag="catalog",
        summary="List the command types",
        answers={200: ("All command types", CatalogAnswer)},
        problems=("tenant-invalid",),
    )
]
