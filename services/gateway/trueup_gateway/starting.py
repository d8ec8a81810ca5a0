"""Starting workflows: one request, one transaction; the message goes out after the commit, or the relay sends it."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.topology import command_subject
from trueup_common.documents.expressions import ExpressionFailed, expressions_of
from trueup_common.documents.payloads import PayloadSchemas
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.ports import CrashPoints, Moment, Publisher, Schedule, Store, StoreBusy
from trueup_gateway.core.acceptance import Standing
from trueup_gateway.core.definition import Definition, chosen, guarded, undone_by
from trueup_gateway.core.grants import question_of
from trueup_gateway.core.policy import APPROVED, judge_workflow
from trueup_gateway.core.records import DecisionRow
from trueup_gateway.core.refusal import Refused, invalid
from trueup_gateway.core.workflow_start import (
    Existing,
    Governance,
    NewWorkflow,
    Plan,
    StartRequest,
    check_authority,
    check_start,
    check_uses,
    is_object_id,
    is_replay,
    new_workflow,
)
from trueup_gateway.definitions import Definitions
from trueup_gateway.rules import RuleBook, Rules
from trueup_gateway.store import GatewayTransaction, KeyTaken, lock_timed_out

log = logging.getLogger("trueup.gateway.start")

TRIES_MAX: Final = 5
PAUSE_SECONDS: Final = 0.02
MESSAGE_BYTES_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Started:
    """The case that a request got: a new one, or the one that its key stood for already (`replayed`)."""

    workflow_id: str
    saga_id: str
    replayed: bool


class Starter:
    """Decides on starts and stores them."""

    def __init__(
        self,
        *,
        store: Store[GatewayTransaction],
        publisher: Publisher,
        rules: RuleBook,
        catalog: Catalog,
        crash: CrashPoints,
        schedule: Schedule,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._rules = rules
        self._catalog = catalog
        self._crash = crash
        self._schedule = schedule
        self._inputs = PayloadSchemas()
        self.definitions = Definitions(catalog)

    async def start(self, request: StartRequest) -> Started:
        """The case of a request, after its commit. Raises Refused."""
        started, outgoing = await self._committed(request)
        self._crash.reach("gateway-start.committed")
        if outgoing:
            await self._publisher.publish(outgoing)
        return started

    async def _committed(self, request: StartRequest) -> tuple[Started, list[Outgoing]]:
        for number in range(1, TRIES_MAX + 1):
            try:
                return await self._once(request)
            except StoreBusy as busy:
                if lock_timed_out(busy) or (number == TRIES_MAX and isinstance(busy, KeyTaken)):
                    detail = "Another request holds this key or capability right now."
                    raise Refused("idempotency-in-flight", detail, retry_after_seconds=1) from busy
                if number == TRIES_MAX:
                    raise
                await self._schedule.pause(PAUSE_SECONDS * number)
        raise AssertionError("unreachable")

    async def _once(self, request: StartRequest) -> tuple[Started, list[Outgoing]]:
        async with self._store.transaction() as tx:
            rows = await tx.accept_rows([request.capability_id], [], [], [])
            standing = rows.standings.get(request.capability_id)
            check_authority(request, standing, rows.moment.business)
            known = await tx.existing(request.tenant, request.key)
            replayed = known is not None and is_replay(request, known[0], command=known[1])
            await tx.hold_definition(request.tenant, request.definition, alone=False)
            plan = await self._plan(tx, request, known[0] if known is not None and replayed else None)
            rules = await self._rules.at(tx, rows.epoch)
            governance = _governance(rules, rows.moment)
            assert standing is not None
            check_start(request, standing, plan, governance)
            if known is not None and replayed:
                return Started(known[0].workflow_id, known[0].saga_id, True), []
            check_uses(standing)
            new = new_workflow(request, standing, plan, governance, known[0] if known is not None else None)
            outgoing = [_outgoing(new, request, rows.moment)]
            await tx.save_workflow(new)
            await tx.post(outgoing)
            self._crash.reach("gateway-start.before_commit")
        return Started(request.workflow_id, request.saga_id, False), outgoing

    async def _plan(self, tx: GatewayTransaction, request: StartRequest, replays: Existing | None) -> Plan:
        """What the request would run. Raises Refused."""
        found = self.definitions.merged(await tx.definitions(request.tenant, request.definition))
        version = replays.version if replays is not None else request.version
        definition = chosen(found, request.definition, version)
        if definition is None:
            raise self._unknown(Refused("not-found", "There is no such workflow, or no version of it that may start."))
        if definition.retired_at is not None and replays is None:
            raise Refused("conflict", f"Version {definition.document.version} of this workflow is retired.")
        declarations = self._declarations(request.tenant, definition)
        return Plan(definition.document, self._object_id(request, definition), declarations)

    def _declarations(self, tenant: str, definition: Definition) -> dict[str, CommandDeclaration]:
        document = definition.document
        found = {name: self._declaration(name) for name in document.command_types}
        for name in undone_by(found.values()):
            found[name] = self._declaration(name)
        missing = sorted(
            {item.system for item in found.values() if not self._catalog.has_connection(tenant, item.system)}
        )
        if missing:
            where = [("/definition", f"needs a connection to {system}") for system in missing]
            detail = "This tenant has no connection to a system that the workflow needs."
            raise self._unknown(Refused("unknown-system", detail, errors=where))
        return found

    def _declaration(self, name: str) -> CommandDeclaration:
        declaration = self._catalog.by_type(name)
        if declaration is None:
            where = [("/definition", f"runs {name}")]
            raise self._unknown(Refused("unknown-command-type", "There is no such command type.", errors=where))
        return declaration

    def _unknown(self, refused: Refused) -> Refused:
        if self._catalog.is_loaded:
            return refused
        return Refused("unavailable", "The gateway is still loading its catalog.", retry_after_seconds=1)

    def _object_id(self, request: StartRequest, definition: Definition) -> str:
        """The business object that the input names. Raises Refused where the input does not fit."""
        document = definition.document
        errors = self._inputs.errors_of(document.sha256, document.input, request.input, "input")
        if errors:
            raise invalid(errors)
        scope = {"input": request.input, "steps": {}, "case": {}}
        expressions = expressions_of(document)
        try:
            value = expressions.fill(document.object.id, scope)
        except ExpressionFailed:
            raise invalid([("/input", "does not name the business object of the case")]) from None
        try:
            expressions.fill(document.locks, scope)  # an accepted case takes them: they must have a value
        except ExpressionFailed:
            raise invalid([("/input", "does not name every lock of the case")]) from None
        name = str(value) if isinstance(value, str | int) else ""
        if not is_object_id(name):
            raise invalid([("/input", "does not give the business object an acceptable name")])
        return name


def _governance(rules: Rules, moment: Moment) -> Governance:
    def frozen(fields: Mapping[str, Any]) -> str | None:
        return rules.freeze_of(fields, moment.business)

    def permitted(standing: Standing, plan: Plan) -> bool:
        return still_permitted(rules, standing.decision, plan)

    return Governance(now=moment.business, policy_sha256=rules.policy_sha256, frozen=frozen, permitted=permitted)


def still_permitted(rules: Rules, decision: DecisionRow, plan: Plan) -> bool:
    """True where the policy in force lets the workflow start: as it decided, or evaluated again after a change."""
    unchanged = all(decision.declarations.get(item.type) == item.sha256 for item in plan.forward)
    if decision.policy_sha256 == rules.policy_sha256 and unchanged:
        return True
    questions = [
        question_of(decision, item, resource=decision.resource, approved=decision.approved_at is not None)
        for item in plan.forward
    ]
    if not questions:
        return True
    judgement = judge_workflow(
        replace(questions[0], system=decision.system, resource=decision.resource),
        plan.forward,
        rules.ask,
        risks={question.command_type: (question.risk_score, question.risk_level) for question in questions},
        guarded=guarded(plan.document, plan.declarations),
    )
    return judgement.outcome == APPROVED and not judgement.errors


def _outgoing(new: NewWorkflow, request: StartRequest, moment: Moment) -> Outgoing:
    data = json_bytes(new.start)
    if len(data) >= MESSAGE_BYTES_MAX:
        raise Refused("too-large", f"Document and input together come to {MESSAGE_BYTES_MAX} bytes or more.")
    return Outgoing(
        Message(
            id=new.start.workflow_id,
            type="StartWorkflow",
            subject=command_subject(new.start.tenant),
            tenant=new.start.tenant,
            source="gateway",
            time=moment.real,
            data=data,
            traceparent=request.traceparent,
        )
    )
