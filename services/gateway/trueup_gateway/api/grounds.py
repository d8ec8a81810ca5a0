"""What an operator's act rests on beside its parameters: evidence, receipts, observations, the version to go on by."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.resumption import CASE, Resumption, carried, misfits, reassessed, resumption
from trueup_common.contracts.shape import record
from trueup_common.contracts.workflow import StepState, WorkflowDocument
from trueup_gateway.api.acts import Ruled
from trueup_gateway.core import operators as rules
from trueup_gateway.core.artifact import check_evidence, named_in
from trueup_gateway.core.definition import chosen
from trueup_gateway.core.operator_params import AssignParams, Params, ResolvedParams, ResumeParams, SettleParams
from trueup_gateway.core.operators import Target
from trueup_gateway.core.refusal import Refused, invalid
from trueup_gateway.core.resolving import Ground, check_resolved, whole_case
from trueup_gateway.definitions import Definitions
from trueup_gateway.store import GatewayTransaction

MISFITS_SHOWN_MAX = 50


@record
class Rest:
    """What the check of an act found out: `seen` effects that speak for themselves, the version to go on by."""

    seen: Sequence[str] = ()
    corrected: WorkflowDocument | None = None


async def check_grounds(  # noqa: PLR0917 - what one act rests on
    gateway: Ruled,
    tx: GatewayTransaction,
    target: Target,
    evidence: Sequence[Any],
    params: Params,
    now: datetime,
    *,
    of: str | None = None,
) -> Rest:
    """What the action needs beside its parameters; `of` is the only one whose artifacts count. Raises Refused."""
    told = [
        (str(item.get("ref")) if item.get("ref") else None, item.get("sha256"))
        for item in evidence
        if isinstance(item, dict)
    ]
    names = named_in(told)
    check_evidence(told, await tx.hold_artifacts([target.tenant] * len(names), names) if names else [], of=of)
    if isinstance(params, SettleParams) and target.row is not None:
        rules.check_settlement(params, evidence, target.row)
        _check_receipt(gateway, target, params)
    if isinstance(params, AssignParams):
        rules.check_duty(params, now)
    if isinstance(params, ResolvedParams):
        return Rest(seen=check_resolved(params, target, await _ground(gateway, tx, target, params), now))
    if isinstance(params, ResumeParams) and target.case is not None:
        plan = await plan_resumption(gateway, tx, params, target)
        return Rest(corrected=plan.document if plan is not None and plan.migrates else None)
    return Rest()


def _check_receipt(gateway: Ruled, target: Target, params: SettleParams) -> None:
    assert target.row is not None
    declaration = gateway.catalog.declaration(target.row.declaration_sha256)
    if params.receipt is None or declaration is None or not declaration.receipt_schema:
        return
    name = f"{declaration.sha256}:receipt"
    wrong = gateway.payloads.errors_of(name, declaration.receipt_schema, params.receipt, "receipt")
    if wrong:
        raise invalid([(f"/params{pointer}", detail) for pointer, detail in wrong])


async def _ground(gateway: Ruled, tx: GatewayTransaction, target: Target, params: ResolvedParams) -> Ground:
    rows = [target.row] if target.row is not None else []
    elements = []
    if whole_case(target) and target.case is not None:
        rows = [view.row for view in await tx.commands_of(target.case.workflow_id)]
        elements = await tx.elements_of(target.case.workflow_id)
    named = None
    if params.observation is not None:
        place = params.observation
        named = await tx.newest_element(target.tenant, place.system, place.resource, place.element)
    return Ground(rows, declarations_of(gateway, rows), elements, named)


def declarations_of(gateway: Ruled, rows: Sequence[JournalRow]) -> dict[str, CommandDeclaration]:
    """The declarations that operations started with, by hash, as far as the catalog holds them."""
    found = ((row.declaration_sha256, gateway.catalog.declaration(row.declaration_sha256)) for row in rows)
    return {sha256: declaration for sha256, declaration in found if declaration is not None}


@record
class Plan:
    """How a case would go on from a step: by which document, with which steps, over which operations."""

    document: WorkflowDocument | None
    steps: Sequence[StepState]
    rows: dict[str, JournalRow]
    resumption: Resumption
    migrates: bool = False


async def plan_resumption(gateway: Ruled, tx: GatewayTransaction, params: ResumeParams, target: Target) -> Plan | None:
    """How the case would go on; None for the end of a pause. Raises Refused where it cannot."""
    assert target.case is not None
    instance = target.case.instance
    migrates = params.version not in (None, instance.version)
    if target.case.status == "PAUSED":
        if migrates:
            raise invalid([("/params/version", f"a paused case goes on by its version, {instance.version}")])
        if params.from_step is not None:
            raise invalid([("/params/from_step", "a paused case goes on where it stands")])
        return None
    if params.from_step is None:
        raise invalid([("/params/from_step", "names the step that the case goes on from")])
    steps = [StepState.model_validate(item) for item in instance.steps]
    named = sorted({step.command_id for step in steps if step.command_id is not None})
    rows = {view.command_id: view.row for view in await tx.commands_named(target.tenant, named)}
    if migrates:
        return await _corrected(gateway, tx, params, target, steps, rows)
    found = resumption(steps, rows, params.from_step)
    if found is None:
        raise invalid([("/params/from_step", "the document has no such step")])
    return Plan(None, steps, rows, found)


async def _corrected(  # noqa: PLR0917 - everything that one resumption rests on
    gateway: Ruled,
    tx: GatewayTransaction,
    params: ResumeParams,
    target: Target,
    steps: Sequence[StepState],
    rows: dict[str, JournalRow],
) -> Plan:
    """The same by another version, where every step that began fits it. Raises Refused."""
    assert target.case is not None and params.from_step is not None
    instance, from_step = target.case.instance, params.from_step
    await tx.hold_definition(target.tenant, instance.definition)
    known = Definitions(gateway.catalog).merged(await tx.definitions(target.tenant, instance.definition))
    old, new = (chosen(known, instance.definition, version) for version in (instance.version, params.version))
    if new is None or new.retired_at is not None:
        why = "is not registered" if new is None else "is retired"
        raise invalid([("/params/version", f"version {params.version} of {instance.definition} {why}")])
    if old is None or old.document.sha256 != instance.sha256:
        raise invalid([("/params/version", f"version {instance.version}, by which the case runs, is not registered")])
    mandate = await tx.mandate(rules.mandate_of(instance.workflow_id))
    pinned = {
        name: declaration
        for name, sha256 in (mandate.declarations if mandate is not None else {}).items()
        if (declaration := gateway.catalog.declaration(sha256)) is not None
    }
    permitted = {name: item for name, item in pinned.items() if mandate is not None and name in mandate.command_types}
    current = {name: item for name in pinned if (item := gateway.catalog.by_type(name)) is not None}
    wrong = misfits(steps, rows, old.document, new.document, from_step, permitted, current)
    if wrong:
        raise unfit(wrong, new.document.version)
    moved = carried(steps, new.document)
    anew = reassessed(moved, rows, old.document, new.document, from_step)
    found = resumption(moved, rows, from_step, anew)
    assert found is not None
    return Plan(new.document, moved, rows, found, migrates=True)


def unfit(wrong: Sequence[tuple[str, str]], version: int) -> Refused:
    """409: which steps do not fit the version, each with why."""
    return Refused(
        "conflict",
        f"The case cannot go on by version {version}. What does not fit: {len(wrong)}.",
        extra={
            "misfits": [
                {"step": None if step == CASE else step, "detail": why} for step, why in wrong[:MISFITS_SHOWN_MAX]
            ]
        },
    )


def preview_body(target: Target, params: ResumeParams, plan: Plan | None) -> dict[str, Any]:
    """What a preview answers: which effects would run again, which are kept, what waits anew, what stays open."""
    assert target.case is not None
    instance = target.case.instance
    shared = {"dry_run": True, "workflow_id": target.case.workflow_id, "from_step": params.from_step}
    if plan is None:
        return {**shared, "again": [], "kept": [str(item["id"]) for item in instance.steps]}
    found, by_id = plan.resumption, {step.id: step for step in plan.steps}
    version = plan.document.version if plan.document is not None else instance.version
    sha256 = plan.document.sha256 if plan.document is not None else instance.sha256
    retyped = {step.id: step.command for step in plan.document.steps} if plan.document is not None else {}

    def effect(name: str) -> dict[str, Any]:
        step = by_id[name]
        row = plan.rows.get(step.command_id or "")
        how = "look_first" if name in found.redriven else "again" if step.command_id is not None else "first_time"
        return {
            "step": name,
            "command_type": retyped.get(name, step.command_type),
            "command_id": step.command_id,
            "state": row.state.value if row is not None else None,
            **({"how": how} if name in found.again else {}),
        }

    effects = [step.id for step in plan.steps if step.command_type is not None]
    return {
        **shared,
        "version": version,
        "sha256": sha256,
        "from_version": instance.version,
        "from_sha256": instance.sha256,
        "again": list(found.again),
        "kept": list(found.kept),
        "effects_again": [effect(name) for name in effects if name in found.again],
        "effects_kept": [effect(name) for name in effects if name in found.kept],
        "waits_reopened": [
            {"step": name, "kind": by_id[name].kind.value, "was": by_id[name].phase.value} for name in found.reopened
        ],
        "steps_again": [
            {"step": name, "kind": by_id[name].kind.value, "was": by_id[name].phase.value} for name in found.again
        ],
        "held": list(found.held),
    }
