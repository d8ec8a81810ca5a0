"""What one command costs in commits, messages and signatures, counted by the servers and by the interpreter itself.

Commands go one after the other, so that nothing is shared by a batch. An idle window of the same length is counted as
well and subtracted: timers would otherwise be charged to the commands.
"""

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

import asyncpg

from bench.counters import BusMark, DatabaseCounter, DatabaseMark, bus_mark, difference
from bench.load import Order, run_load
from bench.profile import Profile, take_snapshot
from bench.stacks import Stub, TrueupPlane
from trueup_common.contracts.topology import SERVICES, STREAMS
from trueup_common.runtime.bus import connect_admin
from trueup_common.runtime.service import schema_of
from trueup_devkit.plan import read_ports

WARM_UP_COMMANDS = 5
COMMANDS_SECONDS_MAX = 60.0
SETTLE_SECONDS_MAX = 20.0
STEADY_READINGS = 3
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Signatures:
    """Ed25519 operations in all services together."""

    signed: int
    verified: int


@dataclass(frozen=True)
class Budget:
    """What a number of commands cost together, idle cost subtracted."""

    commands: int
    seconds: float
    commits: int
    marks: int
    """Those of the commits that only take sent messages off a list: at most one per service and relay tick."""
    posted: int
    """Messages that transactions put into an outbox: the ones that must not get lost."""
    stored: dict[str, int]
    """Messages that streams stored."""
    delivered: dict[str, int]
    """Deliveries by stream and consumer."""
    published: dict[str, int]
    """Messages seen on the wire, by kind of subject; those of no stream are core NATS."""
    signatures: Signatures
    effects: int

    @property
    def progress(self) -> int:
        """Publishes that tell how a slow command gets on; none where commands end within the delay of progress."""
        return sum(self.stored.values()) - self.posted

    @property
    def publishes(self) -> int:
        """Publishes to streams, repeated ones included."""
        return sum(count for kind, count in self.published.items() if _is_durable(kind))

    @property
    def answers(self) -> int:
        """Terminal rows sent straight to the waiting gateway."""
        return self.published.get("trueup.answer", 0)

    @property
    def deliveries(self) -> int:
        """Deliveries to consumers, and the answer's."""
        return sum(self.delivered.values()) + self.answers

    def per_command(self, count: int) -> float:
        """A total as a figure per command."""
        return count / self.commands

    def __str__(self) -> str:
        figures = {
            "commits": self.commits,
            "marks among them": self.marks,
            "publishes": self.publishes,
            "progress among them": self.progress,
            "deliveries": self.deliveries,
            "signed": self.signatures.signed,
            "verified": self.signatures.verified,
        }
        said = ", ".join(f"{name} {self.per_command(count):.2f}" for name, count in figures.items())
        return f"per command: {said}; published {self.published}; delivered {self.delivered}"


def kind_of(subject: str) -> str:
    """A subject without what varies between commands of one type: tenant, instance and system."""
    parts = subject.split(".")
    if parts[:2] == ["trueup", "evt"]:
        return ".".join(parts[:-1])
    if parts[:2] == ["trueup", "task"]:
        return f"trueup.task.{parts[3]}"
    return ".".join(parts[:2])


def _is_durable(kind: str) -> bool:
    """Whether some stream stores subjects of this kind."""
    stems = [re.sub(r"(\.\*|\.>)+$", "", subject) for stream in STREAMS for subject in stream.subjects]
    return any(kind == stem or kind.startswith(f"{stem}.") for stem in stems)


@dataclass(frozen=True)
class _Mark:
    """Every counter at one moment."""

    at: float
    database: DatabaseMark
    bus: BusMark
    published: Counter[str]
    posted: int


