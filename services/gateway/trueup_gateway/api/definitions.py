"""Workflow documents: registered once per name and version, checked by the linter, readable by the whole tenant."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.workflow import NAME_PATTERN, WorkflowDocument
from trueup_common.documents.faults import DocumentInvalid, Fault
from trueup_common.documents.lint import faults
from trueup_common.documents.read import ReadDocument, read_document
from trueup_gateway.api.calls import once
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import (
    Body,
    Item,
    OpenBody,
    answer,
    caller_of,
    header_values,
    idempotency_key,
    listing,
    not_found,
    page_of,
    query,
    read_bytes,
    read_json,
    read_model,
    require,
)
from trueup_gateway.api.route import BODY, PAGE, READ, LeanRoute, key_parameter, path_parameter, query_parameter, route
from trueup_gateway.core import roles
from trueup_gateway.core.case import DEFINITION as COMMAND
from trueup_gateway.core.definition import Definition, chosen
from trueup_gateway.core.records import DefinitionRow
from trueup_gateway.core.refusal import Refused, invalid
from trueup_gateway.core.view_records import CaseView
from trueup_gateway.store import GatewayTransaction
from trueup_gateway.tokens import Caller

YAML_TYPES: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
OPEN_SHOWN_MAX: Final = 200
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DefinitionRequest(Body):
    """A workflow document: as its text, as an object, or the bare object in place of this body."""

    document: str | dict[str, Any] = Field(description="YAML text, or the document as an object.")


class DefinitionSummary(OpenBody):
    """One registered version."""

    name: str
    version: int
    sha256: str
    title: str | None
    description: str | None
    built_in: bool
    command_types: list[str]
    created_by: str
    created_at: str | None
    retired_at: str | None
    retired_by: str | None


class DefinitionAnswer(DefinitionSummary):
    """One registered version with its document, and the text it was registered as."""

    document: dict[str, Any]
    text: str


class DefinitionList(Body):
    """A page of registered versions."""

    items: list[DefinitionSummary]
    next_cursor: str | None


class RetireRequest(Body):
    """Why."""

    reason: Annotated[str, Field(min_length=1, max_length=2000)] = "retired"


def _summary(item: Definition) -> dict[str, Any]:
    document = item.document
    return {
        "name": document.name,
        "version": document.version,
        "sha256": document.sha256,
        "title": document.title,
        "description": document.description,
        "built_in": item.built_in,
        "command_types": list(document.command_types),
        "created_by": item.created_by,
        "created_at": rfc3339(item.created_at) if item.created_at is not None else None,
        "retired_at": rfc3339(item.retired_at) if item.retired_at is not None else None,
        "retired_by": item.retired_by,
        "retirement_reason": item.retirement_reason,
    }


def _body(item: Definition) -> dict[str, Any]:
    return {**_summary(item), "document": item.document.dumped(), "text": item.text}


# Reading and checking a document


async def _read_text(request: Request, gateway: Gateway) -> tuple[str | bytes, bool]:
    """The document's text, and whether it is the caller's own, so that lines mean something. Raises Refused."""
    kinds = [value.partition(";")[0].strip().lower() for value in header_values(request, b"content-type")]
    if len(kinds) == 1 and kinds[0] in YAML_TYPES:
        return await read_bytes(request, gateway.settings.body_bytes_max), True
    value = await read_json(request, gateway)
    if not isinstance(value, dict):
        raise invalid([("", "must be an object")])
    document = value["document"] if set(value) == {"document"} else value
    if isinstance(document, str):
        return document, True
    if not isinstance(document, dict):
        raise invalid([("/document", "must be the text of a document or an object")])
    return orjson.dumps(document, option=orjson.OPT_INDENT_2), False


def checked(gateway: Gateway, text: str | bytes, *, lined: bool) -> ReadDocument:
    """The document, read and linted against the declarations in force. Raises Refused with every fault."""
    if not gateway.catalog.is_loaded:
        raise Refused("unavailable", "The gateway is still loading its catalog.", retry_after_seconds=1)
    try:
        found = read_document(text)
    except DocumentInvalid as error:
        raise refusal_of(error.faults, lined=lined) from None
    declarations = {item.type: item for item in gateway.catalog.current()}
    broken = list(faults(found.document, declarations, found.line_of))
    if found.document.name == COMMAND:
        broken.append(Fault("name", "/name", found.line_of("/name"), "this name stands for single commands"))
    if broken:
        raise refusal_of(broken, lined=lined)
    return found


def refusal_of(broken: Sequence[Fault], *, lined: bool) -> Refused:
    """422 with the rule and the place of every fault, and its line where the caller sent text."""
    listed = [
        {
            "pointer": fault.pointer,
            "detail": fault.detail,
            "line": fault.line if lined else None,
            "rule": fault.rule,
        }
        for fault in broken
    ]
    count = len(listed)
    detail = f"The document breaks {count} rule{'s' if count != 1 else ''}."
    return Refused("definition-invalid", detail, extra={"errors": listed[:100]})


# Endpoints


async def register(request: Request) -> Response:
    """Register a workflow document. The same name and version with the same content again is 200, with another 409."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.DEFINE)
    text, lined = await _read_text(request, gateway)
    read = await asyncio.to_thread(checked, gateway, text, lined=lined)  # a large document takes most of a second
    key = idempotency_key(request)
    document = read.document

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        await tx.hold_definition(caller.tenant, document.name)
        known = await _find(gateway, tx, caller, document.name, document.version)
        if known is not None:
            if known.document.sha256 != document.sha256:
                detail = f"Version {document.version} of {document.name} is registered with another content."
                raise Refused("conflict", detail, extra={"registered_sha256": known.document.sha256})
            return 200, _body(known)
        row = DefinitionRow(
            tenant=caller.tenant,
            name=document.name,
            version=document.version,
            sha256=document.sha256,
            document=document.dumped(),
            text=read.text,
            created_by=caller.subject,
            created_at=(await tx.moment()).business,
        )
        await tx.save_definition(row)
        return 201, _body(_of(gateway, row))

    wanted = {"call": "definition", "sha256": document.sha256}
    response = await once(gateway, caller, key, wanted, act)
    response.headers["Location"] = f"/v1/definitions/{document.name}/{document.version}"
    return response


