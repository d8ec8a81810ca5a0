"""Operators' acts: each asked once, under a decision of its own, refused with what is possible, followed to its end.

An act never does anything here: it goes out as a command, and the service that performs it decides again.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.canonical import canonical
from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.events import OperatorCommand
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.operators import (
    CommandState,
    OperatorAction,
    TargetKind,
    allowed,
    performer,
    stands_alone,
)
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import ExceptionKind, InstanceStatus
from trueup_gateway.api.acts import Asked, Ruled, authorize, send_soon, telling
from trueup_gateway.api.allowed import identities_of
from trueup_gateway.api.calls import once
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.grounds import Rest, check_grounds, plan_resumption, preview_body
from trueup_gateway.api.http import (
    Body,
    Item,
    OpenBody,
    acts_reader_of,
    answer,
    caller_of,
    fit,
    found,
    idempotency_key,
    listing,
    not_found,
    object_id,
    page_of,
    query,
    read_model,
    reader_of,
)
from trueup_gateway.api.route import BODY, PAGE, READ, LeanRoute, key_parameter, path_parameter, query_parameter, route
from trueup_gateway.core import operators as rules
from trueup_gateway.core import roles
from trueup_gateway.core.operator_params import PARAMS, Params, ResumeParams, documented
from trueup_gateway.core.operators import Target
from trueup_gateway.core.person_records import OperatorCommandRow
from trueup_gateway.core.refusal import Refused, invalid
from trueup_gateway.core.withholding import shown
from trueup_gateway.core.workflow_start import MESSAGE_BYTES_MAX
from trueup_gateway.store import GatewayTransaction, Reader
from trueup_gateway.tokens import Caller

A = OperatorAction
Reason = Annotated[str, Field(min_length=1, max_length=2000)]
EVIDENCE_BYTES_MAX: Final = 16_384
PARAMS_BYTES_MAX: Final = 262_144
"""A receipt, or what became of a hundred effects."""


def _within(bytes_max: int) -> AfterValidator:
    """A bound on free JSON: it is kept in a row, and told in a message, for every item of a batch again."""

    def check(value: Any) -> Any:
        if len(canonical(value)) > bytes_max:
            raise ValueError(f"comes to more than {bytes_max} bytes")
        return value

    return AfterValidator(check)


EvidenceGiven = Annotated[list[Any], Field(max_length=100), _within(EVIDENCE_BYTES_MAX)]
ParamsGiven = Annotated[dict[str, Any], Field(max_length=20), _within(PARAMS_BYTES_MAX)]
"""Free JSON of an act, both bounded as a whole."""


class CancelRequest(Body):
    """Why the case shall end."""

    reason: Reason


class TargetWanted(Body):
    """On what."""

    kind: Literal["command", "workflow", "exception", "dead_letter", "repair"]
    id: Annotated[str, Field(min_length=1, max_length=100)]


class OperatorCommandRequest(Body):
    """What shall be done, on what, and why. `params` are those of the action."""

    model_config = ConfigDict(json_schema_extra=documented)

    action: OperatorAction
    target: TargetWanted
    reason: Reason
    evidence: EvidenceGiven = Field(default=[])
    params: ParamsGiven = Field(default={})


class OperatorCommandAnswer(OpenBody):
    """An act, and where it stands."""

    operator_command_id: str
    decision_id: str
    state: str = Field(
        description="`ACCEPTED`; `ACKNOWLEDGED` by whoever performs it; `DONE`: what it set in motion has ended, see "
        "`result`; `REFUSED`: it did not fit the state any more, see `detail` and `allowed_actions`"
    )
    action: str
    target: TargetWanted
    actor: str
    reason: str
    created_at: str


class OperatorCommandList(Body):
    """A page of acts."""

    items: list[OperatorCommandAnswer]
    next_cursor: str | None


def _body(row: OperatorCommandRow, state: str | None = None) -> dict[str, Any]:
    hidden = {"tenant", "target_kind", "target_id", "holds_command", "holds_exception"}
    kept = row.model_dump(mode="json", exclude=hidden)
    links = {"self": f"/v1/operator-commands/{row.operator_command_id}"}
    if row.workflow_id is not None:
        links["workflow"] = f"/v1/workflows/{row.workflow_id}"
    return {
        **kept,
        "state": state or row.state,
        "target": {"kind": row.target_kind, "id": row.target_id},
        "links": links,
    }


async def cancel(request: Request) -> Response:
    """Ask for the end of a case: what is not sent is not sent any more, what is under way is settled first, and what
    was done before the pivot is undone. An agent may cancel its own case, an operator any of the tenant."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    workflow_id = object_id(request, "workflow_id", "wf")
    key = idempotency_key(request)
    wanted = await read_model(request, gateway, CancelRequest)
    asked = OperatorCommandRequest(
        action=A.CANCEL, target=TargetWanted(kind="workflow", id=workflow_id), reason=wanted.reason
    )
    return await _ask(gateway, caller, request, key, asked)


