"""What a plane costs, by counts that do not depend on how fast the machine is: commits, rows read, memory."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import asyncpg
import pytest
from bench.counters import STATISTICS_DELAY_SECONDS, DatabaseCounter
from bench.flatness import rows_read, template
from bench.load import Order, run_load
from bench.measure import IN_FLIGHT, SETTLE_SECONDS
from bench.processes import pss_mb
from bench.seeding import seed
from bench.stacks import Stub, TrueupPlane

WARM_UP_UNITS = 128
UNITS = 256
SECONDS_MAX = 60.0
COMMANDS = 20
HISTORY = 1500
MEMORY_MIB_MAX = 700.0
COMMITS_MAX = 2.0
MAIL = (".inbox", ".outbox")


@pytest.fixture(scope="module")
def plane() -> Iterator[TrueupPlane]:
    """One plane that has done some work."""
    stub = Stub()
    plane = TrueupPlane("flat", "bench.post_verified", stub.url, units_max=2000)
    try:
        stub.start()
        plane.start()
        _run(plane, WARM_UP_UNITS, IN_FLIGHT)
        yield plane
    finally:
        plane.stop()
        stub.stop()


def _run(plane: TrueupPlane, units: int, in_flight: int) -> None:
    result = run_load(Order(plane.request(), units, SECONDS_MAX, in_flight))
    assert (result.ok, result.bad) == (units, 0), result.bad_samples


def test_commands_at_saturation_share_transactions(plane: TrueupPlane) -> None:
    """Accept, dispatch, send, record, verify, show: fewer than two commits a command in all five services together.

    Requirements: B2
    """
    counter = DatabaseCounter(plane.database_url)
    mark = counter.mark()
    _run(plane, UNITS, IN_FLIGHT)
    time.sleep(SETTLE_SECONDS)
    commits = counter.work_since(mark).commits
    assert commits is not None
    assert commits / UNITS < COMMITS_MAX


def test_the_whole_plane_is_small(plane: TrueupPlane) -> None:
    """PostgreSQL, NATS, five services and the supervisor, after some work, by their proportional share of memory.

    Requirements: B5
    """
    sizes = pss_mb(plane.roots())
    if sizes is None:
        pytest.skip("this user may not read proportional memory")
    assert sum(sizes.values()) < MEMORY_MIB_MAX, sizes


def test_history_makes_nothing_read_more(plane: TrueupPlane) -> None:
    """The same commands and the same idle time read as many rows beside a history as without: nothing scans it.

    One look at every closed instance, by a command or by a sweep, would be more than all that is read otherwise. Mail
    is left out: it is kept by time and looked through for what is too old, in portions of a fixed size.

    Requirements: B4
    """
    asyncio.run(_put_off_visits(plane.database_url))
    rows, own = asyncio.run(template(plane))
    assert {row.schema for row in rows} >= {"gateway", "orchestrator", "adapters", "reconciler"}
    before = _reads(plane)
    asyncio.run(seed(plane.database_url, rows, own, 1, HISTORY))
    time.sleep(STATISTICS_DELAY_SECONDS)  # what seeding itself read is handed in late
    after = _reads(plane)
    grown = {
        name: (before[name], count)
        for name, count in after.items()
        if count >= before[name] + HISTORY and not name.endswith(MAIL)
    }
    assert not grown


async def _put_off_visits(url: str) -> None:
    """What was established before is looked at again after a minute: on a slow machine, in the midst of this test."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("UPDATE reconciler.element SET next_visit_at = next_visit_at + interval '1 day'")
    finally:
        await connection.close()


def _reads(plane: TrueupPlane) -> Counter[str]:
    """Rows read by some commands and by the sweeps of an idle window, by table."""
    first = asyncio.run(rows_read(plane.database_url))
    _run(plane, COMMANDS, 1)
    time.sleep(STATISTICS_DELAY_SECONDS)  # the database's sessions hand in their counts
    last = asyncio.run(rows_read(plane.database_url))
    return Counter({name: count - first[name] for name, count in last.items()})
