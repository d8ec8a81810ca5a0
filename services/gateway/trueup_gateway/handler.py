"""The gateway's worker: mints grants for proposed tasks, and projects the other services' events into the views."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson
from pydantic import ValidationError

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import (
    ElementChanged,
    ExceptionChanged,
    GrantRefused,
    GrantRequest,
    IncidentChanged,
    OperatorCommandEnded,
    RepairChanged,
    SignalDisposed,
)
from trueup_common.contracts.grant import GrantClaims
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import INSTANCE_TERMINAL
from trueup_common.contracts.topology import event_subject, task_subject
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.grants import GrantKeys
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import Foreseeing, Moment
from trueup_gateway.core import projection
from trueup_gateway.core.grants import Facts, Refusal, counts, mint
from trueup_gateway.core.marks import late_writes
from trueup_gateway.core.person_records import ApprovalRow
from trueup_gateway.core.records import EffectCountRow
from trueup_gateway.rules import RuleBook, Rules
from trueup_gateway.store import GatewayTransaction, GrantRows

SOURCE: Final = "gateway"
_ENDS: Final = frozenset(status.value for status in INSTANCE_TERMINAL)


def _read(message: Message) -> GrantRequest:
    if message.type != "GrantRequest":
        raise Unprocessable(f"unexpected message type {message.type}")
    try:
        request = GrantRequest.model_validate_json(message.data)
    except ValidationError as error:
        raise Unprocessable(f"unreadable GrantRequest: {error.error_count()} errors") from error
    if request.task.operation.tenant != message.tenant:
        raise Unprocessable("the message and its operation name different tenants")
    return request


@dataclass(frozen=True, slots=True)
class _Grounds:
    """What a batch of requests rests on; `rows.effects` grows with what the batch grants."""

    rules: Rules
    rows: GrantRows
    approvals: dict[str, ApprovalRow]


class GrantHandler(Foreseeing):
    """GrantRequest → ExecuteTask with its grant, or GrantRefused."""

    inbox = True

    def __init__(self, *, rules: RuleBook, catalog: Catalog, keys: GrantKeys) -> None:
        self._rules = rules
        self._catalog = catalog
        self._keys = keys
        self._requests: dict[str, GrantRequest] = {}
        """What the messages of the batch at hand ask, by message."""

    def foresee(self, tx: GatewayTransaction, messages: Sequence[Message]) -> bool:
        """What the requests of the batch rest on."""
        self._requests.clear()
        for message in messages:
            with contextlib.suppress(Unprocessable):
                self._requests[message.id] = _read(message)
        if self._requests:
            tx.foresee_grants({request.mandate_id for request in self._requests.values()})
        return False

    async def handle(self, tx: GatewayTransaction, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        """Decide on every proposed task of the batch by the rows of this transaction."""
        requests = [(message, self._request(message)) for message in messages]
        grounds = await self._grounds(tx, [request for _, request in requests])
        outgoing, counted = [], []
        for message, request in requests:
            facts = self._facts(request, grounds, moment)
            found = mint(request, facts, now=moment.business, real=moment.real, ask=grounds.rules.ask)
            if not isinstance(found, Refusal) and counts(request, facts):
                counted.append(self._count(grounds.rows.effects[found.mandate], found, moment))
            outgoing.append(self._answer(message, request, found, moment))
        await tx.save_effects(counted)
        return outgoing

    def _request(self, message: Message) -> GrantRequest:
        return self._requests.pop(message.id) if message.id in self._requests else _read(message)

    def _count(self, effects: set[str], found: GrantClaims, moment: Moment) -> EffectCountRow:
        """One effect more; whoever counts beside us takes the same number, and one of both decides again."""
        effects.add(found.op)
        return EffectCountRow(
            mandate_id=found.mandate, number=len(effects), command_id=found.op, first_at=moment.business
        )

    async def _grounds(self, tx: GatewayTransaction, requests: Sequence[GrantRequest]) -> _Grounds:
        """What the requests of a batch rest on."""
        rows = await tx.grant_rows({request.mandate_id for request in requests})
        named = [request.approval_id for request in requests if request.approval_id is not None]
        return _Grounds(
            rules=await self._rules.at(tx, rows.epoch),
            rows=rows,
            approvals=await tx.approvals(named) if named else {},
        )

    def _facts(self, request: GrantRequest, grounds: _Grounds, moment: Moment) -> Facts:
        operation, rows, rules = request.task.operation, grounds.rows, grounds.rules
        mandate = rows.mandates.get(request.mandate_id)
        fields = {
            "tenant": operation.tenant,
            "system": operation.target.system,
            "command_type": operation.command_type,
            "definition": mandate.definition if mandate else request.definition,
            "version": mandate.version if mandate else request.version,
        }
        undone = mandate.declarations.get(request.compensates_type or "") if mandate else None
        return Facts(
            mandate=mandate,
            decision=rows.decisions.get(mandate.decision_id) if mandate else None,
            capability_revoked=mandate is not None and mandate.capability_id in rows.revoked,
            declaration=self._catalog.declaration(operation.declaration_sha256),
            freeze=rules.freeze_of(fields, moment.business, compensation=request.compensation),
            has_key=operation.target.system in self._keys.systems,
            policy_sha256=rules.policy_sha256,
            epoch=rules.epoch,
            undoes=self._catalog.declaration(undone) if undone else None,
            effects=frozenset(rows.effects.get(request.mandate_id, ())),
            approval=grounds.approvals.get(request.approval_id or ""),
        )

    def _answer(
        self, message: Message, request: GrantRequest, found: GrantClaims | Refusal, moment: Moment
    ) -> Outgoing:
        task = request.task
        operation = task.operation
        if isinstance(found, Refusal):
            refused = GrantRefused(
                command_id=operation.command_id,
                workflow_id=operation.workflow_id,
                tenant=operation.tenant,
                fence=task.fence,
                check=found.check,
                detail=found.detail,
                transient=found.transient,
            )
            return _outgoing(
                message,
                moment,
                message_id=derived_id("msg", task.attempt_id, "refused"),
                kind="GrantRefused",
                subject=event_subject(SOURCE, "grant-refused", operation.tenant),
                data=refused.model_dump_json().encode(),
            )
        granted = task.evolve(grant=self._keys.sign(operation.target.system, found))
        return _outgoing(
            message,
            moment,
            message_id=task.attempt_id,
            kind="ExecuteTask",
            subject=task_subject(operation.target.system, "execute", operation.tenant),
            data=json_bytes(granted),
        )

    async def settled(self, messages: Sequence[Message]) -> None:
        """Nothing is left to do after the commit."""


def _outgoing(cause: Message, moment: Moment, *, message_id: str, kind: str, subject: str, data: bytes) -> Outgoing:
    return Outgoing(
        Message(
            id=message_id,
            type=kind,
            subject=subject,
            tenant=cause.tenant,
            source=SOURCE,
            time=moment.real,
            data=data,
            traceparent=cause.traceparent,
            causation_id=cause.id,
        )
    )


Told = ElementChanged | ExceptionChanged | IncidentChanged | OperatorCommandEnded | RepairChanged | SignalDisposed
View = projection.CaseTold | Told

_VIEWS: Final[dict[str, type[Told]]] = {
    "ElementChanged": ElementChanged,
    "ExceptionChanged": ExceptionChanged,
    "SignalDisposed": SignalDisposed,
    "OperatorCommandEnded": OperatorCommandEnded,
    "RepairChanged": RepairChanged,
    "IncidentChanged": IncidentChanged,
}


def _view(message: Message) -> View | None:
    """The change that a message tells, None for what a newer version may tell. Raises Unprocessable."""
    if message.type == "CaseChanged":
        return _case(message)
    model = _VIEWS.get(message.type)
    if model is None:
        return None
    try:
        body = model.model_validate_json(message.data)
    except ValidationError as error:
        raise Unprocessable(f"unreadable {message.type}: {error.error_count()} errors") from error
    if body.tenant != message.tenant:
        raise Unprocessable(f"{message.type} speaks for another tenant than its envelope")
    return body


def _case(message: Message) -> projection.CaseTold:
    try:
        told = projection.read_case(orjson.loads(message.data))
    except ValueError as error:
        raise Unprocessable(f"unreadable CaseChanged: {error}") from error
    if any(row["tenant"] != message.tenant for row in (told.instance, *told.operations, *told.history)):
        raise Unprocessable("CaseChanged speaks for another tenant than its envelope")
    return told


class ViewHandler(Foreseeing):
    """CaseChanged, ElementChanged, ExceptionChanged, SignalDisposed → rows that the API reads.

    Versions deduplicate, so there is no inbox. `over` is told of cases whose end is committed.
    """

    inbox = False

    def __init__(self, over: Callable[[Iterable[str]], None] = lambda _: None) -> None:
        self._over = over
        self._ended: set[str] = set()

    def foresee(self, tx: GatewayTransaction, messages: Sequence[Message]) -> bool:
        """Nothing is asked: versions decide."""
        return True

    async def handle(self, tx: GatewayTransaction, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        """Project one batch."""
        cases: list[projection.CaseTold] = []
        elements: list[ElementChanged] = []
        exceptions: list[ExceptionChanged] = []
        signals: list[SignalDisposed] = []
        ended: list[OperatorCommandEnded] = []
        repairs: list[RepairChanged] = []
        incidents: list[IncidentChanged] = []
        for message in messages:
            body = _view(message)
            if isinstance(body, projection.CaseTold):
                cases.append(body)
            elif isinstance(body, ElementChanged):
                elements.append(body)
            elif isinstance(body, SignalDisposed):
                signals.append(body)
            elif isinstance(body, OperatorCommandEnded):
                ended.append(body)
            elif isinstance(body, RepairChanged):
                repairs.append(body)
            elif isinstance(body, IncidentChanged):
                incidents.append(body)
            elif body is not None:
                exceptions.append(body)
        await tx.save_views(
            commands=projection.command_views(cases),
            cases=projection.case_views(cases),
            history=projection.history_views(cases),
            elements=projection.element_views(elements),
            exceptions=projection.exception_views(exceptions),
            repairs=projection.repair_views(repairs),
            incidents=projection.incident_views(incidents),
            sightings=late_writes(cases),
        )
        await tx.free_identities(projection.freed(cases))
        await tx.dispose_signals(signals)
        await tx.end_operator_commands(ended)
        self._ended.update(case.instance["workflow_id"] for case in cases if case.instance["status"] in _ENDS)
        return ()

    async def settled(self, messages: Sequence[Message]) -> None:
        """Tell what ended. Whoever hears it looks for himself, so one that did not last does no harm."""
        ended, self._ended = self._ended, set()
        self._over(ended)
