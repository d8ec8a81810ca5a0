"""`python -m bench.bursts`: much falls due at once, and a probe tells whether anything else waits for it.

A hundred thousand cases whose waits end within one minute, twenty thousand callbacks within one minute, two thousand
requests at the same moment, fifty thousand messages in a stream: one after the other, on one plane, while single
commands keep coming. Cases are copies of one that was really started; the clock of business is moved to their minute.

Requirements: B4, B5
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import uvloop

from bench.counters import bus_mark
from bench.load import Order, run_load
from bench.measure import IN_FLIGHT, SETTLE_SECONDS, WARM_UP_SECONDS, WARM_UP_UNITS
from bench.probing import Probe, Sent, Signals
from bench.processes import cpu_seconds, pss_mb
from bench.seeding import Row, next_transaction, own_rows, rows_since, seed
from bench.stacks import CAPABILITY_SECONDS, ROOT, TENANT, Stub, TrueupPlane
from trueup_common.contracts.envelope import Message, headers_of
from trueup_common.contracts.events import OperatorCommand
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.topology import SERVICES, event_subject
from trueup_common.runtime.bus import connect_admin
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.db import SPARE_SECONDS
from trueup_common.runtime.service import HOUSE_SECONDS, schema_of
from trueup_devkit.evidence import write_page
from trueup_devkit.gateway_client import GatewayClient
from trueup_devkit.plan import read_ports
from trueup_devkit.virtual_clock import plane_timeline

SHIFT = "bench-shift"
TIMERS = 100_000
SIGNALS = 20_000
FLOOD = 2000
BACKLOG = 50_000
BURST_SECONDS = 60.0
QUIET_SECONDS = 20.0
REST_SECONDS = 2 * HOUSE_SECONDS + SPARE_SECONDS
"""After so long at rest, what only the bursts needed is given back."""
DRAIN_SECONDS_MAX = 900.0
LOOK_SECONDS = 1.0
WEIGH_SECONDS = 4.0
LEAD = timedelta(seconds=2)
SPREAD = 60_000
"""Milliseconds over which the ends of waits are spread."""
SHARE_AT_ONCE = 500
UNSETTLED_MAX = 20
MEMORY_MIB_MAX = 700.0
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
UNITS_MAX = 100_000
INTRO = """
One plane, one after the other: cases whose waits all end within one minute of business time, callbacks that all come
within one minute, requests that are all sent at the same moment, and messages that wait in a stream. All the while a
probe sends single commands, 5 per second, and waits for the end of each: what it waits beside a burst, next to what it
waits before and after, is what the burst delays. Cases are copies of one that was really started, in every table of
every service. A burst is over when the last case of it has ended; views trail behind. CPU is that of all processes of
the plane, memory the largest sum of proportional set sizes that was seen in the phase; `left` is the sum at its end.
"""


@dataclass
class Phase:
    """One part of the run."""

    name: str
    seconds: float = 0.0
    drained_seconds: float | None = None
    shown_seconds: float | None = None
    cpu_seconds: float = 0.0
    pss_mb: dict[str, float] = field(default_factory=dict)
    left_mb: float = 0.0
    said: str = ""

    @property
    def whole_mb(self) -> float:
        """Memory of the whole plane."""
        return sum(self.pss_mb.values())


class ShiftPlane(TrueupPlane):
    """A plane on which cases wait, and commands come."""

    def __init__(self, stub_url: str) -> None:
        super().__init__("bursts", "bench.post", stub_url, units_max=UNITS_MAX)
        self.plan.clock = "virtual"
        self.starts = ""
        self.token = ""

    def renew(self) -> GatewayClient:
        """A capability for commands, and a token that may signal."""
        super().authorize()
        client = GatewayClient(self.state.gateway_url)
        self.token = client.token = client.dev_token("operator:shift", TENANT, ["operator"], [], CAPABILITY_SECONDS)
        return client

    def authorize(self) -> None:
        """The same, and a capability for starts."""
        client = self.renew()
        document = {"document": (ROOT / "bench" / "shift.yaml").read_text()}
        client.call("POST", "/v1/definitions", document, headers={"Idempotency-Key": '"bench-shift"'})
        client.token = client.dev_token("agent:bench", TENANT, ["agent"], [], CAPABILITY_SECONDS)
        decision = client.decide_workflow(SHIFT, 1, "measure what a burst delays")
        self.starts = str(client.capability(decision["decision_id"], 10, CAPABILITY_SECONDS)["capability"])

    def begin(self, unit: str) -> str:
        """Start one case; its id."""
        client = GatewayClient(self.state.gateway_url)
        wanted = {"idempotency_key": unit, "definition": SHIFT, "input": {"unit": unit}}
        return str(client.start(wanted, self.starts).body["workflow_id"])


class Scale:
    """Weighs the plane now and then, in a thread of its own; keeps the heaviest."""

    def __init__(self, plane: TrueupPlane) -> None:
        self._plane = plane
        self._stop = threading.Event()
        self.heaviest: dict[str, float] = {}
        self.last_mb = 0.0

    def weigh(self) -> None:
        """Once."""
        sizes = pss_mb(self._plane.roots()) or {}
        self.last_mb = sum(sizes.values())
        if self.last_mb > sum(self.heaviest.values()):
            self.heaviest = sizes

    def _run(self) -> None:
        while not self._stop.wait(WEIGH_SECONDS):
            self.weigh()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While something goes on."""
        thread = threading.Thread(target=self._run, name="scale")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            self.weigh()


