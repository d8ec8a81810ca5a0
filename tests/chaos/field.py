"""Where the fault happens: one real plane, with hands on everything that an operator could pull out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import nats.errors
from nats.js import JetStreamContext

from tests.chaos.launch import last_write, orders
from tests.system.documents import ASK, PUBLISH
from tests.system.plane import Plane
from trueup_common.contracts.topology import SERVICES
from trueup_common.runtime.bus import connect_admin
from trueup_devkit.state_folder import is_ready

T = TypeVar("T")
POLL_SECONDS = 0.05
ARM_SECONDS = 30.0
SETTINGS = {"TRUEUP_WINDOW_SLOTS": "4", "TRUEUP_EXCEPTION_SLA_SECONDS": "60"}
"""Few slots, so that commands queue; a short deadline, so that exceptions escalate while things break, yet longer than
an unknown outcome needs until absence can be proved."""


class NotMet(Exception):
    """The fault did not happen as ordered: the suite failed, not the product."""


@dataclass
class Field:
    """A running plane under faults."""

    plane: Plane
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.plane.state_dir.resolve()

    @classmethod
    def start(
        cls,
        folder: Path,
        replicas: dict[str, int] | None = None,
        environments: dict[str, dict[str, str]] | None = None,
    ) -> Field:
        """Start a plane; `environments` are those of single processes."""
        (folder / "chaos").mkdir(parents=True)
        for instance, environment in (environments or {}).items():
            orders(folder, instance).write_text(json.dumps({"environment": environment}))
        programs = {service: [sys.executable, "-m", "tests.chaos.launch", service] for service in SERVICES}
        plane = Plane(folder, replicas=replicas or {}, environment=SETTINGS, programs=programs).start()
        for document in (ASK, PUBLISH):
            answer = plane.register(document)
            assert answer.status == 201, answer
        return cls(plane)

    # -- processes ------------------------------------------------------------------------------------------------

    def processes(self) -> list[str]:
        """Names of all processes."""
        state = self.plane.plan.folder.read_state()
        return [] if state is None else [process.name for process in state.processes]

    def services(self) -> list[str]:
        """Names of all service processes."""
        return [name for name in self.processes() if name not in ("postgres", "nats", "sandbox")]

    def is_ready(self) -> bool:
        """Every process says so itself, now."""
        state = self.plane.plan.folder.read_state()
        return state is not None and all(is_ready(process) for process in state.processes)

    def restarts(self, name: str) -> int:
        """How often a process was started again."""
        return int(self.plane.process(name).restarts)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send one signal to one process of this plane."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.plane.process(name).pid, number)

    def arm(self, instance: str, at: str) -> None:
        """Set a crash point in one running process; one that is starting is asked again.

        A process that comes by the point at once cannot answer any more: that is as good as an answer.
        """
        end, before = time.monotonic() + ARM_SECONDS, self.restarts(instance)
        while True:
            try:
                return self.plane.arm(instance, at)
            except (nats.errors.Error, OSError) as error:
                if self.is_stopped(instance) or self.restarts(instance) > before:
                    return None
                if time.monotonic() > end:
                    raise NotMet(f"{instance} could not be armed: {error!r}") from error

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until the supervisor has started it again."""
        before = self.restarts(name)
        self.signal(name, signal.SIGKILL)
        self.until(lambda: self.restarts(name) > before, f"{name} was started again", 20)

    def is_stopped(self, name: str) -> bool:
        """True while the process is held by SIGSTOP."""
        try:
            stat = Path(f"/proc/{self.plane.process(name).pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    def break_at_start(self, instance: str, point: str, end: str = "") -> None:
        """Let the next start of one process come by a crash point."""
        (self.folder / f"crashed-{point}").unlink(missing_ok=True)
        self._order_once(instance, TRUEUP_CRASH_AT=f"{point}:1:{end}")

    def _order_once(self, instance: str, **environment: str) -> None:
        path = orders(self.folder, instance)
        order = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**order, "once": environment}))

    def stop_in_last_write(self, instance: str) -> None:
        """Let an adapters process stop inside its next write."""
        last_write(self.folder, instance).touch()

    def move_on(self, instance: str) -> None:
        """Take back the order to stop in the next write."""
        last_write(self.folder, instance).unlink(missing_ok=True)

    def until(self, look: Callable[[], Any], what: str, seconds: float) -> float:
        """Wait for something, bounded; answers how long it took. Raises NotMet."""
        begun = time.monotonic()
        while not look():
            if time.monotonic() - begun > seconds:
                raise NotMet(f"not within {seconds:g} s: {what}")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - begun

    # -- stores ---------------------------------------------------------------------------------------------------

    def sql(self, statement: str, *arguments: Any) -> list[dict[str, Any]]:
        """One statement as the owner of the database."""

        async def run(connection: Any) -> list[dict[str, Any]]:
            return [dict(row) for row in await connection.fetch(statement, *arguments)]

        return self.database(run)

    def database(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Work on a session of the owner of the database."""

        async def run() -> T:
            connection = await asyncpg.connect(self.plane.database_url, server_settings={"application_name": "chaos"})
            try:
                return await work(connection)
            finally:
                await connection.close(timeout=2)

        return asyncio.run(run())

    def bus(self, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        """Work on JetStream as its administrator."""

        async def run() -> T:
            client = await connect_admin(self.plane.nats_url)
            try:
                return await work(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(run())


@contextlib.contextmanager
def running(folder: Path, **options: Any) -> Iterator[Field]:
    """A plane for a while. Whatever is still held by SIGSTOP is continued first: it could not stop otherwise."""
    found = Field.start(folder, **options)
    try:
        yield found
    finally:
        for name in found.processes():
            if found.is_stopped(name):
                found.signal(name, signal.SIGCONT)
        found.plane.stop()
