"""What is shipped to watch a plane: alerts that follow the service levels, a dashboard that can be read."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from trueup_gateway.core import measures
from trueup_gateway.core.kpi import COST, FIGURES, WINDOWS
from trueup_gateway.core.slo import BurnRule
from trueup_gateway.core.windows import window_text
from trueup_gateway.levels import shipped_levels
from trueup_repair_planner.core import resolutions

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "trueup.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("rule", shipped_levels().alerts, ids=lambda rule: rule.severity)
def test_every_burn_rule_of_the_service_levels_is_an_alert(rule: BurnRule) -> None:
    """With the same windows, the same rate and the same severity, for each level by its label.

    Requirements: V3
    """
    wanted = [
        rf'max by \(slo\) \(trueup_slo_burn_rate{{window="{window_text(seconds)}"}}\) > {rule.rate:g}(?![0-9.])'
        for seconds in (rule.long_seconds, rule.short_seconds)
    ]
    found = [alert for alert in RULES if all(re.search(pattern, alert["expr"]) for pattern in wanted)]
    assert [alert["labels"]["severity"] for alert in found] == [rule.severity]


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    """A name, who is told, one line of what is wrong, and where to begin."""
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]
        assert rule["annotations"]["summary"] and rule["annotations"]["description"], rule["alert"]


def test_what_was_asked_for_is_alarmed() -> None:
    """Age of dead letters, orphans, queue lag, broken invariants, anomalies.

    Requirements: V3, V5, V6
    """
    expressions = " ".join(rule["expr"] for rule in RULES)
    for wanted in (
        'trueup_exceptions_oldest_seconds{kind="dead_letter"}',
        'trueup_exceptions_oldest_seconds{kind="stale_running"}',
        "trueup_queue_lag_seconds",
        "trueup_invariant_breaches_total",
        "trueup_anomalies_total",
        "trueup_slo_error_budget_remaining",
    ):
        assert wanted in expressions


def test_the_dashboard_can_be_imported_and_read() -> None:
    """Ids of their own, no panel over another, each with question, description and unit; every figure is shown."""
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for one, other in combinations([panel["gridPos"] for panel in DASHBOARD["panels"]], 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y
    for panel in PANELS:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert references and len(set(references)) == len(references)
        assert all(target["expr"] and target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    shown = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
    assert all(figure.name in shown for figure in (*FIGURES, COST))
    windows = {f'window="{window_text(seconds)}"' for seconds in WINDOWS}
    asked = set(re.findall(r'trueup_kpi\{(window="[^"]+")', shown))
    assert asked and asked <= windows


def test_numbers_and_planner_call_the_same_repaired() -> None:
    """Two services that cannot import one another mean the same by a verified repair and a settled doubt.

    Requirements: V2
    """
    assert measures.VERIFIED_BY == resolutions.VERIFIED_BY
    assert measures.SETTLED_BY == resolutions.VERIFIED_BY | resolutions.SETTLED_BY
    assert measures.DOUBTS == resolutions.DOUBTS
