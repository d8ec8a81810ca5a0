"""Which processes the demo kills, at which moment of the case, and how they come back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from trueup_common.runtime.clock import real_now
from trueup_devkit.demo.telling import Teller
from trueup_devkit.state_folder import ProcessState, StateFolder

UNDECIDED: Final = frozenset({"OUTCOME_UNKNOWN", "ORPHAN_SUSPECTED", "RECONCILING"})


def _draft_is_unknown(case: dict[str, Any], _effects: list[dict[str, Any]]) -> bool:
    return any(step["id"] == "draft" and step["state"] in UNDECIDED for step in case.get("steps") or [])


def _publish_has_happened(_case: dict[str, Any], effects: list[dict[str, Any]]) -> bool:
    return any((effect["kind"], effect["action"]) == ("wordpress.post", "publish") for effect in effects)


MOMENTS: Final[dict[str, Callable[[dict[str, Any], list[dict[str, Any]]], bool]]] = {
    "draft is unknown": _draft_is_unknown,
    "publish has happened": _publish_has_happened,
}


@dataclass
class Casualty:
    """One process that is to be killed."""

    name: str
    moment: str
    killed: ProcessState | None = None
    restarted: bool = False
    returned: bool = False


@dataclass
class Casualties:
    """All of one demo."""

    folder: StateFolder
    teller: Teller
    planned: list[Casualty] = field(default_factory=list)

    def look(self, case: dict[str, Any], effects: list[dict[str, Any]]) -> list[str]:
        """Kill whose moment has come, and tell who came back. Answers who was killed now."""
        now = []
        for casualty in self.planned:
            if casualty.killed is None:
                if MOMENTS[casualty.moment](case, effects) and self._kill(casualty):
                    now.append(casualty.name)
            elif not casualty.returned:
                self._note_return(casualty, casualty.killed)
        return now

    @property
    def killed(self) -> list[str]:
        """Who was killed so far."""
        return [casualty.name for casualty in self.planned if casualty.killed is not None]

    @property
    def all_returned(self) -> bool:
        """True where everybody who was killed is back."""
        return all(casualty.returned or casualty.killed is None for casualty in self.planned)

    def _kill(self, casualty: Casualty) -> bool:
        victim = self._process(casualty.name)
        if victim is None or victim.pid <= 0:
            return False
        os.kill(victim.pid, signal.SIGKILL)
        casualty.killed = victim
        self._tell("FAULT", f"SIGKILL to {casualty.name} (pid {victim.pid}) at the worst moment: {casualty.moment}")
        return True

    def _note_return(self, casualty: Casualty, killed: ProcessState) -> None:
        process = self._process(casualty.name)
        if process is None or process.pid in (0, killed.pid) or process.restarts <= killed.restarts:
            return
        if not casualty.restarted:
            casualty.restarted = True
            self._tell("supervisor", f"saw {casualty.name} end and starts it again (pid {process.pid})")
        if process.ready:
            casualty.returned = True
            self._tell("supervisor", f"{casualty.name} ready again; it goes on from its rows")

    def _process(self, name: str) -> ProcessState | None:
        state = self.folder.read_state()
        return next((process for process in state.processes if process.name == name), None) if state else None

    def _tell(self, who: str, text: str) -> None:
        self.teller.tell(real_now(), who, text)
