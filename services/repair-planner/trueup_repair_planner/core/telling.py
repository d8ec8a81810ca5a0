"""What others hear of an exception: the row as operators see it."""

from trueup_common.contracts.events import ExceptionChanged
from trueup_repair_planner.core.lifecycle import ExceptionRow


def exception_told(row: ExceptionRow) -> ExceptionChanged:
    """The exception as operators see it, with what it stands for at whoever reported it."""
    owed = {"reported_by": row.reported_by, "obligation_id": row.obligation_id}
    return ExceptionChanged(
        exception_id=row.exception_id,
        tenant=row.tenant,
        kind=row.kind,
        status=row.status,
        lifecycle=row.lifecycle.value,
        failure_class=row.failure_class,
        owner=row.owner,
        deadline_at=row.deadline_at,
        opened_at=row.opened_at,
        first_deadline_at=row.first_deadline_at,
        closed_at=row.closed_at,
        resolution_type=row.resolution_type,
        resolved_by=row.resolved_by,
        workflow_id=row.workflow_id,
        saga_id=row.saga_id,
        command_id=row.command_id,
        envelope={**row.envelope, **owed, "escalations_count": row.escalations_count, "trail": row.trail},
        allowed_actions=(),
        trace_id=row.trace_id,
        repair_id=row.repair_id,
        repair_status=row.repair_status,
        incident_id=row.incident_id,
        version=row.version,
    )
