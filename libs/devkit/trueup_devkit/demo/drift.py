"""`python -m trueup_devkit.demo.drift`: six things break and heal; the last line is JSON, and everything is stopped."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from trueup_common.runtime.clock import real_now
from trueup_devkit.demo.drift_causes import COUNT
from trueup_devkit.demo.drift_run import TITLE, DriftDemo
from trueup_devkit.demo.telling import Teller
from trueup_devkit.demo.troubles import OUTCOMES, TIMES, failure_of, last_line
from trueup_devkit.told import ToldError

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 healed, 1 not, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m trueup_devkit.demo.drift",
        description="Break six things of a published article and of its plane, and watch the plane heal them.",
        epilog="example: python -m trueup_devkit.demo.drift --keep",
    )
    parser.add_argument("--keep", action="store_true", help="keep the state folder (it is kept after a failure anyway)")
    parser.add_argument("--state-dir", type=Path, help="an empty folder to use instead of a temporary one; it is kept")
    parser.add_argument("--port", type=int, default=0, help="gateway port; default: a free one")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    folder = given.state_dir or Path(tempfile.mkdtemp(prefix="trueup-demo-"))
    teller = Teller(real_now())
    drift = DriftDemo(folder, given.port, teller)
    failure: str | None = "interrupted"
    interrupted = False
    try:
        failure = _run(drift, folder)
    except KeyboardInterrupt:
        interrupted = True
        teller.say("interrupted", "bold red")
    finally:
        _stop(drift)
        if failure is not None or given.keep or given.state_dir is not None:
            teller.say(f"state and logs are kept in {folder}; go on with: trueup up --detach --state-dir {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if interrupted:
        return INTERRUPTED
    print(json.dumps(last_line(drift.troubles, len(drift.open), time.monotonic() - started, failure)), flush=True)
    return 0 if failure is None else 1


def _run(drift: DriftDemo, folder: Path) -> str | None:
    """What is missing at the end; None where everything is healed."""
    teller = drift.teller
    teller.say(f"trueup demo: {TITLE}", "bold")
    teller.say(f"a plane of its own in {folder}; Ctrl-C stops everything", "dim")
    wrong: list[str] = []
    try:
        drift.demo.start()
        teller.head("one article, published in peace")
        drift.publish()
        teller.head("what goes wrong")
        drift.break_things()
        teller.head("what the plane makes of it; its clock moves on faster than ours")
        drift.heal()
        wrong = drift.wrong()
    except ToldError as error:
        wrong = [str(error)]
    teller.head("found / classified / repaired / verified, in seconds of business time since it was caused")
    rows = [trouble.row() for trouble in drift.troubles]
    teller.table(TIMES, rows)
    teller.table(OUTCOMES, rows)
    failure = failure_of(drift.troubles, COUNT, drift.open, wrong)
    teller.say(f"{len(drift.open)} exceptions are open; the clock was moved on by {drift.clock.ahead_seconds:.0f} s")
    if failure is None:
        teller.say("\nHEALED: everything that broke was found, repaired, verified and closed", "bold green")
    else:
        teller.say(f"\nthe demo failed: {failure}\nlogs: {folder / 'logs'}", "bold red")
    return failure


def _stop(drift: DriftDemo) -> None:
    drift.worker.spare()
    drift.teller.say("stopping the plane", "dim")
    try:
        drift.demo.stop()
    except KeyboardInterrupt:  # a second Ctrl-C: the supervisor kills what does not drain
        with contextlib.suppress(KeyboardInterrupt):
            drift.demo.stop()
    except ToldError as error:
        drift.teller.say(f"not everything could be stopped: {error}", "bold red")
    else:
        drift.teller.say("everything is stopped", "dim")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
