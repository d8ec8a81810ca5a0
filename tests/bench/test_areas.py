"""The profile by areas adds up to what was sampled, and each function is put where its file belongs.

Requirements: B1
"""

import pytest
from bench.areas import AREAS, OTHER, area_of, area_report
from bench.measure import Measurement
from bench.profile import Profile


@pytest.mark.parametrize(
    ("function", "area"),
    [
        ("uvicorn/protocols/http/httptools_impl.py:463 RequestResponseCycle.send", "HTTP in"),
        ("gateway/trueup_gateway/api/commands.py:311 _submit_and_wait", "HTTP in"),
        ("aiohttp/client.py:558 ClientSession._request", "HTTP out"),
        ("adapters/trueup_adapters/systems/http.py:67 _GuardedRequest.send", "HTTP out"),
        ("gateway/trueup_gateway/core/grants.py:63 mint", "tokens and policy"),
        ("hmac.py:187 digest", "tokens and policy"),
        ("orchestrator/trueup_orchestrator/core/seal.py:152 seal", "decisions"),
        ("common/trueup_common/runtime/lean_client.py:110 _Ear.data_received", "bus"),
        ("asyncpg/connection.py:1892 Connection._execute", "database"),
        ("gateway/trueup_gateway/store/views.py:37 ViewsSql.save_views", "database"),
        ("common/trueup_common/contracts/shape.py:77 _made", "models and JSON"),
        ("pydantic/main.py:270 BaseModel.__init__", "models and JSON"),
        ("asyncio/runners.py:86 Runner.run", "event loop"),
        ("services/orchestrator/trueup_orchestrator/desk.py:518 Desk.move_on", "handlers"),
        ("re/__init__.py:178 sub", OTHER),
    ],
)
def test_a_function_belongs_where_its_file_does(function: str, area: str) -> None:
    """By the place, not by the name."""
    assert area_of(function) == area


def test_areas_add_up_per_unit() -> None:
    """Own time only, in ms per unit, of what ran between the two snapshots."""
    first = {"asyncpg/connection.py:1 _execute": (0, 1.0, 5.0)}
    last = {"asyncpg/connection.py:1 _execute": (0, 1.5, 9.0), "re/__init__.py:1 sub": (0, 0.25, 0.25)}
    seen = Measurement("trueup", profiles={"gateway": Profile(first, last, 500)})
    lines = [line.split() for line in area_report([seen, Measurement("floor")])]
    told = {" ".join(cells[:-2]): cells[-2:] for cells in lines[2:] if cells}
    assert told["database"] == ["1.000", "1.000"]
    assert told[OTHER] == ["0.500", "0.500"]
    assert told["all"] == ["1.500", "1.500"]
    assert set(told) == {*(name for name, _ in AREAS), OTHER, "all"}
