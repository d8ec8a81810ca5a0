"""The supervisor on real PostgreSQL and NATS with stand-in services: start, restart, drain, and its own death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.patience import PATIENCE_SECONDS

from trueup_common.contracts.topology import SERVICES
from trueup_devkit import plane, rolling
from trueup_devkit.children import StartError, process_is_alive
from trueup_devkit.plan import Plan, PlanError, parse_replicas
from trueup_devkit.plane import AlreadyRunningError
from trueup_devkit.state_folder import PlaneNotRunningError, PlaneState, StateFolder

FAKE = [sys.executable, "-S", str(Path(__file__).with_name("fake_program.py"))]
PROGRAMS = {**dict.fromkeys((*SERVICES, "sandbox"), FAKE), "bootstrap": [sys.executable, "-S", "-c", "print('made')"]}


def wait_for(condition: Callable[[], bool], timeout_seconds: float = PATIENCE_SECONDS) -> None:
    """Poll a condition of real processes, bounded."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


class Plane:
    """One state folder and what a test does with it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state"
        self.diary = folder / "diary"
        self.folder = StateFolder(self.path)

    def start(self, **options: Any) -> PlaneState:
        broken = options.pop("broken", "")
        plan = Plan(str(self.path), port=0, programs={**PROGRAMS, **options.pop("programs", {})}, **options)
        environment = {**os.environ, "FAKE_DIARY": str(self.diary), "FAKE_BROKEN": broken, "TRUEUP_CRASH_AT": "x.y"}
        return plane.start_detached(plan, environment)

    def pids(self) -> dict[str, int]:
        return {process.name: process.pid for process in self.folder.running_state().processes}

    def process(self, name: str) -> Any:
        return next(p for p in self.folder.live_state().processes if p.name == name)

    def told(self, name: str) -> dict[str, str]:
        port = self.process(name).health["port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_SECONDS) as answer:
            told: dict[str, str] = json.load(answer)
        return told

    def end(self) -> None:
        if self.folder.is_running():
            plane.stop(self.folder)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Plane]:
    found = Plane(tmp_path)
    yield found
    found.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One running plane with replicas for the tests that leave it running."""
    found = Plane(tmp_path_factory.mktemp("plane"))
    found.start(replicas={"gateway": 2, "adapters": 2})
    yield found
    found.end()


def test_names_and_environments_of_all_processes(shared: Plane) -> None:
    """Replicas are numbered from 2, share the gateway's port, and no service is told another's secrets.

    Requirements: T2, G1
    """
    state = shared.folder.live_state()
    names = [process.name for process in state.processes]
    assert names == [
        *("postgres", "nats", "sandbox", "gateway", "gateway-2", "orchestrator"),
        *("adapters", "adapters-2", "reconciler", "repair-planner"),
    ]
    assert all(process.ready for process in state.processes)
    gateway, second, adapters, planner = (
        shared.told(n) for n in ("gateway", "gateway-2", "adapters", "repair-planner")
    )
    assert gateway["TRUEUP_PORT"] == second["TRUEUP_PORT"] == state.gateway_url.rpartition(":")[2]
    assert (second["TRUEUP_SERVICE"], second["TRUEUP_INSTANCE"]) == ("gateway", "gateway-2")
    assert gateway["TRUEUP_DATABASE_URL"] == second["TRUEUP_DATABASE_URL"]
    assert "//trueup_repair_planner:" in planner["TRUEUP_DATABASE_URL"]
    assert "//repair-planner:" in planner["TRUEUP_NATS_URL"]
    assert len({told["TRUEUP_NATS_URL"] for told in (gateway, adapters, planner)}) == 3
    assert "TRUEUP_CONNECTIONS" in adapters and "TRUEUP_CONNECTIONS" not in gateway
    assert "TRUEUP_GRANT_KEYS_FILE" in adapters and "TRUEUP_SIGNING_KEY_FILE" not in adapters
    assert "TRUEUP_GRANT_KEYS_FILE" not in planner
    everything_told = json.dumps([shared.told(name) for name in names[3:]])
    assert state.database_url not in everything_told and state.nats_url not in everything_told


def test_status_has_the_documented_shape(shared: Plane) -> None:
    """What `trueup status --json` prints is a contract with outside checks."""
    printed = subprocess.run(
        [sys.executable, "-m", "trueup_devkit.cli", "status", "--json", "--state-dir", str(shared.path)],
        capture_output=True,
        text=True,
        check=True,
    )
    status = json.loads(printed.stdout)
    assert set(status) == {
        *("gateway_url", "console_url", "sandbox_url", "database_url", "nats_url", "state_dir", "processes"),
    }
    assert status["console_url"] == status["gateway_url"] + "/console"
    assert status["database_url"].startswith("postgresql://") and status["nats_url"].startswith("nats://")
    assert status["state_dir"] == str(shared.path)
    members = {"name", "pid", "restarts", "ready", "metrics_url"}
    assert all(set(process) == members for process in status["processes"])
    stores = {"postgres", "nats", "sandbox"}
    assert all((process["metrics_url"] is None) == (process["name"] in stores) for process in status["processes"])
    assert all(process["ready"] is True and process_is_alive(process["pid"]) for process in status["processes"])


