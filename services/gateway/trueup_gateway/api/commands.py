"""Commands: the one way for an effect into the plane, one or up to 500 at once; accepted once per business key."""

import asyncio
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import Field, RootModel
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts import ids
from trueup_common.contracts.canonical import fingerprint
from trueup_common.contracts.declaration import CommandDeclaration, is_about, object_of
from trueup_common.contracts.states import ANSWERED
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.tracing import trace_id_of
from trueup_gateway.api.allowed import allowed_on_command
from trueup_gateway.api.contents import Content, inline, kept, kept_bytes
from trueup_gateway.api.gateway import Gateway, gateway_of, unknown
from trueup_gateway.api.http import (
    Body,
    Item,
    OpenBody,
    answer,
    caller_of,
    capability_of,
    fit,
    found,
    idempotency_key,
    key_of,
    listing,
    object_id,
    page_of,
    read_json,
    reader_of,
    wait_seconds,
)
from trueup_gateway.api.problems import document, instance_of
from trueup_gateway.api.route import BODY, PAGE, READ, LeanRoute, header_parameter, key_parameter, path_parameter, route
from trueup_gateway.core.acceptance import Accepted, Edge, Replayed, Submission, identity_of
from trueup_gateway.core.artifact import ID_PATTERN
from trueup_gateway.core.capability import Request as Asked
from trueup_gateway.core.capability import check_request
from trueup_gateway.core.case import STEP_ID
from trueup_gateway.core.case_body import command_body
from trueup_gateway.core.refusal import Refused, forbidden, invalid
from trueup_gateway.core.timestamps import Timestamp
from trueup_gateway.core.withholding import shown
from trueup_gateway.store import Reader
from trueup_gateway.tokens import CapabilityClaims

BATCH_MAX: Final = 500
WAIT_SECONDS_MAX: Final = 60
_ENDS: Final = frozenset(state.value for state in ANSWERED)

CommandId = Annotated[str, Field(pattern=r"^cmd_[0-9a-f]{32}$")]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Resource = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[^\s\x00-\x1f*]+$")]


class TargetWanted(Body):
    """What the command acts on."""

    system: Name
    resource: Resource
    expected_version: Name | None = None


class CommandRequest(Body):
    """One business intent. `deadline` is one hour from now where none is given."""

    command_type: Name
    target: TargetWanted
    payload: Any = Field(default=None, description="Fits the type's `payload_schema` (see the catalog).")
    payload_ref: Annotated[str, Field(pattern=ID_PATTERN)] | None = Field(
        default=None, description="In place of `payload`: the artifact that holds it as JSON."
    )
    deadline: Timestamp | None = None
    correlation_id: Name | None = None
    supersedes: CommandId | None = Field(
        default=None,
        description="The ended command that this one, edited or a repair, takes the place of. A business identity that "
        "the other holds passes on.",
    )


class BatchItem(CommandRequest):
    """One command of a batch with its key."""

    idempotency_key: Annotated[str, Field(min_length=1, max_length=300)]


class BatchRequest(Body):
    """Many commands under one capability."""

    commands: list[BatchItem] = Field(min_length=1, max_length=BATCH_MAX)


class Links(Body):
    """Where to look next."""

    self: str
    workflow: str
    stream: str


class CommandAccepted(Body):
    """An accepted command, or the one that this key stands for already."""

    command_id: str
    workflow_id: str
    saga_id: str
    state: str
    links: Links


class Attempt(OpenBody):
    """One transmission."""

    attempt_id: str
    fence: int
    state: str
    started_at: str | None
    ended_at: str | None
    error_code: str | None
    external_status: str | None


class CommandAnswer(OpenBody):
    """The whole journal row of a command with its receipt, observation and attempts."""

    command_id: str
    workflow_id: str
    saga_id: str
    tenant: str
    command_type: str
    state: str
    state_version: int
    target_system: str
    target_resource: str
    payload: Any
    payload_ref: dict[str, Any] | None
    idempotency_key: str
    request_fingerprint: str
    receipt: dict[str, Any] | None
    observation: dict[str, Any] | None
    attempts: list[Attempt]
    error_class: str | None
    error_code: str | None
    supersedes: str | None
    superseded_by: str | None = None
    created_at: str
    deadline_at: str
    links: Links


