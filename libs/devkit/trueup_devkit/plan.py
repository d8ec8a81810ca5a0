"""What a plane consists of, as data: the options of one start and the processes that follow from them.

Nothing here starts anything, so a test can read the whole process table, and replace any program in it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trueup_common.contracts.topology import SERVICES
from trueup_devkit.secret_files import SecretFiles
from trueup_devkit.state_folder import StateFolder
from trueup_devkit.told import ToldError

GATEWAY = "gateway"
ADAPTERS = "adapters"
CUSTOMER_DATABASE = "trueup_customer"
MODULES: dict[str, str] = {service: f"trueup_{service.replace('-', '_')}.main" for service in SERVICES}
REPLICAS_MAX = 16
SESSIONS_MAX = "5"
"""Of one process on the embedded server: a session keeps the plans of all it ever asked, 10 to 20 MB of memory after
some work, and one process keeps no more of them busy on a laptop. TRUEUP_DATABASE_POOL says otherwise."""
SECRET_READERS: dict[str, tuple[str, ...]] = {
    "DATABASE_URL": (),  # the caller's is the admin's; each service gets its own
    "NATS_URL": (),
    "ROLE_PASSWORDS": (),
    "CAPABILITY": (),
    "TOKEN": (),
    "GRANT_KEYS": (GATEWAY, "adapters"),
    "SIGNING_KEY": (GATEWAY,),
    "DEV_ISSUER_KEY": (GATEWAY,),
    "PLANNER_CLIENT_SECRET": ("repair-planner",),
}


class PlanError(ToldError):
    """An option that cannot be planned; the message names it."""


@dataclass
class Plan:
    """The options of one start."""

    state_dir: str
    port: int = 8080
    mode: str = "development"
    clock: str = "system"
    sandbox: bool = True
    connections: str | None = None
    replicas: dict[str, int] = field(default_factory=dict)
    external_database_url: str | None = None
    external_nats_url: str | None = None
    programs: dict[str, list[str]] = field(default_factory=dict)
    """Replaces the program of a service, of `sandbox` or of `bootstrap`: for tests and for local experiments."""

    @property
    def folder(self) -> StateFolder:
        return StateFolder(Path(self.state_dir))

    def save(self) -> None:
        self.folder.plan.write_text(json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, path: Path) -> Plan:
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True)
class Addresses:
    """Where everything of one start listens."""

    gateway_port: int
    database_url: str
    """The owner's URL of the plane's database."""
    nats_url: str
    """The admin's URL of the bus."""
    sandbox_port: int | None = None
    adapters_port: int | None = None
    """Where the first adapters process answers health and discovery; replica n listens n - 1 above it."""
    connections: str | None = None


@dataclass(frozen=True)
class Process:
    """One service process to run; its health port is chosen when it starts."""

    name: str
    service: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    health_port: int | None = None
    """A fixed port that answers GET /readyz; None means that one is chosen when it starts."""
    given_port: bool = True
    """True where the port is given as TRUEUP_HEALTH_PORT; False where it is the service's own port."""


def parse_replicas(text: str | None) -> dict[str, int]:
    """Read `gateway=2,adapters=3`."""
    replicas: dict[str, int] = {}
    for part in filter(None, (text or "").split(",")):
        service, _, count = (piece.strip() for piece in part.partition("="))
        if service not in SERVICES:
            raise PlanError(f"--replicas: unknown service {service!r}; services are {', '.join(SERVICES)}")
        if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= REPLICAS_MAX:
            raise PlanError(f"--replicas: {service} needs a number from 1 to {REPLICAS_MAX}, not {count!r}")
        replicas[service] = int(count)
    return replicas


def process_name(service: str, index: int) -> str:
    """`gateway`, `gateway-2`, `gateway-3`, …"""
    return service if index == 1 else f"{service}-{index}"


def service_processes(plan: Plan, addresses: Addresses, caller: Mapping[str, str]) -> list[Process]:
    """All service processes in start order. `caller` is the environment of whoever started the plane."""
    processes = []
    for service in SERVICES:
        count = plan.replicas.get(service, 1)
        for index in range(1, count + 1):
            name = process_name(service, index)
            shared_port = service == GATEWAY and count > 1
            fixed = addresses.gateway_port if service == GATEWAY and not shared_port else None
            own = fixed is not None
            if service == ADAPTERS and addresses.adapters_port:
                fixed = addresses.adapters_port + index - 1
            arguments = plan.programs.get(service) or [sys.executable, "-m", MODULES[service]]
            environment = service_environment(plan, addresses, service, name, caller)
            processes.append(Process(name, service, tuple(arguments), environment, fixed, not own))
    return processes