class CountedPlane:
    """A plane whose services count their calls, a stub, and a listener on the bus that sees every message."""

    def __init__(self, command_type: str = "bench.post", *, commands_max: int = 200) -> None:
        self.stub = Stub()
        self.plane = TrueupPlane("budget", command_type, self.stub.url, units_max=commands_max, profile="calls")
        self._published: Counter[str] = Counter()
        self._listener: Any = None
        self._monitor_port = 0
        self._database: DatabaseCounter | None = None

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self.stub.start)
            await asyncio.to_thread(self.plane.start)
            self._monitor_port = int(read_ports(self.plane.plan.folder)["nats_monitor"])
            self._database = DatabaseCounter(self.plane.database_url)
            self._listener = await connect_admin(self.plane.state.nats_url)
            await self._listener.subscribe("trueup.>", cb=self._heard)
            await self._listener.flush()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            await self._listener.close()
        await asyncio.to_thread(self.plane.stop)
        await asyncio.to_thread(self.stub.stop)

    async def _heard(self, message: Any) -> None:
        self._published[kind_of(message.subject)] += 1

    async def signatures_of_authorizing(self) -> Signatures:
        """What a decision and a capability cost: known to sign, so it proves that signatures are seen at all."""
        before = await asyncio.to_thread(self._snapshots)
        await asyncio.to_thread(self.plane.authorize)
        return _signatures(before, await asyncio.to_thread(self._snapshots))

    async def count(self, commands: int) -> Budget:
        """Run commands one after the other and count; then count an idle window of the same length."""
        assert self._database is not None
        await self._run(WARM_UP_COMMANDS)
        snapshots = await asyncio.to_thread(self._snapshots)
        effects = self.stub.totals()["effects"]
        first = await self._mark()
        await self._run(commands)
        second = await self._mark()
        signatures = _signatures(snapshots, await asyncio.to_thread(self._snapshots))
        effects = self.stub.totals()["effects"] - effects
        idle_first = await self._mark()
        await asyncio.sleep(second.at - first.at)
        idle_last = await self._mark()
        return Budget(
            commands=commands,
            seconds=second.at - first.at,
            marks=await asyncio.to_thread(self._database.removals_between, first.database, second.database),
            posted=second.posted - first.posted,
            commits=await self._commits(first, second) - await self._commits(idle_first, idle_last),
            stored=_less(
                difference(first.bus.stored, second.bus.stored), difference(idle_first.bus.stored, idle_last.bus.stored)
            ),
            delivered=_less(
                difference(first.bus.delivered, second.bus.delivered),
                difference(idle_first.bus.delivered, idle_last.bus.delivered),
            ),
            published=_less(second.published - first.published, idle_last.published - idle_first.published),
            signatures=signatures,
            effects=effects,
        )

    async def _run(self, commands: int) -> None:
        order = Order(self.plane.request(), commands, COMMANDS_SECONDS_MAX, in_flight=1)
        result = await asyncio.to_thread(run_load, order)
        if result.ok != commands:
            raise RuntimeError(f"{result.bad} of {commands} commands did not succeed: {result.bad_samples}")
        await self._settle()

    async def _settle(self) -> None:
        """Wait until every message was taken and every outbox row is marked: trailing work belongs to the commands."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        steady = 0
        while steady < STEADY_READINGS:
            busy = (await asyncio.to_thread(bus_mark, self._monitor_port)).unsettled + await self._unsent()
            steady = 0 if busy else steady + 1
            if time.monotonic() > deadline:
                raise RuntimeError(f"{busy} messages are still on their way after {SETTLE_SECONDS_MAX:g} s")
            await asyncio.sleep(POLL_SECONDS)

    async def _unsent(self) -> int:
        return await self._count_rows("outbox_unsent")

    async def _count_rows(self, table: str) -> int:
        """Rows of one mail table over all services."""
        parts = [f"SELECT count(*) AS rows FROM {schema_of(name)}.{table}" for name in SERVICES]
        connection = await asyncpg.connect(self.plane.database_url)
        try:
            return int(await connection.fetchval(f"SELECT sum(rows) FROM ({' UNION ALL '.join(parts)}) AS counted"))
        finally:
            await connection.close()

    async def _mark(self) -> _Mark:
        assert self._database is not None
        await self._listener.flush()
        posted = await self._count_rows("outbox")
        database = await asyncio.to_thread(self._database.mark)
        bus = await asyncio.to_thread(bus_mark, self._monitor_port)
        return _Mark(time.monotonic(), database, bus, Counter(self._published), posted)

    async def _commits(self, first: _Mark, last: _Mark) -> int:
        assert self._database is not None
        work = await asyncio.to_thread(self._database.between, first.database, last.database)
        if work.commits is None:
            raise RuntimeError("the write-ahead log of the window is gone")
        return work.commits

    def _snapshots(self) -> dict[str, Any]:
        profiled = self.plane.profiled
        return {name: take_snapshot(self.plane.process(name), prefix) for name, prefix in profiled.items()}


def _signatures(first: dict[str, Any], last: dict[str, Any]) -> Signatures:
    profiles = [Profile(first[name], last[name], 1) for name in last]
    return Signatures(
        signed=sum(profile.calls_of("'sign'", "Ed25519PrivateKey") for profile in profiles),
        verified=sum(profile.calls_of("'verify'", "Ed25519PublicKey") for profile in profiles),
    )


def _less(counted: dict[str, int], idle: dict[str, int]) -> dict[str, int]:
    """What was counted beyond the idle window, without zeros."""
    return {name: count - idle.get(name, 0) for name, count in counted.items() if count != idle.get(name, 0)}
