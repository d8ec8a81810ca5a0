"""Intents: what a decision is asked about, resolved to declarations: single command types, or a whole workflow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.states import RiskLevel
from trueup_gateway.api.gateway import Gateway, unknown
from trueup_gateway.core.definition import Definition, chosen, guarded
from trueup_gateway.core.policy import Judgement, Question, judge, judge_workflow
from trueup_gateway.core.refusal import Refused, invalid
from trueup_gateway.core.risk import Circumstances, assess
from trueup_gateway.core.workflow_start import EVERYTHING, OBJECTS
from trueup_gateway.rules import Rules
from trueup_gateway.store import GatewayTransaction

COMMAND_TYPES: Final = "/action/command_types"


@dataclass(frozen=True, slots=True)
class Intent:
    """What shall be done, on what; `workflow` is the document that shall be started, if it is one."""

    declarations: tuple[CommandDeclaration, ...]
    system: str
    resource: str
    workflow: Definition | None = None

    def risks(self, circumstances: Circumstances) -> dict[str, tuple[int, RiskLevel]]:
        """Of a workflow: the risk of each command type by itself."""
        if self.workflow is None:
            return {}
        found = {item.type: assess([item], circumstances) for item in self.declarations}
        return {name: (risk.score, risk.level) for name, risk in found.items()}

    def judge(self, question: Question, rules: Rules, risks: dict[str, tuple[int, RiskLevel]]) -> Judgement:
        """What policy says of it."""
        if self.workflow is None:
            return judge(question, self.declarations, rules.ask)
        by_type = {item.type: item for item in self.declarations}
        return judge_workflow(
            question,
            self.declarations,
            rules.ask,
            risks=risks,
            guarded=guarded(self.workflow.document, by_type),
        )


def declarations_of(gateway: Gateway, tenant: str, types: Sequence[str], system: str) -> list[CommandDeclaration]:
    """The declarations of the types that an intent names. Raises Refused for what does not exist here."""
    declarations = [_declared(gateway, name, COMMAND_TYPES) for name in sorted(set(types))]
    _check_connection(gateway, tenant, system, "/resource/system")
    for declaration in declarations:
        if declaration.system != system:
            raise Refused(
                "payload-invalid",
                "A command type does not belong to the system.",
                errors=[(COMMAND_TYPES, f"belongs to the system {declaration.system}")],
            )
    return declarations


async def workflow_intent(  # noqa: PLR0917 - the parts of the request that name a workflow and its bounds
    gateway: Gateway,
    tx: GatewayTransaction,
    tenant: str,
    name: str,
    version: int | None,
    types: Sequence[str],
    where: tuple[str, str] | None,
) -> Intent:
    """The intent to start a workflow. `where` is (system, resource pattern), or None for all. Raises Refused."""
    definitions = gateway.starter.definitions.merged(await tx.definitions(tenant, name))
    found = chosen(definitions, name, version)
    if found is None or found.retired_at is not None:
        detail = "There is no such workflow, or no version of it that may start."
        raise unknown(gateway, Refused("payload-invalid", detail, errors=[("/action/workflow", "unknown or retired")]))
    declarations = [_declared(gateway, item, "/action/workflow") for item in found.document.command_types]
    if types and set(types) != set(found.document.command_types):
        raise invalid([(COMMAND_TYPES, "must be empty or exactly the command types of the workflow")])
    for declaration in declarations:
        _check_connection(gateway, tenant, declaration.system, "/action/workflow")
    system, resource = where or (EVERYTHING, EVERYTHING)
    if system not in OBJECTS and system not in {item.system for item in declarations}:
        _check_connection(gateway, tenant, system, "/resource/system")
        raise invalid([("/resource/system", "is not a system of this workflow, nor `*` or `workflow`")])
    return Intent(tuple(declarations), system, resource, found)


def _declared(gateway: Gateway, name: str, pointer: str) -> CommandDeclaration:
    declaration = gateway.catalog.by_type(name)
    if declaration is None:
        where = [(pointer, "unknown")]
        raise unknown(gateway, Refused("unknown-command-type", "There is no such command type.", errors=where))
    return declaration


def _check_connection(gateway: Gateway, tenant: str, system: str, pointer: str) -> None:
    if not gateway.catalog.has_connection(tenant, system):
        where = [(pointer, f"no connection to {system}")]
        raise unknown(gateway, Refused("unknown-system", "This tenant has no connection to this system.", errors=where))