def service_environment(
    plan: Plan, addresses: Addresses, service: str, name: str, caller: Mapping[str, str]
) -> dict[str, str]:
    """What one process is told. The caller's TRUEUP_* pass through, but never an admin URL or another's secret."""
    secrets = SecretFiles(plan.folder.secrets)
    foreign = {name for name in SECRET_READERS if service not in SECRET_READERS[name]}
    withheld = {f"TRUEUP_{name}{twin}" for name in foreign for twin in ("", "_FILE")}
    if service != ADAPTERS:
        withheld |= connection_secrets(addresses.connections) | {"TRUEUP_CONNECTIONS"}
    environment = {name: value for name, value in caller.items() if name not in withheld}
    environment |= {
        "TRUEUP_MODE": plan.mode,
        "TRUEUP_SERVICE": service,
        "TRUEUP_INSTANCE": name,
        "TRUEUP_STATE_DIR": plan.state_dir,
        "TRUEUP_HOST": caller.get("TRUEUP_HOST", "127.0.0.1"),
        "TRUEUP_PORT": str(addresses.gateway_port),
        "TRUEUP_PUBLIC_URL": caller.get("TRUEUP_PUBLIC_URL", f"http://127.0.0.1:{addresses.gateway_port}"),
        "TRUEUP_CLOCK": plan.clock,
        "TRUEUP_DATABASE_URL": role_url(addresses.database_url, service, secrets.read(secrets.database)[service]),
        "TRUEUP_NATS_URL": caller.get(f"TRUEUP_NATS_URL_{service.upper().replace('-', '_')}")
        or (plan.external_nats_url or _user_url(addresses.nats_url, service, secrets.read(secrets.bus)[service])),
    }
    if plan.external_database_url is None:
        environment.setdefault("TRUEUP_DATABASE_POOL", SESSIONS_MAX)
    made = {"GRANT_KEYS": secrets.grant_keys, "SIGNING_KEY": secrets.signing_key}
    if plan.mode == "development":
        made["DEV_ISSUER_KEY"] = secrets.dev_issuer_key
        environment["TRUEUP_DEV_ISSUER"] = "1"
    for key, file in made.items():
        if service in SECRET_READERS[key] and f"TRUEUP_{key}" not in environment:
            environment.setdefault(f"TRUEUP_{key}_FILE", str(file))
    if addresses.connections and service == ADAPTERS:
        environment["TRUEUP_CONNECTIONS"] = addresses.connections
    return environment


def connection_secrets(connections: str | None) -> frozenset[str]:
    """The environment variables that a connections file takes secrets from. Only adapters are told them."""
    import yaml

    try:
        content = yaml.safe_load(Path(connections).read_text(encoding="utf-8")) if connections else None
        entries = (content or {}).get("connections") or []
        values = [value for entry in entries for value in entry.values()]
    except (OSError, yaml.YAMLError, AttributeError, TypeError):
        return frozenset()  # bootstrap refuses such a file and says why
    return frozenset(str(value["env"]) for value in values if isinstance(value, dict) and set(value) == {"env"})


def bootstrap_environment(plan: Plan, addresses: Addresses, caller: Mapping[str, str]) -> dict[str, str]:
    """What the bootstrap identity is told: the admin URLs, which no service ever sees."""
    environment = dict(caller) | {
        "TRUEUP_MODE": plan.mode,
        "TRUEUP_SERVICE": "bootstrap",
        "TRUEUP_STATE_DIR": plan.state_dir,
        "TRUEUP_CLOCK": plan.clock,
        "TRUEUP_DATABASE_URL": addresses.database_url,
        "TRUEUP_NATS_URL": addresses.nats_url,
    }
    if addresses.connections:
        environment["TRUEUP_CONNECTIONS"] = addresses.connections
    if addresses.sandbox_port and plan.connections is None:
        environment["TRUEUP_SANDBOX_URL"] = f"http://127.0.0.1:{addresses.sandbox_port}"
    return environment


def role_url(database_url: str, service: str, password: str) -> str:
    """The same database as seen by a service's own role."""
    return _user_url(database_url, f"trueup_{service.replace('-', '_')}", password)


def _user_url(url: str, user: str, password: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}:{password}@{rest.rpartition('@')[2]}"


def sandbox_arguments(plan: Plan, port: int, adapters_port: int) -> list[str]:
    """How the sandbox world is started, and where its systems ask the plane what they should do."""
    program = plan.programs.get("sandbox") or [sys.executable, "-m", "trueup_devkit.sandbox"]
    ports = range(adapters_port, adapters_port + plan.replicas.get(ADAPTERS, 1))
    asking = [f"--discovery=http://127.0.0.1:{number}/discovery/monitoring/{{tenant}}" for number in ports]
    return [*program, "--state-dir", str(plan.folder.path / "sandbox"), "--port", str(port), *asking]


def sandbox_environment(database_url: str | None, caller: Mapping[str, str]) -> dict[str, str]:
    """What the sandbox world is told. `database_url` is the owner's URL of the embedded server's own database.

    The world keeps the customer's tables in a database of its own beside that, which no role of the plane may enter.
    """
    if database_url is None:
        return dict(caller)
    customer = f"{database_url.partition('?')[0].rpartition('/')[0]}/{CUSTOMER_DATABASE}"
    return {"TRUEUP_SANDBOX_DATABASE_URL": customer, **caller}


def bootstrap_arguments(plan: Plan) -> list[str]:
    """How database and bus are brought to the shape that the services need."""
    return plan.programs.get("bootstrap") or [sys.executable, "-m", "trueup_devkit.migrate"]


def read_ports(folder: StateFolder) -> dict[str, Any]:
    """Ports of an earlier start, so that a restart keeps its addresses."""
    try:
        content = json.loads(folder.ports.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}
