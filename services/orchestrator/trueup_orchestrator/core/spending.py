"""What a case has spent so far, kept on its instance and told with it (the words: `contracts.spending`).

A case knows all of its operations and every hold of a person, so nobody has to read its history for the sum.
"""

from datetime import datetime
from typing import Any

from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.spending import HELD_SINCE, HISTORY_BYTES, spent_on_operations
from trueup_common.contracts.states import InstanceStatus
from trueup_orchestrator.core.fold import Fold


def spent(fold: Fold, told_bytes: int | None, *, moved: bool) -> dict[str, Any]:
    """What is spent with this commit. `told_bytes`: of history that it tells durably; None where it tells nothing so.

    Attempts are summed only then, for in between nobody reads the sum, and only where operations `moved` since.
    """
    found = dict(fold.instance.spent)
    _hold(fold, found)
    if fold.lateness:
        found["timers_fired"] = found.get("timers_fired", 0) + len(fold.lateness)
        found["timer_late_seconds"] = round(found.get("timer_late_seconds", 0.0) + sum(fold.lateness), 6)
    if told_bytes is not None:
        found[HISTORY_BYTES] = found.get(HISTORY_BYTES, 0) + told_bytes
        if moved or fold.before.unpublished:
            found.update(spent_on_operations(fold.operations.values()))
    return found


def _hold(fold: Fold, found: dict[str, Any]) -> None:
    """The clock of a person's hold runs while the case is in that person's hands."""
    held, now = fold.instance.status is InstanceStatus.HUMAN_TAKEOVER, fold.moment.business
    if held and HELD_SINCE not in found:
        found[HELD_SINCE] = rfc3339(now)
    elif not held and HELD_SINCE in found:
        since = datetime.fromisoformat(found.pop(HELD_SINCE))
        found["person_seconds"] = round(found.get("person_seconds", 0.0) + (now - since).total_seconds(), 6)
