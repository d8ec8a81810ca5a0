"""compose.yaml without containers: its commands, environments, secrets and broker configuration as plain processes.

Only addresses change: hosts become loopback addresses, and paths of the image become paths of a temporary folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.witness import Witness
from tests.deployed import BUS_CONFIGURATION, adapters, services_with_sandbox
from tests.patience import PATIENCE_SECONDS
from tests.system.plane import Plane, eventually
from trueup_common.contracts.topology import (
    EVENTS,
    adapter_user,
    event_subject,
    inbox_prefix,
    task_consumer,
    task_subject,
)
from trueup_common.runtime import ready
from trueup_common.runtime.bus import Bus, connect_admin
from trueup_devkit.binaries import find_nats_server
from trueup_devkit.children import Child, Command, free_port, http_status, spawn, tail, wait_until_ready
from trueup_devkit.deployment import Hosts, write_secrets
from trueup_devkit.postgres import PostgresCluster
from trueup_devkit.sandbox.systems.cloudflare import ZONES

READY_SECONDS = 120.0


@dataclass
class Deployment:
    """What `docker compose up` would start, as processes."""

    folder: Path
    children: dict[str, Child] = field(default_factory=dict)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    database_port: int = 0
    bus_port: int = 0
    told: str = ""

    def __post_init__(self) -> None:
        number = random.Random(os.getpid()).randrange(1, 250)
        self.network = f"127.{number}.{os.getpid() % 250}"
        self.services = services_with_sandbox()

    @property
    def gateway_url(self) -> str:
        return f"http://{self.address('gateway')}:8080"

    @property
    def sandbox_url(self) -> str:
        return f"http://{self.address('sandbox')}:8090"

    def address(self, name: str) -> str:
        """Each container has an address of its own; here each process has."""
        return f"{self.network}.{list(self.services).index(name) + 1}"

    def place(self, text: str, name: str) -> str:
        """A path or address of a container, as it is here."""
        return (
            text.replace("/run/secrets/", f"{self.folder}/secrets/")
            .replace("/etc/trueup/", f"{self.folder}/")
            .replace("/tmp/trueup", f"{self.folder}/state/{name}")
            .replace("/data", f"{self.folder}/{'world' if name == 'sandbox' else 'data'}")
            .replace("0.0.0.0", self.address(name))
            .replace("//sandbox:", f"//{self.address('sandbox')}:")
            .replace("//adapter-monitoring:", f"//{self.address('adapter-monitoring')}:")
        )

    def environment(self, name: str) -> dict[str, str]:
        own = self.services[name].get("environment", {})
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": path, **{key: self.place(value, name) for key, value in own.items()}}

    def arguments(self, command: list[str], name: str) -> list[str]:
        words = [self.place(word, name).replace("//127.0.0.1:", f"//{self.address(name)}:") for word in command]
        return [sys.executable if words[0] == "python" else words[0], *words[1:]]

    def start(self) -> None:
        for name in ("nats", "data"):
            (self.folder / name).mkdir()
        self.database_port, self.bus_port = free_port(), free_port()
        hosts = Hosts(f"127.0.0.1:{self.database_port}", f"127.0.0.1:{self.bus_port}")
        write_secrets(self.folder / "secrets", tuple(adapters()), hosts)
        self.start_stores()
        self.start_service("sandbox")
        self.wait_for("sandbox")
        command = self.arguments(self.services["bootstrap"]["command"], "bootstrap")
        done = subprocess.run(
            command,
            env=self.environment("bootstrap"),
            capture_output=True,
            text=True,
            check=False,
            timeout=READY_SECONDS,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        self.keep_secrets_apart()
        lasting = [name for name in self.services if name not in ("postgres", "nats", "bootstrap", "sandbox")]
        for name in lasting:
            self.start_service(name)
        for name in lasting:
            self.wait_for(name)

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self.is_healthy(name):
            assert self.children[name].exit_code() is None, tail(self.children[name].log)
            assert time.monotonic() < deadline, f"{name}: {self.told}\n{tail(self.children[name].log)}"
            time.sleep(0.1)

    def start_stores(self) -> None:
        password = (self.folder / "secrets" / "postgres_password").read_text()
        settings = {"fsync": "off", "shared_buffers": "32MB", "io_method": "sync"}
        self.postgres = PostgresCluster(self.folder / "postgres", self.database_port, password, settings)
        self.postgres.start()
        configuration = self.folder / "nats" / "nats.conf"
        text = BUS_CONFIGURATION.read_text().replace('store_dir: "/data"', f'store_dir: "{self.folder}/nats"')
        configuration.write_text(text)
        (self.folder / "nats" / "passwords.conf").write_text((self.folder / "secrets" / "nats_passwords").read_text())
        monitor = free_port()
        flags = ["-a", "127.0.0.1", "-p", str(self.bus_port), "-m", str(monitor)]
        command = Command([str(find_nats_server()), "-c", str(configuration), *flags])
        bus = self.children["nats"] = spawn("nats", command, self.folder / "nats.log")
        wait_until_ready(bus, lambda: http_status(monitor, "/healthz?js-enabled-only=true") == 200, 20)

    def keep_secrets_apart(self) -> None:
        """One secret of the connections becomes a file of its adapter; another belongs to a system of nobody here."""
        path = self.folder / "data" / "connections.yaml"
        document = yaml.safe_load(path.read_text())
        site = next(entry for entry in document["connections"] if entry["system"] == "wordpress")
        secret = self.folder / "secrets" / "connections" / "wordpress" / "password"
        secret.write_text(site["password"])
        site["password"] = {"file": str(secret)}
        elsewhere = {"tenant": "acme", "system": "elsewhere", "token": {"file": "/run/connections/elsewhere/token"}}
        document["connections"].append(elsewhere)
        path.write_text(yaml.safe_dump(document))

    def start_service(self, name: str) -> None:
        command = Command(self.arguments(self.services[name]["command"], name), self.environment(name))
        self.children[name] = spawn(name, command, self.folder / f"{name}.log")

    def is_healthy(self, name: str) -> bool:
        """The health check of the file, run as an engine would; asked in this process first, which is cheaper."""
        _, *check = self.services[name]["healthcheck"]["test"]
        words, environment = self.arguments(check, name), self.environment(name)
        is_ready, self.told = ready.ask(words[-1] if "://" in words[-1] else ready.own_address(environment))
        if not is_ready:
            return False
        return subprocess.run(words, env=environment, capture_output=True, check=False, timeout=30).returncode == 0

    def bus_url(self, user: str) -> str:
        return (self.folder / "secrets" / f"{user.replace('-', '_')}_nats_url").read_text()

    def stop(self) -> dict[str, int]:
        """Drain everything, services before stores; their exit codes."""
        lasting = [child for child in self.children.values() if child.name not in ("nats", "sandbox")]
        for child in lasting:
            child.ask_to_stop()
        # Asked once: a second signal would end it.
        codes = {child.name: child.process.wait(READY_SECONDS) for child in lasting}
        for child in reversed(list(self.children.values())):
            child.stop()
        self.postgres.stop()
        return codes


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The whole of compose.yaml, once."""
    made = Deployment(tmp_path_factory.mktemp("compose"))
    try:
        made.start()
    except BaseException:
        made.stop()
        raise
    yield made
    assert set(made.stop().values()) == {0}, "every service drains when it is asked to stop"