async def create(request: Request) -> Response:
    """Act as an operator on a command, a case, an exception or a repair. What is not possible in its state is refused
    with what is. A redrive looks first and sends again only what is not there, under a fresh grant; nobody replays."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    key = idempotency_key(request)
    wanted = await read_model(request, gateway, OperatorCommandRequest)
    if wanted.action is A.RESUME and wanted.params.get("dry_run") is True:
        return await _preview(gateway, caller, request, wanted)
    return await _ask(gateway, caller, request, key, wanted)


async def _ask(
    gateway: Gateway, caller: Caller, request: Request, key: str, wanted: OperatorCommandRequest
) -> Response:
    outgoing: list[Outgoing] = []
    trace = request.scope.get("trueup.traceparent")

    async def act(tx: GatewayTransaction) -> tuple[int, dict[str, Any]]:
        row, asked = await admit(gateway, tx, caller, request, wanted)
        moment = await tx.moment()
        outgoing.append(telling(asked, "operator", row.tenant, asked.operator_command_id, moment, trace))
        await tx.post(outgoing)
        return 202, _body(row)

    named = wanted.model_dump(mode="json")
    response = await once(gateway, caller, key, {"call": "operator-command", **named}, act)
    if outgoing:
        send_soon(gateway, outgoing)
    return response


async def admit(
    gateway: Ruled,
    tx: GatewayTransaction,
    caller: Caller,
    request: Asked,
    wanted: OperatorCommandRequest,
    *,
    name: str | None = None,
    batch_id: str | None = None,
) -> tuple[OperatorCommandRow, OperatorCommand]:
    """The kept act and the command that carries it out. Raises Refused where it is not permitted or not possible."""
    action, now = wanted.action, (await tx.moment()).business
    target = await target_of(gateway, tx, caller, wanted.target)
    act = rules.act_of(action, target, caller.subject, caller.tenant, caller.roles, wanted.target.kind)
    rules.check_entitled(act)
    admitted = await authorize(gateway, tx, caller, act, request, now)
    declaration = gateway.catalog.declaration(target.row.declaration_sha256) if target.row is not None else None
    command, exception = rules.holds(action, target, repairer=not roles.may(caller.roles, roles.OPERATE))
    if command is not None or exception is not None:
        # Asked first: whether the state shows already what is at work is a matter of milliseconds.
        working = await tx.at_work(caller.tenant, command, exception)
        if working is not None:
            raise rules.already_at_work(working.operator_command_id, working.action)
    _check_possible(action, target, allowed(TargetKind(target.kind), rules.facts_of(target, declaration)))
    params = params_of(action, wanted.params)
    rest = await check_grounds(
        gateway, tx, target, wanted.evidence, params, now, of=roles.only_own(caller.roles, caller.subject)
    )
    row = OperatorCommandRow(
        operator_command_id=name or new_id("opc"),
        tenant=target.tenant,
        action=action.value,
        target_kind=wanted.target.kind,
        target_id=wanted.target.id,
        workflow_id=target.case.workflow_id if target.case is not None else None,
        command_id=target.row.command_id if target.row is not None else None,
        exception_id=target.exception.exception_id if target.exception is not None else None,
        performer=performer(action, target.exception_kind, alone=stands_alone(rules.facts_of(target, declaration))),
        holds_command=command,
        holds_exception=exception,
        batch_id=batch_id,
        actor=caller.subject,
        reason=wanted.reason,
        evidence=wanted.evidence,
        params=wanted.params,
        decision_id=admitted.decision_id,
        status_before=target.state,
        created_at=admitted.created_at,
    )
    await tx.save_authorization(admitted)
    if not await tx.save_operator_command(row):
        raise Refused("idempotency-in-flight", "The same is being asked for right now.", retry_after_seconds=1)
    return row, await _command(tx, row, target, params, rest, now)


def _check_possible(action: OperatorAction, target: Target, available: tuple[OperatorAction, ...]) -> None:
    if action not in available:
        extra: dict[str, Any] = {"allowed_actions": list(available), "target_state": target.state}
        if target.case is not None:
            extra["workflow_status"] = target.case.status
        why = " Another command has its business identity by now." if target.replaced else ""
        if target.case is not None and target.case.status == InstanceStatus.PAUSED:
            why += f" Its case is paused: {A.RESUME} that first."
        raise Refused("action-not-available", f"It is {target.state}.{why}", extra=extra)


def params_of(action: OperatorAction, params: dict[str, Any]) -> Params:
    """An action's parameters. Raises Refused."""
    try:
        return fit(PARAMS[action], params)
    except Refused as refused:
        raise invalid([(f"/params{pointer}", detail) for pointer, detail in refused.errors]) from None


