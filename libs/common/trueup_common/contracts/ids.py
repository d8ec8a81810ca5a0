"""Identifiers: opaque strings with a prefix that says what they name.

New ids are random and are made only at the edge, where something enters the system for the first time. Everything that
follows from something else is derived (UUIDv5), so that a retry derives the same id again.
"""

import hashlib
import re
import uuid
from typing import Final

_NAMESPACE: Final = uuid.UUID("6f0c2b0e-3f4e-5c55-9a4c-0d6f5a1c7e11")

_NAMESPACE_BYTES: Final = _NAMESPACE.bytes

TENANT_PATTERN: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
SYSTEM_PATTERN: Final = r"^[a-z][a-z0-9-]{0,30}$"
COMMAND_TYPE_PATTERN: Final = r"^[a-z][a-z0-9-]{0,30}\.[a-z][a-z0-9_]{0,62}$"
_TENANT: Final = re.compile(TENANT_PATTERN)

PREFIXES: Final = frozenset(
    (
        "dec cap man cmd att wf saga evt apr exc dlq rep inc opc art bat obs frz msg obl grt frag stl fnd vis ctl sig"
    ).split()
)


def new_id(prefix: str) -> str:
    """A random id, for things that enter the system here and now."""
    if prefix not in PREFIXES:
        raise ValueError(f"unknown id prefix {prefix!r}")
    return f"{prefix}_{uuid.uuid4().hex}"


def derived_id(prefix: str, *parts: str | int) -> str:
    """An id that follows from `parts`; the same parts always give the same id."""
    if prefix not in PREFIXES:
        raise ValueError(f"unknown id prefix {prefix!r}")
    name = "\x1f".join(str(part) for part in parts)
    raw = bytearray(hashlib.sha1(_NAMESPACE_BYTES + name.encode(), usedforsecurity=False).digest()[:16])
    raw[6] = raw[6] & 0x0F | 0x50  # version 5
    raw[8] = raw[8] & 0x3F | 0x80  # the variant of RFC 9562
    return f"{prefix}_{raw.hex()}"


def command_id(workflow_id: str, step_id: str, generation: int) -> str:
    """One intent: instance, step and generation; stable over retries."""
    return derived_id("cmd", workflow_id, step_id, generation)


def attempt_id(command: str, fence: int) -> str:
    """One transmission of an intent; also the message id of its task."""
    return derived_id("att", command, fence)


def is_tenant(value: str) -> bool:
    """True for a tenant id in its one accepted spelling."""
    return _TENANT.fullmatch(value) is not None