class CommandOver(RootModel[CommandAnswer | CommandAccepted]):
    """The whole row for whose command it is; for another agent with the same intent its names and state alone."""


class CommandList(Body):
    """A page of commands."""

    items: list[CommandAnswer]
    next_cursor: str | None


class BatchResult(OpenBody):
    """What became of one command: the ids, or the members of its problem document."""

    status: int
    idempotency_key: str


class BatchAnswer(Body):
    """One result per command, in order."""

    results: list[BatchResult]


def links_of(command_id: str, workflow_id: str) -> dict[str, str]:
    """Where to look next."""
    return {
        "self": f"/v1/commands/{command_id}",
        "workflow": f"/v1/workflows/{workflow_id}",
        "stream": f"/v1/workflows/{workflow_id}/stream",
    }


async def submission_of(
    gateway: Gateway, claims: CapabilityClaims, key: str, wanted: CommandRequest, traceparent: str | None
) -> Submission:
    """Every check that needs no row of authority, on the payload wherever it is. Raises Refused."""
    artifact_id = wanted.payload_ref
    if artifact_id is None:
        if "payload" not in wanted.model_fields_set:
            raise invalid([("/payload", "Field required")])
        return _checked(gateway, claims, key, wanted, traceparent, inline(gateway, wanted.payload))
    if "payload" in wanted.model_fields_set:
        raise invalid([("/payload_ref", "stands in place of the payload; give one of both")])
    async with gateway.loading:
        row, raw = await kept_bytes(gateway, Reader(claims.tenant, claims.subject), artifact_id)

        def work() -> Submission:
            return _checked(gateway, claims, key, wanted, traceparent, kept(gateway, row, raw))

        return await asyncio.to_thread(work)  # megabytes keep a processor busy for longer than others should wait


def _checked(  # noqa: PLR0917 - one request, its payload and who asks
    gateway: Gateway,
    claims: CapabilityClaims,
    key: str,
    wanted: CommandRequest,
    traceparent: str | None,
    content: Content,
) -> Submission:
    """Existence, authority as signed, schema. Raises Refused."""
    target = wanted.target
    if claims.workflow is not None:
        raise forbidden("scope", "This capability lets a workflow start, not single commands.")
    declaration = gateway.catalog.by_type(wanted.command_type)
    if declaration is None:
        where = [("/command_type", "unknown")]
        raise unknown(gateway, Refused("unknown-command-type", "There is no such command type.", errors=where))
    if not gateway.catalog.has_connection(claims.tenant, target.system):
        where = [("/target/system", "unknown")]
        raise unknown(gateway, Refused("unknown-system", "This tenant has no connection to this system.", errors=where))
    asked = Asked(
        tenant=claims.tenant,
        command_type=wanted.command_type,
        permission=declaration.permission,
        system=target.system,
        resource=target.resource,
        payload_sha256=content.payload_sha256,
        expected_version=target.expected_version,
    )
    refused = check_request(
        permissions=claims.permissions,
        command_types=claims.command_types,
        system=claims.system,
        resource=claims.resource,
        payload_sha256=claims.payload_sha256,
        expected_version=claims.expected_version,
        request=asked,
    )
    if refused is not None:
        raise refused
    if declaration.system != target.system:
        raise forbidden("resource", "The command type does not belong to this system.")
    _check_fit(gateway, declaration, wanted, content)
    if not is_about(declaration, content.payload, target.resource):
        raise forbidden("resource", "The payload names another object than the target.")
    target_value = {"system": target.system, "resource": target.resource, "expected_version": target.expected_version}
    workflow_id = ids.new_id("wf", real_now())
    return Submission(
        tenant=claims.tenant,
        key=key,
        fingerprint=fingerprint(wanted.command_type, target_value, content.payload),
        identity=identity_of(declaration, target_value, content.payload),
        capability_id=claims.capability_id,
        command_type=wanted.command_type,
        declaration=declaration,
        system=target.system,
        resource=target.resource,
        expected_version=target.expected_version,
        payload=content.going_on(gateway, declaration),
        payload_sha256=content.payload_sha256,
        workflow_id=workflow_id,
        saga_id=ids.new_id("saga"),
        command_id=ids.command_id(workflow_id, STEP_ID, 1),
        deadline_at=wanted.deadline,
        correlation_id=wanted.correlation_id,
        traceparent=traceparent,
        trace_id=trace_id_of(traceparent),
        payload_ref=content.ref,
        supersedes=wanted.supersedes,
        acts_on=object_of(declaration, content.payload),
    )