def test_the_world_is_told_where_every_adapters_process_answers(shared: Plane) -> None:
    """Service discovery needs addresses that are known in advance and outlive the process behind them."""
    ports = [shared.process(name).health["port"] for name in ("adapters", "adapters-2")]
    assert [shared.told(name)["TRUEUP_HEALTH_PORT"] for name in ("adapters", "adapters-2")] == [str(p) for p in ports]
    asked = psutil.Process(shared.pids()["sandbox"]).cmdline()
    urls = [f"--discovery=http://127.0.0.1:{port}/discovery/monitoring/{{tenant}}" for port in ports]
    assert [argument for argument in asked if argument.startswith("--discovery")] == urls
    before = shared.process("adapters-2")
    os.kill(before.pid, signal.SIGKILL)
    wait_for(lambda: shared.process("adapters-2").pid not in (0, before.pid) and shared.process("adapters-2").ready)
    assert shared.process("adapters-2").health["port"] == ports[1]


def test_a_killed_service_comes_back_and_is_counted(shared: Plane) -> None:
    """SIGKILL costs one restart of that process only, and a crash point does not fire again in the new process."""
    before = shared.pids()
    assert shared.told("orchestrator")["TRUEUP_CRASH_AT"] == "x.y"
    restarts = shared.process("orchestrator").restarts
    os.kill(before["orchestrator"], signal.SIGKILL)
    wait_for(lambda: shared.process("orchestrator").restarts == restarts + 1 and shared.process("orchestrator").ready)
    after = shared.pids()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"orchestrator"}
    assert "TRUEUP_CRASH_AT" not in shared.told("orchestrator")


def test_processes_are_restarted_one_after_the_other(shared: Plane) -> None:
    """Whoever is asked to go drains and is ready again before the next one is asked; all others stay as they are.

    Requirements: D5
    """
    before, drained = shared.pids(), shared.diary.read_text().split() if shared.diary.exists() else []
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        assert all(process.ready for process in shared.folder.live_state().processes), line

    order = rolling.restart(shared.folder, ["gateway", "adapters-2"], tell)
    assert order == ["gateway", "gateway-2", "adapters-2"] == [line.partition(":")[0] for line in told]
    assert shared.diary.read_text().split()[len(drained) :] == order
    after = shared.pids()
    assert {name for name in before if before[name] != after[name]} == set(order)


