"""The secrets of one state folder: made once at the first start, readable by their owner only, never printed.

Every service gets its own database password and broker password, so that none can use another's tables or subjects.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueup_common.contracts.topology import SERVICES

_ADAPTER_GROUP = "trueup.adapters"


@dataclass(frozen=True)
class SecretFiles:
    """Where the secrets of a state folder are."""

    folder: Path

    @property
    def database(self) -> Path:
        """{service: password of its database role}."""
        return self.folder / "database.json"

    @property
    def bus(self) -> Path:
        """{broker user: password}."""
        return self.folder / "nats.json"

    @property
    def grant_keys(self) -> Path:
        """{adapter system: base64url of 32 bytes}."""
        return self.folder / "grant_keys.json"

    @property
    def signing_key(self) -> Path:
        """The gateway's capability signing key (Ed25519, JWK)."""
        return self.folder / "signing_key.json"

    @property
    def dev_issuer_key(self) -> Path:
        """The development issuer's key (Ed25519, JWK)."""
        return self.folder / "dev_issuer_key.json"

    def read(self, path: Path) -> dict[str, str]:
        """Read one of the files."""
        content = json.loads(path.read_text())
        assert isinstance(content, dict)
        return content


def installed_systems() -> tuple[str, ...]:
    """Names of the installed adapters, without importing any of them."""
    import importlib.metadata  # only a first start needs it; the supervisor stays without it

    return tuple(sorted({entry.name for entry in importlib.metadata.entry_points(group=_ADAPTER_GROUP)}))


def make_secrets(folder: Path, systems: Iterable[str]) -> SecretFiles:
    """Make what is missing and keep what is there; a later adapter gets its key without touching the others."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = SecretFiles(folder)
    _complete(files.database, SERVICES, _password)
    _complete(files.bus, ("admin", "system", *SERVICES), _password)
    _complete(files.grant_keys, systems, _grant_key)
    for path in (files.signing_key, files.dev_issuer_key):
        if not path.exists():
            _write(path, ed25519_jwk())
    return files


def ed25519_jwk() -> dict[str, str]:
    """Make an Ed25519 private key as a JWK whose id is its RFC 7638 thumbprint."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    public = {"crv": "Ed25519", "kty": "OKP", "x": _base64url(key.public_key().public_bytes_raw())}
    thumbprint = hashlib.sha256(json.dumps(public, sort_keys=True, separators=(",", ":")).encode()).digest()
    return {
        **public,
        "d": _base64url(key.private_bytes_raw()),
        "kid": _base64url(thumbprint),
        "alg": "Ed25519",
        "use": "sig",
    }


def complete_passwords(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Passwords by name, for exactly these names; those that the file has already are kept."""
    wanted = list(names)
    _complete(path, wanted, _password)
    present: dict[str, str] = json.loads(path.read_text())
    return {name: present[name] for name in wanted}


def _complete(path: Path, names: Iterable[str], make: Any) -> None:
    present = json.loads(path.read_text()) if path.exists() else {}
    missing = [name for name in names if name not in present]
    if missing:
        _write(path, {**present, **{name: make() for name in missing}})


def _password() -> str:
    return secrets.token_urlsafe(24)


def _grant_key() -> str:
    return _base64url(secrets.token_bytes(32))


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _write(path: Path, content: dict[str, str]) -> None:
    """Write a whole file or none: a start that is killed here leaves the old one."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
