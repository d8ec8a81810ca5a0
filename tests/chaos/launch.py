"""How the chaos suite starts a service: the service itself, on a machine with a wrong clock, or about to be broken.

`python -m tests.chaos.launch SERVICE`. What is to be different about one process stands in `chaos/INSTANCE.json` of
the state folder: `environment` for every start of it, `once` for the next one. `chaos/INSTANCE.last-write` stops the
process inside its next write: behind the last check, before the first byte.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

CONNECT_ANEW: Final = "CHAOS_CONNECT_ANEW"


def orders(folder: Path, instance: str) -> Path:
    """What is to be different about one process."""
    return folder / "chaos" / f"{instance}.json"


def last_write(folder: Path, instance: str) -> Path:
    """Exists while one process is to stop inside its next write."""
    return folder / "chaos" / f"{instance}.last-write"


def _stop_in_last_write(flag: Path) -> None:
    """A new post is held back after the adapter's own last check (`trueup_adapters.systems.http`), before any byte."""
    import aiohttp

    send = aiohttp.ClientRequest.send

    async def send_slowly(self: aiohttp.ClientRequest, conn: Any) -> aiohttp.ClientResponse:
        if self.method == "POST" and self.url.path.endswith("/posts") and flag.exists():
            flag.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        return await send(self, conn)

    aiohttp.ClientRequest.send = send_slowly  # type: ignore[method-assign]


def _connect_anew() -> None:
    """Each request gets a connection of its own, as where a site closes it after each answer.

    Else the target would close a connection that stood idle during a long pause, and nothing could be written any more.
    """
    import aiohttp

    class Anew(aiohttp.TCPConnector):
        def __init__(self, **given: Any) -> None:
            given.pop("keepalive_timeout", None)
            super().__init__(force_close=True, **given)

    aiohttp.TCPConnector = Anew  # type: ignore[misc]


def main(service: str) -> None:
    """Become the service."""
    folder, instance = Path(os.environ["TRUEUP_STATE_DIR"]), os.environ["TRUEUP_INSTANCE"]
    path = orders(folder, instance)
    if path.exists():
        order = json.loads(path.read_text())
        os.environ.update({**order.get("environment", {}), **order.pop("once", {})})
        path.write_text(json.dumps(order))
        time.tzset()
    if service == "adapters":
        _stop_in_last_write(last_write(folder, instance))
        if os.environ.get(CONNECT_ANEW):
            _connect_anew()
    import_module(f"trueup_{service.replace('-', '_')}.main").main()


if __name__ == "__main__":
    main(sys.argv[1])
