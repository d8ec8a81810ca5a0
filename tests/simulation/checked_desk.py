"""A desk that holds every case it recalls against the store: what is remembered is what stands there."""

from collections.abc import Sequence
from typing import Any

from tests.simulation.engine import Violation
from trueup_common.contracts.journal import JournalRow
from trueup_common.runtime.ports import Moment
from trueup_orchestrator.core.case import Case
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.desk import COMMAND, Desk
from trueup_orchestrator.store import OrchestratorTransaction


class CheckedDesk(Desk):
    """The same, and it trusts nothing."""

    async def recall(self, tx: OrchestratorTransaction, moment: Moment, workflow_ids: Sequence[str]) -> dict[str, Fold]:
        """What is in hand, after a look at what is stored under the same version."""
        folds = await super().recall(tx, moment, workflow_ids)
        if not folds:
            return folds
        instances = await tx.instances(sorted(folds))
        rows: list[JournalRow] = []
        for instance in instances:
            if instance.definition == COMMAND:
                rows += await tx.operations(list(folds[instance.workflow_id].operations))
        stored = await self.load_cases(tx, moment, instances, rows)
        versions = await tx.versions(sorted(folds))
        for key, fold in folds.items():
            found = stored[key].before
            if versions[key] != fold.before.instance.state_version:
                continue  # moved between the looks: the save will tell
            _compare(fold.before, found)
        return folds


def _compare(held: Case, stored: Case) -> None:
    pairs: list[tuple[str, Any, Any]] = [
        ("instance", held.instance, stored.instance),
        ("operations", sorted(held.operations, key=_id), sorted(stored.operations, key=_id)),
        ("obligations", set(_texts(held.obligations)), set(_texts(stored.obligations))),
        ("history", held.unpublished, stored.unpublished),
    ]
    for name, one, other in pairs:
        if one != other:
            raise Violation(f"{held.instance.workflow_id}: {name} remembered otherwise than stored")


def _id(row: JournalRow) -> str:
    return row.command_id


def _texts(rows: Sequence[Any]) -> list[str]:
    return [row.model_dump_json() for row in rows]
