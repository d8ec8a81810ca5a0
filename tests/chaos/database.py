"""Faults of the database: it dies, it cuts sessions, it deadlocks, it is slow, and something is locked."""

from __future__ import annotations

import asyncio
import signal
import time
from functools import partial
from typing import Any, Final

from tests.chaos.fault import Fault, Scene
from tests.chaos.field import NotMet

SLOW_SECONDS: Final = 5.0
LOCK_SECONDS: Final = 7.0
DEADLOCK_SECONDS: Final = 20.0


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
    """An outside session takes the rows that services change, in the opposite order, until deadlocks were counted."""
    field = scene.field
    counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = field.sql(counted)[0]["deadlocks"]

    async def backwards(connection: Any) -> None:
        rows = await connection.fetch(
            "SELECT workflow_id FROM orchestrator.instance WHERE closed_at IS NULL ORDER BY workflow_id DESC LIMIT 12"
        )
        async with connection.transaction():
            for index, row in enumerate(rows):
                statement = "SELECT 1 FROM orchestrator.instance WHERE workflow_id = $1 FOR UPDATE"
                await connection.execute("SET LOCAL deadlock_timeout = '10s'")  # let the other one be the victim
                await connection.fetch(statement, row["workflow_id"])
                await asyncio.sleep(1.0 if index == 0 else 0.1)

    end = time.monotonic() + DEADLOCK_SECONDS
    while field.sql(counted)[0]["deadlocks"] == before:
        if time.monotonic() > end:
            raise NotMet("no deadlock came about")
        scene.traffic.send(scene.label, ("post",) * 6)
        try:
            field.database(backwards)
        except Exception as error:  # the outside session was the victim: that counts as well
            if "deadlock" not in str(error):
                raise


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
