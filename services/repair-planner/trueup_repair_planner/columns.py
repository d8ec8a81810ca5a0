"""What statements and indexes say alike of columns, apart from the tables, which only migrations need (ADR 0038)."""

from typing import Final

from trueup_repair_planner.core.repair import IN_FLIGHT

FLYING: Final = f"status IN ({', '.join(repr(status) for status in sorted(item.value for item in IN_FLIGHT))})"
