"""The stacks that the benchmark compares: how each is started on servers of its own, and what one unit sends to it."""

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import yaml

from bench.load import KEY, Request
from bench.processes import cpu_seconds
from trueup_common.contracts.topology import SERVICES
from trueup_devkit.children import Child, Command, free_port, http_status, port_is_free, spawn, tail, wait_until_ready
from trueup_devkit.gateway_client import GatewayClient
from trueup_devkit.plan import MODULES, Plan
from trueup_devkit.plane import prepare_start
from trueup_devkit.postgres import PostgresCluster
from trueup_devkit.state_folder import PlaneState

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_SECONDS = 180.0
STOP_TIMEOUT_SECONDS = 30.0
TENANT = "acme"
WAIT_SECONDS = 30
CAPABILITY_SECONDS = 1800
QUIET_RATE_PER_SECOND = 20.0
SAGA = "bench-saga"
SAGA_STEPS = 5
COMPLAINT = re.compile(r'"level":"(WARNING|ERROR|CRITICAL)"|ERROR|FATAL|Traceback')


@dataclass(frozen=True)
class Faults:
    """Effects that were doubled or are missing, and what else is not as it has to be."""

    duplicated: int
    missing: int
    otherwise: str = ""


class Stack(Protocol):
    """One stack under measurement."""

    name: str
    quiet_rate_per_second: float
    """Arrivals at low load; of sagas as many steps per second as of commands."""

    @property
    def database_url(self) -> str | None:
        """Where commits are counted; None without a PostgreSQL."""

    def start(self) -> None:
        """Start everything, ready to take units."""

    def roots(self) -> dict[str, int]:
        """The processes of the stack by role; client and stub are not among them."""

    def request(self) -> Request:
        """What one unit sends."""

    def faults(self, totals: Mapping[str, int], answered: int) -> Faults | None:
        """What the ground truth says against so many units that were answered well; None where there is no effect."""

    def complaints(self) -> str:
        """The last lines of the logs that tell of failures."""

    def stop(self) -> None:
        """Stop everything and remove its data."""


def command_faults(totals: Mapping[str, int], answered: int) -> Faults:
    """One effect for each unit."""
    return Faults(totals["duplicated"], max(0, answered - totals["distinct"]))


def saga_faults(totals: Mapping[str, int], answered: int, *, undone: bool) -> Faults:
    """Well: five steps of each unit stand. Undone: four were made and undone, the fifth was refused once."""
    effects = answered * (2 * (SAGA_STEPS - 1) if undone else SAGA_STEPS)
    wanted = {
        "standing": 0 if undone else answered * SAGA_STEPS,
        "undone": answered * (SAGA_STEPS - 1) if undone else 0,
        "refused": answered if undone else 0,
        "disordered": 0,
    }
    wrong = [f"{totals[name]} {name} instead of {count}" for name, count in wanted.items() if totals[name] != count]
    return Faults(totals["duplicated"], max(0, effects - totals["distinct"]), ", ".join(wrong))


def own_environment() -> dict[str, str]:
    """The caller's environment without settings of any plane: the benchmark measures what ships."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRUEUP_", "PG"))}
    return {**kept, "PYTHONPATH": str(ROOT)}


def make_folder() -> Path:
    """A folder for one stack's data."""
    return Path(tempfile.mkdtemp(prefix="trueup-bench-"))


