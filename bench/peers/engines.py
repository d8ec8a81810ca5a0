"""How each peer is deployed on this machine, on storage that survives a crash, and where its units are sent.

One engine is started once and does commands, sagas, and sagas that are undone, one after the other.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import asyncpg

from bench import bare
from bench.load import KEY, Request
from bench.peers.install import RECIPES, Installed, install
from bench.peers.serve import READY
from bench.stacks import (
    QUIET_RATE_PER_SECOND,
    ROOT,
    SAGA_STEPS,
    START_TIMEOUT_SECONDS,
    Faults,
    command_faults,
    make_folder,
    own_environment,
    saga_faults,
)
from trueup_common.contracts.topology import STREAMS
from trueup_common.runtime.bootstrap import ensure_consumer, stream_config
from trueup_common.runtime.bus import connect_admin
from trueup_devkit.children import Child, Command, free_port, http_status, port_is_free, spawn, tail, wait_until_ready
from trueup_devkit.gateway_client import GatewayClient
from trueup_devkit.nats_server import ADMIN_USER, NatsServer, NatsUser
from trueup_devkit.postgres import PostgresCluster

NODE_BINARY = "@restatedev/restate-server-*/bin/restate-server"
SAGA_STATES = {False: "CLOSED", True: "COMPENSATED"}


class Engine(Protocol):
    """One peer, started or not."""

    name: str
    worker_roles: tuple[str, ...]
    """The processes that cause effects: what a crash test kills."""

    @property
    def database_url(self) -> str | None:
        """Its PostgreSQL, where it has one."""

    def start(self) -> None:
        """Start everything; Skipped where it cannot be installed."""

    def start_worker(self) -> None:
        """Start what causes effects, or start it again."""

    def kill_worker(self) -> None:
        """End what causes effects with SIGKILL."""

    def roots(self) -> dict[str, int]:
        """Its processes by role."""

    def address(self, saga: bool) -> tuple[int, str]:
        """Port and path of its units."""

    def complaints(self) -> str:
        """The last lines of its logs."""

    def stop(self) -> None:
        """Stop everything and remove its data."""


class _Processes:
    """The processes of one engine, with a folder for data and logs."""

    def __init__(self, name: str, stub_url: str, variables: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.folder = make_folder()
        self.port = free_port()
        self._environment = {**own_environment(), "BENCH_STUB": stub_url, **(variables or {})}
        self._children: dict[str, Child] = {}
        self._installed: Installed | None = None

    @property
    def installed(self) -> Installed:
        """Where it was installed."""
        if self._installed is None:
            self._installed = install(RECIPES[self.name])
        return self._installed

    def run(self, role: str, arguments: list[str], variables: Mapping[str, str], *, folder: Path = ROOT) -> Child:
        """Start one process."""
        command = Command(arguments, {**self._environment, **variables}, folder)
        child = spawn(f"{self.name} {role}", command, self.folder / f"{role}.log")
        self._children[role] = child
        return child

    def serve(self, role: str, module: str, variables: Mapping[str, str]) -> None:
        """Start one process of a FastAPI application."""
        log = self.folder / f"{role}.log"
        log.unlink(missing_ok=True)
        arguments = [self.installed.python, "-m", "bench.peers.serve", module, str(self.port)]
        child = self.run(role, arguments, variables)
        wait_until_ready(child, lambda: READY in tail(log, 50).splitlines(), START_TIMEOUT_SECONDS)

    def kill(self, role: str) -> None:
        """SIGKILL to it and all that it started, and wait until it is gone."""
        child = self._children.pop(role)
        os.killpg(child.pid, signal.SIGKILL)  # every child leads a session of its own
        child.process.wait(5)

    def roots(self) -> dict[str, int]:
        """Process ids by role."""
        return {role: child.pid for role, child in self._children.items()}

    def complaints(self) -> str:
        """What stands last in each log."""
        return "".join(f"\n  {role}: {tail(child.log, 5)}" for role, child in self._children.items())

    def stop(self) -> None:
        """Stop all, what was started last first."""
        for child in reversed(self._children.values()):
            child.stop(5)
        self._children.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


class Dbos(_Processes):
    """DBOS: processes of one application that share a port and a PostgreSQL with the settings that the plane uses.

    Each process has an executor id of its own, so that it recovers its own workflows when it comes back.
    """

    database_url: str | None = None

    def __init__(self, stub_url: str, processes: int = 2) -> None:
        super().__init__("dbos", stub_url)
        self._cluster = PostgresCluster(self.folder / "postgres")
        self.worker_roles = tuple(f"app-{number}" for number in range(1, processes + 1))

    def start(self) -> None:
        _ = self.installed
        self._cluster.start()
        self.database_url = self._cluster.admin_url
        self.start_worker()

    def start_worker(self) -> None:
        url = self._cluster.admin_url.replace("postgresql://", "postgresql+psycopg://", 1)
        for role in self.worker_roles:
            self.serve(role, "bench.peers.dbos_app", {"DBOS_SYSTEM_DATABASE_URL": url, "DBOS__VMID": role})

    def kill_worker(self) -> None:
        for role in self.worker_roles:
            self.kill(role)

    def roots(self) -> dict[str, int]:
        postgres = self._cluster.child
        return super().roots() | ({"postgres": postgres.pid} if postgres is not None else {})

    def address(self, saga: bool) -> tuple[int, str]:
        return self.port, "/sagas" if saga else "/commands"

    def stop(self) -> None:
        for child in reversed(self._children.values()):
            child.stop(5)
        self._cluster.stop()
        super().stop()


class Temporal(_Processes):
    """Temporal's development server with its state in a file, and one process for front and worker."""

    database_url: str | None = None
    worker_roles: tuple[str, ...] = ("app",)

    def __init__(self, stub_url: str, variables: Mapping[str, str] | None = None) -> None:
        super().__init__("temporal", stub_url, variables)
        self._server_port = free_port()

    def start(self) -> None:
        arguments = [self.installed.program("temporal"), "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
        arguments += ["--port", str(self._server_port), "--db-filename", str(self.folder / "temporal.db")]
        arguments += ["--log-level", "error"]
        child = self.run("server", arguments, {"HOME": str(self.folder)}, folder=self.folder)
        wait_until_ready(child, lambda: not port_is_free(self._server_port), START_TIMEOUT_SECONDS)
        self.start_worker()

    def start_worker(self) -> None:
        self.serve("app", "bench.peers.temporal_app", {"TEMPORAL_ADDRESS": f"127.0.0.1:{self._server_port}"})

    def kill_worker(self) -> None:
        self.kill("app")

    def address(self, saga: bool) -> tuple[int, str]:
        return self.port, "/sagas" if saga else "/commands"


class Restate(_Processes):
    """Restate's server with its defaults, which fsync, and one process for its services."""

    database_url: str | None = None
    worker_roles: tuple[str, ...] = ("service",)

    def __init__(self, stub_url: str, variables: Mapping[str, str] | None = None) -> None:
        super().__init__("restate", stub_url, variables)
        self._service_port, self._admin_port, self._node_port = free_port(), free_port(), free_port()

    def start(self) -> None:
        settings = {
            "RESTATE_BIND_IP": "127.0.0.1",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_PORT": str(self._node_port),
            "RESTATE_INGRESS__BIND_PORT": str(self.port),
            "RESTATE_ADMIN__BIND_PORT": str(self._admin_port),
            "RESTATE_ADMIN__DISABLE_WEB_UI": "true",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
        }
        arguments = [self.installed.node_program(NODE_BINARY), "--base-dir", str(self.folder / "data")]
        arguments += ["--node-name", "bench", "--no-logo", "--log-filter", "warn"]
        child = self.run("server", arguments, settings, folder=self.folder)
        wait_until_ready(child, self._is_ready, START_TIMEOUT_SECONDS)
        self.start_worker()
        client = GatewayClient(f"http://127.0.0.1:{self._admin_port}")
        client.call("POST", "/deployments", {"uri": f"http://127.0.0.1:{self._service_port}"})

    def _is_ready(self) -> bool:
        return http_status(self._admin_port, "/health") == 200 and not port_is_free(self.port)

    def start_worker(self) -> None:
        arguments = [self.installed.python, "-m", "bench.peers.restate_services", str(self._service_port)]
        child = self.run("service", arguments, {})
        wait_until_ready(child, lambda: not port_is_free(self._service_port), START_TIMEOUT_SECONDS)

    def kill_worker(self) -> None:
        self.kill("service")

    def address(self, saga: bool) -> tuple[int, str]:
        return self.port, "/Saga/run" if saga else "/Command/run"


class Bare(_Processes):
    """No peer: the hops of the plane without what it does on them (`bench.bare`), on servers as the plane has them."""

    worker_roles: tuple[str, ...] = ("hands",)

    def __init__(self, stub_url: str) -> None:
        super().__init__("bare", stub_url)
        self._cluster = PostgresCluster(self.folder / "postgres")
        users = [NatsUser(name, "bare") for name in (ADMIN_USER, *bare.ROLES)]
        self._broker = NatsServer(self.folder / "nats", users, system_password="bare")

    @property
    def database_url(self) -> str | None:
        return self._cluster.admin_url

    def start(self) -> None:
        self._cluster.start()
        self._broker.start()
        asyncio.run(self._lay_ground())
        for role in bare.ROLES:
            self._start(role)
        child = self._children["edge"]
        wait_until_ready(child, lambda: not port_is_free(self.port), START_TIMEOUT_SECONDS)

    async def _lay_ground(self) -> None:
        connection = await asyncpg.connect(self._cluster.admin_url)
        try:
            for role in bare.ROLES:
                await connection.execute(bare.GROUND.format(role=role))
        finally:
            await connection.close()
        client = await connect_admin(self._broker.admin_url)
        try:
            streams = client.jetstream()
            for stream in STREAMS:
                await streams.add_stream(stream_config(stream))
            for consumer in bare.CONSUMERS:
                await ensure_consumer(streams, consumer)
        finally:
            await client.close()

    def _start(self, role: str) -> None:
        variables = {"BARE_DATABASE_URL": self._cluster.admin_url, "BARE_NATS_URL": self._broker.url(role)}
        self.run(role, [sys.executable, "-m", "bench.bare", role, str(self.port)], variables)

    def start_worker(self) -> None:
        self._start("hands")

    def kill_worker(self) -> None:
        self.kill("hands")

    def roots(self) -> dict[str, int]:
        servers = {"postgres": self._cluster.child, "nats": self._broker.child}
        return super().roots() | {name: child.pid for name, child in servers.items() if child is not None}

    def address(self, saga: bool) -> tuple[int, str]:
        return self.port, "/sagas" if saga else "/commands"

    def stop(self) -> None:
        for child in reversed(self._children.values()):
            child.stop(5)
        self._broker.stop()
        self._cluster.stop()
        super().stop()


class PeerUnits:
    """One kind of unit on an engine. The engine is started by who comes first and stopped by who is told to."""

    def __init__(self, engine: Engine, kind: str = "") -> None:
        self._engine = engine
        self.name = engine.name + kind
        self._saga, self._undone = bool(kind), kind == "_saga_undone"
        self.quiet_rate_per_second = QUIET_RATE_PER_SECOND / (SAGA_STEPS if self._saga else 1)
        self.ends_engine = True

    @property
    def database_url(self) -> str | None:
        return self._engine.database_url

    def start(self) -> None:
        if self._engine.roots():
            return
        try:
            self._engine.start()
        except BaseException:
            self._engine.stop()
            raise

    def roots(self) -> dict[str, int]:
        return self._engine.roots()

    def request(self) -> Request:
        port, path = self._engine.address(self._saga)
        refuse = "true" if self._undone else "false"
        body = f'{{"unit": "{KEY}", "refuse": {refuse}}}' if self._saga else f'{{"payload": {{"key": "{KEY}"}}}}'
        succeeds = SAGA_STATES[self._undone] if self._saga else "SUCCESS"
        return Request("127.0.0.1", port, path, {"idempotency-key": KEY}, body, succeeds=succeeds)

    def faults(self, totals: Mapping[str, int], answered: int) -> Faults:
        if self._saga:
            return saga_faults(totals, answered, undone=self._undone)
        return command_faults(totals, answered)

    def complaints(self) -> str:
        return self._engine.complaints()

    def stop(self) -> None:
        if self.ends_engine:
            self._engine.stop()
