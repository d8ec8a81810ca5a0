"""What each process of a plane is told: the secrets of other systems reach the adapters and nobody else."""

import json
from pathlib import Path

import pytest

from trueup_devkit.plan import Addresses, Plan, connection_secrets, service_processes
from trueup_devkit.secret_files import make_secrets

CONNECTIONS = """
connections:
  - { tenant: acme, system: wordpress, base_url: "https://blog.example", username: bot, password: { env: WP_PASSWORD } }
  - { tenant: acme, system: github, base_url: "https://api.example", token: { file: /run/secrets/github } }
  - { tenant: acme, system: cloudflare, base_url: "https://cf.example", token: { env: CF_TOKEN } }
  - { tenant: globex, system: cloudflare, base_url: "https://cf.example", read_token: { env: CF_READ } }
"""
SECRETS = {"WP_PASSWORD": "s3cret-wp", "CF_TOKEN": "s3cret-cf", "CF_READ": "s3cret-read"}


def test_only_adapters_are_told_the_secrets_that_connections_name(tmp_path: Path) -> None:
    """Whoever starts the plane has them in the environment; the processes that do not send anything never see them.

    Requirements: G1
    """
    file = tmp_path / "connections.yaml"
    file.write_text(CONNECTIONS)
    plan = Plan(state_dir=str(tmp_path), port=8080, connections=str(file), replicas={"gateway": 2, "adapters": 2})
    make_secrets(plan.folder.secrets, ["wordpress"])
    addresses = Addresses(8080, "postgresql://a:b@127.0.0.1:5/trueup", "nats://a:b@127.0.0.1:4", connections=str(file))
    caller = {**SECRETS, "TRUEUP_CONNECTIONS": "elsewhere", "PATH": "/bin"}
    told = {item.name: item.environment for item in service_processes(plan, addresses, caller)}
    for name, environment in told.items():
        assert environment["PATH"] == "/bin"
        assert ("s3cret" in json.dumps(dict(environment))) == name.startswith("adapters"), name
        assert environment.get("TRUEUP_CONNECTIONS") == (str(file) if name.startswith("adapters") else None)
    assert {name: told["adapters-2"][name] for name in SECRETS} == SECRETS


@pytest.mark.parametrize(
    "content", ["", "connections: 7", "connections: [1]", "- [", "connections: [{token: {env: 1}}]"]
)
def test_a_file_that_bootstrap_refuses_tells_nothing_here(tmp_path: Path, content: str) -> None:
    """It is read without a complaint: bootstrap says what is wrong with it."""
    file = tmp_path / "connections.yaml"
    file.write_text(content)
    assert connection_secrets(str(file)) <= {"1"}
    assert connection_secrets(str(tmp_path / "none")) == connection_secrets(None) == frozenset()


@pytest.mark.parametrize(
    ("external", "caller", "expected"),
    [(None, {}, "5"), (None, {"TRUEUP_DATABASE_POOL": "12"}, "12"), ("postgresql://a:b@db:5432/trueup", {}, None)],
    ids=["embedded", "as asked for", "a server of its own"],
)
def test_a_laptop_keeps_few_sessions(
    tmp_path: Path, external: str | None, caller: dict[str, str], expected: str | None
) -> None:
    """Each session of the embedded server keeps plans in memory of its own; whoever says how many is heard.

    Requirements: B5
    """
    plan = Plan(state_dir=str(tmp_path), external_database_url=external)
    make_secrets(plan.folder.secrets, [])
    addresses = Addresses(8080, "postgresql://a:b@127.0.0.1:5/trueup", "nats://a:b@127.0.0.1:4")
    told = {item.environment.get("TRUEUP_DATABASE_POOL") for item in service_processes(plan, addresses, caller)}
    assert told == {expected}