def test_only_service_processes_of_this_plane_are_restarted(shared: Plane) -> None:
    """A store is none of them, and an unknown name ends nothing."""
    before = shared.pids()
    assert rolling.chosen(shared.folder.running_state(), []) == [
        name for name in before if rolling.service_of(name) in SERVICES
    ]
    for name in ("postgres", "nobody"):
        done = subprocess.run(
            [sys.executable, "-m", "trueup_devkit.cli", "restart", name, "--state-dir", str(shared.path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2 and "gateway-2" in done.stderr
    assert shared.pids() == before


@pytest.mark.parametrize("name", ["postgres", "nats", "sandbox"])
def test_a_killed_server_comes_back_at_the_same_address(shared: Plane, name: str) -> None:
    """Services hold addresses, not processes: a killed store returns where it was.

    Requirements: M2
    """
    before = shared.process(name)
    os.kill(before.pid, signal.SIGKILL)
    wait_for(lambda: shared.process(name).pid not in (0, before.pid) and shared.process(name).ready)
    after = shared.process(name)
    assert after.restarts == before.restarts + 1
    assert after.health == before.health


def test_a_second_start_is_refused(shared: Plane) -> None:
    """The folder belongs to the running plane, which is not disturbed."""
    before = shared.pids()
    with pytest.raises(AlreadyRunningError, match="trueup down"):
        shared.start()
    assert shared.pids() == before
    assert all(process.ready for process in shared.folder.live_state().processes)


def test_the_supervisor_stays_small(shared: Plane) -> None:
    """It lives as long as the plane, so it must not carry the libraries of the services."""
    supervisor = psutil.Process(shared.folder.running_state().supervisor_pid)
    assert supervisor.memory_full_info().pss < 25 * 2**20


def test_a_service_that_stays_unready_gets_its_streams_made_again(made: Plane) -> None:
    """Services may not create what vanished from the bus; the bootstrap, which may, runs again and all is well.

    Requirements: M2
    """
    mark = made.diary.with_name("diary.unready.orchestrator")
    heal = f"import pathlib; pathlib.Path({str(mark)!r}).unlink(missing_ok=True); print('made')"
    made.start(programs={"bootstrap": [sys.executable, "-S", "-c", heal]})
    pid = made.process("orchestrator").pid
    mark.touch()
    wait_for(lambda: not written(made, "orchestrator").ready)
    wait_for(lambda: not mark.exists() and written(made, "orchestrator").ready)
    assert written(made, "orchestrator").pid == pid


def written(plane_: Plane, name: str) -> Any:
    """A process as the supervisor sees it."""
    state = plane_.folder.read_state()
    assert state is not None
    return next(process for process in state.processes if process.name == name)


def test_drains_in_order_and_starts_again_with_the_same_addresses(made: Plane) -> None:
    """Stop: the gateway first, then the workers, then the world; a new start keeps addresses and secrets."""
    first = made.start()
    pids = made.pids()
    plane.stop(made.folder)
    drained = made.diary.read_text().split()
    assert drained[0] == "gateway" and drained[-1] == "sandbox"
    assert set(drained[1:-1]) == {"orchestrator", "adapters", "reconciler", "repair-planner"}
    assert not any(process_is_alive(pid) for pid in pids.values())
    with pytest.raises(PlaneNotRunningError):
        made.folder.running_state()
    second = made.start()
    assert (second.database_url, second.nats_url) == (first.database_url, first.nats_url)
    assert (second.gateway_url, second.sandbox_url) == (first.gateway_url, first.sandbox_url)


def test_everything_dies_with_a_killed_supervisor_and_a_new_start_works(made: Plane) -> None:
    """After SIGKILL of the supervisor nothing survives that could write on the next plane's stores."""
    made.start()
    pids = made.pids()
    os.kill(made.folder.running_state().supervisor_pid, signal.SIGKILL)
    second = made.start()
    assert not any(process_is_alive(pid) for pid in pids.values())
    assert second.phase == "ready"
    assert not set(made.pids().values()) & set(pids.values())


def test_down_never_signals_a_process_that_is_not_ours(made: Plane) -> None:
    """A state file that outlived its supervisor names a number that may belong to anyone."""
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        made.start()
        real = made.folder.running_state()
        forged = made.folder.running_state()
        forged.supervisor_pid = bystander.pid
        made.folder.write_state(forged)
        with pytest.raises(PlaneNotRunningError, match="nothing was stopped"):
            plane.stop(made.folder)
        assert bystander.poll() is None
        made.folder.write_state(real)
    finally:
        bystander.kill()
        bystander.wait(PATIENCE_SECONDS)


def test_a_service_that_does_not_start_is_named_with_its_log(made: Plane) -> None:
    """`up --detach` says which process is not ready and why, and leaves nothing behind."""
    with pytest.raises(StartError, match=r"reconciler does not stay up:[\s\S]*no catalog, giving up"):
        made.start(broken="reconciler", sandbox=False)
    assert not made.folder.is_running()
    state = made.folder.read_state()
    assert state is not None and state.phase == "failed"
    assert not any(process_is_alive(process.pid) for process in state.processes if process.pid)


def test_a_failing_bootstrap_is_told(made: Plane) -> None:
    """Services never start on a database that could not be migrated."""
    failing = [sys.executable, "-S", "-c", "import sys; print('revision 7 does not apply'); sys.exit(1)"]
    with pytest.raises(StartError, match=r"bootstrap ended with exit code 1:\nrevision 7 does not apply"):
        made.start(programs={"bootstrap": failing})
    assert not made.folder.log("gateway").exists()


def test_external_servers_are_used_and_not_started(made: Plane, shared: Plane) -> None:
    """With external URLs nothing is embedded; the roles are those of this folder's secrets."""
    theirs = shared.folder.running_state()
    state = made.start(external_database_url=theirs.database_url, external_nats_url=theirs.nats_url, sandbox=False)
    assert [process.name for process in state.processes] == list(SERVICES)
    assert state.sandbox_url is None
    told = made.told("reconciler")
    assert told["TRUEUP_DATABASE_URL"].startswith("postgresql://trueup_reconciler:")
    assert told["TRUEUP_DATABASE_URL"].rpartition("@")[2] == theirs.database_url.rpartition("@")[2]
    assert told["TRUEUP_NATS_URL"] == theirs.nats_url


def test_reads_replicas_strictly() -> None:
    """A typo in --replicas is told and never silently one replica."""
    assert parse_replicas("gateway=2, adapters=3") == {"gateway": 2, "adapters": 3}
    assert parse_replicas(None) == parse_replicas("") == {}
    for wrong in ("gatway=2", "gateway", "gateway=0", "gateway=x", "gateway=99", "gateway=²"):
        with pytest.raises(PlanError, match="--replicas"):
            parse_replicas(wrong)


def test_secrets_are_made_once_and_closed(shared: Plane) -> None:
    """Keys survive restarts, differ per service, and nobody else can read them.

    Requirements: T2
    """
    files = sorted(shared.folder.secrets.iterdir())
    names = ["database.json", "dev_issuer_key.json", "grant_keys.json", "nats.json", "signing_key.json"]
    assert [file.name for file in files] == names
    assert all(file.stat().st_mode & 0o077 == 0 for file in (*files, shared.folder.state, shared.path))
    passwords = json.loads((shared.folder.secrets / "database.json").read_text())
    assert set(passwords) == set(SERVICES) and len(set(passwords.values())) == len(SERVICES)
    keys = json.loads((shared.folder.secrets / "grant_keys.json").read_text())
    assert "wordpress" in keys and all(len(key) == 43 for key in keys.values())
