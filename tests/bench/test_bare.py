"""The yardstick causes what the plane causes, so what it costs can be held against the plane.

Requirements: B1, B3
"""

from collections.abc import Iterator
from typing import Any

import pytest
from bench.bare import next_of
from bench.measure import Measurement
from bench.report import against_trueup, of_hops, targets
from bench.stacks import SAGA_STEPS, saga_faults
from bench.stub import Effects


def walked(case: dict[str, Any], effects: Effects) -> Iterator[tuple[str, dict[str, Any]]]:
    """A case from its start to its end, each effect answered as the stub answers it."""
    receipt: dict[str, Any] | None = None
    while True:
        state, body = next_of(case, receipt)
        yield state, body
        if "effect" not in body:
            return
        effect = body["effect"]
        refused = bool(effect.get("refuse"))
        if refused:
            effects.refused += 1
        else:
            effects.place(effect["key"], effect["unit"], effect.get("step"), effect.get("undoes"))
            effects.apply(effect["key"])
        case, receipt = body, {"made": not refused}


@pytest.mark.parametrize(("undone", "end", "hops"), [(False, "CLOSED", 5), (True, "COMPENSATED", 9)])
def test_a_bare_saga_makes_and_undoes_what_the_saga_of_the_plane_does(undone: bool, end: str, hops: int) -> None:
    """Five effects, or four, a refusal, and four taken back in reverse; the ground truth judges both by one rule."""
    effects = Effects()
    told = list(walked({"id": "1", "unit": "u", "refuse": undone, "step": 1}, effects))
    assert [state for state, _ in told] == ["RUNNING"] * hops + [end]
    faults = saga_faults(effects.totals(), 1, undone=undone)
    assert (faults.duplicated, faults.missing, faults.otherwise) == (0, 0, "")
    assert effects.totals()["distinct"] == (2 * (SAGA_STEPS - 1) if undone else SAGA_STEPS)


def test_a_bare_command_ends_with_its_receipt() -> None:
    """One effect, and nothing after its receipt."""
    case = {"id": "1", "effect": {"key": "k"}}
    assert next_of(case, None) == ("RUNNING", case)
    assert next_of(case, {"made": True}) == ("SUCCESS", {"id": "1", "state": "SUCCESS"})


def _stack(name: str, cpu: float, p50_ms: float, floor: float) -> Measurement:
    beside = Measurement("floor", cpu_s_per_1000=floor, p50_ms=floor)
    return Measurement(name, cpu_s_per_1000=cpu, p50_ms=p50_ms, beside=beside)


def test_the_yardstick_is_told_beside_the_plane_and_is_no_peer() -> None:
    """Its share by the floors beside both; no target asks to be cheaper than the hops alone."""
    measured = [_stack("trueup", 4.0, 16.0, 1.0), _stack("bare", 2.0, 20.0, 2.0), _stack("dbos", 9.0, 9.0, 1.0)]
    lines = of_hops(measured)
    assert lines[1].split() == ["CPU", "x0.25", "-", "-"]
    assert lines[2].split()[-3:] == ["x0.62", "-", "-"]
    assert not any("bare" in line for line in [*against_trueup(measured), *targets(measured)])
    assert of_hops(measured[:1]) == []