def test_a_command_runs_through_an_adapter_of_its_own(deployment: Deployment) -> None:
    """Every service of compose.yaml is healthy by its own health check, and a command ends verified and closed.

    Requirements: F5
    """
    plane = Plane(deployment.folder, url=deployment.gateway_url)
    plane.sandbox_url = deployment.sandbox_url
    answer = plane.draft("composed", prefer="wait=60")
    assert answer.status == 200 and answer.body["state"] == "SUCCESS", answer
    plane.closed(answer.body["workflow_id"])
    assert len(plane.effects("wordpress.post")) == 1
    claimed = plane.journal(answer.body["command_id"])
    assert claimed["receipt"]["slug"] == "composed"


ONE_OF_EACH: dict[str, dict[str, Any]] = {
    "cloudflare.purge": {"zone_id": ZONES["acme"], "urls": [f"https://acme.example/{number}" for number in range(40)]},
    "database.record_publication": {"business_key": "composed:v1", "record": {"title": "Composed"}},
    "github.archive_version": {
        "repository": "acme/articles",
        "branch": "composed-v1",
        "path": "articles/composed.md",
        "content": "# Composed",
        "message": "Composed, version 1",
        "author": {"name": "Editor", "email": "editor@acme.example"},
        "authored_at": "2026-03-01T12:00:00Z",
    },
    "monitoring.register_check": {
        "name": "composed",
        "url": "https://acme.example/composed",
        "expect": {"status": 200},
        "interval_seconds": 60,
    },
}


