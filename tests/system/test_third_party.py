"""An adapter that somebody else wrote and installed: nothing here names it, and it works like any other."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.system.plane import Plane, http

PACKAGE = '''
"""A thermostat, as a third party would write it."""

from trueup_adapters.systems.http import HttpTarget, TransportFailed
from trueup_common.contracts.adapter import confirmed
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.states import EffectClass, Findability, FindVerdict

SET = CommandDeclaration(
    type="thermostat.set",
    system="thermostat",
    title="Set a temperature",
    permission="home:heat",
    effect_class=EffectClass.RETRYABLE,
    payload_schema={
        "type": "object",
        "additionalProperties": False,
        "required": ["celsius"],
        "properties": {"celsius": {"type": "number", "maximum": 30}},
    },
    findability=Findability.NATIVE_KEY,
    timeout_seconds=5,
    start_window_seconds=5,
    success_condition="200",
)


class Target(HttpTarget):
    async def perform(self, call):
        body = {"key": call.operation.command_id, **call.operation.payload}
        try:
            answer = await self.write("POST", "/set", document=body, may_send=call.may_send)
        except TransportFailed as failure:
            return failure.outcome()
        return confirmed(answer.document()) if answer.document() is not None else answer.outcome()

    async def find(self, call):
        return Finding(verdict=FindVerdict.UNKNOWN)

    async def probe(self, elements):
        return []


class ThermostatAdapter:
    system = "thermostat"
    declarations = (SET,)

    def open(self, connection):
        return Target(connection, connection.settings["base_url"])


ADAPTER = ThermostatAdapter()
'''


class Home(BaseHTTPRequestHandler):
    """The thermostat itself."""

    heard: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.heard.append(body)
        data = json.dumps({"celsius": body["celsius"]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the library
        """Say nothing."""


@pytest.fixture
def home() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Home)
    Home.heard.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def install(folder: Path) -> Path:
    """What `pip install` would leave: a module, and metadata with an entry point."""
    site = folder / "site"
    metadata = site / "trueup_thermostat-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "trueup_thermostat.py").write_text(PACKAGE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: trueup-thermostat\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[trueup.adapters]\nthermostat = trueup_thermostat:ADAPTER\n")
    return site


def test_an_installed_package_is_an_adapter_like_any_other(
    tmp_path: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed, connected, governed and executed once, without a change anywhere else.

    Requirements: E6, X8
    """
    connections = tmp_path / "connections.yaml"
    connections.write_text(f'connections:\n  - {{tenant: acme, system: thermostat, base_url: "{home}"}}\n')
    site = install(tmp_path)
    monkeypatch.syspath_prepend(site)  # this process stands for `trueup up`, which runs where the package is installed
    plane = Plane(
        tmp_path / "state",
        environment={"PYTHONPATH": str(site)},
        connections=str(connections),
    )
    try:
        plane.start()
        capability = plane.capability("thermostat.set", "living-room", max_uses=2)
        wrong = plane.submit(capability, "heat:0", "thermostat.set", "living-room", {"celsius": 300})
        assert wrong.status == 422, wrong
        done = plane.submit(capability, "heat:1", "thermostat.set", "living-room", {"celsius": 21.5}, prefer="wait=60")
        assert done.status == 200 and done.body["state"] == "SUCCESS", done
        assert done.body["receipt"] == {"celsius": 21.5}
        assert [item["celsius"] for item in Home.heard] == [21.5]
        types = http("GET", f"{plane.url}/v1/catalog/commands", headers={"authorization": f"Bearer {plane.token()}"})
        assert "thermostat.set" in {item["type"] for item in types.body["items"]}
    finally:
        plane.stop()
