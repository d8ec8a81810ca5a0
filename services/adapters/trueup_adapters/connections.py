"""The connections file: which (tenant, system) leads where. Adapters alone read the secrets in it.

A file that is wrong in any place is refused as a whole, with the place and without any value of a secret.
"""

import os
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trueup_common.contracts.adapter import Adapter, Connection
from trueup_common.contracts.ids import SYSTEM_PATTERN, TENANT_PATTERN

FILE_BYTES_MAX: Final = 1_000_000
_SETTINGS_OF_SERVICE: Final = (
    "tenant",
    "system",
    "timeout_seconds",
    "max_concurrency",
    "requests_per_second",
    "allow_private_network",
)


def unknown_setting(adapter: Adapter, connection: Connection) -> str | None:
    """What is wrong with the names of a connection's settings, where the adapter says which it reads."""
    names: frozenset[str] | None = getattr(adapter, "settings", None)
    unknown = sorted(set(connection.settings) - names) if names is not None else []
    if names is None or not unknown:
        return None
    said = [f"{name!r}{_meant(name, names | set(_SETTINGS_OF_SERVICE))}" for name in unknown]
    return f"connection {connection.tenant}/{connection.system}: unknown settings: {', '.join(said)}"


def _meant(name: str, names: Collection[str]) -> str:
    close = get_close_matches(name, sorted(names), n=1, cutoff=0.5)
    return f" (is {close[0]!r} meant?)" if close else f"; there are {', '.join(sorted(names))}"


class ConnectionsUnusable(ValueError):
    """The connections file cannot be used; the message says where and why."""


class _Entry(BaseModel):
    """What the service itself reads of a connection; everything else belongs to the adapter."""

    model_config = ConfigDict(extra="allow", strict=True, hide_input_in_errors=True)

    tenant: str = Field(pattern=TENANT_PATTERN)
    system: str = Field(pattern=SYSTEM_PATTERN)
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    max_concurrency: int | None = Field(default=None, ge=1, le=1000)
    requests_per_second: float | None = Field(default=None, gt=0, le=100_000)
    allow_private_network: bool | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    connections: list[_Entry]


def read_connections(
    path: Path,
    *,
    private_networks: bool = False,
    slots: int = 16,
    environment: Mapping[str, str] | None = None,
    systems: Collection[str] | None = None,
    known: Collection[str] | None = None,
) -> tuple[Connection, ...]:
    """All connections of a file. `private_networks` and `slots` are the defaults of this process.

    With `systems`, only theirs: a process of one system needs no secret of another. With `known`, a system that is not
    among them is refused: nobody would serve it. Raises ConnectionsUnusable.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConnectionsUnusable(f"connections file {path}: {error.strerror or error}") from None
    if len(text) > FILE_BYTES_MAX:
        raise ConnectionsUnusable(f"connections file {path}: larger than {FILE_BYTES_MAX} bytes")
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark is not None else ""
        raise ConnectionsUnusable(f"connections file {path}: not YAML{place}") from None
    try:
        return connections_of(
            document,
            private_networks=private_networks,
            slots=slots,
            environment=environment or os.environ,
            systems=systems,
            known=known,
        )
    except ConnectionsUnusable as error:
        raise ConnectionsUnusable(f"connections file {path}: {error}") from None


def connections_of(
    document: Any,
    *,
    private_networks: bool,
    slots: int,
    environment: Mapping[str, str],
    systems: Collection[str] | None = None,
    known: Collection[str] | None = None,
) -> tuple[Connection, ...]:
    """All connections of a parsed document, or those of `systems`. Raises ConnectionsUnusable."""
    try:
        parsed = _File.model_validate(document)
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}" for e in error.errors()[:5])
        raise ConnectionsUnusable(reasons) from None
    found: dict[tuple[str, str], Connection] = {}
    seen: set[tuple[str, str]] = set()
    for position, entry in enumerate(parsed.connections):
        pair = (entry.tenant, entry.system)
        if pair in seen:
            raise ConnectionsUnusable(f"connections.{position}: {entry.tenant}/{entry.system} is there twice")
        seen.add(pair)
        if known is not None and entry.system not in known:
            meant = _meant(entry.system, known)
            raise ConnectionsUnusable(f"connections.{position}.system: no adapter serves {entry.system!r}{meant}")
        if systems is not None and entry.system not in systems:
            continue
        allowed = entry.allow_private_network
        found[pair] = Connection(
            tenant=entry.tenant,
            system=entry.system,
            settings=_resolved(entry.model_extra or {}, f"connections.{position}", environment),
            timeout_seconds=entry.timeout_seconds,
            max_concurrency=entry.max_concurrency or slots,
            requests_per_second=entry.requests_per_second,
            allow_private_network=private_networks if allowed is None else allowed,
        )
    return tuple(found.values())


def _resolved(settings: Mapping[str, Any], place: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings with `{env: NAME}` and `{file: PATH}` replaced by what they lead to."""
    return {name: _secret(value, f"{place}.{name}", environment) for name, value in settings.items()}


def _secret(value: Any, place: str, environment: Mapping[str, str]) -> Any:
    if not isinstance(value, dict) or set(value) not in ({"env"}, {"file"}):
        return value
    kind, name = next(iter(value.items()))
    if not isinstance(name, str) or not name:
        raise ConnectionsUnusable(f"{place}: {kind} needs a name")
    if kind == "env":
        if name not in environment:
            raise ConnectionsUnusable(f"{place}: the environment variable {name} is not set")
        return environment[name]
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not readable as text"
        raise ConnectionsUnusable(f"{place}: the file {name}: {reason}") from None