def _check_fit(gateway: Gateway, declaration: CommandDeclaration, wanted: CommandRequest, content: Content) -> None:
    """Raise Refused where a request does not fit what its type declares."""
    if content.size_bytes > content.bytes_max:
        raise Refused("too-large", f"The payload has more than {content.bytes_max} bytes.")
    if declaration.expected_version == "required" and wanted.target.expected_version is None:
        raise invalid([("/target/expected_version", "is required by this command type")])
    if declaration.expected_version == "none" and wanted.target.expected_version is not None:
        raise invalid([("/target/expected_version", "has no meaning for this command type")])
    errors = gateway.payloads.errors(declaration, content.payload, content.member)
    if errors:
        raise invalid(errors)


async def submit(request: Request) -> Response:
    """Submit one command under a capability. The same key again answers with what became of the first request."""
    gateway = gateway_of(request)
    claims = capability_of(request, gateway)
    value = await read_json(request, gateway)
    key = idempotency_key(request)
    submission = await submission_of(
        gateway, claims, key, fit(CommandRequest, value), request.scope.get("trueup.traceparent")
    )
    seconds = wait_seconds(request, WAIT_SECONDS_MAX)
    caller = Reader(claims.tenant, claims.subject)
    if seconds:
        return await _submit_and_wait(gateway, caller, submission, seconds)
    return await _answer(gateway, caller, submission, await gateway.acceptor.submit(submission))


async def _submit_and_wait(gateway: Gateway, caller: Reader, submission: Submission, seconds: int) -> Response:
    applied = {"Preference-Applied": f"wait={seconds}"}
    wait = gateway.answers.expect(submission.command_id)
    if wait is None:
        return await _answer(gateway, caller, submission, await gateway.acceptor.submit(submission))
    command_id = submission.command_id
    try:
        verdict = await gateway.acceptor.submit(replace(submission, reply_to=gateway.answer_subject))
        if isinstance(verdict, Replayed):
            if await _over(gateway, submission.tenant, verdict.edge) is not None:
                return await _answer(gateway, caller, submission, verdict, applied)
            gateway.answers.forget(command_id, wait)
            command_id = verdict.edge.command_id
            wait = gateway.answers.expect(command_id)
        if wait is not None:
            async with asyncio.timeout(seconds):
                row = await wait
            body = await _ended_body(gateway, caller, verdict, row)
            return answer(body, 200, {**applied, **_replayed(verdict), "Location": _location(command_id)})
    except TimeoutError:
        pass
    finally:
        if wait is not None:
            gateway.answers.forget(command_id, wait)
    return await _answer(gateway, caller, submission, verdict, applied)


async def _answer(
    gateway: Gateway,
    caller: Reader,
    submission: Submission,
    verdict: Accepted | Replayed,
    headers: dict[str, str] | None = None,
) -> Response:
    """202 with the ids, or for a repetition that is over 200 with the stored result."""
    if isinstance(verdict, Accepted):
        names, row = (submission.command_id, submission.workflow_id, submission.saga_id), None
    else:
        edge = verdict.edge
        names, row = (edge.command_id, edge.workflow_id, edge.saga_id), await _over(gateway, submission.tenant, edge)
    status = 202 if row is None else 200
    state = "RECEIVED" if isinstance(verdict, Accepted) else verdict.edge.state
    body = _accepted_body(*names, state) if row is None else await _ended_body(gateway, caller, verdict, row)
    return answer(body, status, {**(headers or {}), **_replayed(verdict), "Location": _location(names[0])})