def _of(gateway: Gateway, row: DefinitionRow) -> Definition:
    found = chosen(gateway.starter.definitions.merged([row]), row.name, row.version)
    assert found is not None
    return found


async def _find(gateway: Gateway, tx: GatewayTransaction, caller: Caller, name: str, version: int) -> Definition | None:
    rows = await tx.definitions(caller.tenant, name)
    return chosen(gateway.starter.definitions.merged(rows), name, version)


async def listed(request: Request) -> Response:
    """List the registered versions, newest first; what ships with the product comes last."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    page = page_of(request)
    rows = await gateway.reads.definitions(caller.tenant, query(request, "name"))
    name = query(request, "name")
    found = [
        (item.created_at or _LONG_AGO, f"{item.document.name}/{item.document.version:07d}", item)
        for item in gateway.starter.definitions.merged(rows)
        if name is None or item.document.name == name
    ]
    found.sort(key=lambda entry: entry[:2], reverse=True)
    left = [entry for entry in found if page.before is None or entry[:2] < page.before]
    return listing([Item(at, place, _summary(item)) for at, place, item in left[: page.limit]], page)


def _named(request: Request) -> tuple[str, int]:
    name, version = str(request.path_params["name"]), str(request.path_params["version"])
    if not (version.isascii() and version.isdigit() and len(version) <= 7):
        raise not_found()
    return name, int(version)


async def read(request: Request) -> Response:
    """Read one version: the document, and the text it was registered as (alone with `Accept: application/yaml`)."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    name, version = _named(request)
    rows = await gateway.reads.definitions(caller.tenant, name)
    found = chosen(gateway.starter.definitions.merged(rows), name, version)
    if found is None:
        raise not_found()
    if any(kind in value for value in header_values(request, b"accept") for kind in YAML_TYPES):
        return Response(found.text, media_type="application/yaml")
    return answer(_body(found))


