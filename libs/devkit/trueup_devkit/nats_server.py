"""One embedded NATS server in one folder: its users and permissions are a file rendered from data.

Two servers start on one JetStream store without complaint and then disagree about it, so the folder is leased before
the server is started.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trueup_common.contracts import topology
from trueup_devkit.binaries import find_nats_server
from trueup_devkit.children import Child, Command, Lease, StartError, free_port, http_status, spawn, wait_until_ready

ADMIN_USER = "admin"
SYSTEM_USER = "system"
MEMORY_SOFT_LIMIT = "64MiB"
"""Where the server's collector begins to work harder instead of taking more memory; never a refusal."""
PROCESSORS = "1"
"""A plane under load keeps the server busy for a tenth of a core. With more processors its scheduler looks for work on
each of them, which costs as much as the messages (ADR 0027)."""


@dataclass(frozen=True)
class NatsUser:
    """One user: permissions None means everything in the account."""

    name: str
    password: str
    permissions: Mapping[str, Any] | None = None


@dataclass
class NatsServer:
    """A server below `folder`; `start` writes its configuration anew each time, so new permissions take effect."""

    folder: Path
    users: list[NatsUser]
    system_password: str
    port: int = 0
    monitor_port: int = 0
    child: Child | None = None
    limits: dict[str, Any] = field(default_factory=dict)
    _lease: Lease | None = None

    @property
    def log(self) -> Path:
        return self.folder / "nats.log"

    def url(self, user: str) -> str:
        if user == SYSTEM_USER:
            password = self.system_password
        else:
            password = next(known.password for known in self.users if known.name == user)
        return f"nats://{quote(user)}:{quote(password)}@127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return self.url(ADMIN_USER)

    def start(self, log: Path | None = None, timeout_seconds: float = 60.0) -> Child:
        """Start the server and return when JetStream is usable."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder = self.folder.resolve()
        self._lease = Lease.take(self.folder / "lease", timeout_seconds=15.0)
        if self._lease is None:
            raise StartError(f"another nats-server still runs on {self.folder} and did not end within 15 s")
        self.port = self.port or free_port()
        self.monitor_port = self.monitor_port or free_port()
        self._write_configuration()
        self.child = spawn("nats", self.command(), log or self.log)
        wait_until_ready(self.child, self.is_ready, timeout_seconds)
        return self.child

    def command(self) -> Command:
        """The server as data: a supervisor may start it again after a crash, on the same lease."""
        assert self._lease is not None
        return Command(
            [str(find_nats_server()), "-c", str(self.folder / "nats.conf")],
            environment={
                "GOMEMLIMIT": MEMORY_SOFT_LIMIT,
                "GOMAXPROCS": PROCESSORS,
                **{name: value for name, value in os.environ.items() if not name.startswith("TRUEUP_")},
            },
            folder=self.folder,
            death_signal=signal.SIGTERM,
            lease_fd=self._lease.fd,
        )

    def is_ready(self) -> bool:
        return http_status(self.monitor_port, "/healthz?js-enabled-only=true") == 200

    def stop(self, timeout_seconds: float = 20.0) -> None:
        if self.child is not None:
            self.child.stop(timeout_seconds)
            self.child = None
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _write_configuration(self) -> None:
        path = self.folder / "nats.conf"
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(self.configuration(), file, indent=2)

    def configuration(self) -> dict[str, Any]:
        """The whole configuration; the server's format is a superset of JSON."""
        return {
            "server_name": "trueup",
            "listen": f"127.0.0.1:{self.port}",
            "http": f"127.0.0.1:{self.monitor_port}",
            "jetstream": {"store_dir": str(self.folder / "store"), "max_mem": 64 << 20, "max_file": 8 << 30},
            "accounts": {
                "TRUEUP": {"jetstream": "enabled", "users": [render_user(user) for user in self.users]},
                "SYS": {"users": [{"user": SYSTEM_USER, "password": self.system_password}]},
            },
            "system_account": "SYS",
            "logtime": True,
            "logtime_utc": True,
            **self.limits,
        }


def render_user(user: NatsUser) -> dict[str, Any]:
    """One entry of the server's user list."""
    entry: dict[str, Any] = {"user": user.name, "password": user.password}
    if user.permissions is not None:
        entry["permissions"] = dict(user.permissions)
    return entry


def service_users(passwords: Mapping[str, str], systems: tuple[str, ...]) -> list[NatsUser]:
    """The admin and one user per service, with exactly the permissions of the topology."""
    users = [NatsUser(ADMIN_USER, passwords[ADMIN_USER])]
    for service in topology.SERVICES:
        allowed = topology.permissions(service, systems)
        rendered = {"publish": {"allow": list(allowed.publish)}, "subscribe": {"allow": list(allowed.subscribe)}}
        users.append(NatsUser(allowed.user, passwords[service], {**rendered, **allowed.extra}))
    return users
