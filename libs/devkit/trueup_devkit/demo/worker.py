"""A worker that is dead for good: killed, and killed again whenever the supervisor brings it back, until it is spared.

The killing has a thread of its own: a worker that lived for a second would find its own effect and tell of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Final

from trueup_common.runtime.clock import real_now
from trueup_devkit.demo.telling import Teller
from trueup_devkit.state_folder import ProcessState, StateFolder

POLL_SECONDS: Final = 0.05


class Worker:
    """One process of the plane."""

    def __init__(self, name: str, folder: StateFolder, teller: Teller) -> None:
        self.name = name
        self._folder = folder
        self._teller = teller
        self._killed: set[int] = set()
        self._spared = threading.Event()
        self._killing = threading.Thread(target=self._kill_again, daemon=True)
        self.present = True

    def kill(self) -> None:
        """From now on it is dead. Raises where it was not there to be killed."""
        self.present = False
        self._kill()
        self._killing.start()

    @property
    def deaths(self) -> int:
        """How often it was killed."""
        return len(self._killed)

    def spare(self) -> None:
        """It may come back; nobody kills it from now on."""
        self._spared.set()
        if self._killing.is_alive():
            self._killing.join()

    def look(self) -> None:
        """See whether it is there again."""
        process = self._process()
        if self.present or not self._spared.is_set() or process is None or process.pid in self._killed:
            return
        if process.ready:
            self.present = True
            self._tell("supervisor", f"{self.name} ready again (pid {process.pid})")

    def _kill_again(self) -> None:
        while not self._spared.wait(POLL_SECONDS):
            self._kill()

    def _kill(self) -> None:
        process = self._process()
        if process is None or process.pid <= 0 or process.pid in self._killed:
            return
        self._killed.add(process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        self._tell("FAULT", f"SIGKILL to {self.name} (pid {process.pid})")

    def _process(self) -> ProcessState | None:
        state = self._folder.read_state()
        return next((process for process in state.processes if process.name == self.name), None) if state else None

    def _tell(self, who: str, text: str) -> None:
        self._teller.tell(real_now(), who, text)
