"""Crash points and a wrong clock: what tests may do to a process in development, and nobody in production."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.patience import PATIENCE_SECONDS

from trueup_common.runtime.settings import Settings

REACH = """
import sys
from pathlib import Path
from trueup_common.runtime.crash import RealCrashPoints
points = RealCrashPoints(sys.argv[1], Path(sys.argv[2]))
for name in ("loop.other", "loop.committed", "loop.committed", "loop.committed"):
    points.reach(name)
    print(name, flush=True)
"""


def reaching(specification: str, marks: Path) -> subprocess.Popen[str]:
    """A process that comes by one point once and by another three times."""
    return subprocess.Popen(
        [sys.executable, "-c", REACH, specification, str(marks)], stdout=subprocess.PIPE, text=True, bufsize=1
    )


def test_a_process_dies_at_the_named_point_and_its_successor_does_not(tmp_path: Path) -> None:
    """The second time that it is reached, as by SIGKILL; the mark keeps the restarted process alive."""
    died = reaching("loop.committed:2,loop.never", tmp_path)
    assert died.communicate(timeout=PATIENCE_SECONDS)[0].split() == ["loop.other", "loop.committed"]
    assert died.returncode == -signal.SIGKILL
    again = reaching("loop.committed:2", tmp_path)
    assert len(again.communicate(timeout=PATIENCE_SECONDS)[0].split()) == 4
    assert again.returncode == 0


def test_a_process_pauses_at_the_named_point_until_somebody_continues_it(tmp_path: Path) -> None:
    """SIGSTOP in place of SIGKILL: nothing of the process is lost, it only has not noticed the time between."""
    paused = reaching("loop.committed:1:stop", tmp_path)
    pid, status = os.waitpid(paused.pid, os.WUNTRACED)
    assert pid == paused.pid and os.WIFSTOPPED(status)
    os.kill(paused.pid, signal.SIGCONT)
    assert len(paused.communicate(timeout=PATIENCE_SECONDS)[0].split()) == 4
    assert paused.returncode == 0


@pytest.mark.parametrize("setting", ["CRASH_AT", "CLOCK_SKEW_SECONDS"])
def test_nobody_breaks_a_production_process(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requirements: T2"""
    monkeypatch.setenv(f"TRUEUP_{setting}", "300")
    monkeypatch.setenv("TRUEUP_MODE", "development")
    assert Settings().development
    monkeypatch.setenv("TRUEUP_MODE", "production")
    with pytest.raises(ValidationError, match=f"TRUEUP_{setting} is refused in production mode"):
        Settings()
