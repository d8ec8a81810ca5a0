"""The supervisor: one small process that starts the plane in order, restarts what dies, and drains in order.

It decides nothing about commands and holds no state that matters: killing it stops every child, and the next start
finds everything in PostgreSQL. It imports little on purpose, because it lives as long as the plane.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from trueup_devkit import plan as planning
from trueup_devkit.binaries import BinaryMissingError
from trueup_devkit.children import Child, Command, Lease, StartError, free_port, port_is_free, spawn, tail
from trueup_devkit.nats_server import ADMIN_USER, NatsServer, service_users
from trueup_devkit.plan import Plan
from trueup_devkit.postgres import SUPERUSER, PostgresCluster, remove_stale_pid_file
from trueup_devkit.secret_files import SecretFiles
from trueup_devkit.state_folder import PlaneState, ProcessState, inherit_lock, is_ready, write_private

DATABASE_NAME = "trueup"
SANDBOX_PORTS = 24  # the control port and one for each system above it
BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 5.0
STEADY_SECONDS = 20.0
START_TIMEOUT_SECONDS = 180.0
EARLY_EXITS_MAX = 4
DRAIN_TIMEOUT_SECONDS = 20.0
BOOTSTRAP_AFTER_SECONDS = 5.0  # a service that ran and has been unready for so long may miss streams or consumers
BOOTSTRAP_PAUSE_SECONDS = 15.0
BOOTSTRAP_PAUSE_SECONDS_MAX = 240.0
_STARTING_TICK_SECONDS = 0.05
_IDLE_TICK_SECONDS = 5.0

# Stages of the drain: first nothing new comes in, then work in hand ends, then the world and the stores go.
STAGE_GATEWAY, STAGE_SERVICES, STAGE_SANDBOX, STAGE_BUS, STAGE_DATABASE = range(5)


class StopRequestedError(Exception):
    """A signal asked to stop while the plane was still starting."""


@dataclass
class Unit:
    """One supervised process: how to start it, how to see it, and what became of it."""

    name: str
    stage: int
    prepare: Callable[[Unit], Command]
    health: dict[str, Any] = field(default_factory=dict)
    child: Child | None = None
    restarts: int = 0
    early_exits: int = 0
    backoff_seconds: float = BACKOFF_SECONDS
    due: float = 0.0
    ready: bool = False
    was_ready: bool = False
    asked_at: float = 0.0
    unready_since: float | None = None


class Supervisor:
    """Runs one plan until it is asked to stop."""

    def __init__(self, plan: Plan, caller: dict[str, str]) -> None:
        self.plan = plan
        self.folder = plan.folder
        self.caller = {**caller, "PYTHONUNBUFFERED": "1"}
        self.secrets = SecretFiles(self.folder.secrets)
        self.units: list[Unit] = []
        self.stop_requests = 0
        self.phase = "starting"
        self.error: str | None = None
        self.ports: dict[str, int] = {}
        self.database_url = ""
        self.nats_url = ""
        self.sandbox_url: str | None = None
        self.connections = plan.connections
        self.postgres: PostgresCluster | None = None
        self.nats: NatsServer | None = None
        self._wake_read, self._wake_write = os.pipe()
        self._written: PlaneState | None = None
        self._bootstrapping: Child | None = None
        self._bootstrap_due = 0.0
        self._bootstrap_pause_seconds = BOOTSTRAP_PAUSE_SECONDS

    def run(self) -> int:
        """Start everything, keep it running, drain; the exit code of the process."""
        self._listen_to_signals()
        code = 0
        try:
            self._start_all()
            self._say(f"ready: {self._gateway_url()} (console {self._gateway_url()}/console)")
            self.phase = "ready"
            while not self.stop_requests:
                self._wait(self._tick())
        except StopRequestedError:
            pass
        except (StartError, BinaryMissingError, OSError) as error:
            self.phase, self.error, code = "failed", str(error), 1
            self._say(f"failed: {error}")
        if code == 0:
            self.phase = "stopping"
        self._write_state()
        self._drain()
        self._say("stopped")
        return code

    # -- start ---------------------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        self._choose_ports()
        self._start_database()
        self._start_bus()
        self._start_sandbox()
        self._bootstrap()
        self._start_services()

    def _choose_ports(self) -> None:
        """Keep the addresses of the last start where they are free; the gateway's port is the caller's choice."""
        remembered = planning.read_ports(self.folder)
        adapters = self.plan.replicas.get(planning.ADAPTERS, 1)
        widths = {"postgres": 1, "nats": 1, "nats_monitor": 1, "sandbox": SANDBOX_PORTS, "adapters": adapters}
        for name, width in widths.items():
            port = int(remembered.get(name, 0))
            still_free = port > 0 and all(port_is_free(port + offset) for offset in range(width))
            self.ports[name] = port if still_free else free_port(width)
        gateway = self.plan.port or int(remembered.get("gateway", 0)) or free_port()
        if not self._until(lambda: port_is_free(gateway), 5.0):
            if self.plan.port:
                raise StartError(f"port {gateway} is in use; choose another one with --port (0 takes a free one)")
            gateway = free_port()
        self.ports["gateway"] = gateway
        write_private(self.folder.ports, json.dumps(self.ports))

    def _start_database(self) -> None:
        if self.plan.external_database_url:
            self.database_url = self.plan.external_database_url
            return
        cluster = PostgresCluster(self.folder.path / "postgres", port=self.ports["postgres"])
        self.postgres = cluster

        def again(unit: Unit) -> Command:
            remove_stale_pid_file(cluster.data)
            return cluster.command()

        unit = Unit("postgres", STAGE_DATABASE, again, {"kind": "postgres", "port": cluster.port})
        self._adopt(unit, cluster.start(self.folder.log("postgres")))
        self.database_url = cluster.url(SUPERUSER, cluster.password, DATABASE_NAME)

    def _start_bus(self) -> None:
        if self.plan.external_nats_url:
            self.nats_url = self.plan.external_nats_url
            return
        passwords = self.secrets.read(self.secrets.bus)
        systems = tuple(self.secrets.read(self.secrets.grant_keys))
        server = NatsServer(
            self.folder.path / "nats",
            service_users(passwords, systems),
            system_password=passwords["system"],
            port=self.ports["nats"],
            monitor_port=self.ports["nats_monitor"],
        )
        self.nats = server
        health = {"kind": "http", "port": server.monitor_port, "path": "/healthz?js-enabled-only=true"}
        unit = Unit("nats", STAGE_BUS, lambda _: server.command(), health)
        self._adopt(unit, server.start(self.folder.log("nats")))
        self.nats_url = server.url(ADMIN_USER)

    def _start_sandbox(self) -> None:
        if not self.plan.sandbox:
            return
        port = self.ports["sandbox"]
        own_server = self.database_url if self.postgres is not None else None
        environment = planning.sandbox_environment(own_server, self.caller)
        command = Command(planning.sandbox_arguments(self.plan, port, self.ports["adapters"]), environment)
        unit = Unit("sandbox", STAGE_SANDBOX, lambda _: command, {"kind": "http", "port": port, "path": "/readyz"})
        self._launch(unit)
        self.units.append(unit)
        self._wait_for_units(START_TIMEOUT_SECONDS)
        self.sandbox_url = f"http://127.0.0.1:{port}"
        if self.connections is None:
            self.connections = str(self.folder.path / "connections.yaml")  # written by the bootstrap

    def _bootstrap(self) -> None:
        """Roles, schemas, migrations, streams, buckets, catalog: by a process with admin rights that ends."""
        child, log = self._spawn_bootstrap(), self.folder.log("bootstrap")
        if not self._until(lambda: child.exit_code() is not None, START_TIMEOUT_SECONDS):
            child.stop(1)
            raise StartError(f"bootstrap did not end within {START_TIMEOUT_SECONDS:g} s:\n{tail(log)}")
        if child.exit_code() != 0:
            raise StartError(f"bootstrap ended with exit code {child.exit_code()}:\n{tail(log)}")
        self._say("bootstrap done")

    def _spawn_bootstrap(self) -> Child:
        environment = planning.bootstrap_environment(self.plan, self._addresses(), self.caller)
        log = self.folder.log("bootstrap")
        log.unlink(missing_ok=True)
        return spawn("bootstrap", Command(planning.bootstrap_arguments(self.plan), environment), log)

    def _start_services(self) -> None:
        for process in planning.service_processes(self.plan, self._addresses(), self.caller):
            stage = STAGE_GATEWAY if process.service == planning.GATEWAY else STAGE_SERVICES
            unit = Unit(process.name, stage, lambda unit, process=process: self._service_command(unit, process))  # type: ignore[misc]
            self._launch(unit)
            self.units.append(unit)
        self._wait_for_units(START_TIMEOUT_SECONDS)

    def _service_command(self, unit: Unit, process: planning.Process) -> Command:
        environment = dict(process.environment)
        port = process.health_port
        if port is None:
            port = int(unit.health.get("port", 0))
            if not port or not port_is_free(port):
                port = free_port()
        elif process.given_port and not port_is_free(port):
            raise StartError(f"port {port} is in use")  # others were told of it, so it is waited for
        if process.given_port:
            environment["TRUEUP_HEALTH_PORT"] = str(port)
        unit.health = {"kind": "http", "port": port, "path": "/readyz"}
        if unit.restarts:
            environment.pop("TRUEUP_CRASH_AT", None)  # a crash point fires once: the restarted process must live
        return Command(process.arguments, environment=environment)

    def _addresses(self) -> planning.Addresses:
        return planning.Addresses(
            gateway_port=self.ports["gateway"],
            database_url=self.database_url,
            nats_url=self.nats_url,
            sandbox_port=self.ports["sandbox"] if self.plan.sandbox else None,
            adapters_port=self.ports["adapters"],
            connections=self.connections,
        )

    # -- keep running --------------------------------------------------------------------------------------------

    def _adopt(self, unit: Unit, child: Child) -> None:
        unit.child, unit.ready, unit.was_ready = child, True, True
        self.units.append(unit)
        self._say(f"{unit.name} ready")
        self._write_state()

    def _launch(self, unit: Unit) -> None:
        try:
            unit.child = spawn(unit.name, unit.prepare(unit), self.folder.log(unit.name))
        except (StartError, OSError) as error:
            self._say(f"{unit.name} could not be started: {error}")
            self._postpone(unit)

    def _postpone(self, unit: Unit) -> None:
        unit.child, unit.ready = None, False
        unit.due = time.monotonic() + unit.backoff_seconds
        unit.backoff_seconds = min(unit.backoff_seconds * 2, BACKOFF_SECONDS_MAX)

    def _tick(self) -> float:
        """Look at every unit once; answers how long nothing needs to be looked at, unless a signal comes."""
        pause = _IDLE_TICK_SECONDS
        for unit in self.units:
            if unit.child is not None and unit.child.exit_code() is not None:
                self._note_exit(unit, unit.child)
            if unit.child is None:
                now = time.monotonic()
                if unit.due <= now:
                    unit.restarts += 1
                    self._launch(unit)
                pause = min(pause, max(unit.due - now, _STARTING_TICK_SECONDS))
            if unit.child is not None and unit.ready:
                self._ask_again(unit)
            if unit.child is not None and not unit.ready:
                self._note_readiness(unit)
                pause = min(pause, _STARTING_TICK_SECONDS)
        if self.phase == "ready":
            self._bootstrap_again()
        self._write_state()
        return pause

    def _note_exit(self, unit: Unit, child: Child) -> None:
        self._say(f"{unit.name} (pid {child.pid}) ended with exit code {child.exit_code()}; starting it again")
        if time.monotonic() - child.started_at > STEADY_SECONDS:
            unit.backoff_seconds = BACKOFF_SECONDS
        if not unit.was_ready:
            unit.early_exits += 1
        elif unit.unready_since is None:
            unit.unready_since = time.monotonic()
        self._postpone(unit)

    def _note_readiness(self, unit: Unit) -> None:
        if unit.child is not None and is_ready(self._process_state(unit)):
            unit.ready = unit.was_ready = True
            unit.unready_since, unit.asked_at = None, time.monotonic()
            self._say(f"{unit.name} ready")

    def _ask_again(self, unit: Unit) -> None:
        """What was ready may not be any more."""
        now = time.monotonic()
        if now - unit.asked_at < _IDLE_TICK_SECONDS:
            return
        unit.asked_at = now
        if not is_ready(self._process_state(unit)):
            unit.ready, unit.unready_since = False, now
            self._say(f"{unit.name} is not ready any more")

    def _bootstrap_again(self) -> None:
        """Services may not create streams and consumers: where they stay unready, what vanished is made again."""
        now, ran = time.monotonic(), self._bootstrapping
        if ran is not None:
            if ran.exit_code() is not None:
                self._say(f"bootstrap ended with exit code {ran.exit_code()}")
                self._bootstrapping = None
            return
        services = [unit for unit in self.units if unit.stage in {STAGE_GATEWAY, STAGE_SERVICES}]
        stores_ready = all(unit.ready for unit in self.units if unit not in services)
        waiting = [unit.unready_since for unit in services if unit.unready_since is not None and unit.child is not None]
        if not waiting:
            self._bootstrap_pause_seconds = BOOTSTRAP_PAUSE_SECONDS
        elif stores_ready and now - min(waiting) > BOOTSTRAP_AFTER_SECONDS and now >= self._bootstrap_due:
            self._say("services stay unready; running the bootstrap again")
            self._bootstrap_due = now + self._bootstrap_pause_seconds
            self._bootstrap_pause_seconds = min(self._bootstrap_pause_seconds * 2, BOOTSTRAP_PAUSE_SECONDS_MAX)
            self._bootstrapping = self._spawn_bootstrap()

    def _wait_for_units(self, timeout_seconds: float) -> None:
        def all_ready() -> bool:
            self._tick()
            for unit in self.units:
                if unit.early_exits >= EARLY_EXITS_MAX:
                    raise StartError(f"{unit.name} does not stay up:\n{tail(self.folder.log(unit.name))}")
            return all(unit.ready for unit in self.units)

        if not self._until(all_ready, timeout_seconds):
            reasons = [
                f"{unit.name} is not ready after {timeout_seconds:g} s:\n{tail(self.folder.log(unit.name))}"
                for unit in self.units
                if not unit.ready
            ]
            raise StartError("\n".join(reasons))

    # -- stop ----------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        for stage in range(STAGE_GATEWAY, STAGE_DATABASE + 1):
            children = [unit.child for unit in self.units if unit.stage == stage and unit.child is not None]
            for child in children:
                child.ask_to_stop()
            deadline = time.monotonic() + DRAIN_TIMEOUT_SECONDS
            while any(child.exit_code() is None for child in children):
                if time.monotonic() > deadline or self.stop_requests > 1:
                    for child in children:
                        child.stop(0)
                    break
                self._wait(0.2)
        for server in (self.nats, self.postgres):
            if server is not None:
                server.stop(0)

    # -- signals, time, state ------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._request_stop)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self.stop_requests += 1

    def _wait(self, seconds: float) -> None:
        readable, _, _ = select.select([self._wake_read], [], [], seconds)
        if readable:
            os.read(self._wake_read, 4096)

    def _until(self, condition: Callable[[], bool], timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            if self.stop_requests:
                raise StopRequestedError
            if time.monotonic() > deadline:
                return False
            self._wait(_STARTING_TICK_SECONDS)
        return True

    def _gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.get('gateway', self.plan.port)}"

    def _process_state(self, unit: Unit) -> ProcessState:
        pid = unit.child.pid if unit.child is not None else 0
        log = str(self.folder.log(unit.name))
        return ProcessState(unit.name, pid, unit.restarts, unit.ready, dict(unit.health), log)

    def _write_state(self) -> None:
        state = PlaneState(
            gateway_url=self._gateway_url(),
            console_url=f"{self._gateway_url()}/console",
            sandbox_url=self.sandbox_url,
            database_url=self.database_url,
            nats_url=self.nats_url,
            state_dir=str(self.folder.path),
            supervisor_pid=os.getpid(),
            phase=self.phase,
            error=self.error,
            clock=self.plan.clock,
            processes=[self._process_state(unit) for unit in self.units],
        )
        if state != self._written:
            self.folder.write_state(state)
            self._written = state

    def _say(self, text: str) -> None:
        print(f"trueup: {text}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """`python -m trueup_devkit.supervisor STATE_DIR [LOCK_FD]`: run the plan that stands in the state folder."""
    given = sys.argv[1:] if arguments is None else arguments
    folder = Path(given[0])
    plan = Plan.load(folder / "plan.json")
    if len(given) > 1:
        inherit_lock(int(given[1]))
    elif Lease.take(plan.folder.lock) is None:
        print(f"trueup: a plane already runs on {folder}", file=sys.stderr)
        return 1
    return Supervisor(plan, dict(os.environ)).run()


if __name__ == "__main__":
    sys.exit(main())