class Run:
    """The phases, one after the other."""

    def __init__(self, plane: ShiftPlane, stub: Stub, say: Callable[[str], None]) -> None:
        self.plane = plane
        self.stub = stub
        self.say = say
        self.phases: list[Phase] = []
        self.probe = Probe(plane.request())
        self.problems: list[str] = []
        self.sent: Sent | None = None

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[Phase]:
        """One part: what it took, used and weighed."""
        phase, scale = Phase(name), Scale(self.plane)
        self.probe.phase = name
        used, began = sum(cpu_seconds(self.plane.roots()).values()), time.monotonic()
        with scale.at_work():
            yield phase
        phase.seconds = time.monotonic() - began
        phase.cpu_seconds = sum(cpu_seconds(self.plane.roots()).values()) - used
        phase.pss_mb, phase.left_mb = scale.heaviest, scale.last_mb
        self.phases.append(phase)
        heard = self.probe.phases.get(name)
        p50 = f", probe p50 {heard.at(0.5) or 0:.0f} ms of {len(heard.latencies)}" if heard else ""
        self.say(f"{name}: {phase.seconds:.0f} s, {phase.whole_mb:.0f} MiB, {phase.left_mb:.0f} left{p50} {phase.said}")

    async def quiet(self, name: str, seconds: float = QUIET_SECONDS) -> None:
        """Nothing but the probe."""
        async with self.phase(name):
            await asyncio.sleep(seconds)

    async def drained(self, phase: Phase, left: Callable[[], Any]) -> None:
        """Until nothing is left, then until the views have it as well."""
        began = time.monotonic()
        while await left():
            if time.monotonic() - began > DRAIN_SECONDS_MAX:
                self.problems.append(f"{phase.name}: {await left()} left after {DRAIN_SECONDS_MAX:.0f} s")
                return
            await asyncio.sleep(LOOK_SECONDS)
        phase.drained_seconds = time.monotonic() - began
        port = int(read_ports(self.plane.plan.folder)["nats_monitor"])
        if await settled(port, DRAIN_SECONDS_MAX):
            phase.shown_seconds = time.monotonic() - began
        else:
            self.problems.append(f"{phase.name}: messages left after {DRAIN_SECONDS_MAX:.0f} s")


async def settled(port: int, seconds: float) -> bool:
    """Wait until the broker holds next to nothing that somebody has not settled; the probe's own is always there."""
    end = time.monotonic() + seconds
    while (await asyncio.to_thread(bus_mark, port)).unsettled > UNSETTLED_MAX:
        if time.monotonic() > end:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True