async def retire(request: Request) -> Response:
    """Retire a version: it starts nothing new. Refused with the open cases while there are any."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.DEFINE)
    name, version = _named(request)
    wanted = await read_model(request, gateway, RetireRequest, optional=True)
    key = idempotency_key(request)

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        await tx.hold_definition(caller.tenant, name)
        known = await _find(gateway, tx, caller, name, version)
        if known is None:
            raise not_found()
        if known.retired_at is not None:
            return 200, _body(known)
        now = (await tx.moment()).business
        open_cases = await tx.open_cases(caller.tenant, name, version, OPEN_SHOWN_MAX)
        if open_cases:
            raise Refused(
                "conflict",
                f"{len(open_cases)} open cases run this version; end or migrate them first.",
                extra={"open_cases": [_open_case(view, now) for view in open_cases]},
            )
        row = _retired(caller, known, wanted.reason, now)
        await tx.save_definition(row)
        return 200, _body(_of(gateway, row))

    called = {"call": "retire", "name": name, "version": version, "reason": wanted.reason}
    return await once(gateway, caller, key, called, act)


def _retired(caller: Caller, known: Definition, reason: str, now: datetime) -> DefinitionRow:
    document: WorkflowDocument = known.document
    return DefinitionRow(
        tenant=caller.tenant,
        name=document.name,
        version=document.version,
        sha256=document.sha256,
        document=document.dumped(),
        text=known.text,
        built_in=known.built_in,
        created_by=known.created_by,
        created_at=known.created_at or now,
        retired_at=now,
        retired_by=caller.subject,
        retirement_reason=reason,
    )


def _open_case(view: CaseView, now: datetime) -> dict[str, Any]:
    """One open case: its state, its age, and when it looks at itself again."""
    instance = view.instance
    wait = instance.wait or {}
    woken = instance.wake_at
    next_wake_at = wait.get("next_wake_at") or (rfc3339(woken) if woken is not None else rfc3339(view.deadline_at))
    return {
        "workflow_id": view.workflow_id,
        "status": view.status,
        "age_seconds": int((now - view.created_at).total_seconds()),
        "next_wake_at": next_wake_at,
    }


_EXAMPLE: Final = {
    "document": """name: draft-only
version: 1
title: Create one draft
object: {type: article, id: "${input.slug}"}
lifetime: P1D
input:
  type: object
  required: [slug, title]
  additionalProperties: false
  properties:
    slug: {type: string, pattern: "^[a-z0-9-]{1,60}$"}
    title: {type: string, maxLength: 200}
steps:
  - id: draft
    command: wordpress.create_draft
    with: {slug: "${input.slug}", title: "${input.title}", content: "<p>Hello.</p>"}
    resource: post
"""
}
_CHANGE: Final = (
    "tenant-invalid",
    "forbidden",
    "conflict",
    "idempotency-key-missing",
    "idempotency-key-invalid",
    "idempotency-in-flight",
    "idempotency-key-reused",
    *BODY,
)
_VERSION: Final = (
    path_parameter("name", "The workflow.", "draft-only"),
    path_parameter("version", "Its version.", "1"),
)

ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/v1/definitions",
        listed,
        tag="definitions",
        summary="List workflow definitions",
        answers={200: ("A page of versions", DefinitionList)},
        parameters=(query_parameter("name", "Only this workflow.", {"type": "string", "pattern": NAME_PATTERN}), *PAGE),
        problems=("parameter-invalid", "tenant-invalid"),
    ),
    route(
        "POST",
        "/v1/definitions",
        register,
        tag="definitions",
        summary="Register a workflow definition (also as application/yaml)",
        answers={
            200: ("This version is registered with this content already", DefinitionAnswer),
            201: ("It is registered", DefinitionAnswer),
        },
        body=DefinitionRequest,
        example=_EXAMPLE,
        parameters=(key_parameter("draft-only-1"),),
        problems=("definition-invalid", *_CHANGE),
    ),
    route(
        "GET",
        "/v1/definitions/{name}/{version}",
        read,
        tag="definitions",
        summary="Read a workflow definition",
        answers={200: ("The document and its text", DefinitionAnswer)},
        parameters=_VERSION,
        problems=READ,
    ),
    route(
        "POST",
        "/v1/definitions/{name}/{version}/retire",
        retire,
        tag="definitions",
        summary="Retire a workflow definition",
        answers={200: ("It is retired", DefinitionAnswer)},
        body=RetireRequest,
        example={"reason": "version 2 replaces it"},
        body_required=False,
        parameters=(*_VERSION, key_parameter("retire-draft-only-1")),
        problems=("not-found", *_CHANGE),
    ),
]
