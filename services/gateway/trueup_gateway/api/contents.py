"""What a command carries: its payload as it came in the request, or as it is kept in an artifact.

Both are the same content: checked alike, with the same hash and the same fingerprint. Of a kept one only the reduced
payload goes on.
"""

from typing import Any

from trueup_common.contracts.canonical import canonical, sha256_hex
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.shape import record
from trueup_common.contracts.task import PayloadRef
from trueup_gateway.api.artifacts import content_of, objects_away
from trueup_gateway.api.gateway import Gateway
from trueup_gateway.core.artifact import ArtifactRow
from trueup_gateway.core.reduced_payload import NotReducible, reduced
from trueup_gateway.core.refusal import Refused, invalid
from trueup_gateway.core.strict_json import Malformed, parse
from trueup_gateway.store import Reader


@record
class Content:
    """A whole payload. `member` is where the request gave it, and `bytes_max` how large it may be."""

    payload: Any
    payload_sha256: str
    size_bytes: int
    bytes_max: int
    member: str = "payload"
    ref: PayloadRef | None = None

    def going_on(self, gateway: Gateway, declaration: CommandDeclaration) -> Any:
        """The payload as journal and messages hold it. Raises Refused where it cannot be reduced."""
        if self.ref is None:
            return self.payload
        try:
            kept = reduced(declaration, self.payload)
        except NotReducible:
            raise invalid([("/payload_ref", "this command type needs its payload in the request")]) from None
        if len(canonical(kept)) > gateway.settings.payload_bytes_max:
            raise Refused("too-large", "What this command type itself needs of the payload is too large.")
        return kept


def inline(gateway: Gateway, payload: Any) -> Content:
    """A payload that came in the request. Raises Refused."""
    return _content(payload, gateway.settings.payload_bytes_max, "payload", None)


async def kept_bytes(gateway: Gateway, owner: Reader, artifact_id: str) -> tuple[ArtifactRow, bytes]:
    """The bytes of an artifact that its owner may send: nobody sends what another one stored. Raises Refused."""
    row = await gateway.reads.artifact(owner, artifact_id)
    if row is None or row.deleted_at is not None:
        raise invalid([("/payload_ref", "there is no such artifact")])
    bytes_max = gateway.settings.kept_payload_bytes_max
    if row.size > bytes_max:
        raise Refused("too-large", f"The artifact has more than {bytes_max} bytes.")
    found = await content_of(gateway, row)
    if found is None:
        raise objects_away()
    return row, found


def kept(gateway: Gateway, row: ArtifactRow, raw: bytes) -> Content:
    """A payload as it is kept in an artifact. Raises Refused."""
    try:
        payload = parse(raw)
    except Malformed as error:
        raise invalid([("/payload_ref", f"the artifact is not acceptable JSON: {error}")]) from None
    ref = PayloadRef(artifact_id=row.artifact_id, sha256=row.sha256, size=row.size)
    return _content(payload, gateway.settings.kept_payload_bytes_max, "payload_ref", ref)


def _content(payload: Any, bytes_max: int, member: str, ref: PayloadRef | None) -> Content:
    try:
        plain = canonical(payload)
    except ValueError:
        raise invalid([(f"/{member}", "has no canonical form")]) from None
    return Content(payload, sha256_hex(plain), len(plain), bytes_max, member, ref)