async def template(plane: ShiftPlane, connection: Any) -> tuple[list[Row], list[str], datetime]:
    """Start two cases and tell the first one's rows from the second one's; and when its wait ends."""
    schemas, seen, names = [schema_of(name) for name in SERVICES], [], []
    for number in (1, 2):
        mark = await next_transaction(connection)
        names.append(await asyncio.to_thread(plane.begin, f"template-{number:012x}-{number}"))
        await asyncio.sleep(SETTLE_SECONDS)
        seen.append(await rows_since(connection, schemas, mark))
    rows, own = own_rows(*seen)
    wakes: datetime | None = await connection.fetchval(
        "SELECT wake_at FROM orchestrator.instance WHERE workflow_id = $1", names[0]
    )
    if wakes is None:
        raise RuntimeError("the case to copy does not wait")
    return rows, own, wakes


def moments(rows: list[Row], wakes: datetime) -> dict[str, str]:
    """Every text of the rows that says when the wait ends, and the SQL of another moment within the same minute."""
    found = {
        text
        for row in rows
        for text in MOMENT.findall(row.text)
        if abs(datetime.fromisoformat(text.replace("Z", "+00:00")) - wakes) < timedelta(milliseconds=1)
    }
    moment = f"(timestamptz '{wakes.isoformat()}' + (i % {SPREAD}) * interval '1 ms') AT TIME ZONE 'UTC'"
    written = f"to_char({moment}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US')"
    return {text: f"{written} || '{'Z' if text.endswith('Z') else '+00:00'}'" for text in found}


async def waiting(connection: Any, wakes: datetime) -> int:
    """Cases that still wait for this minute."""
    return int(
        await connection.fetchval(
            "SELECT count(*) FROM orchestrator.instance WHERE wake_at IS NOT NULL AND wake_at < $1",
            wakes + timedelta(hours=1),
        )
    )


async def timers(run: Run, connection: Any, wakes: datetime, number: int) -> None:
    """All waits end within one minute."""
    state = run.plane.state
    instances = [process.name for process in state.processes if process.name in SERVICES]
    async with run.phase("timers") as phase:
        async with plane_timeline(state.database_url, state.nats_url, instances) as timeline:
            await timeline.announce(await timeline.move_to(wakes - LEAD))
        await run.drained(phase, lambda: waiting(connection, wakes))
        phase.said = f"{number:,} waits that end within one minute"
    await asyncio.to_thread(run.plane.renew)  # what was given before was given by an older clock
    run.probe.request = run.plane.request()


async def signals(run: Run, connection: Any, wakes: datetime, number: int) -> None:
    """One callback for each of so many cases, within one minute."""
    ids = [
        row["workflow_id"]
        for row in await connection.fetch(
            "SELECT workflow_id FROM orchestrator.instance WHERE wake_at > $1 ORDER BY md5(workflow_id) LIMIT $2",
            wakes + timedelta(days=1),
            number,
        )
    ]
    if len(ids) != number:
        raise RuntimeError(f"{len(ids)} cases wait for a callback instead of {number}")
    request = run.plane.request()
    headers = {"authorization": f"Bearer {run.plane.token}"}
    order = Signals(request.host, request.port, headers, ids, number / BURST_SECONDS)
    async with run.phase("callbacks") as phase:
        began = time.monotonic()
        run.sent = await asyncio.to_thread(_send, order)
        phase.said = f"{number:,} callbacks, sent within {time.monotonic() - began:.0f} s"
        await run.drained(phase, lambda: waiting(connection, wakes + timedelta(days=60)))
        phase.drained_seconds = (phase.drained_seconds or 0.0) + time.monotonic() - began - (phase.shown_seconds or 0.0)
    answered = sum(run.sent.dispositions.values())
    if answered != number:
        run.problems.append(f"callbacks: {number - answered} were not taken: {run.sent.bad}")


