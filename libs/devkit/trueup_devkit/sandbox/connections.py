"""The connections document of the sandbox world: what an operator would write by hand to reach it."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from trueup_devkit.sandbox.systems import SYSTEMS
from trueup_devkit.sandbox.systems.cloudflare import zone_token
from trueup_devkit.sandbox.systems.database import READER as DATABASE_READER
from trueup_devkit.sandbox.systems.database import WRITER as DATABASE_WRITER
from trueup_devkit.sandbox.systems.database import account_dsn
from trueup_devkit.sandbox.systems.github import REPOSITORIES, sandbox_token
from trueup_devkit.sandbox.systems.monitoring import discovery_token
from trueup_devkit.sandbox.systems.wordpress import READER, WRITER, sandbox_password

TENANTS: Final = ("acme", "globex")


def system_urls(control_url: str) -> dict[str, str]:
    """Where the systems of a sandbox with a fixed control port listen."""
    parts = urlsplit(control_url)
    if parts.port is None:
        raise ValueError(f"no port in {control_url!r}")
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return {name: f"{parts.scheme}://{host}:{parts.port + offset}" for offset, name in enumerate(SYSTEMS, start=1)}


def sandbox_connections(source: str | Mapping[str, str]) -> dict[str, Any]:
    """The document for a control URL (fixed ports) or for the systems' URLs as `GET /` answers them.

    The passwords are those of a world that exists on loopback only; they are no secrets.
    """
    urls = system_urls(source) if isinstance(source, str) else dict(source)
    connections: list[dict[str, Any]] = []
    for tenant in TENANTS:
        connections.append(
            {
                "tenant": tenant,
                "system": "wordpress",
                "base_url": f"{urls['wordpress']}/{tenant}",
                "username": WRITER,
                "password": sandbox_password(tenant, WRITER),
                "read_username": READER,
                "read_password": sandbox_password(tenant, READER),
                "allow_private_network": True,
            }
        )
        connections.append(
            {"tenant": tenant, "system": "bench", "base_url": urls["bench"], "allow_private_network": True}
        )
        connections.append(
            {
                "tenant": tenant,
                "system": "monitoring",
                "base_url": f"{urls['monitoring']}/{tenant}",
                "discovery_token": discovery_token(tenant),
                "allow_private_network": True,
            }
        )
        connections.append(
            {
                "tenant": tenant,
                "system": "cloudflare",
                "base_url": f"{urls['cloudflare']}/client/v4",
                "token": zone_token(tenant),
                "edge_url": urls["cloudflare"],
                "allow_private_network": True,
            }
        )
        connections.append(
            {
                "tenant": tenant,
                "system": "github",
                "base_url": urls["github"],
                "token": sandbox_token(tenant),
                "read_token": sandbox_token(tenant, may_write=False),
                "rate_limit_pause_seconds": 2.0,
                "repositories": [name for name in REPOSITORIES if name.startswith(f"{tenant}/")],
                "allow_private_network": True,
            }
        )
        if "database" in urls:
            connections.append(
                {
                    "tenant": tenant,
                    "system": "database",
                    "dsn": account_dsn(urls["database"], tenant, DATABASE_WRITER),
                    "read_dsn": account_dsn(urls["database"], tenant, DATABASE_READER),
                    "allow_private_network": True,
                }
            )
    return {"connections": connections}
