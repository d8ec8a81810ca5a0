"""A new operation of a workflow: its journal row, in RECEIVED, with everything that the case gives it."""

from typing import Any

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.states import OperationState, RiskLevel
from trueup_orchestrator.core.fold import Fold


def new_row(fold: Fold, declaration: CommandDeclaration, **facts: Any) -> JournalRow:
    """A journal row of this case, in RECEIVED."""
    instance, mandate, now = fold.instance, fold.instance.mandate, fold.moment.business
    return JournalRow(
        tenant=instance.tenant,
        workflow_id=instance.workflow_id,
        saga_id=instance.saga_id,
        state_version=0,
        execution_id=instance.workflow_id,
        decision_id=mandate["decision_id"],
        capability_id=mandate["capability_id"],
        mandate_id=mandate["mandate_id"],
        command_type=declaration.type,
        declaration_sha256=declaration.sha256,
        effect_class=declaration.effect_class,
        risk=RiskLevel(mandate["risk"]),
        target_system=declaration.system,
        payload_sha256=digest(facts["payload"]),
        state=OperationState.RECEIVED,
        created_at=now,
        last_transition_at=now,
        compensation_command=declaration.compensation.command_type if declaration.compensation else None,
        correlation_id=instance.correlation_id,
        trace_id=instance.trace_id,
        traceparent=instance.traceparent,
        **facts,
    )
