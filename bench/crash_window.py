"""What happens when the process that causes effects is killed after the effect and before it could be recorded.

The stub applies the effect at once and holds its answer back. In between, everything of a stack that causes effects is
ended with SIGKILL and started again. Then the same unit is asked for again, with the same key, until its end is told.
The stub alone says how often it was asked to act.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.load import KEY, Request
from bench.peers.engines import Dbos, Engine, PeerUnits, Restate, Temporal
from bench.peers.install import Skipped
from bench.stacks import Stack, Stub, TrueupPlane
from trueup_devkit.gateway_client import GatewayClient
from trueup_devkit.told import ToldError

HOLD_SECONDS = 8.0
EFFECT_SECONDS_MAX = 20.0
END_SECONDS_MAX = 90.0
QUIET_SECONDS = 5.0
"""After the end: something that is sent again late would be seen."""
ENGINES: tuple[Callable[[str], Engine], ...] = (Dbos, Temporal, Restate)


@dataclass(frozen=True)
class Seen:
    """What one stack did."""

    name: str
    posts: int = 0
    lookups: int = 0
    state: str = ""
    seconds: float = 0.0
    skipped: str = ""

    def line(self) -> str:
        """The row of the table."""
        if self.skipped:
            return f"skipped: {self.name}: {self.skipped}"
        return f"{self.name:<12}{self.posts:>6}{self.lookups:>10}{self.state or '-':>12}{self.seconds:>12.1f}"


HEAD = f"{'':<12}{'POSTs':>6}{'look-ups':>10}{'told':>12}{'seconds':>12}"


def crash_windows(stub: Stub) -> tuple[list[str], dict[str, dict[str, float]], bool]:
    """Every stack once; failed where Trueup sent twice or did not come to an end."""
    seen = [_trueup(stub)]
    for make in ENGINES:
        engine = make(stub.url)
        try:
            seen.append(_peer(engine, stub))
        finally:
            engine.stop()
    figures = {
        one.name: {"posts": float(one.posts), "lookups": float(one.lookups), "seconds": round(one.seconds, 1)}
        for one in seen
        if not one.skipped
    }
    failed = seen[0].posts != 1 or seen[0].state != "SUCCESS"
    return [HEAD, *(one.line() for one in seen)], figures, failed


def _trueup(stub: Stub) -> Seen:
    plane = TrueupPlane("trueup", "bench.post", stub.url, units_max=10)

    def kill() -> None:
        os.kill(plane.process("adapters"), signal.SIGKILL)  # the plane's supervisor starts it again

    try:
        plane.start()
        return _crash(plane, stub, kill, lambda: None)
    finally:
        plane.stop()


def _peer(engine: Engine, stub: Stub) -> Seen:
    units = PeerUnits(engine)
    try:
        units.start()
    except Skipped as reason:
        return Seen(engine.name, skipped=str(reason))
    return _crash(units, stub, engine.kill_worker, engine.start_worker)


def _crash(stack: Stack, stub: Stub, kill: Callable[[], None], restart: Callable[[], None]) -> Seen:
    print(f"killing {stack.name} …", file=sys.stderr, flush=True)
    request, key = stack.request(), f"crash-{os.urandom(6).hex()}"
    stub.reset()
    stub.hold(HOLD_SECONDS)
    asking = threading.Thread(target=_ask, args=(request, key), daemon=True)
    asking.start()
    _wait_for_effect(stub)
    kill()
    killed_at = time.monotonic()
    stub.hold(0.0)
    restart()
    state = ""
    while not state and time.monotonic() - killed_at < END_SECONDS_MAX:
        state = _ask(request, key)
        time.sleep(0.2)
    seconds = time.monotonic() - killed_at
    time.sleep(QUIET_SECONDS)
    totals = stub.totals()
    return Seen(stack.name, totals["effects"], totals["lookups"], state, seconds)


def _wait_for_effect(stub: Stub) -> None:
    deadline = time.monotonic() + EFFECT_SECONDS_MAX
    while not stub.totals()["effects"]:
        if time.monotonic() > deadline:
            raise RuntimeError("the effect did not happen")
        time.sleep(0.01)


def _ask(request: Request, key: str) -> str:
    """Send the unit; the state that was told, empty where nobody told the one that it has to end in."""
    headers: Mapping[str, str] = {name: value.replace(KEY, key) for name, value in request.headers.items()}
    client = GatewayClient(f"http://{request.host}:{request.port}", timeout_seconds=END_SECONDS_MAX)
    with contextlib.suppress(ToldError, OSError):
        body = client.call("POST", request.path, _body(request, key), headers=headers).body
        if isinstance(body, dict) and body.get("state") == request.succeeds:
            return request.succeeds
    return ""


def _body(request: Request, key: str) -> object:
    return json.loads(request.body.replace(KEY, key))
