"""Run a service under a profiler and write a snapshot whenever SIGUSR1 comes; the service itself stays as it is.

`python -m bench.profiled samples|calls PREFIX MODULE`. Samples are taken by CPU time (ITIMER_PROF), disturb little and
show where time goes; calls (cProfile) are exact counts, methods of compiled modules included, at a high price. The n-th
snapshot is PREFIX.n.json: {function: [calls, own seconds, seconds with callees]}.
"""

import cProfile
import json
import os
import runpy
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SAMPLE_SECONDS = 0.004
Table = dict[str, tuple[int, float, float]]


def name_of(code: CodeType | str) -> str:
    """`package/file.py:line name`, short enough for a table."""
    if isinstance(code, str):
        return code
    parts = Path(code.co_filename).parts
    for marker in ("site-packages", "python3.11", "python3.12", "python3.13"):
        if marker in parts:
            parts = parts[parts.index(marker) + 1 :]
    return f"{'/'.join(parts[-4:])}:{code.co_firstlineno} {code.co_qualname}"


class Samples:
    """Counts, at each tick of CPU time, the function that runs and all functions that called it."""

    def __init__(self) -> None:
        self._own: Counter[CodeType] = Counter()
        self._whole: Counter[CodeType] = Counter()

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)

    def _take(self, _: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self._own[frame.f_code] += 1
        seen: set[CodeType] = set()
        caller: FrameType | None = frame
        while caller is not None:
            seen.add(caller.f_code)
            caller = caller.f_back
        self._whole.update(seen)

    def table(self) -> Table:
        """What was seen so far."""
        own, whole = Counter(self._own), Counter(self._whole)
        found: Table = {}
        for code, ticks in whole.items():
            calls, mine, all_ = found.get(name_of(code), (0, 0.0, 0.0))
            found[name_of(code)] = (calls, mine + own[code] * SAMPLE_SECONDS, all_ + ticks * SAMPLE_SECONDS)
        return found


class Calls:
    """Counts every call."""

    def __init__(self) -> None:
        self._profiler = cProfile.Profile()

    def start(self) -> None:
        self._profiler.enable()

    def table(self) -> Table:
        """What was called so far."""
        entries: list[Any] = self._profiler.getstats()
        found: Table = {}
        for entry in entries:
            name = name_of(entry.code)
            calls, own, whole = found.get(name, (0, 0.0, 0.0))
            found[name] = (calls + entry.callcount, own + entry.inlinetime, whole + entry.totaltime)
        return found


def _write_on_request(prefix: str, table: Callable[[], Table]) -> None:
    number = 0
    while True:
        signal.sigwait({signal.SIGUSR1})
        number += 1
        unfinished = Path(f"{prefix}.unfinished")
        unfinished.write_text(json.dumps(table()))
        unfinished.rename(f"{prefix}.{number}.json")


def main(kind: str, prefix: str, module: str) -> None:
    """The program."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # every later thread inherits this
    profiler = Samples() if kind == "samples" else Calls()
    threading.Thread(target=_write_on_request, args=(prefix, profiler.table), daemon=True).start()
    sys.argv = [module]
    profiler.start()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)  # a tick after the interpreter took its handlers down would kill


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main(*sys.argv[1:4])
