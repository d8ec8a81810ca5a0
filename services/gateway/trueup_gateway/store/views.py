"""SQL of the read model's writer: a row that is newer already stays."""

from collections.abc import Sequence
from typing import Final

from trueup_common.contracts.shape import json_bytes
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.rows import Write
from trueup_gateway.core.marks import cohort_marks
from trueup_gateway.core.number_records import SightingRow
from trueup_gateway.core.projection import FreedKey
from trueup_gateway.core.view_records import (
    CaseView,
    CommandView,
    ElementView,
    ExceptionView,
    HistoryView,
    IncidentView,
    RepairView,
)
from trueup_gateway.store.anomalies import sighting
from trueup_gateway.store.numbers import marking
from trueup_gateway.store.rows import CASES, COMMANDS, ELEMENTS, EXCEPTIONS, HISTORY, INCIDENTS, REPAIRS

_SEEN: Final = "DELETE FROM gateway.received WHERE command_id IN (SELECT json_array_elements_text($1::text::json))"

_FREE: Final = """
UPDATE gateway.edge AS e SET identity = NULL
FROM unnest($1::text[], $2::text[], $3::text[]) AS f(tenant, key, command_id)
WHERE e.tenant = f.tenant AND e.key = f.key AND e.command_id = f.command_id AND e.identity IS NOT NULL
"""


class ViewsSql(SqlTransaction):
    """Projecting other services' events."""

    async def save_views(
        self,
        *,
        commands: Sequence[CommandView] = (),
        cases: Sequence[CaseView] = (),
        history: Sequence[HistoryView] = (),
        elements: Sequence[ElementView] = (),
        exceptions: Sequence[ExceptionView] = (),
        repairs: Sequence[RepairView] = (),
        incidents: Sequence[IncidentView] = (),
        sightings: Sequence[SightingRow] = (),
    ) -> None:
        """Project; a row that is newer already stays."""
        self.later(
            COMMANDS.upserting(commands),
            _seen(commands),
            CASES.upserting(cases),
            HISTORY.inserting(history, absent_only=True),
            ELEMENTS.upserting(elements),
            EXCEPTIONS.upserting(exceptions),
            REPAIRS.upserting(repairs),
            INCIDENTS.upserting(incidents),
            marking(cohort_marks(commands, cases, exceptions)),
            sighting(sightings),
        )

    async def free_identities(self, keys: Sequence[FreedKey]) -> None:
        """Let other keys have the business identities of these commands."""
        if keys:
            self.later(Write(_FREE, tuple(map(list, zip(*keys, strict=True))), None, "edge"))


def _seen(commands: Sequence[CommandView]) -> Write | None:
    """Others know these commands by now: what was shown until then goes."""
    names = json_bytes([view.command_id for view in commands]).decode()
    return Write(_SEEN, (names,), None, "received") if commands else None
