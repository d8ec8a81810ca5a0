"""Starting workflows: a batch of requests is decided on the rows that one transaction holds, and stored at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.topology import command_subject
from trueup_common.documents.expressions import ExpressionFailed, expressions_of
from trueup_common.documents.payloads import PayloadSchemas
from trueup_common.documents.work import Effort
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.ports import CrashPoints, Moment, Publisher, Schedule, Store
from trueup_gateway.batching import Batching
from trueup_gateway.core.acceptance import Standing
from trueup_gateway.core.definition import Definition, chosen, guarded, undone_by
from trueup_gateway.core.grants import question_of
from trueup_gateway.core.policy import APPROVED, judge_workflow
from trueup_gateway.core.records import DecisionRow
from trueup_gateway.core.refusal import Refused, invalid
from trueup_gateway.core.starts import KnownStarts, StartVerdict, decide_starts
from trueup_gateway.core.workflow_start import Existing, Governance, NewWorkflow, Plan, StartRequest, is_object_id
from trueup_gateway.definitions import Definitions
from trueup_gateway.rules import RuleBook, Rules
from trueup_gateway.store import GatewayTransaction

START_WORK_MAX: Final = 20_000_000
"""What naming the object and the locks of one start may take: a tenth of a second of the loop that serves everybody."""


@dataclass(frozen=True, slots=True)
class Started:
    """The case that a request got: a new one, or the one that its key stood for already (`replayed`)."""

    workflow_id: str
    saga_id: str
    replayed: bool


class Starter(Batching[StartRequest, Started]):
    """Decides and stores starts in shared transactions."""

    name = "gateway-start"

    def __init__(
        self,
        *,
        store: Store[GatewayTransaction],
        publisher: Publisher,
        rules: RuleBook,
        catalog: Catalog,
        crash: CrashPoints,
        schedule: Schedule,
        queue_max: int,
    ) -> None:
        super().__init__(publisher=publisher, crash=crash, schedule=schedule, queue_max=queue_max)
        self._store = store
        self._rules = rules
        self._catalog = catalog
        self._inputs = PayloadSchemas()
        self.definitions = Definitions(catalog)

    async def _once(self, requests: Sequence[StartRequest]) -> tuple[list[Started | Refused], list[Outgoing]]:
        async with self._store.transaction() as tx:
            # What is read here of capabilities and keys is checked again where it is written.
            rows = await tx.accept_rows([request.capability_id for request in requests], [], [], [], lock=False)
            by_key = await tx.existing({(request.tenant, request.key) for request in requests})
            names = {(request.tenant, request.definition) for request in requests}
            await tx.hold_definitions(names)
            registered = await tx.definitions_named(names)
            rules = await self._rules.at(tx, rows.epoch)
            known = KnownStarts(
                standings=rows.standings,
                by_key=by_key,
                governance=_governance(rules, rows.moment),
                plan=self._plans({name: self.definitions.merged(registered.get(name, ())) for name in names}),
            )
            verdicts = decide_starts(requests, known)
            accepted = [
                (request, verdict)
                for request, verdict in zip(requests, verdicts, strict=True)
                if isinstance(verdict, NewWorkflow)
            ]
            outgoing = [_outgoing(new, request, rows.moment) for request, new in accepted]
            if accepted:
                await tx.save_workflows([new for _, new in accepted], rows.epoch)
                await tx.post(outgoing)
            self._crash.reach("gateway-start.before_commit")
        self.batches_count += 1
        self.accepted_count += len(accepted)
        return [_started(verdict) for verdict in verdicts], outgoing

    def _plans(
        self, registered: Mapping[tuple[str, str], Sequence[Definition]]
    ) -> Callable[[StartRequest, Existing | None], Plan]:
        """What each request of a batch would run, given the versions of the workflows that they name."""

        def plan(request: StartRequest, replays: Existing | None) -> Plan:
            return self._plan(request, registered[request.tenant, request.definition], replays)

        return plan

    def _plan(self, request: StartRequest, registered: Sequence[Definition], replays: Existing | None) -> Plan:
        """What the request would run. Raises Refused."""
        version = replays.version if replays is not None else request.version
        definition = chosen(registered, request.definition, version)
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
            value = expressions.fill(document.object.id, scope, effort := Effort(START_WORK_MAX))
        except ExpressionFailed:
            raise invalid([("/input", "does not name the business object of the case")]) from None
        try:
            expressions.fill(document.locks, scope, effort)  # an accepted case takes them: they must have a value
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


def _started(verdict: StartVerdict) -> Started | Refused:
    if isinstance(verdict, Existing):
        return Started(verdict.workflow_id, verdict.saga_id, True)
    if isinstance(verdict, NewWorkflow):
        return Started(verdict.start.workflow_id, verdict.start.saga_id, False)
    return verdict


def _outgoing(new: NewWorkflow, request: StartRequest, moment: Moment) -> Outgoing:
    return Outgoing(
        Message(
            id=new.start.workflow_id,
            type="StartWorkflow",
            subject=command_subject(new.start.tenant),
            tenant=new.start.tenant,
            source="gateway",
            time=moment.real,
            data=new.data,
            traceparent=request.traceparent,
        )
    )