async def target_of(gateway: Ruled, tx: GatewayTransaction, caller: Caller, wanted: TargetWanted) -> Target:
    """What an act is about, as the caller may see it. Raises Refused."""
    whole = roles.may(caller.roles, roles.OPERATE) or roles.may(caller.roles, roles.REPAIR)
    reader = Reader(caller.tenant) if whole else reader_of(caller)
    exception = row = None
    workflow_id: str | None = None
    command_id: str | None = None
    match wanted.kind:
        case "exception" | "dead_letter":
            exception = found(await tx.exception_of(caller.tenant, wanted.id))
            if wanted.kind == "dead_letter" and exception.kind != ExceptionKind.DEAD_LETTER:
                raise not_found()
            workflow_id, command_id = exception.workflow_id, exception.command_id
        case "command":
            command_id = wanted.id
        case "workflow":
            workflow_id = wanted.id
        case "repair":
            repair = found(await tx.repair_of(caller.tenant, wanted.id))
            exception = found(await tx.exception_of(caller.tenant, repair.exception_id))
            workflow_id, command_id = exception.workflow_id, exception.command_id
    if command_id is not None:
        view = await tx.command_of(caller.tenant, command_id)
        row = view.row if view is not None else None
        if exception is None:
            row = found(row)
        workflow_id = row.workflow_id if row is not None else workflow_id
    case = await tx.case_of(reader, workflow_id) if workflow_id is not None else None
    if (exception is None and case is None) or (case is None and reader.subject is not None):
        raise not_found()
    if case is None and exception is not None and rules.has_case(exception):
        raise Refused("unavailable", "What this exception is about is not shown yet.", retry_after_seconds=1)
    if case is not None and row is None and exception is None and case.definition == "command":
        row = next((view.row for view in await tx.commands_of(case.workflow_id)), None)
    revoked = row is not None and await tx.authority_revoked(row.mandate_id)
    if row is None and case is not None:
        revoked = await tx.authority_revoked(rules.mandate_of(case.workflow_id))
    replaced = row is not None and bool(await tx.replaced(identities_of(gateway, [row])))
    return Target(wanted.kind, wanted.id, caller.tenant, case, row, exception, revoked, replaced)


async def _command(  # noqa: PLR0917 - one act and what it rests on
    tx: GatewayTransaction, row: OperatorCommandRow, target: Target, params: Params, rest: Rest, now: datetime
) -> OperatorCommand:
    """The command that goes out; where it gives new time, the mandate behind it lives on as long."""
    action, until, renewed = OperatorAction(row.action), None, None
    if rules.renews(action):
        until = rules.new_deadline(target, params, now)
        mandate = target.row.mandate_id if target.row is not None else None
        if mandate is None and target.case is not None:
            mandate = rules.mandate_of(target.case.workflow_id)
        if until is not None and mandate is not None:
            renewed = until if await tx.renew_mandate(mandate, until, row.operator_command_id) else None
    if rest.corrected is not None and target.case is not None:
        await tx.let_run(rules.mandate_of(target.case.workflow_id), rest.corrected.sha256)
    envelope = target.exception.envelope if target.exception is not None else {}
    element = None
    if target.exception_kind is ExceptionKind.STATE_DRIFT:
        names = {"system": "target_system", "resource": "target_resource", "element": "element"}
        element = {name: str(envelope.get(source) or envelope.get(name) or "") for name, source in names.items()}
    command = OperatorCommand(
        operator_command_id=row.operator_command_id,
        tenant=row.tenant,
        action=row.action,
        performer=row.performer,
        target_kind=row.target_kind,
        target_id=row.target_id,
        workflow_id=row.workflow_id,
        command_id=row.command_id,
        exception_id=row.exception_id,
        exception_kind=target.exception.kind if target.exception is not None else None,
        obligation_id=envelope.get("obligation_id"),
        repair_id=row.target_id if row.target_kind == TargetKind.REPAIR else row.params.get("repair_id"),
        element=element,
        actor=row.actor,
        reason=row.reason,
        evidence=row.evidence,
        params=params.model_dump(mode="json", exclude_none=True),
        decision_id=row.decision_id,
        deadline_at=until,
        mandate_expires_at=renewed,
        document=rest.corrected.dumped() if rest.corrected is not None else None,
        document_sha256=rest.corrected.sha256 if rest.corrected is not None else None,
        seen=list(rest.seen),
        at=now,
    )
    if rest.corrected is not None and len(json_bytes(command)) >= MESSAGE_BYTES_MAX:
        raise Refused("too-large", f"The version to go on by comes to {MESSAGE_BYTES_MAX} bytes or more.")
    return command