def _send(order: Signals) -> Sent:
    ran = subprocess.run(
        [sys.executable, "-m", "bench.probing"],
        input=json.dumps(asdict(order)),
        capture_output=True,
        text=True,
        check=False,
        timeout=DRAIN_SECONDS_MAX,
    )
    if ran.returncode != 0:
        raise RuntimeError(f"the sender of callbacks failed:\n{ran.stderr[-2000:]}")
    return Sent(**json.loads(ran.stdout))


async def flood(run: Run, requests: int) -> None:
    """So many requests at the same moment, three times over."""
    async with run.phase("requests") as phase:
        units = 3 * requests
        result = await asyncio.to_thread(
            run_load, Order(run.plane.request(), units, DRAIN_SECONDS_MAX, in_flight=requests)
        )
        refused = f", {result.bad} refused: {result.bad_samples[:1]}" if result.bad else ""
        phase.said = f"{units:,} commands, {requests:,} at a time: {result.ok:,} done{refused}"
        phase.drained_seconds = result.seconds


async def backlog(run: Run, number: int) -> None:
    """Messages that wait in a stream, for all three services that hear of operators: nobody performs them."""
    state, now = run.plane.state, real_now()
    bus = await connect_admin(state.nats_url)
    js = bus.jetstream(publish_async_max_pending=SHARE_AT_ONCE)
    port = int(read_ports(run.plane.plan.folder)["nats_monitor"])
    async with run.phase("messages") as phase:
        began = time.monotonic()
        for _ in range(0, number, SHARE_AT_ONCE):
            for message in (_nobodys(now) for _ in range(SHARE_AT_ONCE)):
                await js.publish_async(message.subject, message.data, headers=headers_of(message))
            await js.publish_async_completed()
        phase.said = f"{number:,} messages, published within {time.monotonic() - began:.0f} s"
        await settled(port, DRAIN_SECONDS_MAX)
        phase.drained_seconds = time.monotonic() - began
    await bus.close()


def _nobodys(now: datetime) -> Message:
    name = new_id("opc", now)
    body = OperatorCommand(
        operator_command_id=name,
        tenant=TENANT,
        action="ASSIGN",
        performer="nobody",
        target_kind="exception",
        target_id="exc_0",
        actor="operator:shift",
        reason="to be looked at and left alone " * 20,
        decision_id="dec_0",
        at=now.astimezone(UTC),
    )
    return Message(
        id=name,
        type="OperatorCommand",
        subject=event_subject("gateway", "operator", TENANT),
        tenant=TENANT,
        source="gateway",
        time=now,
        data=body.model_dump_json().encode(),
    )


async def bursts(plane: ShiftPlane, stub: Stub, options: argparse.Namespace, say: Callable[[str], None]) -> Run:
    """All phases."""
    run = Run(plane, stub, say)
    connection = await asyncpg.connect(plane.database_url, command_timeout=300)
    try:
        rows, own, wakes = await template(plane, connection)
        began, last = time.monotonic(), options.timers + options.callbacks
        made = await seed(plane.database_url, rows, own, 1, options.timers, moments(rows, wakes))
        made += await seed(plane.database_url, rows, own, options.timers + 1, last)
        say(f"{last:,} waiting cases: {made:,} rows in {time.monotonic() - began:.0f} s")
        await asyncio.to_thread(run_load, Order(plane.request(), WARM_UP_UNITS, WARM_UP_SECONDS, IN_FLIGHT))
        stop = asyncio.Event()
        probing = asyncio.create_task(run.probe.run(stop))
        await run.quiet("before")
        await timers(run, connection, wakes, options.timers)
        await run.quiet("after the timers")
        if options.callbacks:
            await signals(run, connection, wakes, options.callbacks)
            await run.quiet("after the callbacks")
        if options.flood:
            await flood(run, options.flood)
        if options.backlog:
            await backlog(run, options.backlog)
        await run.quiet("at the end", REST_SECONDS)
        stop.set()
        await probing
        exceptions = await connection.fetchval("SELECT count(*) FROM repair_planner.exception")
        if exceptions:
            run.problems.append(f"{exceptions} exceptions were opened")
    finally:
        await connection.close()
    return run


