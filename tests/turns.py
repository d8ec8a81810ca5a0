"""In which order files are handed out to parallel workers: those that take longest first, the others in between.

What starts whole planes waits half of its time, for leases and for processes that come back; what only computes fills
that time. One after the other, each would leave something idle: first the processors, then all workers but one.

Files that share a plane are one lot, which one worker has as a whole: each further worker would start another plane.
"""

from collections.abc import Iterable

from xdist.scheduler import LoadFileScheduling

LONGEST_FIRST = (
    "system/test_repairs.py",
    "system/test_repairs_under_fire.py",
    "system/test_crash_adapters.py",
    "system/test_crash_windows.py",
    "devkit/test_demo.py",
    "devkit/test_demo_drift.py",
    "system/test_twins.py",
    "simulation/test_saga_simulation.py",
    "simulation/test_simulation.py",
    "gateway/test_process.py",
    "system/test_operators.py",
    "system/test_long_leases.py",
    "bench/test_flat.py",
    "system/test_workflow_article.py",
    "system/test_compose.py",
    "system/test_telemetry.py",
    "devkit/test_supervisor.py",
    "devkit/test_cli.py",
    "orchestrator/test_saga_properties.py",
    "gateway/test_refusals.py",
    "system/test_budget.py",
    "system/test_workflow_clock.py",
    "system/test_freezes.py",
    "system/test_workflow_people.py",
    "system/test_lookout.py",
    "system/test_third_party.py",
    "system/test_main_path.py",
    "system/test_artifacts.py",
)

SHARED_PLANE = (
    (
        "system/test_crash_windows.py",
        "system/test_artifacts.py",
        "system/test_clients_leave.py",
        "system/test_main_path.py",
        "system/test_monitoring.py",
    ),
    (
        "system/test_workflow_article.py",
        "system/test_long_leases.py",
        "system/test_github.py",
        "system/test_never.py",
        "system/test_workflow_authority.py",
        "system/test_workflow_people.py",
    ),
)
"""Files that use the plane of `tests/system/conftest.py`, in lots that take about as long."""
_LOTS = {name: lot[0] for lot in SHARED_PLANE for name in lot}


def lot_of(name: str) -> str:
    """The first file of those that go to the same worker, for the name of a file below `tests`."""
    return _LOTS.get(name, name)


class InLots(LoadFileScheduling):
    """Whole lots of files for each worker, instead of single ones."""

    def _split_scope(self, nodeid: str) -> str:
        return lot_of(str(super()._split_scope(nodeid)).removeprefix("tests/"))


def in_turns(names: Iterable[str]) -> dict[str, int]:
    """File names with the place of each: one that takes long, then its share of the others."""
    given = list(dict.fromkeys(names))
    long = sorted((name for name in given if name in LONGEST_FIRST), key=LONGEST_FIRST.index)
    others = [name for name in given if name not in LONGEST_FIRST]
    share = -(-len(others) // max(1, len(long)))
    turns = long[:0]
    for number, name in enumerate(long or [""]):
        turns += [name] if name else []
        turns += others[number * share : (number + 1) * share]
    return {name: place for place, name in enumerate(turns)}
