"""Authority at the last boundary: a grant that covers exactly this attempt, and nothing that took it back meanwhile.

A failed check means NOT_SENT: no attempt is spent, and the orchestrator asks governance again.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.grant import GrantClaims, refusal
from trueup_common.contracts.states import RiskLevel
from trueup_common.contracts.task import ExecuteTask, Operation


class Verifier(Protocol):
    """Genuine grants (`runtime.grants`)."""

    def verify(self, system: str, token: str) -> GrantClaims | str:
        """The claims of a genuine grant, or what is wrong with it."""
        ...


class Governance(Protocol):
    """What is revoked and frozen right now (`runtime.governance`)."""

    @property
    def stale(self) -> bool:
        """True where nothing confirmed the active set within the bound."""
        ...

    def revoked(self, kind: str, object_id: str | None) -> bool:
        """True where a decision, capability or mandate is revoked."""
        ...

    def freeze_of(self, fields: Mapping[str, Any], *, compensation: bool = False) -> Any:
        """The freeze that holds an effect back, if any."""
        ...


def _is_whole(operation: Operation) -> bool:
    try:
        return digest(operation.payload) == operation.payload_sha256
    except ValueError:
        return False


class GrantAuthority:
    """The grant check of one process. Compensation goes on after a revocation; only a freeze that names it stops it."""

    def __init__(self, verifier: Verifier, governance: Governance) -> None:
        self.verifier = verifier
        self.governance = governance

    def check(self, task: ExecuteTask, declaration: CommandDeclaration, now: datetime) -> GrantClaims | str:
        """The claims, or the name of the check that fails."""
        operation = task.operation
        claims = self.verifier.verify(operation.target.system, task.grant)
        if isinstance(claims, str):
            return f"grant_{claims}"
        failed = refusal(claims, task, now=now, epoch_min=task.min_epoch)
        if failed is not None:
            return f"grant_{failed}"
        # A payload that is kept as an artifact is checked against the granted hash when it is fetched.
        if operation.payload_ref is None and not _is_whole(operation):
            return "payload_hash"
        return self._held_back(task, claims, declaration) or claims

    def _held_back(self, task: ExecuteTask, claims: GrantClaims, declaration: CommandDeclaration) -> str | None:
        operation, governance = task.operation, self.governance
        if governance.stale and declaration.risk in (RiskLevel.HIGH, RiskLevel.CRITICAL):
            return "governance_stale"
        if not claims.compensation and any(
            governance.revoked(kind, object_id)
            for kind, object_id in (
                ("decision", claims.decision),
                ("capability", claims.capability),
                ("mandate", claims.mandate),
            )
        ):
            return "revoked"
        fields = {
            "tenant": operation.tenant,
            "system": operation.target.system,
            "command_type": operation.command_type,
        }
        return "frozen" if governance.freeze_of(fields, compensation=claims.compensation) is not None else None