def test_every_system_is_served_by_its_own_adapter(deployment: Deployment) -> None:
    """One command of each other system succeeds, with the broker user, grant key and connection of that system alone.

    Requirements: F5, T2
    """
    plane = Plane(deployment.folder, url=deployment.gateway_url)
    assert {kind.partition(".")[0] for kind in ONE_OF_EACH} | {"wordpress"} == set(adapters())
    for (kind, payload), place in zip(
        ONE_OF_EACH.items(), ("zone", "publication", "acme/articles", "check"), strict=True
    ):
        capability = plane.capability(kind, place)
        answer = plane.submit(capability, f"one:{kind}", kind, place, payload, prefer="wait=60")
        assert answer.status == 200 and answer.body["state"] == "SUCCESS", (kind, answer)


def test_a_second_replica_is_a_process_of_its_own(deployment: Deployment) -> None:
    """`--scale orchestrator=2`: another address, another instance name, the same environment; both work.

    Requirements: F5
    """
    environment = {**deployment.environment("orchestrator"), "TRUEUP_HOST": f"{deployment.network}.200"}
    command = Command(deployment.arguments(["python", "-m", "trueup_orchestrator.main"], "orchestrator"), environment)
    twin = spawn("orchestrator-2", command, deployment.folder / "orchestrator-2.log")
    try:
        address = ready.own_address(environment)
        eventually(lambda: True if ready.ask(address)[0] else None, "the second orchestrator is ready")
        plane = Plane(deployment.folder, url=deployment.gateway_url)
        answers = [plane.draft(f"twin-{number}", prefer="wait=60") for number in range(4)]
        assert [answer.body["state"] for answer in answers] == ["SUCCESS"] * 4
    finally:
        assert twin.stop(60) == 0


async def _denied(bus: Bus, subject: str, seconds: float = PATIENCE_SECONDS) -> bool:
    seen = len(bus.alarms)
    await bus.client.publish(subject, b"{}")
    await bus.client.flush()
    try:
        async with asyncio.timeout(seconds):
            while len(bus.alarms) == seen:
                await asyncio.sleep(0.01)
    except TimeoutError:
        return False
    return "ermissions" in bus.alarms[-1]


async def test_the_permissions_of_the_file_bite(deployment: Deployment) -> None:
    """The broker that reads deploy/nats/nats.conf lets an adapter do its own work and nothing of another system's.

    Requirements: T2
    """
    user = adapter_user("wordpress")
    bus = await Bus.connect(deployment.bus_url(user), service="adapters", name="probe")
    try:
        foreign = task_consumer("elsewhere")
        for subject in (
            f"$JS.API.CONSUMER.MSG.NEXT.{foreign.stream}.{foreign.durable}",
            f"$JS.ACK.{foreign.stream}.{foreign.durable}.1.1.1.1.1",
            event_subject("adapter.elsewhere", "receipt", "acme"),
            event_subject("orchestrator", "case", "acme"),
            task_subject("wordpress", "execute", "acme"),
            "$JS.API.STREAM.CREATE.EVIL",
        ):
            assert await _denied(bus, subject), subject
        assert not await _denied(bus, "trueup.beat.adapter.wordpress", 1)
        seen = len(bus.alarms)

        async def overheard(_: object) -> None:
            raise AssertionError("overheard another process")

        for prefix in (inbox_prefix("gateway"), inbox_prefix("adapters"), inbox_prefix("adapters-elsewhere")):
            await bus.client.subscribe(f"{prefix}.>", cb=overheard)
            await bus.client.flush()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(bus.alarms) == seen:
                    await asyncio.sleep(0.01)
            seen = len(bus.alarms)
    finally:
        await bus.close()


async def test_what_is_on_the_wire_fits_the_published_contract(deployment: Deployment) -> None:
    """Every event that the broker kept of this run, headers and body as they travelled, fits docs/asyncapi.json.

    Requirements: M4
    """
    witness = Witness()
    admin = await connect_admin((deployment.folder / "secrets" / "bootstrap_nats_url").read_text())
    try:
        stream = admin.jetstream()
        last = (await stream.stream_info(EVENTS)).state.last_seq
        for sequence in range(1, last + 1):
            raw = await stream.get_msg(EVENTS, sequence)
            witness.look_at(raw.subject or "", dict(raw.headers or {}), raw.data or b"")
    finally:
        await admin.close()
    assert witness.wrong == []
    assert {"CaseChanged", "Receipt", "Established", "ElementChanged"} <= set(witness.seen)


def test_each_adapter_was_given_nothing_of_another(deployment: Deployment) -> None:
    """Its grant key alone, so it could not even check another system's grant.

    Requirements: T2
    """
    for system in adapters():
        environment = deployment.environment(adapters()[system])
        keys: dict[str, Any] = json.loads(Path(environment["TRUEUP_GRANT_KEYS_FILE"]).read_text())
        assert set(keys) == {system}
        assert not {name for name in environment if "SIGNING_KEY" in name or "ROLE_PASSWORDS" in name}
