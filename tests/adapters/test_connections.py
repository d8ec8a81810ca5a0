"""The connections file: what an operator writes, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup_adapters.connections import ConnectionsUnusable, read_connections
from trueup_adapters.execution import open_lines
from trueup_adapters.main import installed
from trueup_adapters.systems import wordpress
from trueup_common.contracts.adapter import Connection

FILE = """
connections:
  - { tenant: acme, system: wordpress, base_url: "https://blog.example", username: bot, password: { env: WP_PASSWORD } }
  - tenant: acme
    system: github
    token: { file: TOKEN_FILE }
    timeout_seconds: 12
    max_concurrency: 3
    requests_per_second: 0.5
    allow_private_network: true
"""


def read(tmp_path: Path, text: str, **environment: str) -> tuple[Connection, ...]:
    path = tmp_path / "connections.yaml"
    path.write_text(text.replace("TOKEN_FILE", str(tmp_path / "token")))
    return read_connections(path, slots=40, environment=environment)


def test_a_file_as_documented(tmp_path: Path) -> None:
    """Requirements: G1, E4. Secrets come from the environment and from files; the optional fields have their say."""
    (tmp_path / "token").write_text("s3cret\n")
    blog, code = read(tmp_path, FILE, WP_PASSWORD="pw")
    assert (blog.tenant, blog.system, blog.settings["password"]) == ("acme", "wordpress", "pw")
    assert (blog.max_concurrency, blog.allow_private_network, blog.timeout_seconds) == (40, False, None)
    assert dict(code.settings) == {"token": "s3cret"}
    assert (code.timeout_seconds, code.max_concurrency, code.requests_per_second) == (12, 3, 0.5)
    assert code.allow_private_network


def test_the_default_for_private_networks_is_the_modes(tmp_path: Path) -> None:
    """Requirements: T3."""
    path = tmp_path / "c.yaml"
    path.write_text("connections: [{ tenant: acme, system: bench, base_url: 'http://127.0.0.1:1' }]")
    assert read_connections(path, private_networks=True)[0].allow_private_network
    assert not read_connections(path)[0].allow_private_network


def test_a_process_of_one_system_needs_no_secret_of_another(tmp_path: Path) -> None:
    """Entries of other systems are checked for their shape, and their secrets are neither needed nor read.

    Requirements: T2
    """
    path = tmp_path / "c.yaml"
    path.write_text(
        "connections:\n"
        "  - { tenant: acme, system: wordpress, password: { env: WP } }\n"
        "  - { tenant: acme, system: github, token: { file: /nowhere/token } }\n"
    )
    (mine,) = read_connections(path, environment={"WP": "pw"}, systems={"wordpress"})
    assert (mine.system, mine.settings["password"]) == ("wordpress", "pw")
    with pytest.raises(ConnectionsUnusable, match="/nowhere/token"):
        read_connections(path, environment={"WP": "pw"})
    path.write_text(path.read_text() + "  - { tenant: acme, system: github }\n")
    with pytest.raises(ConnectionsUnusable, match="twice"):
        read_connections(path, environment={"WP": "pw"}, systems={"wordpress"})


def test_a_connection_shows_no_secret() -> None:
    """Requirements: T3."""
    assert "pw" not in repr(Connection("acme", "wordpress", {"password": "pw"}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("connections: [", "not YAML"),
        ("[]", "document"),
        ("connections: [{ tenant: Acme, system: wordpress }]", "connections.0.tenant"),
        ("connections: [{ tenant: acme }]", "connections.0.system"),
        ("connections: [{ tenant: acme, system: a, timeout_seconds: -1 }]", "timeout_seconds"),
        ("connections: [{ tenant: acme, system: a, max_concurrency: many }]", "max_concurrency"),
        ("connections: [{ tenant: a, system: b }, { tenant: a, system: b }]", "there twice"),
        ("connections: [{ tenant: a, system: b, password: { env: NOT_SET } }]", "NOT_SET is not set"),
        ("connections: [{ tenant: a, system: b, token: { file: /nowhere/at/all } }]", "/nowhere/at/all"),
        ("connection: []", "connections"),
        ("connections: [{ tenant: a, system: b, token: !!python/object:os.system {} }]", "not YAML"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, says: str) -> None:
    """Requirements: T3. The place and the reason, never a secret."""
    with pytest.raises(ConnectionsUnusable) as refused:
        read(tmp_path, text, WP_PASSWORD="pw")
    assert says in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A clear error instead of a stack trace."""
    with pytest.raises(ConnectionsUnusable, match=r"nothing\.yaml"):
        read_connections(tmp_path / "nothing.yaml")


def test_an_adapter_refuses_unusable_settings() -> None:
    """Requirements: E4. A read account needs both halves, and the message names the connection only."""
    settings = {"base_url": "https://blog.example", "username": "bot", "password": "pw", "read_username": "r"}
    with pytest.raises(ValueError, match="connection acme/wordpress") as refused:
        wordpress.ADAPTER.open(Connection("acme", "wordpress", settings))
    assert "pw" not in str(refused.value)


@pytest.mark.parametrize(
    ("system", "setting", "meant"),
    [
        ("wordpress", "read_usrname", "'read_username'"),
        ("wordpress", "request_per_second", "'requests_per_second'"),
        ("github", "tokn", "'token'"),
        ("cloudflare", "time_out", "'timeout_seconds'"),
        ("monitoring", "discovery_tokn", "'discovery_token'"),
        ("database", "reed_dsn", "'read_dsn'"),
        ("bench", "url", "'base_url'"),
    ],
)
def test_a_misspelt_setting_is_refused_by_its_name(system: str, setting: str, meant: str) -> None:
    """Unnoticed, it would let reads run on the write account, or a limit be none. Requirements: E4, T2"""
    connection = Connection("acme", system, {setting: "s3cret"})
    with pytest.raises(ValueError, match=f"unknown settings: '{setting}'.*{meant}") as refused:
        open_lines([connection], installed(""))
    assert "s3cret" not in str(refused.value)


def test_a_system_that_nobody_serves_is_refused_where_that_can_be_known(tmp_path: Path) -> None:
    """Requirements: E4"""
    path = tmp_path / "c.yaml"
    path.write_text("connections: [{ tenant: acme, system: wordpres }]")
    with pytest.raises(ConnectionsUnusable, match=r"'wordpres' \(is 'wordpress' meant"):
        read_connections(path, systems=installed(""), known=installed(""))
    assert read_connections(path, systems={"wordpress"}) == ()


def test_an_adapter_that_names_no_settings_takes_any() -> None:
    """Requirements: E6"""

    class Lenient:
        system = "lenient"
        declarations = ()

        def open(self, connection: Connection) -> object:
            return connection.settings["anything"]

    (line,) = open_lines([Connection("acme", "lenient", {"anything": 1})], {"lenient": Lenient()}).values()  # type: ignore[dict-item]
    assert line.target == 1
