"""Child processes that never outlive their parent: spawned with a death signal, a log file and a lease on their folder.

A folder lease is a file lock that the child inherits: as long as any process of that child lives, nobody else gets the
folder, also when the parent was killed and could not tell.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trueup_devkit.told import ToldError

PR_SET_PDEATHSIG = 1
NOBODY = 65534
_POLL_SECONDS = 0.01
_LOG_BYTES_MAX = 16 * 2**20
_PORTS = range(20_000, 32_000)
_HELD_MAX = 200
_held: deque[int] = deque()
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


class StartError(ToldError):
    """A child could not be started or did not become ready; the message carries the tail of its log."""


@dataclass(frozen=True)
class Command:
    """What to run: data only, so that a process table can be printed, compared and faked."""

    arguments: Sequence[str]
    environment: Mapping[str, str] | None = None
    folder: Path | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL
    """Sent by the kernel when the parent dies. Services must survive it anyway; only stores get time to shut down."""
    user: int | None = None
    lease_fd: int | None = None


@dataclass
class Child:
    """One running child and how to end it."""

    name: str
    command: Command
    process: subprocess.Popen[bytes]
    log: Path
    started_at: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        return self.process.pid

    def exit_code(self) -> int | None:
        return self.process.poll()

    def ask_to_stop(self) -> None:
        if self.exit_code() is None:
            self.process.send_signal(self.command.stop_signal)

    def stop(self, timeout_seconds: float = 20.0) -> int:
        """Ask, wait, and kill only a child that does not listen."""
        self.ask_to_stop()
        try:
            return self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(5)


def spawn(name: str, command: Command, log: Path) -> Child:
    """Start a child in its own session whose output goes to `log` and that dies with this process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _LOG_BYTES_MAX:
            log.replace(log.with_suffix(".log.1"))
    parent = os.getpid()
    death_signal = int(command.death_signal)

    def die_with_parent() -> None:
        if _libc is not None:
            _libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # the parent died between fork and prctl: the signal will never come
            os._exit(1)

    with log.open("ab", buffering=0) as output:
        process = subprocess.Popen(
            list(command.arguments),
            env=None if command.environment is None else dict(command.environment),
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=() if command.lease_fd is None else (command.lease_fd,),
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - it only makes two system calls; the supervisor has no threads
            user=command.user,
            group=command.user,
            extra_groups=None if command.user is None else [],
        )
    return Child(name=name, command=command, process=process, log=log)


def wait_until_ready(child: Child, is_ready: Callable[[], bool], timeout_seconds: float) -> None:
    """Wait until the child answers, or say why it does not."""
    deadline = time.monotonic() + timeout_seconds
    while not is_ready():
        code = child.exit_code()
        if code is not None:
            raise StartError(f"{child.name} ended with exit code {code}:\n{tail(child.log)}")
        if time.monotonic() > deadline:
            child.stop(5)
            raise StartError(f"{child.name} was not ready within {timeout_seconds:g} s:\n{tail(child.log)}")
        time.sleep(_POLL_SECONDS)


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log file, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return f"(no log at {log})"
    return "\n".join(text.splitlines()[-lines:]) or f"(empty log {log})"


class Lease:
    """An exclusive lock on a file, held by every process that inherits its descriptor."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def take(cls, path: Path, timeout_seconds: float = 0.0) -> Lease | None:
        """Take the lease, waiting up to the timeout; None when somebody else keeps it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    return None
                time.sleep(_POLL_SECONDS)
            else:
                return cls(path, fd)

    def release(self) -> None:
        """Close our descriptor; the lock goes when the last inheriting process has gone too."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def free_port(width: int = 1, host: str = "127.0.0.1") -> int:
    """Find a port that nothing listens on, with `width - 1` free ones above it, and keep others from choosing it.

    Taken from below the range of outgoing connections, so that no client can sit on it when the server returns.
    """
    for _ in range(1000):
        port = _PORTS.start + int.from_bytes(os.urandom(4), "big") % (len(_PORTS) - width)
        held = [_hold(port + offset, host) for offset in range(width)]
        kept = [sock for sock in held if sock is not None]
        if len(kept) == width:
            _held.extend(sock.detach() for sock in kept)  # until this process ends
            while len(_held) > _HELD_MAX:
                os.close(_held.popleft())
            return port
        for sock in kept:
            sock.close()
    raise StartError(f"no {width} free ports in a row on {host}")


def _hold(port: int, host: str) -> socket.socket | None:
    """A socket that never listens: who chooses a port meets it, and the server that the port is for does not.

    Two planes that start at the same time would otherwise choose the same port before either listens on it. The kernel
    lets a second socket bind where both allow it and neither listens; only choosing does without that allowance.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        return None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Tell whether a server could listen on this port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            return False
        return True


def http_status(port: int, path: str, host: str = "127.0.0.1", timeout_seconds: float = 1.0) -> int | None:
    """Return the status of one GET, or None without an answer.

    Written on a bare socket because the supervisor asks every few moments and must stay a small process.
    """
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("ascii"))
            answer = b""
            while b"\r\n" not in answer and len(answer) < 4096:
                chunk = connection.recv(4096)
                if not chunk:
                    break
                answer += chunk
    except OSError:
        return None
    parts = answer.split(b"\r\n", 1)[0].split(b" ")
    with contextlib.suppress(IndexError, ValueError):
        return int(parts[1])
    return None


def takes_connections(port: int, host: str = "127.0.0.1", timeout_seconds: float = 1.0) -> bool:
    """Send a start-up packet: a request for authentication means ready, an error means still starting."""
    body = struct.pack("!i", 3 << 16) + b"user\0trueup\0database\0postgres\0\0"
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            connection.sendall(struct.pack("!i", len(body) + 4) + body)
            return connection.recv(1) == b"R"
    except OSError:
        return False


def process_is_alive(pid: int) -> bool:
    """Tell whether a process with this id exists (a zombie counts as gone)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
