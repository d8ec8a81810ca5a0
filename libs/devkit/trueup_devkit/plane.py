"""Start and stop a plane from another process: what `up`, `down`, the demo, tests and the benchmark share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trueup_devkit.children import Lease, StartError, process_is_alive, tail
from trueup_devkit.plan import Plan, PlanError
from trueup_devkit.secret_files import installed_systems, make_secrets
from trueup_devkit.state_folder import PlaneNotRunningError, PlaneState, StateFolder, lock_holder_is
from trueup_devkit.told import ToldError

READY_TIMEOUT_SECONDS = 420.0
STOP_TIMEOUT_SECONDS = 90.0
_POLL_SECONDS = 0.05


class AlreadyRunningError(ToldError):
    """The state folder belongs to a running plane."""


@dataclass(frozen=True)
class PreparedStart:
    """A state folder that is locked and ready for the supervisor to be started in."""

    plan: Plan
    lease: Lease

    @property
    def arguments(self) -> list[str]:
        return [sys.executable, "-m", "trueup_devkit.supervisor", self.plan.state_dir, str(self.lease.fd)]


def prepare_start(plan: Plan) -> PreparedStart:
    """Lock the folder, make missing secrets, write the plan down."""
    if plan.connections is not None:
        if not Path(plan.connections).is_file():
            raise PlanError(f"--connections: there is no file {plan.connections}")
        plan.connections = str(Path(plan.connections).resolve())
    plan.state_dir = str(Path(plan.state_dir).resolve())
    plan.folder.prepare()
    lease = Lease.take(plan.folder.lock, timeout_seconds=0.5)
    if lease is None:
        raise AlreadyRunningError(f"a plane already runs on {plan.state_dir}; stop it with: trueup down")
    make_secrets(plan.folder.secrets, installed_systems())
    plan.folder.state.unlink(missing_ok=True)
    plan.save()
    return PreparedStart(plan, lease)


def run_in_foreground(plan: Plan) -> None:
    """Become the supervisor: this process is replaced, so nothing of the command line stays in memory."""
    prepared = prepare_start(plan)
    os.set_inheritable(prepared.lease.fd, True)
    os.execv(sys.executable, prepared.arguments)


def start_detached(
    plan: Plan,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = READY_TIMEOUT_SECONDS,
    on_progress: Callable[[PlaneState], None] | None = None,
) -> PlaneState:
    """Start the plane in the background and return when every process is ready."""
    prepared = prepare_start(plan)
    log = plan.folder.log("supervisor")
    log.unlink(missing_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            prepared.arguments,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(prepared.lease.fd,),
            start_new_session=True,
        )
    prepared.lease.release()
    deadline = time.monotonic() + timeout_seconds
    while True:
        state = plan.folder.read_state()
        if state is not None and on_progress is not None:
            on_progress(state)
        if state is not None and state.phase == "ready":
            return state
        if process.poll() is not None:
            raise StartError((state.error if state else None) or f"the supervisor ended:\n{tail(log)}")
        if time.monotonic() > deadline:
            unready = [p for p in state.processes if not p.ready] if state else []
            process.terminate()
            process.wait(STOP_TIMEOUT_SECONDS)
            reasons = [f"{p.name} is not ready:\n{tail(Path(p.log))}" for p in unready]
            raise StartError("\n".join(reasons) or f"not ready within {timeout_seconds:g} s:\n{tail(log)}")
        time.sleep(_POLL_SECONDS)


def stop(folder: StateFolder, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
    """Ask the supervisor to drain and wait until the folder is free."""
    state = folder.running_state()
    if not lock_holder_is(folder.lock, state.supervisor_pid):
        raise PlaneNotRunningError(
            f"{folder.lock} is held by another process than the recorded supervisor (pid {state.supervisor_pid});"
            " nothing was stopped"
        )
    os.kill(state.supervisor_pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_seconds
    while process_is_alive(state.supervisor_pid) and folder.is_running():
        if time.monotonic() > deadline:
            raise StartError(f"the supervisor (pid {state.supervisor_pid}) did not stop in {timeout_seconds:g} s")
        time.sleep(_POLL_SECONDS)
