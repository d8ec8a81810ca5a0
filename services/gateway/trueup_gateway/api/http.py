"""The edge of HTTP: who calls, which bytes are accepted, how answers and pages look. Every endpoint uses it."""

import base64
import binascii
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from trueup_common.documents.payloads import pointer_of
from trueup_common.runtime.clock import real_now
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.core import roles
from trueup_gateway.core.refusal import Refused, forbidden, invalid, parameter, unauthorized
from trueup_gateway.core.strict_json import Malformed, parse
from trueup_gateway.store import Page, Reader
from trueup_gateway.tokens import Caller, CapabilityClaims

Endpoint = Callable[[Request], Awaitable[Response]]
M = TypeVar("M", bound=BaseModel)

LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 200
KEY_CHARACTERS_MAX: Final = 255
_ID: Final = re.compile(r"^[a-z]{2,4}_[0-9a-f]{32}$")
_JSON: Final = re.compile(r'^application/json\s*(;\s*charset\s*=\s*"?utf-8"?\s*)?$', re.I)
_WAIT: Final = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?([0-9]{1,4})"?\s*(?=$|[,;])', re.I)
_QUOTED: Final = re.compile(r'^"((?:[^"\\]|\\["\\])*)"$')
_NO_TEXT: Final = re.compile("[\x00\ud800-\udfff\ufffd]")
_PRINTABLE: Final = re.compile(r"^[\x20-\x7e]+$")


class Body(BaseModel):
    """Base of request bodies: closed to misspelt fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OpenBody(BaseModel):
    """Base of answers that may grow: what is named here stays, more may come."""

    model_config = ConfigDict(extra="allow", frozen=True)


# Who is calling


def header_values(request: Request, name: bytes) -> list[str]:
    """All values of a request header, by its lower-case name."""
    return [value.decode("latin-1") for key, value in request.scope["headers"] if key == name]


def _bearer(request: Request) -> str:
    values = header_values(request, b"authorization")
    if not values:
        raise _anonymous("The Authorization header is missing.")
    if len(values) > 1:
        raise unauthorized("signature", "There is more than one Authorization header.")
    scheme, _, token = values[0].partition(" ")
    if scheme.lower() == "dpop":
        raise unauthorized("holder", "This gateway does not verify holder proofs.")
    if scheme.lower() != "bearer" or not token.strip():
        raise _anonymous("The Authorization header holds no bearer token.")
    return token.strip()


def _anonymous(detail: str) -> Refused:
    return Refused("unauthorized", detail, check="signature", anonymous=True)


def caller_of(request: Request, gateway: Gateway) -> Caller:
    """The caller of an access token. Raises Refused."""
    return gateway.verifier.caller(_bearer(request), real_now())


def capability_of(request: Request, gateway: Gateway) -> CapabilityClaims:
    """The capability that a request carries. Raises Refused."""
    return gateway.verifier.capability(_bearer(request), gateway.clock.now())


def require(caller: Caller, right: str) -> None:
    """Raise Refused where the caller does not hold a right."""
    if not roles.may(caller.roles, right):
        raise forbidden("role", f"This needs one of the roles {roles.needed(right)}.")


def reader_of(caller: Caller) -> Reader:
    """What a caller may read: the tenant's objects, or an agent's own. Raises Refused for everyone else."""
    if roles.may(caller.roles, roles.READ_TENANT):
        return Reader(caller.tenant)
    if roles.may(caller.roles, roles.READ_OWN):
        return Reader(caller.tenant, caller.subject)
    readers = f"{roles.needed(roles.READ_TENANT)}, {roles.needed(roles.READ_OWN)}"
    raise forbidden("role", f"This needs one of the roles {readers}.")


def acts_reader_of(caller: Caller) -> Reader:
    """Whose acts a caller may read: the tenant's where the role shows what people did, else their own."""
    if roles.may(caller.roles, roles.VIEW_AUDIT):
        return Reader(caller.tenant)
    reader_of(caller)  # who reads nothing reads no acts
    return Reader(caller.tenant, caller.subject)


