"""One process, one port per system, one folder of state: start and stop the sandbox world."""

import asyncio
import fcntl
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from trueup_devkit.sandbox.control import control_app
from trueup_devkit.sandbox.faults import FaultBoard, Gate, RequestLog
from trueup_devkit.sandbox.server import Listener, bind
from trueup_devkit.sandbox.store import Now, Store
from trueup_devkit.sandbox.system import Follower, System
from trueup_devkit.sandbox.systems import SYSTEMS
from trueup_devkit.sandbox.systems.database import PORT_OFFSET, CustomerDatabase
from trueup_devkit.sandbox.systems.database import SYSTEM as DATABASE
from trueup_devkit.sandbox.systems.database_wire import Proxy

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Occupied(Exception):
    """Another sandbox already works on this folder."""


class Sandbox:
    """The world. With a control port of 0 every port is ephemeral, else system n listens on control port + n.

    `discovery` are addresses of the plane that systems ask what to do, with `{tenant}` in them.
    `database_url` is the owner's URL of the customer's database; without one the world has no such system.
    """

    def __init__(
        self,
        state_dir: Path,
        control_port: int = 0,
        host: str = "127.0.0.1",
        now: Now = time.time,
        discovery: Sequence[str] = (),
        *,
        database_url: str | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._control_port = control_port
        self._host = host
        self._now = now
        self._discovery = tuple(discovery)
        self._customer = database_url
        self._proxy: Proxy | None = None
        self.urls: dict[str, str] = {}
        self.control_url = ""
        self.store: Store
        self.faults: FaultBoard
        self.requests: RequestLog
        self.systems: dict[str, System | CustomerDatabase] = {}
        self._lock: IO[bytes] | None = None
        self._gates: list[Gate] = []
        self._listeners: list[Listener] = []

    async def start(self) -> None:
        self._state_dir.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self._state_dir / "sandbox.lock")
        try:
            self.store = Store(self._state_dir / "world.sqlite3", self._now)
            self.faults = FaultBoard(self.store)
            self.requests = RequestLog()
            await self._listen()
        except BaseException:
            await self.stop()
            raise

    async def _listen(self) -> None:
        control = bind(self._host, self._control_port)
        self._listeners = [Listener(control_app(self), control)]
        self.control_url = self._url(self._listeners[0].port)
        for offset, (name, make) in enumerate(SYSTEMS.items(), start=1):
            bound = bind(self._host, self._control_port + offset if self._control_port else 0)
            self.urls[name] = self._url(bound.getsockname()[1])
            made = make(self.store, self.urls[name])
            gate = Gate(name, made, self.faults, self.requests, self.store)
            self.systems[name] = made
            self._gates.append(gate)
            self._listeners.append(Listener(gate, bound))
        if self._customer is not None:
            await self._open_database(CustomerDatabase(self.store, self._customer))
        # The control port answers last: who reaches it reaches every system.
        for listener in reversed(self._listeners):
            await listener.start()
        for system in self._followers():
            system.follow(self._discovery)

    async def _open_database(self, database: CustomerDatabase) -> None:
        await database.prepare()
        bound = bind(self._host, self._control_port + PORT_OFFSET if self._control_port else 0)
        self._proxy = Proxy(database, self.faults, self.requests, self.store)
        await self._proxy.start(bound)
        self.systems[DATABASE] = database
        self.urls[DATABASE] = database.url(_ANY_ADDRESS.get(self._host, self._host), bound.getsockname()[1])

    async def catch_up(self) -> None:
        """Bring into the ground truth what the customer's database has recorded by itself."""
        database = self.systems.get(DATABASE)
        if isinstance(database, CustomerDatabase):
            await database.tell()

    def _followers(self) -> list[Follower]:
        return [system for system in self.systems.values() if self._discovery and isinstance(system, Follower)]

    def _url(self, port: int) -> str:
        host = _ANY_ADDRESS.get(self._host, self._host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        for gate in self._gates:
            gate.stop()
        if self._proxy is not None:
            await self._proxy.stop()
            self._proxy = None
        await asyncio.gather(*(system.stop() for system in self._followers()))
        await asyncio.gather(*(listener.stop() for listener in self._listeners))
        self._gates, self._listeners, self.systems = [], [], {}
        if hasattr(self, "store"):
            self.store.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _locked(path: Path) -> IO[bytes]:
    lock = path.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise Occupied(f"another sandbox works on {path.parent}") from None
    return lock
