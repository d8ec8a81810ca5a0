"""The state folder: one plane per folder, guarded by a lock; what runs in it is written down for other commands.

The lock, not the state file, says whether a plane runs: the file may have outlived a killed supervisor.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trueup_devkit.children import Lease, http_status, process_is_alive, takes_connections
from trueup_devkit.told import ToldError

DEFAULT_FOLDER = Path(".trueup")


class PlaneNotRunningError(ToldError):
    """The command needs a running plane and there is none on this state folder."""


@dataclass
class ProcessState:
    """One process of the plane as other commands see it."""

    name: str
    pid: int = 0
    restarts: int = 0
    ready: bool = False
    health: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    def public(self) -> dict[str, Any]:
        """The process in `trueup status --json`. Services serve their metrics where they say that they are ready."""
        asked = self.health.get("path") == "/readyz" and self.name != "sandbox"
        metrics_url = f"http://127.0.0.1:{self.health['port']}/metrics" if asked else None
        ready = {"name": self.name, "pid": self.pid, "restarts": self.restarts, "ready": self.ready}
        return {**ready, "metrics_url": metrics_url}


@dataclass
class PlaneState:
    """The whole plane as other commands see it; `phase` ∈ starting, ready, stopping, failed."""

    gateway_url: str
    console_url: str
    sandbox_url: str | None
    database_url: str
    nats_url: str
    state_dir: str
    supervisor_pid: int
    phase: str = "starting"
    error: str | None = None
    clock: str = "system"
    processes: list[ProcessState] = field(default_factory=list)

    def public(self) -> dict[str, Any]:
        """The documented shape of `trueup status --json`."""
        urls = ("gateway_url", "console_url", "sandbox_url", "database_url", "nats_url", "state_dir")
        return {**{name: getattr(self, name) for name in urls}, "processes": [p.public() for p in self.processes]}


@dataclass(frozen=True)
class StateFolder:
    """Paths below one state folder."""

    path: Path

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def ports(self) -> Path:
        return self.path / "ports.json"

    @property
    def secrets(self) -> Path:
        return self.path / "secrets"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def prepare(self) -> None:
        """Make the folder, closed to others: it holds secrets."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.logs.mkdir(exist_ok=True)

    def is_running(self) -> bool:
        """Tell whether a supervisor holds this folder."""
        if not self.lock.exists():
            return False
        lease = Lease.take(self.lock)
        if lease is None:
            return True
        lease.release()
        return False

    def read_state(self) -> PlaneState | None:
        """What the supervisor wrote last, whether or not it still runs."""
        try:
            content = json.loads(self.state.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        content["processes"] = [ProcessState(**process) for process in content["processes"]]
        return PlaneState(**content)

    def write_state(self, state: PlaneState) -> None:
        write_private(self.state, json.dumps(asdict(state), indent=2))

    def running_state(self) -> PlaneState:
        """The state of a running plane, or an error that says what to do."""
        state = self.read_state() if self.is_running() else None
        if state is None:
            raise PlaneNotRunningError(f"no plane runs on {self.path}; start one with: trueup up --detach")
        return state

    def live_state(self) -> PlaneState:
        """The running state with the readiness of this moment, asked from every process itself."""
        state = self.running_state()
        for process in state.processes:
            process.ready = is_ready(process)
        return state


def is_ready(process: ProcessState) -> bool:
    """Ask one process whether it is ready."""
    if process.pid <= 0 or not process_is_alive(process.pid):
        return False
    port, kind = process.health.get("port"), process.health.get("kind")
    if kind == "postgres":
        return takes_connections(int(port or 0))
    if kind == "http":
        return http_status(int(port or 0), str(process.health["path"])) == 200
    return True


def lock_holder_is(path: Path, pid: int) -> bool:
    """Tell whether `pid` is the process that holds the lock file, so that a recycled number is never signalled."""
    try:
        wanted = path.stat().st_ino
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if fd.stat().st_ino == wanted and fd.readlink() == path.resolve():
                    return True
    except FileNotFoundError:
        return not Path("/proc/self").exists() and process_is_alive(pid)
    except PermissionError:
        return False
    return False


def inherit_lock(fd: int) -> None:
    """Check that an inherited descriptor carries the folder's lock."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.set_inheritable(fd, False)


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by its owner only."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    unfinished.rename(path)