# What is accepted


async def body_pieces(request: Request, bytes_max: int) -> AsyncIterator[bytes]:
    """The body as it comes, bounded. Raises Refused, and ClientDisconnect where the client went away.

    Of a body that is too large as much again is read and dropped: who still sends cannot hear the refusal.
    """
    incoming = _pieces(request)
    try:
        _check_declared(request, bytes_max)
        size = 0
        async for piece in incoming:
            size += len(piece)
            if size > bytes_max:
                raise _too_large(bytes_max)
            yield piece
    except Refused:
        if not header_values(request, b"expect"):
            dropped = 0
            async for piece in incoming:
                dropped += len(piece)
                if dropped > bytes_max:
                    break
        raise


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _check_declared(request: Request, bytes_max: int) -> None:
    declared = header_values(request, b"content-length")
    if declared and declared[0].isdigit() and (len(declared[0]) > 18 or int(declared[0]) > bytes_max):
        raise _too_large(bytes_max)


async def read_bytes(request: Request, bytes_max: int) -> bytes:
    """The whole body, once and bounded. Raises Refused, and ClientDisconnect where the client went away."""
    _check_declared(request, bytes_max)
    bodies = gateway_of(request).bodies
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > bytes_max:
            raise _too_large(bytes_max)
        bodies.take(request.scope, len(chunk))
        chunks.append(chunk)
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(bytes_max: int) -> Refused:
    return Refused("too-large", f"The body has more than {bytes_max} bytes.")


async def read_json(request: Request, gateway: Gateway, *, optional: bool = False) -> Any:
    """The body as strict JSON; where it is optional, an empty one is an empty object. Raises Refused."""
    kinds = header_values(request, b"content-type")
    if any(value.lower() != "identity" for value in header_values(request, b"content-encoding")):
        raise Refused("media-type-unsupported", "Encoded bodies are not accepted.")
    if kinds and kinds != ["application/json"] and (len(kinds) > 1 or not _JSON.fullmatch(kinds[0].strip())):
        raise Refused("media-type-unsupported", "The body must be application/json in UTF-8.")
    raw = await read_bytes(request, gateway.settings.body_bytes_max)
    if not raw and optional:
        return {}
    if not kinds:
        raise Refused("media-type-unsupported", "The body must be application/json in UTF-8.")
    try:
        return parse(raw)
    except Malformed as error:
        raise Refused("body-malformed", f"{str(error)[:1].upper()}{str(error)[1:]}.") from None


def fit(model: type[M], value: Any) -> M:
    """A body as its model. Raises Refused with a pointer for every place that does not fit."""
    if not isinstance(value, dict):
        raise invalid([("", "must be an object")])
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise invalid([(pointer_of(item["loc"]), item["msg"]) for item in found[:50]]) from None


async def read_model(request: Request, gateway: Gateway, model: type[M], *, optional: bool = False) -> M:
    """The body as its model. Raises Refused."""
    return fit(model, await read_json(request, gateway, optional=optional))


def idempotency_key(request: Request) -> str:
    """The business key of the request: a quoted string, or the same without quotes. Raises Refused."""
    values = header_values(request, b"idempotency-key")
    if not values or not values[0].strip():
        raise Refused("idempotency-key-missing", "This call needs an Idempotency-Key that names the intent.")
    if len(values) > 1:
        raise Refused("idempotency-key-invalid", "There is more than one Idempotency-Key.")
    return key_of(values[0])


def optional_key(request: Request) -> str | None:
    """The same where it may be left out. Raises Refused for one that is none."""
    return idempotency_key(request) if header_values(request, b"idempotency-key") else None


def key_of(text: str) -> str:
    """A key from its spelling in a header or a batch. Raises Refused."""
    value = text.strip()
    if value.startswith('"'):
        quoted = _QUOTED.fullmatch(value)
        value = re.sub(r'\\(["\\])', r"\1", quoted[1]) if quoted else ""
    if not 0 < len(value) <= KEY_CHARACTERS_MAX or not _PRINTABLE.fullmatch(value):
        raise Refused("idempotency-key-invalid", "The Idempotency-Key is not 1 to 255 printable ASCII characters.")
    return value


