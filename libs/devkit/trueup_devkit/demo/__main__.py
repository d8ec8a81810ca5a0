"""`python -m trueup_devkit.demo`: run a demo once; the last line is JSON, and everything is stopped at the end."""

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
from trueup_devkit.demo.ending import tell_ending
from trueup_devkit.demo.run import Demo
from trueup_devkit.demo.scenarios import SCENARIOS
from trueup_devkit.demo.telling import Teller
from trueup_devkit.told import ToldError

INTERRUPTED = 130
_MEANINGS = {
    "CLOSED": "what was wanted, what was recorded and what is there are the same, exactly once",
    "COMPENSATED": "everything that was done is taken back: no page, no branch, and the draft lies in the trash",
    "HUMAN_TAKEOVER": "the article is public and stays so, the rest is done, and what is left has an owner",
}


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 it ended as this demo must, 1 anything else, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m trueup_devkit.demo",
        description="Publish one article through five systems, on a plane of its own in a temporary folder.",
        epilog="example: python -m trueup_devkit.demo undo --keep",
    )
    told = "; ".join(f"{scenario.name}: {scenario.title}" for scenario in SCENARIOS.values())
    parser.add_argument("scenario", nargs="?", default="publish", choices=list(SCENARIOS), help=told)
    parser.add_argument("--keep", action="store_true", help="keep the state folder (it is kept after a failure anyway)")
    parser.add_argument("--state-dir", type=Path, help="an empty folder to use instead of a temporary one; it is kept")
    parser.add_argument("--port", type=int, default=0, help="gateway port; default: a free one")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    folder = given.state_dir or Path(tempfile.mkdtemp(prefix="trueup-demo-"))
    teller = Teller(real_now())
    demo = Demo(SCENARIOS[given.scenario], folder, given.port, teller)
    code = 1
    try:
        code = _run(demo, folder)
    except KeyboardInterrupt:
        teller.say("interrupted", "bold red")
        code = INTERRUPTED
    finally:
        _stop(demo, teller)
        if code == 1 or given.keep or given.state_dir is not None:
            teller.say(f"state and logs are kept in {folder}; go on with: trueup up --detach --state-dir {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if code != INTERRUPTED:
        print(json.dumps(demo.facts.last_line(time.monotonic() - started)), flush=True)
    return code


def _run(demo: Demo, folder: Path) -> int:
    teller = demo.teller
    teller.say(f"trueup demo: {demo.facts.scenario.title}", "bold")
    teller.say(f"a plane of its own in {folder}; Ctrl-C stops everything", "dim")
    try:
        demo.start()
        teller.head("the article")
        demo.prepare()
        demo.submit(demo.authorize())
        demo.watch()
        demo.collect()
    except ToldError as error:
        demo.count()
        failure: str | None = str(error)
    else:
        demo.count()
        tell_ending(teller, demo.facts)
        failure = demo.facts.failure()
    if failure is None:
        status = demo.facts.status
        teller.say(f"\n{status}: {_MEANINGS[status]}", "bold green")
        return 0
    teller.say(f"\nthe demo failed: {failure}\nlogs: {folder / 'logs'}", "bold red")
    return 1


def _stop(demo: Demo, teller: Teller) -> None:
    teller.say("stopping the plane", "dim")
    try:
        demo.stop()
    except KeyboardInterrupt:  # a second Ctrl-C: the supervisor kills what does not drain
        with contextlib.suppress(KeyboardInterrupt):
            demo.stop()
    except ToldError as error:
        teller.say(f"not everything could be stopped: {error}", "bold red")
    else:
        teller.say("everything is stopped", "dim")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
