"""What it costs to look again at healthy objects: the arithmetic of the schedule, and a hundred thousand measured.

The reconciler's own rows, ticks and handler on a PostgreSQL of its own, without a broker: each probe is answered with
the desired value at once, so that what is measured is the reconciler and its database, and nothing of the target.

Requirements: R8, R6, B4
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from bench.processes import cpu_seconds
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import Phase, ProbeVerdict
from trueup_common.contracts.task import Observed, ProbeElement, ProbeTask
from trueup_common.runtime.clock import real_now
from trueup_common.runtime.db import Database, SqlStore
from trueup_common.runtime.ports import Moment
from trueup_devkit.evidence import write_page
from trueup_devkit.postgres import PostgresCluster
from trueup_reconciler.core.element import ElementRow, Stage, object_key
from trueup_reconciler.core.visit import STEADY_SECONDS, Pace
from trueup_reconciler.handler import EventsHandler, Ticks
from trueup_reconciler.store import ANY_VISIT, Changed, Changes, SqlReconcilerTransaction, sql_store
from trueup_reconciler.tables import METADATA

OBJECTS = 100_000
WANTED = 1_000_000
DAY_SECONDS = 86400.0
BATCH = 200
UNBOUNDED = Pace(visits_per_second=1e9, burst=10**9)
GROUND = (
    "CREATE SCHEMA trueup",
    "CREATE FUNCTION trueup.now() RETURNS timestamptz STABLE LANGUAGE sql AS 'SELECT now()'",
    "CREATE SCHEMA reconciler",
)
INTRO = """
A healthy object is looked at again after 1 minute, 5 minutes, half an hour, 2 hours, 12 hours, and then once a day; all
elements of one object are one visit. So a million objects that have been healthy for long are a million visits a day.
What one visit costs is measured here: taking up what is due, one probe, one answer, the comparison, the row, and the
event that the views are fed with. The adapter's read and the gateway's view come on top, each once per visit. How long
a round over all objects takes at the rate that one tenant and system may have is arithmetic.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One round over all objects."""

    objects: int
    seconds: float
    cpu_reconciler: float
    cpu_postgres: float
    first_tenth: float
    last_tenth: float
    idle_ms: float
    events: int
    healthy: int


async def _schema(url: str) -> None:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
    async with engine.begin() as connection:
        for statement in GROUND:
            await connection.execute(text(statement))
        await connection.run_sync(METADATA.create_all)
    await engine.dispose()


def _template(now: datetime) -> ElementRow:
    return ElementRow(
        object_key="template",
        element="wordpress.status",
        tenant="acme",
        system="wordpress",
        resource="template",
        command_id="cmd_0",
        workflow_id="wf_0",
        command_type="wordpress.publish_post",
        declaration_sha256="d" * 64,
        origin={"step_id": "publish", "decision_id": "dec_1", "capability_id": "cap_1", "payload_sha256": "p" * 64},
        revision=1,
        sequence=1,
        desired="publish",
        recorded="publish",
        normaliser="exact",
        window_seconds=0.0,
        probe=ProbeElement(element="wordpress.status", kind="wordpress.post", params={"post_id": 1}).model_dump(),
        established_at=now - timedelta(days=30),
        window_until=now - timedelta(days=30),
        stage=Stage.HEALTHY,
        phase=Phase.HEALTHY,
        owed=False,
        verdict=ProbeVerdict.CONFIRMED.value,
        observed="publish",
        observed_at=now - timedelta(days=1),
        source="wordpress.rest",
        healthy_at=now - timedelta(days=1),
        same_count=20,
        repair={"command_type": "wordpress.publish_post", "resource": "post", "payload": {"post_id": 1}, "mends": []},
    )


async def _seed(url: str, store: SqlStore[SqlReconcilerTransaction], objects: int) -> None:
    """One row through the store, and all others copied from it: due within a day, as a schedule leaves them."""
    async with store.transaction() as tx:
        moment, _ = await tx.claim("bench", [])
        await tx.save(Changes(elements=Changed(new=(_template(moment.business),))))
    own = {"object_key": f"'{object_key('acme', 'wordpress', 'post/')}' || n", "resource": "'post/' || n"}
    own |= {"command_id": "'cmd_' || n", "next_visit_at": "now() - (random() * interval '1 day')"}
    names = [column.name for column in METADATA.tables["reconciler.element"].columns]
    values = ", ".join(own.get(name, f"t.{name}") for name in names)
    admin = await asyncpg.connect(url)
    try:
        await admin.execute(
            f"INSERT INTO reconciler.element ({', '.join(names)}) SELECT {values}"
            f" FROM reconciler.element t, generate_series(1, {objects}) n WHERE t.object_key = 'template'"
        )
        await admin.execute("DELETE FROM reconciler.element WHERE object_key = 'template'")
        await admin.execute("VACUUM ANALYZE reconciler.element")
    finally:
        await admin.close()


def _answer(sent: Outgoing) -> Message:
    task = ProbeTask.model_validate_json(sent.message.data)
    now = real_now()
    seen = tuple(
        Observation(
            element=item.element,
            verdict=ProbeVerdict.CONFIRMED,
            value="publish",
            observed_at=now,
            source="wordpress.rest",
            version="2026-01-01T00:00:00",
            proof_of_access=True,
        )
        for item in task.elements
    )
    body = Observed(
        visit_id=task.visit_id,
        tenant=task.tenant,
        system=task.system,
        resource=task.resource,
        command_id=task.command_id,
        observations=seen,
        observed_at=now,
    )
    return Message(
        id=f"{task.visit_id}:observed",
        type="Observed",
        subject="bench",
        tenant=task.tenant,
        source="bench",
        time=now,
        data=body.model_dump_json().encode(),
    )


class Rounds:
    """Ticks and answers, in turn, until nothing is due any more."""

    def __init__(self, store: SqlStore[SqlReconcilerTransaction]) -> None:
        self.store = store
        self.ticks = Ticks(UNBOUNDED)
        self.handler = EventsHandler(pace=UNBOUNDED)
        self.events = 0

    async def once(self) -> int:
        """One batch of visits, answered; how many there were."""
        async with self.store.transaction() as tx:
            moment, _ = await tx.claim("bench-visits", [])
            probes = list(await self.ticks.visits(tx, Moment(moment.business, moment.real)))
            await tx.post(probes)
        answers = [_answer(item) for item in probes]
        for start in range(0, len(answers), BATCH):
            async with self.store.transaction() as tx:
                moment, _ = await tx.claim("bench-events", [])
                told = list(await self.handler.handle(tx, moment, answers[start : start + BATCH]))
                await tx.post(told)
                self.events += len(told)
        return len(probes)


async def measure(url: str, postgres_pid: int, objects: int) -> Measured:
    """Look at every object once."""
    await _schema(url)
    database = await Database.connect(url, schema="reconciler", size=4)
    store = sql_store(database)
    await _seed(url, store, objects)
    rounds = Rounds(store)
    begun, cpu, base = time.perf_counter(), time.process_time(), _server_seconds(postgres_pid)
    marks, done = [(0, begun)], 0
    while count := await rounds.once():
        done += count
        marks.append((done, time.perf_counter()))
    seconds, own = time.perf_counter() - begun, time.process_time() - cpu
    server = _server_seconds(postgres_pid) - base
    idle = await _idle_ms(database)
    async with database.connection() as connection:
        healthy = await connection.fetchval(
            "SELECT count(*) FROM element WHERE phase = 'HEALTHY' AND next_visit_at > now() + interval '23 hours'"
        )
    await database.close()
    return Measured(
        objects=done,
        seconds=seconds,
        cpu_reconciler=own,
        cpu_postgres=server,
        first_tenth=_rate(marks, 0.0, 0.1, done),
        last_tenth=_rate(marks, 0.9, 1.0, done),
        idle_ms=idle,
        events=rounds.events,
        healthy=healthy,
    )


def _server_seconds(pid: int) -> float:
    """CPU of PostgreSQL and all its sessions so far."""
    return cpu_seconds({"postgres": pid})["postgres"]


def _rate(marks: Sequence[tuple[int, float]], low: float, high: float, total: int) -> float:
    """Visits per second between two shares of the round."""
    inside = [mark for mark in marks if low * total <= mark[0] <= high * total]
    return (inside[-1][0] - inside[0][0]) / max(inside[-1][1] - inside[0][1], 1e-9) if len(inside) > 1 else 0.0


async def _idle_ms(database: Database) -> float:
    """How long it takes to learn that nothing is due."""
    ask = database.asks(ANY_VISIT)
    begun = time.perf_counter()
    for _ in range(50):
        await ask()
    return (time.perf_counter() - begun) / 50 * 1000


def facts_of(found: Measured) -> dict[str, Any]:
    """What the measurement says, and what follows from it by arithmetic."""
    per_visit = (found.cpu_reconciler + found.cpu_postgres) / max(found.objects, 1)
    pace = Pace()
    rate = WANTED / DAY_SECONDS
    return {
        "objects": found.objects,
        "visits_per_s": round(found.objects / found.seconds, 1),
        "visits_per_s_first_tenth": round(found.first_tenth, 1),
        "visits_per_s_last_tenth": round(found.last_tenth, 1),
        "cpu_ms_per_visit_reconciler": round(found.cpu_reconciler / found.objects * 1000, 3),
        "cpu_ms_per_visit_postgres": round(found.cpu_postgres / found.objects * 1000, 3),
        "idle_poll_ms": round(found.idle_ms, 2),
        "events_per_visit": round(found.events / found.objects, 2),
        "healthy_and_due_in_a_day": found.healthy,
        "visits_of_an_object_in_its_first_day": sum(1 for at in _accumulated(STEADY_SECONDS) if at <= DAY_SECONDS),
        "million_visits_per_s": round(rate, 2),
        "million_cores": round(rate * per_visit, 4),
        "million_round_hours_at_default_pace": round(WANTED / pace.visits_per_second / 3600, 1),
        "million_round_hours_at_measured_rate": round(WANTED / (found.objects / found.seconds) / 3600, 2),
    }


def _accumulated(gaps: Sequence[float]) -> list[float]:
    total, found = 0.0, []
    for gap in gaps:
        total += gap
        found.append(total)
    return found


def table_of(facts: dict[str, Any]) -> list[str]:
    """The facts as a page shows them."""
    said = {
        "objects": "healthy objects looked at",
        "visits_per_s": "visits per second, one process",
        "visits_per_s_first_tenth": "… in the first tenth of the round",
        "visits_per_s_last_tenth": "… in the last tenth: the cost does not grow with what is behind",
        "cpu_ms_per_visit_reconciler": "CPU ms per visit, reconciler",
        "cpu_ms_per_visit_postgres": "CPU ms per visit, PostgreSQL",
        "idle_poll_ms": "ms to learn that nothing is due",
        "events_per_visit": "events per visit",
        "healthy_and_due_in_a_day": "objects healthy, and due again in a day",
        "visits_of_an_object_in_its_first_day": "visits of one object in its first day",
        "million_visits_per_s": "a million objects, daily: visits per second",
        "million_cores": "… cores that this takes, all day",
        "million_round_hours_at_default_pace": "… hours of a round at the default rate of one of them (at most 24)",
        "million_round_hours_at_measured_rate": "… hours of a round as fast as one process goes here",
    }
    return ["| | |", "|---|---|", *(f"| {words} | {facts[name]} |" for name, words in said.items())]


def main() -> int:
    """Measure, print, and keep the page where it is asked for. The last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=OBJECTS)
    parser.add_argument("--write", type=Path, default=None, help="the page of evidence")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = PostgresCluster(Path(folder) / "postgres")
        child = cluster.start()
        try:
            found = asyncio.run(measure(cluster.admin_url, child.pid, options.objects))
        finally:
            cluster.stop()
    facts = facts_of(found)
    lines = table_of(facts)
    print("\n".join(lines))
    if options.write is not None:
        arguments = f'ARGS="--write {options.write}"'
        write_page(options.write, "Looking again at healthy objects", f"make recheck {arguments}", INTRO, lines)
    in_time = facts["million_round_hours_at_default_pace"] <= DAY_SECONDS / 3600
    whole = found.objects == options.objects == found.healthy
    print(json.dumps({"result": "IN TIME" if in_time and whole else "LATE", **facts}))
    return 0 if in_time and whole else 1


if __name__ == "__main__":
    sys.exit(main())
