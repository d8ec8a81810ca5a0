"""What a deployment is made of: secrets that follow from one another, given passwords, addresses that are told."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from trueup_common.contracts.topology import SERVICES, inbox_prefix, permissions
from trueup_common.runtime.bus import user_of
from trueup_common.runtime.grants import GrantKeys
from trueup_common.runtime.ready import ask, own_address
from trueup_common.runtime.settings import Settings
from trueup_devkit.deployment import Hosts, write_secrets
from trueup_devkit.migrate import at_host_of, given_passwords
from trueup_devkit.told import ToldError


def test_a_later_system_gets_its_secrets_without_touching_the_others(tmp_path: Path) -> None:
    """Requirements: F5"""
    write_secrets(tmp_path, ("wordpress",))
    before = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    made = write_secrets(tmp_path, ("github", "wordpress"))
    changed = {name for name, text in before.items() if (tmp_path / name).read_text() != text}
    assert changed == {"gateway_grant_keys", "nats_passwords"}, "only the lists of all grew"
    assert set(made) - set(before) == {"adapters_github_grant_keys", "adapters_github_nats_url"}
    assert (tmp_path / "nats_passwords").read_text().startswith(before["nats_passwords"].splitlines()[0])
    GrantKeys.read((tmp_path / "gateway_grant_keys").read_text())


def test_urls_name_the_hosts_that_were_asked_for(tmp_path: Path) -> None:
    write_secrets(tmp_path, ("wordpress",), Hosts("db.example:6432", "bus.example:4333"))
    assert (tmp_path / "gateway_database_url").read_text().endswith("@db.example:6432/trueup")
    assert (tmp_path / "adapters_wordpress_nats_url").read_text().startswith("nats://adapters-wordpress:")
    assert (tmp_path / "adapters_wordpress_nats_url").read_text().endswith("@bus.example:4333")


def test_the_bootstrap_takes_given_passwords_whole_or_not_at_all(tmp_path: Path) -> None:
    """A missing service would be left with an old password, so the list must name each."""
    given = dict.fromkeys(SERVICES, "x")
    assert given_passwords(Settings(role_passwords=json.dumps(given), state_dir=tmp_path / "s")) == given  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()
    for unusable in ("{", "[]", json.dumps({"gateway": "x"}), json.dumps({**given, "other": "x"})):
        with pytest.raises(ToldError, match="TRUEUP_ROLE_PASSWORDS"):
            given_passwords(Settings(role_passwords=unusable))  # type: ignore[arg-type]
    assert set(given_passwords(Settings(state_dir=tmp_path / "s"))) == set(SERVICES)


@pytest.mark.parametrize(
    ("asked", "told", "expected"),
    [
        ("http://sandbox:8090", "http://127.0.0.1:8091", "http://sandbox:8091"),
        ("http://sandbox:8090", "postgresql://127.0.0.1:8099/customer", "postgresql://sandbox:8099/customer"),
        ("http://127.0.0.1:8090/", "http://127.0.0.1:8092/x", "http://127.0.0.1:8092/x"),
        ("http://[::1]:8090", "http://127.0.0.1:8091", "http://[::1]:8091"),
    ],
)
def test_a_world_is_reached_where_it_was_asked(asked: str, told: str, expected: str) -> None:
    assert at_host_of(asked, told) == expected


@pytest.mark.parametrize(
    ("url", "user"),
    [
        ("nats://gateway:p@h:4222", "gateway"),
        ("nats://adapters-wordpress:a%2Fb@h:4222", "adapters-wordpress"),
        ("nats://gateway:p@a:4222,nats://gateway:p@b:4222", "gateway"),
        ("nats://h:4222", None),
        ("tls://h", None),
    ],
)
def test_the_inbox_is_that_of_the_user_in_the_url(url: str, user: str | None) -> None:
    """Requirements: T2"""
    assert user_of(url) == user
    assert f"{inbox_prefix('gateway')}.>" in permissions("gateway").subscribe


class _Answers(BaseHTTPRequestHandler):
    status: ClassVar[int] = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(f"asked {self.path}".encode())

    def log_message(self, *args: object) -> None:
        """Nothing."""


def test_a_health_check_tells_what_is_missing() -> None:
    """200 is ready; anything else, and no answer at all, is not."""
    with HTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/healthz?js-enabled-only=true"
        assert ask(address) == (True, "asked /healthz?js-enabled-only=true")
        _Answers.status = 503
        assert ask(address)[0] is False
        server.shutdown()
        thread.join()
    assert ask(address)[0] is False


def test_a_process_is_asked_on_its_health_port_before_its_own() -> None:
    assert own_address({"TRUEUP_HOST": "0.0.0.0", "TRUEUP_HEALTH_PORT": "8081"}) == "http://127.0.0.1:8081/readyz"
    assert own_address({"TRUEUP_HOST": "127.9.9.9", "TRUEUP_PORT": "8090"}) == "http://127.9.9.9:8090/readyz"
    assert own_address({}) == "http://127.0.0.1:8080/readyz"