async def _over(gateway: Gateway, tenant: str, edge: Edge) -> dict[str, Any] | None:
    """The journal row of a repeated command that is over, as far as anyone here knows; else None."""
    told = gateway.answers.newest(edge.command_id, {"state": edge.state, "state_version": -1})
    if told["state"] not in _ENDS:
        return None
    stored = await gateway.reads.command_row(Reader(tenant), edge.command_id)
    row = gateway.answers.newest(edge.command_id, stored) if stored is not None else None
    return row if row is not None and row["state"] in _ENDS else None


async def _ended_body(
    gateway: Gateway, caller: Reader, verdict: Accepted | Replayed, row: dict[str, Any]
) -> dict[str, Any]:
    """A command that is over: whole for whose it is. Another agent with the same intent learns that it is done, under
    which names: what was sent, under which authority, and what came back is not that agent's to read."""
    if isinstance(verdict, Accepted) or await gateway.reads.command_row(caller, row["command_id"]) is not None:
        return _row_body(row)
    return _accepted_body(row["command_id"], row["workflow_id"], row["saga_id"], row["state"])


def _accepted_body(command_id: str, workflow_id: str, saga_id: str, state: str) -> dict[str, Any]:
    return {
        "command_id": command_id,
        "workflow_id": workflow_id,
        "saga_id": saga_id,
        "state": state,
        "links": links_of(command_id, workflow_id),
    }


def _row_body(row: dict[str, Any]) -> dict[str, Any]:
    return {**command_body(row), "links": links_of(row["command_id"], row["workflow_id"])}


def _location(command_id: str) -> str:
    return f"/v1/commands/{command_id}"


def _replayed(verdict: Accepted | Replayed) -> dict[str, str]:
    return {"Idempotent-Replayed": "true"} if isinstance(verdict, Replayed) else {}


async def submit_batch(request: Request) -> Response:
    """Submit up to 500 commands under one capability. Each has its own key and its own result."""
    gateway = gateway_of(request)
    claims = capability_of(request, gateway)
    value = await read_json(request, gateway)
    items = _items(value)
    results: list[dict[str, Any]] = [{} for _ in items]
    waiting: list[tuple[int, Submission, asyncio.Future[Any]]] = []
    for position, item in enumerate(items):
        try:
            submission = await _item_submission(gateway, claims, item, request.scope.get("trueup.traceparent"))
            waiting.append((position, submission, gateway.acceptor.enqueue(submission)))
        except Refused as refused:
            results[position] = document(refused, instance_of(request.scope))
    for position, submission, future in waiting:
        verdict = await future
        if isinstance(verdict, Refused):
            results[position] = document(verdict, instance_of(request.scope))
        else:
            results[position] = _batch_body(submission, verdict)
    for item, result in zip(items, results, strict=True):
        key = item.get("idempotency_key") if isinstance(item, dict) else None
        result["idempotency_key"] = key if isinstance(key, str) else ""
    return answer({"results": results}, 207)


def _items(value: Any) -> list[Any]:
    """The items of a batch; each is checked by itself later. Raises Refused for what is not a batch."""
    items = value.get("commands") if isinstance(value, dict) else None
    if not isinstance(items, list) or set(value) != {"commands"}:
        raise invalid([("/commands", "must be a list, and the only member")])
    if not 1 <= len(items) <= BATCH_MAX:
        raise invalid([("/commands", f"must have 1 to {BATCH_MAX} items")])
    return items


async def _item_submission(
    gateway: Gateway, claims: CapabilityClaims, item: Any, traceparent: str | None
) -> Submission:
    if isinstance(item, dict) and not item.get("idempotency_key"):
        raise Refused("idempotency-key-missing", "This command needs an idempotency_key that names the intent.")
    wanted = fit(BatchItem, item)
    return await submission_of(gateway, claims, key_of(wanted.idempotency_key), wanted, traceparent)


