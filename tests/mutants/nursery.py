"""A process that has the libraries loaded, and forks one child for each run; nothing of the product is loaded before.

Half of a short run would be spent on importing the same libraries again. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NoReturn

LIBRARIES: Final = (
    "aiohttp", "asyncpg", "fastapi", "httpx", "hypothesis", "joserfc", "nats", "opentelemetry.sdk.trace", "orjson",
    "prometheus_client", "pydantic", "pytest", "pytest_asyncio", "sqlalchemy.ext.asyncio", "sqlmodel", "yaml",
)  # fmt: skip
OURS: Final = ("trueup_", "tests.")
PAUSE_SECONDS: Final = 0.02


def main() -> None:
    """Until the requests end."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    loaded = [name for name in sys.modules if name.startswith("trueup_")]
    if loaded:
        raise SystemExit(f"the product is loaded already: {loaded}")
    for line in sys.stdin:
        wanted: dict[str, Any] = json.loads(line)
        print(json.dumps({"status": _run(wanted)}), flush=True)


def _run(wanted: dict[str, Any]) -> int | None:
    """The exit status of a child; None where it did not end in time. What it started in its session ends with it."""
    child = os.fork()
    if child == 0:
        _be(wanted)
    until = time.monotonic() + wanted["limit_seconds"]
    try:
        while time.monotonic() <= until:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                child = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(PAUSE_SECONDS)
        return None
    finally:
        if child:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _be(wanted: dict[str, Any]) -> NoReturn:
    """Be the child: another session, environment, path and output; then the run, and the end."""
    code = 99
    try:
        os.setsid()
        output = os.open(wanted["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(old, new)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - file descriptors, for as long as the child lives
        os.environ.clear()
        os.environ.update(wanted["environment"])
        sys.path[:0] = wanted["path"]
        for name in [name for name in sys.modules if name.startswith(OURS)]:
            del sys.modules[name]
        importlib.invalidate_caches()
        code = _call(wanted["command"])
        atexit._run_exitfuncs()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _call(command: Sequence[str]) -> int:
    kind, *arguments = command
    if kind == "pytest":
        pytest = importlib.import_module("pytest")
        return int(pytest.main(arguments))
    sys.argv = [kind, *arguments]
    return int(importlib.import_module("tests.mutants.seeds").guarded())


if __name__ == "__main__":
    main()