def wait_seconds(request: Request, seconds_max: int) -> int:
    """The bounded `wait` of a Prefer header, 0 without one."""
    for value in header_values(request, b"prefer"):
        match = _WAIT.search(value)
        if match:
            return min(int(match[1]), seconds_max)
    return 0


def check_path(scope: Scope) -> None:
    """Raise Refused where a part of the path is no text: nothing has such a name, whatever the route looks up by it."""
    for value in scope.get("path_params", {}).values():
        if isinstance(value, str) and _NO_TEXT.search(value):
            raise not_found()


def object_id(request: Request, name: str, prefix: str) -> str:
    """An id from the path. What does not look like one names nothing. Raises Refused."""
    value = str(request.path_params[name])
    if not _ID.fullmatch(value) or not value.startswith(f"{prefix}_"):
        raise not_found()
    return value


def not_found() -> Refused:
    """404, the same for what does not exist and for what belongs to somebody else."""
    return Refused("not-found", "There is no such object for this caller.")


def found(value: M | None) -> M:
    """The object, or 404."""
    if value is None:
        raise not_found()
    return value


# Query parameters and pages


def query(request: Request, name: str, allowed: Iterable[str] | None = None) -> str | None:
    """A query parameter, None where it is absent or empty. Raises Refused."""
    values = request.query_params.getlist(name)
    if not values or not values[0]:
        return None
    if len(values) > 1:
        raise parameter(name, "is given more than once")
    value = values[0]
    if len(value) > 300 or "\x00" in value or "\ufffd" in value:
        raise parameter(name, "is not acceptable text")
    if allowed is not None and value not in allowed:
        raise parameter(name, f"is not one of the known values: {', '.join(sorted(map(str, allowed)))}")
    return value


def query_flag(request: Request, name: str) -> bool | None:
    """A query parameter that is `true` or `false`."""
    value = query(request, name, ("true", "false"))
    return None if value is None else value == "true"


def query_number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number within bounds. Raises Refused."""
    value = query(request, name)
    if value is None:
        return default
    if not value.isascii() or not value.isdigit() or len(value) > 18 or not least <= int(value) <= most:
        raise parameter(name, f"is not a whole number from {least} to {most}")
    return int(value)


def page_of(request: Request) -> Page:
    """`limit` and `cursor` of a list, reading one item more than asked for. Raises Refused."""
    limit = query_number(request, "limit", LIMIT_DEFAULT, 1, LIMIT_MAX)
    cursor = query(request, "cursor")
    if cursor is None:
        return Page(limit + 1)
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        at, _, name = text.partition("|")
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None or not _PRINTABLE.fullmatch(name):
            raise ValueError(name)
        moment = moment.astimezone(UTC)  # what no UTC instant can be, the database would refuse
    except (ValueError, binascii.Error, UnicodeError, OverflowError):
        raise parameter("cursor", "is not a cursor of this list") from None
    return Page(limit + 1, (moment, name))


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a list with its place."""

    at: datetime
    name: str
    body: dict[str, Any]


def listing(items: list[Item], page: Page) -> Response:
    """A list answer with the cursor of the next page."""
    limit = page.limit - 1
    cursor = None
    if len(items) > limit:
        last = items[limit - 1]
        cursor = base64.urlsafe_b64encode(f"{last.at.isoformat()}|{last.name}".encode()).rstrip(b"=").decode()
    return answer({"items": [item.body for item in items[:limit]], "next_cursor": cursor})


# Answers


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(_dumps(body), status_code=status, headers=headers, media_type="application/json")


def _dumps(body: Any) -> bytes:
    return orjson.dumps(body, default=_plain, option=orjson.OPT_UTC_Z)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(type(value).__name__)
