"""Service levels and anomaly rules of this process: YAML documents, those that ship or the operator's own."""

from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from trueup_common.runtime.settings import Settings
from trueup_gateway.core.anomalies import AnomalyRules, read_rules
from trueup_gateway.core.counters import COUNTERS
from trueup_gateway.core.measures import Bounds
from trueup_gateway.core.slo import ServiceLevels, read_levels

SHIPPED: Final = Path(__file__).with_name("slo.yaml")
SHIPPED_RULES: Final = Path(__file__).with_name("anomalies.yaml")


@lru_cache
def shipped_levels() -> ServiceLevels:
    """The document that ships."""
    return levels_of(SHIPPED)


def levels_of(path: Path) -> ServiceLevels:
    """A document. Raises ValueError with a reason, also where it speaks of counters that do not exist."""
    document = read_levels(_read(path))
    for objective in document.objectives:
        for counter in (objective.good, objective.total):
            if counter not in COUNTERS:
                raise ValueError(f"{path}: {objective.name} speaks of {counter}, which nobody counts")
    return document


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}") from error


def read_anomaly_rules(settings: Settings) -> AnomalyRules:
    """The rules of the settings. Raises SystemExit."""
    try:
        return read_rules(_read(settings.anomalies or SHIPPED_RULES))
    except ValueError as error:
        raise SystemExit(f"trueup gateway: unusable settings: TRUEUP_ANOMALIES: {error}") from None


def read_service_levels(settings: Settings) -> ServiceLevels:
    """The document of the settings. Raises SystemExit."""
    if settings.slo is None:
        return shipped_levels()
    try:
        return levels_of(settings.slo)
    except ValueError as error:
        raise SystemExit(f"trueup gateway: unusable settings: TRUEUP_SLO: {error}") from None


def bounds_of(settings: Settings, levels: ServiceLevels) -> Bounds:
    """The times by which objects are judged."""
    return Bounds(
        terminal=timedelta(seconds=levels.terminal_seconds),
        orphan=timedelta(seconds=levels.orphan_seconds),
        sla=timedelta(seconds=settings.exception_sla_seconds),
    )
