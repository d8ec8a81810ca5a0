"""What a repair may be: exactly what an open exception offers. A repairer chooses neither content nor object."""

from collections.abc import Collection, Mapping
from typing import Any

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.shape import record


@record
class Asked:
    """What a decision is asked for: the command types, the object, and the hash of the payload."""

    types: tuple[str, ...]
    place: tuple[str, str]
    payload_sha256: str | None

    def fits(self, types: Collection[str], place: tuple[str, str]) -> bool:
        """True where one command of these types on this object is asked for, with its payload."""
        return len(self.types) == 1 and self.types[0] in types and self.place == place

    def is_offered(self, offer: Mapping[str, Any]) -> bool:
        """True where this is the command of an offer, byte for byte."""
        return (
            self.types == (offer.get("command_type"),)
            and self.place[1] == offer.get("resource")
            and self.payload_sha256 is not None
            and self.payload_sha256 == digest(offer.get("payload"))
        )
