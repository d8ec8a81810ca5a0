"""A repair and an incident as the planner tells them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.repair_planner.test_plan import drifted, planned

from trueup_common.contracts.events import IncidentChanged, RepairChanged
from trueup_repair_planner.core.repair import told


def told_repair(**changes: Any) -> RepairChanged:
    """A planned repair of a drifted element."""
    changed: RepairChanged = told(planned(drifted("shown")).evolve(version=1)).evolve(**changes)
    return changed


def told_incident(now: datetime) -> IncidentChanged:
    """An incident that is open."""
    return IncidentChanged(
        incident_id="inc_" + "1" * 32,
        tenant="acme",
        status="OPEN",
        cause={"by": "system", "value": "wordpress"},
        owner="duty-manager",
        exceptions_count=5,
        blast_radius={"systems": 1},
        first_at=now,
        last_at=now,
        opened_at=now,
        version=1,
    )