class Stub:
    """The world outside, as a process."""

    def __init__(self) -> None:
        self.port = free_port()
        self._folder = make_folder()
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it."""
        arguments = [sys.executable, "-m", "bench.stub", str(self.port)]
        command = Command(arguments, own_environment(), ROOT)
        self._child = spawn("stub", command, self._folder / "stub.log")
        wait_until_ready(self._child, lambda: http_status(self.port, "/_totals") == 200, START_TIMEOUT_SECONDS)

    def cpu_seconds(self) -> float:
        """What it used so far."""
        assert self._child is not None
        return sum(cpu_seconds({"stub": self._child.pid}).values())

    def totals(self) -> dict[str, int]:
        """The ground truth: effects, distinct, duplicated."""
        answer = GatewayClient(self.url).get("/_totals")
        assert isinstance(answer, dict)
        return answer

    def hold(self, seconds: float) -> None:
        """Apply effects at once and answer them so much later."""
        GatewayClient(self.url).call("POST", "/_hold", {"seconds": seconds})

    def reset(self) -> None:
        """Forget all effects."""
        GatewayClient(self.url).call("POST", "/_reset", {})

    def stop(self) -> None:
        """Stop it."""
        if self._child is not None:
            self._child.stop(5)
        shutil.rmtree(self._folder, ignore_errors=True)


class Floor:
    """FastAPI and one committed INSERT per request, on PostgreSQL with the settings that the plane uses."""

    name = "floor"
    quiet_rate_per_second = QUIET_RATE_PER_SECOND

    def __init__(self) -> None:
        self._folder = make_folder()
        self._cluster = PostgresCluster(self._folder / "postgres")
        self._port = free_port()
        self._app: Child | None = None

    @property
    def database_url(self) -> str:
        return self._cluster.admin_url

    def start(self) -> None:
        self._cluster.start()
        arguments = [sys.executable, "-m", "uvicorn", "bench.floor:app", "--host", "127.0.0.1"]
        arguments += ["--port", str(self._port), "--loop", "uvloop", "--http", "httptools", "--no-access-log"]
        arguments += ["--log-level", "warning", "--timeout-keep-alive", "120"]
        environment = {**own_environment(), "FLOOR_DATABASE_URL": self.database_url}
        self._app = spawn("floor", Command(arguments, environment, ROOT), self._folder / "floor.log")
        wait_until_ready(self._app, lambda: not port_is_free(self._port), START_TIMEOUT_SECONDS)

    def roots(self) -> dict[str, int]:
        assert self._app is not None and self._cluster.child is not None
        return {"app": self._app.pid, "postgres": self._cluster.child.pid}

    def request(self) -> Request:
        return Request(
            "127.0.0.1", self._port, "/commands", {"idempotency-key": KEY}, f'{{"payload": {{"key": "{KEY}"}}}}'
        )

    def faults(self, totals: Mapping[str, int], answered: int) -> Faults | None:
        return None

    def complaints(self) -> str:
        return tail(self._folder / "floor.log", 5)

    def stop(self) -> None:
        if self._app is not None:
            self._app.stop(5)
        self._cluster.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class TrueupPlane:
    """The whole plane as `trueup up` runs it, without the sandbox world; effects go to the stub.

    It ends with this process, whatever happens to it. `profile` runs each service under `bench.profiled`.
    """

    quiet_rate_per_second = QUIET_RATE_PER_SECOND

    def __init__(self, name: str, command_type: str, stub_url: str, *, units_max: int, profile: str = "") -> None:
        self.name = name
        self.folder = make_folder()
        self._command_type = command_type
        self._stub_url = stub_url
        self._units_max = units_max
        self._profile = profile
        self._supervisor: Child | None = None
        self._state: PlaneState | None = None
        self._capability = ""
        self.plan = Plan(state_dir=str(self.folder / "state"), port=free_port(), sandbox=False)

    @property
    def state(self) -> PlaneState:
        """The running plane."""
        assert self._state is not None
        return self._state

    @property
    def database_url(self) -> str:
        return self.state.database_url

    def process(self, name: str) -> int:
        """The process id of one process of the plane."""
        return next(process.pid for process in self.state.processes if process.name == name)

    @property
    def profiled(self) -> dict[str, str]:
        """Where each profiled service writes its snapshots."""
        return {service: str(self.folder / f"profile-{service}") for service in SERVICES} if self._profile else {}

    def start(self) -> None:
        connections = self.folder / "connections.yaml"
        connection = {"tenant": TENANT, "system": "bench", "base_url": self._stub_url, "allow_private_network": True}
        connections.write_text(yaml.safe_dump({"connections": [connection]}))
        self.plan.connections = str(connections)
        for service, prefix in self.profiled.items():
            runner = [sys.executable, "-m", "bench.profiled", self._profile, prefix]
            self.plan.programs[service] = [*runner, MODULES[service]]
        prepared = prepare_start(self.plan)
        command = Command(prepared.arguments, own_environment(), ROOT, lease_fd=prepared.lease.fd)
        log = self.plan.folder.log("supervisor")
        self._supervisor = spawn("supervisor", command, log)
        prepared.lease.release()
        self._wait_until_ready(self._supervisor)
        self.authorize()

    def _wait_until_ready(self, supervisor: Child) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            self._state = self.plan.folder.read_state()
            if self._state is not None and self._state.phase == "ready":
                return
            if supervisor.exit_code() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: the plane does not start:\n{tail(supervisor.log)}\n{self._logs()}")
            time.sleep(0.05)

    def _logs(self) -> str:
        texts = []
        for process in self._state.processes if self._state is not None else []:
            if not process.ready:
                texts.append(f"-- {process.name}:\n{tail(Path(process.log))}")
        return "\n".join(texts)

    def use(self, command_type: str) -> None:
        """Go on with another type of command."""
        self._command_type = command_type
        self.authorize()

    def authorize(self) -> None:
        """Get one capability for all units, as an agent gets it."""
        client = GatewayClient(self.state.gateway_url)
        client.token = client.dev_token("agent:bench", TENANT, ["agent"], [], CAPABILITY_SECONDS)
        target = {"system": "bench", "resource": "effect"}
        decision = client.decide([self._command_type], target, "measure what one command costs")
        if decision["outcome"] != "approved":
            raise RuntimeError(f"{self.name}: the decision for {self._command_type} is {decision['outcome']}")
        answer = client.capability(decision["decision_id"], self._units_max, CAPABILITY_SECONDS)
        self._capability = str(answer["capability"])

    def roots(self) -> dict[str, int]:
        state = self.plan.folder.running_state()
        if any(process.restarts for process in state.processes):
            raise RuntimeError(f"{self.name}: a process was restarted during the measurement")
        processes = {process.name: process.pid for process in state.processes}
        return {**processes, "supervisor": state.supervisor_pid}

    def request(self) -> Request:
        headers = {
            "authorization": f"Bearer {self._capability}",
            "idempotency-key": f'"{KEY}"',
            "prefer": f"wait={WAIT_SECONDS}",
        }
        body = (
            f'{{"command_type": "{self._command_type}", "target": {{"system": "bench", "resource": "effect"}},'
            f' "payload": {{"key": "{KEY}"}}}}'
        )
        return Request("127.0.0.1", self.plan.port, "/v1/commands", headers, body)

    def accept_request(self) -> Request | None:
        """The same unit without waiting for its end: answered as soon as it is accepted."""
        request = self.request()
        headers = {name: value for name, value in request.headers.items() if name != "prefer"}
        return replace(request, headers=headers, status=202, succeeds="RECEIVED")

    def faults(self, totals: Mapping[str, int], answered: int) -> Faults:
        return command_faults(totals, answered)

    def complaints(self) -> str:
        """One line for each log that has an error or a warning in it: its last."""
        found = []
        for process in self.state.processes:
            lines = [line for line in tail(Path(process.log), 200).splitlines() if COMPLAINT.search(line)]
            found += [f"\n  {process.name}: {line[:1500]}" for line in lines[-1:]]
        return "".join(found)

    def stop(self) -> None:
        if self._supervisor is not None:
            self._supervisor.stop(STOP_TIMEOUT_SECONDS)
            self._supervisor = None
        shutil.rmtree(self.folder, ignore_errors=True)


class SagaPlane(TrueupPlane):
    """The same plane with a saga of five steps that end well."""

    name = "trueup_saga"
    undone = False
    quiet_rate_per_second = QUIET_RATE_PER_SECOND / SAGA_STEPS

    def __init__(self, stub_url: str, *, units_max: int, profile: str = "") -> None:
        super().__init__(self.name, "bench.make", stub_url, units_max=units_max, profile=profile)
        self.kept = False
        """Whether somebody goes on with this plane after it was measured; who clears it stops the plane."""

    def authorize(self) -> None:
        """Register the document and get one capability for all units."""
        client = GatewayClient(self.state.gateway_url)
        client.token = client.dev_token("operator:bench", TENANT, ["operator"], [], CAPABILITY_SECONDS)
        document = {"document": (ROOT / "bench" / "saga.yaml").read_text()}
        client.call("POST", "/v1/definitions", document, headers={"Idempotency-Key": '"bench-saga"'})
        client.token = client.dev_token("agent:bench", TENANT, ["agent"], [], CAPABILITY_SECONDS)
        decision = client.decide_workflow(SAGA, 1, "measure what a saga costs")
        if decision["outcome"] != "approved":
            raise RuntimeError(f"{self.name}: the decision for {SAGA} is {decision['outcome']}")
        answer = client.capability(decision["decision_id"], self._units_max, CAPABILITY_SECONDS)
        self._capability = str(answer["capability"])

    def request(self) -> Request:
        headers = {
            "authorization": f"Bearer {self._capability}",
            "idempotency-key": f'"{KEY}"',
            "prefer": f"wait={WAIT_SECONDS}",
        }
        refuse = "true" if self.undone else "false"
        body = f'{{"definition": "{SAGA}", "input": {{"unit": "{KEY}", "refuse": {refuse}}}}}'
        return Request(
            "127.0.0.1",
            self.plan.port,
            "/v1/workflows",
            headers,
            body,
            succeeds="COMPENSATED" if self.undone else "CLOSED",
        )

    def accept_request(self) -> Request | None:
        return None

    def faults(self, totals: Mapping[str, int], answered: int) -> Faults:
        return saga_faults(totals, answered, undone=self.undone)

    def stop(self) -> None:
        if not self.kept:
            super().stop()


class UndoneSagaPlane(SagaPlane):
    """The fifth step is refused for good, so four are undone. It may go on with the plane that measured them well."""

    name = "trueup_saga_undone"
    undone = True

    def __init__(self, stub_url: str, *, units_max: int, profile: str = "", on: SagaPlane | None = None) -> None:
        super().__init__(stub_url, units_max=units_max, profile=profile)
        self._on = on

    def start(self) -> None:
        if self._on is None:
            super().start()
            return
        if not self._on._capability:
            raise RuntimeError(f"{self.name}: the plane to go on with did not start")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder, self.plan, self._state = self._on.folder, self._on.plan, self._on.state
        self._capability = self._on._capability

    def stop(self) -> None:
        if self._on is None:
            super().stop()
        else:
            self._on.kept = False
            self._on.stop()
