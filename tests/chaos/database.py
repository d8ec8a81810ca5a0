"""Faults of the database: it dies, it cuts sessions, it deadlocks, it is slow, and something is locked."""

from __future__ import annotations

import asyncio
import signal
import time
from functools import partial
from typing import Any, Final

import asyncpg

from tests.chaos.fault import Fault, Scene
from tests.chaos.field import NotMet

SLOW_SECONDS: Final = 5.0
LOCK_SECONDS: Final = 7.0
DEADLOCK_SECONDS: Final = 25.0
LOCK_CASE: Final = """
SELECT 1 FROM orchestrator.instance JOIN orchestrator.operation USING (workflow_id)
WHERE workflow_id = $1 FOR UPDATE
"""


def killed(scene: Scene) -> None:
    """SIGKILL of the postmaster."""
    scene.traffic.send(scene.label)
    scene.field.kill("postgres")


def restarted(scene: Scene) -> None:
    """A fast shutdown, and a start."""
    before = scene.field.restarts("postgres")
    scene.traffic.send(scene.label)
    scene.field.signal("postgres", signal.SIGINT)
    scene.field.until(lambda: scene.field.restarts("postgres") > before, "the database was started again", 20)


def sessions_terminated(scene: Scene) -> None:
    """Every session of every service ends, again and again."""
    ended = 0
    for _ in range(5):
        scene.traffic.send(scene.label, ("post", "draft"))
        ended += scene.field.sql(
            "SELECT count(pg_terminate_backend(pid)) AS n FROM pg_stat_activity "
            "WHERE usename LIKE 'trueup_%' AND pid <> pg_backend_pid()"
        )[0]["n"]
        time.sleep(0.3)
    if not ended:
        raise NotMet("no session was there to be terminated")


def slow_commit(scene: Scene) -> None:
    """Every commit takes 100 ms longer."""

    async def set_to(value: str, connection: Any) -> None:
        await connection.execute(f"ALTER SYSTEM {value}")

    field = scene.field
    for value in ("SET commit_delay = 100000", "SET commit_siblings = 0"):
        field.database(partial(set_to, value))
    field.sql("SELECT pg_reload_conf()")
    try:
        scene.traffic.send(scene.label)
        time.sleep(SLOW_SECONDS)
    finally:
        for name in ("commit_delay", "commit_siblings"):
            field.database(partial(set_to, f"RESET {name}"))
        field.sql("SELECT pg_reload_conf()")


def table_locked(table: str, scene: Scene) -> None:
    """Somebody else holds a hot table for longer than a service waits for a lock."""

    async def hold(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            scene.traffic.send(scene.label)
            await asyncio.sleep(LOCK_SECONDS)

    scene.field.database(hold)


def deadlocks(scene: Scene) -> None:
    """An outside session takes the rows of one batch of the orchestrator in the opposite order, until one gives in.

    The orchestrator is held while its receipts come in, so that it finds several of them at once.
    """
    field = scene.field
    counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = field.sql(counted)[0]["deadlocks"]
    open_ = (
        "SELECT workflow_id FROM orchestrator.operation WHERE state IN ('DISPATCHING', 'RUNNING') "
        "AND target_system = 'bench' ORDER BY workflow_id DESC"
    )

    async def backwards(connection: Any) -> None:
        rows = [row["workflow_id"] for row in await connection.fetch(open_)]
        if len(rows) < 2:
            field.signal("orchestrator", signal.SIGCONT)
            return
        async with connection.transaction():
            await connection.execute("SET LOCAL deadlock_timeout = '10s'")  # the service is to be the victim
            await connection.execute(LOCK_CASE, rows[0])
            field.signal("orchestrator", signal.SIGCONT)
            await asyncio.sleep(0.4)
            for workflow_id in reversed(rows[1:]):
                await connection.execute(LOCK_CASE, workflow_id)

    end = time.monotonic() + DEADLOCK_SECONDS
    while field.sql(counted)[0]["deadlocks"] == before:
        if time.monotonic() > end:
            raise NotMet("no deadlock came about")
        for _ in range(4):
            field.plane.fault("delay", method="POST", path="/effect$", system="bench", seconds=1.2)
        scene.traffic.send(scene.label, ("post",) * 8)
        time.sleep(0.8)
        field.signal("orchestrator", signal.SIGSTOP)
        time.sleep(1.0)
        try:
            field.database(backwards)
        except asyncpg.DeadlockDetectedError:  # the outside session was the victim: that counts as well
            continue
        finally:
            field.signal("orchestrator", signal.SIGCONT)
        time.sleep(0.5)


FAULTS: Final = [
    Fault("postgres killed", "SIGKILL of the postmaster", [killed]),
    Fault("postgres restarted", "fast shutdown and start", [restarted]),
    Fault("postgres sessions terminated", "pg_terminate_backend of every session, five times", [sessions_terminated]),
    Fault("postgres deadlocks", "an outside session locks rows in the opposite order", [deadlocks]),
    Fault("postgres slow commit", "commit_delay of 100 ms", [slow_commit]),
    Fault(
        "postgres table locked",
        "an outside session holds a hot table for 7 s",
        [
            partial(table_locked, "orchestrator.operation"),
            partial(table_locked, "adapters.effect"),
            partial(table_locked, "gateway.outbox"),
        ],
    ),
]
