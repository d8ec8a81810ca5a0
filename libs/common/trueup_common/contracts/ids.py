"""Identifiers: opaque strings with a prefix that says what they name.

New ids are random and are made only at the edge, where something enters the system for the first time. Everything that
follows from something else is derived (UUIDv5), so that a retry derives the same id again.

A case's id begins with its moment (UUIDv7), and the first 48 bits of what is derived from an id are those of that id.
So the rows of one time stand side by side in every index, and a command touches few pages whatever the history (ADR
0027).
"""

import hashlib
import re
import uuid
from datetime import datetime
from functools import lru_cache
from typing import Final

_NAMESPACE: Final = uuid.UUID("6f0c2b0e-3f4e-5c55-9a4c-0d6f5a1c7e11")

_NAMESPACE_BYTES: Final = _NAMESPACE.bytes

TENANT_PATTERN: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
SYSTEM_PATTERN: Final = r"^[a-z][a-z0-9-]{0,30}$"
COMMAND_TYPE_PATTERN: Final = r"^[a-z][a-z0-9-]{0,30}\.[a-z][a-z0-9_]{0,62}$"
_TENANT: Final = re.compile(TENANT_PATTERN)

_MOMENT: Final = 12
"""Digits of an id that tell the moment: 48 bits of milliseconds."""
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_ID: Final = re.compile(rf"[a-z]{{2,5}}_([0-9a-f]{{{_MOMENT}}})[0-9a-f]{{{32 - _MOMENT}}}(?![^\x1f])")

PREFIXES: Final = frozenset(
    (
        "dec cap man cmd att wf saga evt apr exc dlq rep inc opc art bat obs "
        "frz hld msg obl grt frag stl fnd vis ctl sig"
    ).split()
)


def new_id(prefix: str, at: datetime | None = None) -> str:
    """A random id, for things that enter the system here and now; with `at`, in the order of time."""
    if prefix not in PREFIXES:
        raise ValueError(f"unknown id prefix {prefix!r}")
    random = uuid.uuid4().hex
    if at is None:
        return f"{prefix}_{random}"
    return f"{prefix}_{int(at.timestamp() * 1000):0{_MOMENT}x}7{random[_MOMENT + 1 :]}"


def derived_id(prefix: str, *parts: str | int) -> str:
    """An id that follows from `parts`; the same parts always give the same id.

    Where the first part is an id, it begins with the same moment.
    """
    if prefix not in PREFIXES:
        raise ValueError(f"unknown id prefix {prefix!r}")
    name = "\x1f".join(map(str, parts))
    raw = hashlib.sha1(_NAMESPACE_BYTES + name.encode(), usedforsecurity=False).hexdigest()
    of = _ID.match(name)
    # after the moment's 12 digits: version 5, and two bits of the variant of RFC 9562
    return f"{prefix}_{of[1] if of else raw[:_MOMENT]}5{raw[13:16]}{_VARIANT[raw[16]]}{raw[17:32]}"


def command_id(workflow_id: str, step_id: str, generation: int) -> str:
    """One intent: instance, step and generation; stable over retries."""
    return derived_id("cmd", workflow_id, step_id, generation)


@lru_cache(maxsize=4096)
def attempt_id(command: str, fence: int) -> str:
    """One transmission of an intent; also the message id of its task."""
    return derived_id("att", command, fence)


def is_tenant(value: str) -> bool:
    """True for a tenant id in its one accepted spelling."""
    return _TENANT.fullmatch(value) is not None