def _batch_body(submission: Submission, verdict: Accepted | Replayed) -> dict[str, Any]:
    if isinstance(verdict, Accepted):
        body = _accepted_body(submission.command_id, submission.workflow_id, submission.saga_id, "RECEIVED")
        return {"status": 202, **body, "replayed": False}
    edge = verdict.edge
    body = _accepted_body(edge.command_id, edge.workflow_id, edge.saga_id, edge.state)
    return {"status": 200 if edge.state in _ENDS else 202, **body, "replayed": True}


async def read(request: Request) -> Response:
    """Read the journal row of one command with its receipt, observation and attempts."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = reader_of(caller)
    row = await gateway.reads.command_row(reader, object_id(request, "command_id", "cmd"))
    if row is None:
        found(None)
    assert row is not None
    newest = gateway.answers.newest(row["command_id"], row)
    superseded_by, owes = await gateway.reads.around_command(row["command_id"], row["workflow_id"])
    about = {
        "allowed_actions": await allowed_on_command(gateway, newest, owes=owes),
        "superseded_by": superseded_by,
    }
    return answer(shown(caller.roles, "command", {**_row_body(newest), **about}))


async def listed(request: Request) -> Response:
    """List commands, newest first."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    page = page_of(request)
    views = await gateway.reads.commands(reader_of(caller), page)
    bodies = [shown(caller.roles, "command", _row_body(view.row.model_dump(mode="json"))) for view in views]
    return listing(
        [Item(view.created_at, view.command_id, body) for view, body in zip(views, bodies, strict=True)], page
    )


_EXAMPLE: Final = {
    "command_type": "wordpress.create_draft",
    "target": {"system": "wordpress", "resource": "post", "expected_version": None},
    "payload": {"title": "Hello", "content": "<p>Hello, world.</p>", "slug": "hello-0028"},
}
_ANOTHER: Final = {"title": "Hello again", "content": "<p>Hello, world.</p>", "slug": "hello-0029"}
_CHECKED: Final = (
    "tenant-invalid",
    "forbidden",
    "idempotency-key-missing",
    "idempotency-key-invalid",
    "idempotency-in-flight",
    "identity-in-use",
    "idempotency-key-reused",
    "unknown-command-type",
    "unknown-system",
    *BODY,
)

SUBMIT: Final = route(
    "POST",
    "/v1/commands",
    submit,
    tag="commands",
    summary="Submit a command",
    answers={
        200: ("The same request again, and its command is over; or it ended within `Prefer: wait`", CommandOver),
        202: ("Accepted, or the same request again while its command runs", CommandAccepted),
    },
    body=CommandRequest,
    example=_EXAMPLE,
    parameters=(
        key_parameter("article-0028-v1"),
        header_parameter("Prefer", "Wait for the end of the command, in seconds.", "wait=10"),
        header_parameter("traceparent", "W3C trace context of the caller; left out, a new trace begins."),
    ),
    problems=_CHECKED,
    security="capability",
)

ROUTES: Final[list[LeanRoute]] = [
    SUBMIT,
    route(
        "POST",
        "/v1/commands:batch",
        submit_batch,
        tag="commands",
        summary="Submit up to 500 commands",
        answers={207: ("One result per command, in order", BatchAnswer)},
        body=BatchRequest,
        example={"commands": [{"idempotency_key": "article-0029-v1", **_EXAMPLE, "payload": _ANOTHER}]},
        problems=("tenant-invalid", *BODY),
        security="capability",
    ),
    route(
        "GET",
        "/v1/commands",
        listed,
        tag="commands",
        summary="List commands",
        answers={200: ("A page of commands", CommandList)},
        parameters=PAGE,
        problems=READ,
    ),
    route(
        "GET",
        "/v1/commands/{command_id}",
        read,
        tag="commands",
        summary="Read a command",
        answers={200: ("The journal row", CommandAnswer)},
        parameters=(path_parameter("command_id", "The command.", "cmd_00000000000000000000000000000000"),),
        problems=READ,
    ),
]