async def _preview(gateway: Gateway, caller: Caller, request: Request, wanted: OperatorCommandRequest) -> Response:
    """Which steps would run again, and which are kept; nothing is changed and nothing is asked."""
    async with gateway.store.transaction() as tx:
        target = await target_of(gateway, tx, caller, wanted.target)
        act = rules.act_of(wanted.action, target, caller.subject, caller.tenant, caller.roles, wanted.target.kind)
        rules.check_entitled(act)
        await authorize(gateway, tx, caller, act, request, (await tx.moment()).business)
        declaration = gateway.catalog.declaration(target.row.declaration_sha256) if target.row is not None else None
        _check_possible(wanted.action, target, allowed(TargetKind(target.kind), rules.facts_of(target, declaration)))
        params = params_of(wanted.action, wanted.params)
        if target.case is None or not isinstance(params, ResumeParams):
            raise not_found()
        plan = await plan_resumption(gateway, tx, params, target)
    return answer(preview_body(target, params, plan))


async def read(request: Request) -> Response:
    """Read an operator's act and where it stands."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    row = found(
        await gateway.reads.operator_command(acts_reader_of(caller), object_id(request, "operator_command_id", "opc"))
    )
    return answer(_seen(caller, row, await _shown(gateway, row)))


def _seen(caller: Caller, row: OperatorCommandRow, body: dict[str, Any]) -> dict[str, Any]:
    """An act as the caller may see it: everybody their own as they asked for it."""
    if row.actor == caller.subject:
        return body
    return shown(caller.roles, "refused_act" if row.state == CommandState.REFUSED else "act", body)


async def _shown(gateway: Gateway, row: OperatorCommandRow) -> dict[str, Any]:
    """An act as it stands; one that the case has taken up but that has not ended is acknowledged."""
    waits = row.state == CommandState.ACCEPTED and row.workflow_id is not None
    if waits and await gateway.reads.heard(str(row.workflow_id), row.operator_command_id) is not None:
        return _body(row, CommandState.ACKNOWLEDGED)
    return _body(row)


async def listed(request: Request) -> Response:
    """List operators' acts, newest first."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = acts_reader_of(caller)
    page = page_of(request)
    states = [CommandState.ACCEPTED.value, CommandState.DONE.value, CommandState.REFUSED.value]
    rows = await gateway.reads.operator_commands(
        reader, page, target=query(request, "target"), state=query(request, "state", states)
    )
    items = [Item(row.created_at, row.operator_command_id, _seen(caller, row, _body(row))) for row in rows]
    return listing(items, page)


_KEYS: Final = (
    "idempotency-key-missing",
    "idempotency-key-invalid",
    "idempotency-key-reused",
    "idempotency-in-flight",
)

ROUTES: Final[list[LeanRoute]] = [
    route(
        "POST",
        "/v1/workflows/{workflow_id}/cancel",
        cancel,
        tag="workflows",
        summary="Ask for the end of a case",
        answers={202: ("It is asked; the case's status tells how it goes on", OperatorCommandAnswer)},
        body=CancelRequest,
        example={"reason": "the article was withdrawn"},
        parameters=(
            path_parameter("workflow_id", "The case.", "wf_00000000000000000000000000000000"),
            key_parameter("cancel-0028"),
        ),
        problems=(*READ, *BODY, *_KEYS, "action-not-available"),
    ),
    route(
        "POST",
        "/v1/operator-commands",
        create,
        tag="operators",
        summary="Act as an operator",
        answers={202: ("It is asked", OperatorCommandAnswer)},
        body=OperatorCommandRequest,
        example={
            "action": "REDRIVE",
            "target": {"kind": "exception", "id": "exc_00000000000000000000000000000000"},
            "reason": "the target is back",
            "evidence": [],
            "params": {},
        },
        parameters=(key_parameter("redrive-0028"),),
        problems=(*READ, *BODY, *_KEYS, "action-not-available", "repair-in-flight"),
    ),
    route(
        "GET",
        "/v1/operator-commands",
        listed,
        tag="operators",
        summary="List operators' acts",
        answers={200: ("A page of acts", OperatorCommandList)},
        parameters=(
            query_parameter("target", "Only those about this command, case or exception."),
            query_parameter("state", "Only this state.", {"type": "string", "enum": ["ACCEPTED", "DONE", "REFUSED"]}),
            *PAGE,
        ),
        problems=READ,
    ),
    route(
        "GET",
        "/v1/operator-commands/{operator_command_id}",
        read,
        tag="operators",
        summary="Read an operator's act",
        answers={200: ("The act and where it stands", OperatorCommandAnswer)},
        parameters=(path_parameter("operator_command_id", "The act.", "opc_00000000000000000000000000000000"),),
        problems=READ,
    ),
]
