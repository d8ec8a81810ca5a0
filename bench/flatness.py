"""What a command costs beside a short history and beside long ones, what the sweeps read of each, and what lists take.

Planes run side by side and are measured in turn, twice, so that a change of the machine meets all of them. Rows read
are counted by PostgreSQL itself: they do not depend on how fast the machine is at that moment.

Requirements: B4
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import asyncpg

from bench.counters import STATISTICS_DELAY_SECONDS
from bench.load import Order, run_load
from bench.measure import IN_FLIGHT, SETTLE_SECONDS, WARM_UP_SECONDS, WARM_UP_UNITS
from bench.processes import cpu_seconds
from bench.seeding import Row, next_transaction, own_rows, rows_since, seed
from bench.stacks import CAPABILITY_SECONDS, TENANT, Stub, TrueupPlane
from trueup_common.contracts.topology import SERVICES
from trueup_common.runtime.service import schema_of
from trueup_devkit.gateway_client import GatewayClient

SHORT = 1000
UNITS = 1500
QUIET_UNITS = 60
ROUNDS = 2
SECONDS_MAX = 30.0
GROWTH_MAX = 1.10
TEMPLATES = ("bench.post", "bench.post_verified")
TABLES_TOLD = 4
ASKED = 15
"""How often each list is asked for; the median counts."""
SLOWER_MS = 10.0
"""A list has grown where it takes longer by this much and twice as long."""
LISTS = {
    "cases": ("operator:anna", "/v1/workflows"),
    "cases that are open": ("operator:anna", "/v1/workflows?open=true"),
    "cases past their deadline": ("operator:anna", "/v1/workflows?overdue=true"),
    "cases undone": ("operator:anna", "/v1/workflows?status=COMPENSATED"),
    "cases closed": ("operator:anna", "/v1/workflows?status=CLOSED"),
    "cases of a workflow that nobody ran": ("operator:anna", "/v1/workflows?definition=never"),
    "cases about one object": ("operator:anna", "/v1/workflows?object=none/none"),
    "cases of an agent": ("agent:bench", "/v1/workflows"),
    "cases of an agent without any": ("agent:idle", "/v1/workflows"),
    "commands": ("operator:anna", "/v1/commands"),
    "commands of an agent without any": ("agent:idle", "/v1/commands"),
    "exceptions": ("operator:anna", "/v1/exceptions?status=open"),
    "exceptions, counted": ("operator:anna", "/v1/exceptions/summary"),
    "dead letters": ("operator:anna", "/v1/dead-letters"),
    "repairs": ("operator:anna", "/v1/repairs"),
    "drift": ("operator:anna", "/v1/drift"),
    "approvals": ("operator:anna", "/v1/approvals"),
    "acts": ("operator:anna", "/v1/operator-commands"),
    "incidents": ("operator:anna", "/v1/incidents"),
    "key figures": ("operator:anna", "/v1/kpis"),
    "service levels": ("operator:anna", "/v1/slo"),
}
"""Who asks for what."""
ROLES = {"operator:anna": ["operator", "viewer", "auditor"], "agent:bench": ["agent"], "agent:idle": ["agent"]}
_READ = """
SELECT schemaname || '.' || relname AS name, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) AS rows
FROM pg_stat_user_tables
"""


@dataclass
class Side:
    """One plane and what was seen of it."""

    closed: int
    plane: TrueupPlane
    cpu: list[float] = field(default_factory=list)
    units_per_s: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    rows_per_command: list[Counter[str]] = field(default_factory=list)
    idle_rows_per_s: Counter[str] = field(default_factory=Counter)
    idle_cores: float = 0.0
    lists: dict[str, float] = field(default_factory=dict)
    """Milliseconds of each list."""
    problems: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """The means of both rounds."""
        return {
            "cpu_s_per_1000": round(fmean(self.cpu), 3),
            "units_per_s": round(fmean(self.units_per_s), 1),
            "p50_ms": round(fmean(self.p50), 2),
            "rows_read_per_command": round(fmean(rows.total() for rows in self.rows_per_command), 2),
            "rows_read_per_s_idle": round(self.idle_rows_per_s.total(), 2),
            "cores_idle": round(self.idle_cores, 4),
        }


def flatness(stub: Stub, histories: Sequence[int]) -> tuple[list[str], dict[str, dict[str, float]], bool]:
    """Measure; the table, the figures, and whether something failed."""
    sides = [_side(stub, closed) for closed in (SHORT, *histories)]
    try:
        for side in sides:
            _prepare(side)
        for round_number in range(1, ROUNDS + 1):
            for side in sides:
                _tell(f"round {round_number} beside {side.closed:,} closed instances")
                _measure(side, with_idle=round_number == 1)
        for side in sides:
            side.lists = _lists(side.plane)
    finally:
        for side in sides:
            side.plane.stop()
    return compared(sides)


def compared(sides: Sequence[Side]) -> tuple[list[str], dict[str, dict[str, float]], bool]:
    """The table of all sides; each long one is held against the short one."""
    short, longs = sides[0], sides[1:]
    shorts = short.figures()
    columns = "".join(f"{side.closed:>14,}" for side in sides) + f"{'ratio':>10}" * len(longs)
    lines = [f"{'closed instances':<38}{columns}"]
    for name in shorts:
        lines.append(_line(name, [side.figures()[name] for side in sides]))
    lines.append("")
    for long in longs:
        figures = long.figures()
        grew = figures["cpu_s_per_1000"] / shorts["cpu_s_per_1000"]
        slowed = shorts["units_per_s"] / figures["units_per_s"]
        flat = "flat" if grew <= GROWTH_MAX and slowed <= GROWTH_MAX else "NOT FLAT"
        lines.append(f"{long.closed:,}: CPU per command x{grew:.3f}, throughput x{1 / slowed:.3f}: {flat}")
    if short.lists:
        lines += ["", "ms of a list, asked for over HTTP"]
        lines += [_line(name, [side.lists[name] for side in sides]) for name in short.lists]
        grown = [name for name in short.lists if _is_slower(short.lists[name], max(one.lists[name] for one in longs))]
        lines += ["", f"lists that grow with history: {', '.join(grown) or 'none'}"]
    lines += ["", "rows read per command, by table", *_by_table([side.rows_per_command[-1] for side in sides])]
    lines += ["", "rows read per second when idle, by table", *_by_table([side.idle_rows_per_s for side in sides])]
    problems = [problem for side in sides for problem in side.problems]
    lines += [f"PROBLEM {problem}" for problem in problems]
    return lines, {str(side.closed): side.figures() for side in sides}, bool(problems)


def _line(name: str, values: Sequence[float]) -> str:
    ratios = [f"{value / values[0]:.3f}" if values[0] else "-" for value in values[1:]]
    return f"{name:<38}" + "".join(f"{value:>14g}" for value in values) + "".join(f"{ratio:>10}" for ratio in ratios)


def _is_slower(short: float, long: float) -> bool:
    return long > 2 * short and long > short + SLOWER_MS


def _lists(plane: TrueupPlane) -> dict[str, float]:
    """What each list takes, in milliseconds; the first question of each is not counted."""
    client, found = GatewayClient(plane.state.gateway_url), {}
    tokens = {who: client.dev_token(who, TENANT, roles, [], CAPABILITY_SECONDS) for who, roles in ROLES.items()}
    for name, (who, path) in LISTS.items():
        client.token, took = tokens[who], []
        for _ in range(ASKED + 1):
            began = time.perf_counter()
            client.get(path)
            took.append(time.perf_counter() - began)
        found[name] = round(1000 * median(took[1:]), 2)
    return found


def _by_table(read: Sequence[Counter[str]]) -> list[str]:
    """The tables of which most was read on either side."""
    most = Counter({name: max(rows[name] for rows in read) for rows in read for name in rows})
    return [
        f"  {name:<32}" + "".join(f"{rows[name]:>14.2f}" for rows in read) for name, _ in most.most_common(TABLES_TOLD)
    ]


def _tell(text: str) -> None:
    print(f"{text} …", file=sys.stderr, flush=True)


def _side(stub: Stub, closed: int) -> Side:
    uses = 4 * (UNITS + QUIET_UNITS + WARM_UP_UNITS)
    return Side(closed, TrueupPlane(f"plane {closed}", TEMPLATES[0], stub.url, units_max=uses))


def _prepare(side: Side) -> None:
    """Start a plane and give it its history: half of it of either kind of command."""
    side.plane.start()
    for number, command_type in enumerate(TEMPLATES):
        side.plane.use(command_type)
        rows, own = asyncio.run(template(side.plane))
        share = side.closed // len(TEMPLATES)
        started = time.monotonic()
        made = asyncio.run(seed(side.plane.database_url, rows, own, number * share + 1, (number + 1) * share))
        _tell(f"{share:,} closed {command_type}: {made:,} rows in {time.monotonic() - started:.0f} s")
    side.plane.use(TEMPLATES[0])
    run_load(Order(side.plane.request(), WARM_UP_UNITS, WARM_UP_SECONDS, IN_FLIGHT))


async def template(plane: TrueupPlane) -> tuple[list[Row], list[str]]:
    """Run two commands and tell the first one's rows from the second one's."""
    connection = await asyncpg.connect(plane.database_url)
    schemas = [schema_of(name) for name in SERVICES]
    try:
        seen = []
        for _ in range(2):
            mark = await next_transaction(connection)
            result = await asyncio.to_thread(run_load, Order(plane.request(), 1, SECONDS_MAX, in_flight=1))
            if not result.ok:
                raise RuntimeError(f"a command to copy did not succeed: {result.bad_samples}")
            await asyncio.sleep(SETTLE_SECONDS)  # views and marks trail behind
            seen.append(await rows_since(connection, schemas, mark))
    finally:
        await connection.close()
    return own_rows(seen[0], seen[1])


def _measure(side: Side, *, with_idle: bool) -> None:
    plane = side.plane
    read, used = asyncio.run(rows_read(plane.database_url)), sum(cpu_seconds(plane.roots()).values())
    result = run_load(Order(plane.request(), UNITS, SECONDS_MAX, IN_FLIGHT))
    time.sleep(SETTLE_SECONDS)
    busy = sum(cpu_seconds(plane.roots()).values()) - used
    if result.bad or not result.ok:
        side.problems.append(f"{plane.name}: {result.bad} units did not succeed: {result.bad_samples}")
    if not result.ok:
        return
    side.cpu.append(1000 * busy / result.ok)
    side.units_per_s.append(result.ok / result.seconds)
    time.sleep(STATISTICS_DELAY_SECONDS)
    read_after, used = asyncio.run(rows_read(plane.database_url)), sum(cpu_seconds(plane.roots()).values())
    if with_idle:
        time.sleep(STATISTICS_DELAY_SECONDS)
        side.idle_cores = (sum(cpu_seconds(plane.roots()).values()) - used) / STATISTICS_DELAY_SECONDS
        idle = asyncio.run(rows_read(plane.database_url))
        side.idle_rows_per_s = Counter(
            {name: (rows - read_after[name]) / STATISTICS_DELAY_SECONDS for name, rows in idle.items()}
        )
    waited = STATISTICS_DELAY_SECONDS + SETTLE_SECONDS + result.seconds
    side.rows_per_command.append(
        Counter(
            {
                name: max(0.0, rows - read[name] - waited * side.idle_rows_per_s[name]) / result.ok
                for name, rows in read_after.items()
            }
        )
    )
    rate = plane.quiet_rate_per_second
    quiet = run_load(Order(plane.request(), QUIET_UNITS, 2 * QUIET_UNITS / rate, rate_per_second=rate))
    if quiet.p50_ms is not None:
        side.p50.append(quiet.p50_ms)


async def rows_read(url: str) -> Counter[str]:
    """Rows that were read so far, by table, as far as the sessions have handed in their counts."""
    connection = await asyncpg.connect(url)
    try:
        return Counter({record["name"]: record["rows"] for record in await connection.fetch(_READ)})
    finally:
        await connection.close()
