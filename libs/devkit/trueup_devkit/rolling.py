"""Rolling restarts: one process at a time finishes its work and goes; the next follows once its successor is ready.

The supervisor starts again whatever ends, so this only asks processes to end, in turn, and never two at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from trueup_common.contracts.topology import SERVICES
from trueup_devkit.children import StartError, process_is_alive, tail
from trueup_devkit.state_folder import PlaneState, ProcessState, StateFolder, is_ready
from trueup_devkit.told import ToldError

DRAIN_SECONDS = 20.0
READY_SECONDS = 60.0
_POLL_SECONDS = 0.05


class UnknownProcessError(ToldError):
    """A name that no service process of this plane has."""


def service_of(name: str) -> str:
    """The service of a process name (`gateway-2` → `gateway`)."""
    return name.rstrip("0123456789").rstrip("-")


def chosen(state: PlaneState, names: Iterable[str]) -> list[str]:
    """Process names for services or single processes, in the order of the plane; without names, all services."""
    known = [process.name for process in state.processes if service_of(process.name) in SERVICES]
    wanted = set(names)
    unknown = sorted(wanted - {*known, *map(service_of, known)})
    if unknown:
        raise UnknownProcessError(f"no service process is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if not wanted or name in wanted or service_of(name) in wanted]


def restart(folder: StateFolder, names: Iterable[str] = (), tell: Callable[[str], None] = print) -> list[str]:
    """Restart processes in turn; answers their names. Raises StartError where one does not come back."""
    order = chosen(folder.running_state(), names)
    for name in order:
        _until_all_ready(folder)
        begun = time.monotonic()
        old = _process(folder, name).pid
        _end(folder, name, old)
        new = _until_back(folder, name, old)
        tell(f"{name}: pid {old} -> {new} in {time.monotonic() - begun:.1f} s")
    _until_all_ready(folder)
    return order


def _process(folder: StateFolder, name: str) -> ProcessState:
    return next(process for process in folder.running_state().processes if process.name == name)


def _end(folder: StateFolder, name: str, pid: int) -> None:
    if _parent_of(pid) != folder.running_state().supervisor_pid:
        raise StartError(f"{name} (pid {pid}) is not a child of this plane's supervisor; nothing was ended")
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + DRAIN_SECONDS
    while process_is_alive(pid) and _process(folder, name).pid == pid:
        if time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(_POLL_SECONDS)


def _until_back(folder: StateFolder, name: str, old: int) -> int:
    end = time.monotonic() + READY_SECONDS
    while True:
        process = _process(folder, name)
        if process.pid not in (0, old) and is_ready(process):
            return process.pid
        if time.monotonic() > end:
            raise StartError(f"{name} is not ready again after {READY_SECONDS:g} s:\n{tail(Path(process.log))}")
        time.sleep(_POLL_SECONDS)


def _until_all_ready(folder: StateFolder) -> None:
    end = time.monotonic() + READY_SECONDS
    while unready := [process.name for process in folder.live_state().processes if not process.ready]:
        if time.monotonic() > end:
            raise StartError(f"not ready: {', '.join(unready)}; nothing more was restarted")
        time.sleep(_POLL_SECONDS)


def _parent_of(pid: int) -> int:
    """The parent process, 0 where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