def table(run: Run) -> list[str]:
    """As Markdown."""
    lines = [
        "| phase | s | probes | p50 ms | p99 ms | failed | drained after s | shown after s | CPU s | MiB | left |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for phase in run.phases:
        heard = run.probe.phases.get(phase.name)
        told = [f"{heard.at(share) or 0:.1f}" for share in (0.5, 0.99)] if heard else ["-", "-"]
        ends = [f"{value:.0f}" if value is not None else "-" for value in (phase.drained_seconds, phase.shown_seconds)]
        lines.append(
            f"| {phase.name} | {phase.seconds:.0f} | {len(heard.latencies) if heard else 0} | {told[0]} | {told[1]} "
            f"| {len(heard.bad) if heard else 0} | {ends[0]} | {ends[1]} | {phase.cpu_seconds:.1f} "
            f"| {phase.whole_mb:.0f} | {phase.left_mb:.0f} |"
        )
    lines += ["", *(f"- {phase.name}: {phase.said}" for phase in run.phases if phase.said)]
    if run.sent:
        said = ", ".join(f"{count:,} {name}" for name, count in run.sent.dispositions.items())
        took = f"p50 {run.sent.p50_ms:.0f} ms, p99 {run.sent.p99_ms:.0f} ms; {run.sent.refused:,} times 429"
        lines.append(f"- callbacks were answered {said}; {took}")
    roles = list(run.phases[0].pss_mb)
    lines += ["", f"| MiB, largest | {' | '.join(roles)} |", "|---|" + "---:|" * len(roles)]
    lines += [
        f"| {phase.name} | {' | '.join(f'{phase.pss_mb.get(role, 0):.0f}' for role in roles)} |" for phase in run.phases
    ]
    return [*lines, "", *(f"PROBLEM {problem}" for problem in run.problems)]


def main() -> int:
    """Run it; 1 where something was lost, refused without need, or memory went past its bound."""
    parser = argparse.ArgumentParser(prog="python -m bench.bursts", description=__doc__)
    parser.add_argument("--timers", type=int, default=TIMERS, help=f"waits that end in one minute (default {TIMERS})")
    parser.add_argument("--callbacks", type=int, default=SIGNALS, help=f"callbacks in one minute (default {SIGNALS})")
    parser.add_argument("--flood", type=int, default=FLOOD, help=f"requests at the same moment (default {FLOOD})")
    parser.add_argument("--backlog", type=int, default=BACKLOG, help=f"messages in a stream (default {BACKLOG})")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the tables to a Markdown page as well")
    options = parser.parse_args()
    stub = Stub()
    plane = ShiftPlane(stub.url)
    try:
        stub.start()
        plane.start()
        run = uvloop.run(bursts(plane, stub, options, lambda text: print(text, file=sys.stderr, flush=True)))
        faults = plane.faults(stub.totals(), 0)
        if faults is not None and faults.duplicated:
            run.problems.append(f"{faults.duplicated} effects were doubled")
        failed = sum(len(heard.bad) for heard in run.probe.phases.values())
        if failed:
            run.problems.append(f"{failed} probes failed: {next(h.bad[0] for h in run.probe.phases.values() if h.bad)}")
    finally:
        plane.stop()
        stub.stop()
    lines = table(run)
    print("\n".join(lines))
    if options.write:
        write_page(options.write, "Bursts", f"python -m bench.bursts --write {options.write}", INTRO, lines)
    figures = {
        phase.name: {
            "p50_ms": heard.at(0.5),
            "p99_ms": heard.at(0.99),
            "drained_s": phase.drained_seconds,
            "mib": round(phase.whole_mb, 1),
            "left_mib": round(phase.left_mb, 1),
        }
        for phase in run.phases
        if (heard := run.probe.phases.get(phase.name))
    }
    heaviest = max(phase.whole_mb for phase in run.phases)
    print(json.dumps({**figures, "heaviest_mib": round(heaviest, 1)}))
    return 1 if run.problems or heaviest > MEMORY_MIB_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
