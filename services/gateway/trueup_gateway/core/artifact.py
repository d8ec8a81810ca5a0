"""Artifacts: content kept by reference and hash. A row never forgets the hash, not even when the content is gone."""

import re
from collections.abc import Sequence
from typing import Any, Final

from trueup_common.contracts.shape import ForwardContract, Instant, rfc3339
from trueup_gateway.core.refusal import Refused, invalid

ID_PATTERN: Final = r"^art_[0-9a-f]{32}$"
NAMED: Final = re.compile(ID_PATTERN)
OPAQUE: Final = "application/octet-stream"
SAFE_TYPES: Final = frozenset(
    {
        "application/json",
        "application/pdf",
        "application/zip",
        "image/gif",
        "image/jpeg",
        "image/png",
        "image/webp",
        "text/csv",
        "text/markdown",
        "text/plain",
    }
)
"""What may be named to a browser: nothing of this runs. Everything else is only bytes."""
_MEDIA_TYPE: Final = re.compile(r"^[a-z0-9][a-z0-9!#$&^_.+-]{0,62}/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}$")


class ArtifactRow(ForwardContract):
    """One artifact. After its deletion the row is its tombstone: hash, size, and who took it away for which reason."""

    artifact_id: str
    tenant: str
    sha256: str
    size: int
    media_type: str
    created_by: str
    created_at: Instant
    deleted_at: Instant | None = None
    deleted_by: str | None = None
    deletion_reason: str | None = None
    legal_hold: bool = False


class ArtifactUseRow(ForwardContract):
    """That a command takes its payload from an artifact."""

    artifact_id: str
    command_id: str
    tenant: str
    first_at: Instant


def media_type_of(header: str | None) -> str:
    """The bare media type of a Content-Type header; opaque where there is none or none that can be read."""
    bare = (header or "").partition(";")[0].strip().lower()
    return bare if _MEDIA_TYPE.fullmatch(bare) else OPAQUE


def shown_type(media_type: str) -> str:
    """The media type that an answer may carry."""
    return media_type if media_type in SAFE_TYPES else OPAQUE


def tombstone(row: ArtifactRow) -> dict[str, Any]:
    """What is left of a deleted artifact."""
    return {
        "artifact_id": row.artifact_id,
        "sha256": row.sha256,
        "size": row.size,
        "deleted_at": rfc3339(row.deleted_at) if row.deleted_at is not None else None,
        "deleted_by": row.deleted_by,
        "reason": row.deletion_reason,
    }


def refuse_deletion(
    row: ArtifactRow, commands: Sequence[str], decisions: Sequence[str], held_by: Sequence[str] = ()
) -> None:
    """Raise Refused while something still needs the content. `held_by` are cases under a legal hold that it is of."""
    if row.legal_hold or held_by:
        detail = "A legal hold keeps this artifact."
        raise Refused("conflict", detail, extra={"workflows": list(held_by)} if held_by else {})
    if commands:
        detail = f"{len(commands)} commands that are not over take their payload from this artifact."
        raise Refused("conflict", detail, extra={"commands": list(commands)})
    if decisions:
        detail = f"{len(decisions)} decisions in force rest on this artifact."
        raise Refused("conflict", detail, extra={"decisions": list(decisions)})


def named_in(evidence: Sequence[tuple[str | None, str | None]]) -> list[str]:
    """Ids of the artifacts that evidence, given as (ref, sha256), refers to."""
    return sorted({ref for ref, _ in evidence if ref is not None and NAMED.fullmatch(ref)})


def check_evidence(
    evidence: Sequence[tuple[str | None, str | None]], known: Sequence[ArtifactRow], *, of: str | None = None
) -> None:
    """Raise Refused where evidence names an artifact that is not there, or is another content than it says.

    `of` is the only one whose artifacts the caller may read; None where that is everybody's of the tenant.
    """
    by_id = {row.artifact_id: row for row in known}
    errors: list[tuple[str, str]] = []
    for position, (ref, sha256) in enumerate(evidence):
        if ref is None or not ref.startswith("art_"):
            continue
        row = by_id.get(ref)
        if row is None or row.deleted_at is not None or (of is not None and row.created_by != of):
            errors.append((f"/evidence/{position}/ref", "there is no such artifact"))
        elif sha256 is not None and sha256 != row.sha256:
            errors.append((f"/evidence/{position}/sha256", "the artifact has another hash"))
    if errors:
        raise invalid(errors)
