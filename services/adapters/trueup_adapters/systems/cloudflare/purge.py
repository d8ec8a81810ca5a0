"""`cloudflare.purge`: any number of URLs, thirty per call, each confirmed batch kept in the ledger.

A purge leaves nothing in Cloudflare that could be looked up, but its effect is public: a URL no longer serves what was
cached before. So a lost answer is UNKNOWN, and looking settles it: the ledger's cursor says which batches Cloudflare
confirmed, the public URLs of the batch in doubt say what became of that one. Where batches are left that no attempt has
sent, or an old object still comes, the purge as a whole is MISSING, and the next attempt (a fresh grant, after the late
window) begins with the first unconfirmed batch; repeating a purge does no harm. Where every URL is fresh it is
CONFIRMED, where the edge does not answer it stays UNKNOWN.

`since` is the edge's own time before the first byte, kept before anything is sent: older objects are what had to go.
A success reads the public URLs back. An edge that still serves old objects after a few seconds is UNKNOWN as well.
"""

import asyncio
import re
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from trueup_adapters.systems.cloudflare.edge import (
    ELEMENT,
    Edge,
    Freshness,
    Look,
    Wanted,
    doubtful,
    moment,
    observation,
    stored,
    wanted_of,
)
from trueup_adapters.systems.http import Answer, HttpTarget, TransportFailed
from trueup_common.contracts.adapter import Call, Connection, Outcome, confirmed, rejected, unknown
from trueup_common.contracts.canonical import sha256_hex
from trueup_common.contracts.clean import clean_text
from trueup_common.contracts.declaration import CommandDeclaration, Establishes, Probe, Repair
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import EffectClass, ErrorClass, Findability, FindVerdict, RiskLevel
from trueup_common.contracts.task import ProbeElement
from trueup_common.runtime.clock import monotonic, real_now

SYSTEM: Final = "cloudflare"
BATCH_URLS: Final = 30
"""Cloudflare's own limit per call, on every plan."""
SAMPLE_URLS: Final = 5
READ_BACK_PAUSES_SECONDS: Final = (0.0, 0.3, 1.0, 2.0)
RESOURCE_CHARACTERS_MAX: Final = 300
_PLAIN: Final = re.compile(r"[A-Za-z0-9._~%:\[\]=&/-]+(\?[A-Za-z0-9._~%:=&-]*)?")
WINDOW_SECONDS: Final = 10.0

_T, _P = ErrorClass.TRANSIENT, ErrorClass.PERMANENT
BY_CODE: Final[dict[int, tuple[ErrorClass, str]]] = {
    971: (_T, "rate_limited"),
    1000: (_P, "unauthenticated"),
    1001: (_P, "zone_unknown"),
    1012: (_P, "payload_invalid"),
    1014: (_P, "payload_invalid"),
    6003: (_P, "unauthenticated"),
    6111: (_P, "unauthenticated"),
    7000: (_P, "zone_unknown"),
    7003: (_P, "zone_unknown"),
    9103: (_P, "unauthenticated"),
    9106: (_P, "unauthenticated"),
    9109: (_P, "forbidden"),
    10000: (_P, "unauthenticated"),
}
"""Cloudflare's own error codes. A refusal without a known one follows its HTTP status; under 200 it may be repeated."""

_URL: Final = {"type": "string", "pattern": "^https?://[A-Za-z0-9._\\[\\]:-]+(/[!$-;=?-Z_a-z~]*|\\?[!$-;=?-Z_a-z~]*)?$"}
"""Printable, without user, fragment, space or quotes: exactly what goes over the wire."""
_URL_BOUNDED: Final = {**_URL, "maxLength": 2000}
_PAYLOAD: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["zone_id", "urls"],
    "properties": {
        "zone_id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        "urls": {"type": "array", "minItems": 1, "items": _URL_BOUNDED},
        "verify": {
            "type": "array",
            "maxItems": SAMPLE_URLS - 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["url", "contains"],
                "properties": {
                    "url": _URL_BOUNDED,
                    "contains": {"type": "string", "minLength": 1, "maxLength": 500},
                },
            },
        },
    },
}
_RECEIPT: Final = {
    "type": "object",
    "required": ["zone_id", "resource", "batches", "urls_count", "sample", "since"],
    "properties": {
        "zone_id": {"type": "string"},
        "resource": {"type": "string"},
        "urls_count": {"type": "integer"},
        "batches": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["number", "count", "id"],
                "properties": {
                    "number": {"type": "integer"},
                    "count": {"type": "integer"},
                    "id": {"type": ["string", "null"]},
                },
            },
        },
        "sample": {"type": "array", "items": {"type": "string"}},
        "since": {"type": "string"},
    },
}

PURGE: Final = CommandDeclaration(
    type="cloudflare.purge",
    system=SYSTEM,
    title="Purge URLs from the cache",
    description="Lets the edge forget what it cached of these URLs, so that visitors get the current content.",
    permission="cache:purge",
    effect_class=EffectClass.RETRYABLE,
    payload_schema=_PAYLOAD,
    receipt_schema=_RECEIPT,
    acts_on="zone/{/payload/zone_id}",
    findability=Findability.BUSINESS_KEY,
    find_ladder=(Findability.BUSINESS_KEY,),
    timeout_seconds=15.0,  # per batch: each confirmed one gives the attempt as much again
    start_window_seconds=20.0,
    late_window_seconds=5.0,
    progress_seconds=60.0,
    expected_version="none",
    success_condition="every batch is confirmed, and the sampled public URLs serve nothing older than the purge",
    establishes=(
        Establishes(
            element=ELEMENT,
            resource=ValueFrom(pointer="/receipt/resource"),
            value=ValueFrom(const=Freshness.FRESH.value),
            window_seconds=WINDOW_SECONDS,
            downstream_of=(
                "wordpress.post_id",
                "wordpress.status",
                "wordpress.content",
                "wordpress.fields",
                "wordpress.meta",
            ),
            probe=Probe(
                kind=ELEMENT,
                params={
                    "sample": ValueFrom(pointer="/receipt/sample"),
                    "since": ValueFrom(pointer="/receipt/since"),
                    "verify": ValueFrom(pointer="/payload/verify"),
                },
            ),
        ),
    ),
    repair=Repair(
        command_type="cloudflare.purge",
        payload={
            "zone_id": ValueFrom(pointer="/payload/zone_id"),
            "urls": ValueFrom(pointer="/payload/urls"),
            "verify": ValueFrom(pointer="/payload/verify"),
        },
        verification="the sampled public URLs serve nothing older than the purge",
    ),
    forward_recovery="retry",
    manual_policy="an operator purges the URLs in Cloudflare's dashboard and looks at the public pages",
    risk=RiskLevel.LOW,
    blast_radius=10,
)


@dataclass(frozen=True, slots=True)
class Work:
    """What a payload asks for: URLs without duplicates, in its order, and what their pages have to contain."""

    zone_id: str
    urls: tuple[str, ...]
    contains: MappingOf[str, str]

    @classmethod
    def of(cls, payload: MappingOf[str, Any]) -> Self:
        """From a payload that its schema admitted."""
        contains = {item["url"]: item["contains"] for item in payload.get("verify") or ()}
        return cls(payload["zone_id"], tuple(dict.fromkeys(payload["urls"])), contains)

    @property
    def resource(self) -> str:
        """The business object of the element: the zone with the first URL, in the spelling that resources have."""
        parts = urlsplit(self.urls[0])
        steps = [step for step in parts.path.split("/") if step not in ("", ".", "..")]
        named = "/".join((parts.netloc, *steps)) + (f"?{parts.query}" if parts.query else "")
        plain = f"zone/{self.zone_id}/{named}"
        if len(plain) <= RESOURCE_CHARACTERS_MAX and _PLAIN.fullmatch(named):
            return plain
        return f"zone/{self.zone_id}/{sha256_hex(self.urls[0].encode())}"

    def sample(self, urls: Sequence[str] | None = None) -> list[str]:
        """A few URLs to look at: the first one, those with a content to verify, and some spread over the rest."""
        among = self.urls if urls is None else urls
        spread = [among[index * (len(among) - 1) // (SAMPLE_URLS - 1)] for index in range(SAMPLE_URLS)]
        named = [url for url in among if url in self.contains]
        return list(dict.fromkeys([among[0], *named, *reversed(spread)]))[:SAMPLE_URLS]

    def wanted(self, urls: Sequence[str]) -> list[Wanted]:
        """The same with what has to be in them."""
        return [Wanted(url, self.contains.get(url)) for url in urls]


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the operation is: the edge's time before its first byte, and the batches that Cloudflare confirmed."""

    since: datetime | None = None
    batches: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, stored_cursor: MappingOf[str, Any] | None) -> Self:
        """From the ledger."""
        known = stored_cursor or {}
        return cls(moment(known.get("since")), tuple(known.get("batches") or ()))

    @property
    def urls_count(self) -> int:
        """How many URLs the confirmed batches hold."""
        return sum(batch["count"] for batch in self.batches)

    def after(self, count: int, purge_id: str | None) -> "Cursor":
        """With one more batch."""
        batch = {"number": len(self.batches) + 1, "count": count, "id": purge_id}
        return replace(self, batches=(*self.batches, batch))

    def document(self) -> dict[str, Any]:
        """For the ledger."""
        return {"since": stored(self.since) if self.since else None, "batches": list(self.batches)}


class CloudflareTarget:
    """One account as one tenant sees it: the API with its token, the edge without any."""

    def __init__(self, connection: Connection) -> None:
        token = connection.settings.get("token")
        if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
            raise ValueError(f"connection {connection.tenant}/{connection.system}: a token is needed")
        self._api = HttpTarget(connection, str(connection.settings.get("base_url", "")))
        self._edge = Edge(connection)
        self._headers = {"authorization": f"Bearer {token}"}
        self._gap_seconds = 1 / connection.requests_per_second if connection.requests_per_second else 0.0
        self._free_at_seconds = 0.0

    async def perform(self, call: Call) -> Outcome:
        """Send the first unconfirmed batch and all after it, keep each in the ledger, read the public URLs back."""
        work = Work.of(call.operation.payload)
        foreign = [url for url in work.contains if url not in work.urls]
        if foreign:
            return rejected(_P, "payload_invalid", f"to be verified, but not purged: {clean_text(foreign[0], 200)}")
        cursor = Cursor.of(call.cursor)
        if cursor.since is None:
            cursor = Cursor(since=await self._edge.clock(work.urls[0]) or real_now())
            await call.progress(cursor.document())
        if cursor.urls_count >= len(work.urls):
            cursor = replace(cursor, batches=())  # all confirmed and yet found undone: all of it once more
        answer: Answer | None = None
        while cursor.urls_count < len(work.urls):
            batch = work.urls[cursor.urls_count : cursor.urls_count + BATCH_URLS]
            try:
                answer = await self._purge(work.zone_id, batch, call)
            except TransportFailed as failure:
                return failure.outcome()
            document = _success(answer)
            if document is None:
                return _placed(_refused(answer), cursor, len(work.urls))
            cursor = cursor.after(len(batch), _id_of(document))
            await call.progress(cursor.document())
        return await self._verified(work, cursor, answer)

    async def _purge(self, zone_id: str, batch: Sequence[str], call: Call) -> Answer:
        """One call, at the rate of the connection: the service counts attempts, and this is one call of many."""
        if self._gap_seconds:
            now = monotonic()
            wait_seconds = self._free_at_seconds - now
            self._free_at_seconds = max(now, self._free_at_seconds) + self._gap_seconds
            if wait_seconds > 0:
                await asyncio.sleep(wait_seconds)
        headers = {**self._headers, "traceparent": call.traceparent} if call.traceparent else self._headers
        return await self._api.write(
            "POST",
            f"/zones/{quote(zone_id, safe='')}/purge_cache",
            document={"files": list(batch)},
            headers=headers,
            may_send=call.may_send,
        )

    async def _verified(self, work: Work, cursor: Cursor, answer: Answer | None) -> Outcome:
        looks: list[Look] = []
        for pause_seconds in READ_BACK_PAUSES_SECONDS:
            if pause_seconds:
                await asyncio.sleep(pause_seconds)
            looks = await self._edge.look(work.wanted(work.sample()), cursor.since)
            if not _of(looks, Freshness.STALE, Freshness.DOUBT):
                break
        for freshness, code in ((Freshness.STALE, "verification_failed"), (Freshness.DOUBT, "read_back_failed")):
            bad = _of(looks, freshness)
            if bad:
                return unknown(code, f"{bad[0].reason or freshness.value}: {clean_text(bad[0].url, 200)}")
        return confirmed(
            _result(work, cursor),
            external_resource_id=work.zone_id,
            external_status=str(answer.status) if answer is not None else None,
            observations=(observation(looks),),
        )

    async def find(self, call: Call) -> Finding:
        """The ledger says which batch is in doubt, the public URLs of that batch what became of it."""
        work, cursor = Work.of(call.operation.payload), Cursor.of(call.cursor)
        if cursor.since is None:
            # The cursor is kept before the first byte: without one, no attempt has sent anything.
            return _missing() if await self._edge.clock(work.urls[0]) else _undecided("edge_unreachable")
        batch = work.urls[cursor.urls_count : cursor.urls_count + BATCH_URLS]
        is_last = cursor.urls_count + len(batch) >= len(work.urls)
        urls = batch if batch and is_last else work.sample(batch or None)
        looks = await self._edge.look(work.wanted(urls), cursor.since)
        doubts = _of(looks, Freshness.DOUBT)
        if _of(looks, Freshness.STALE) or (not is_last and len(doubts) < len(looks)):
            return _missing()
        if doubts:
            return _undecided(doubts[0].reason or "unavailable")
        done = cursor.after(len(batch), None) if batch else cursor
        return Finding(
            verdict=FindVerdict.CONFIRMED,
            proof_of_access=True,
            evidence=Findability.BUSINESS_KEY.value,
            candidates=1,
            result=_result(work, done),
            external_resource_id=work.zone_id,
            observations=(observation(looks),),
        )

    async def probe(self, elements: Sequence[ProbeElement]) -> Sequence[Observation]:
        """The public URLs of each element."""
        return [await self._observe(item) for item in elements]

    async def _observe(self, item: ProbeElement) -> Observation:
        if item.element != ELEMENT:
            return doubtful(item.element, "element_unknown")
        return observation(await self._edge.look(wanted_of(item.params), moment(item.params.get("since"))))

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()
        await self._edge.close()


def _of(looks: Sequence[Look], *which: Freshness) -> list[Look]:
    return [look for look in looks if look.freshness in which]


def _result(work: Work, cursor: Cursor) -> dict[str, Any]:
    """The receipt."""
    return {
        "zone_id": work.zone_id,
        "resource": work.resource,
        "urls_count": len(work.urls),
        "batches": list(cursor.batches),
        "sample": work.sample(),
        "since": cursor.document()["since"],
    }


def _missing() -> Finding:
    return Finding(verdict=FindVerdict.MISSING, proof_of_access=True, evidence=Findability.BUSINESS_KEY.value)


def _undecided(reason: str) -> Finding:
    return Finding(verdict=FindVerdict.UNKNOWN, reason=reason)


def _envelope(answer: Answer) -> dict[str, Any] | None:
    try:
        value = answer.json()
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _success(answer: Answer) -> dict[str, Any] | None:
    """The envelope of a success: 2xx alone is none."""
    document = _envelope(answer) if answer.ok else None
    return document if document is not None and document.get("success") is True else None


def _id_of(document: MappingOf[str, Any]) -> str | None:
    result = document.get("result")
    found = result.get("id") if isinstance(result, dict) else None
    return clean_text(found, 100) if isinstance(found, str) else None


def _refused(answer: Answer) -> Outcome:
    """What an answer that is no success means: Cloudflare's own code first, then the status.

    `success: false` under 200 is Cloudflare's word that nothing was purged, so it is never UNKNOWN; a body that is no
    envelope at all is. Whatever 429 and 5xx carry, their status decides.
    """
    document = _envelope(answer)
    if document is None or answer.status == 429 or answer.status >= 500:
        return answer.outcome()
    errors = document.get("errors")
    codes = [item.get("code") for item in errors if isinstance(item, dict)] if isinstance(errors, list) else []
    known = next((BY_CODE[code] for code in codes if isinstance(code, int) and code in BY_CODE), None)
    if known is None and (not answer.ok or document.get("success") is not False):
        return answer.outcome()
    error_class, code = known or (_T, "refused")
    return rejected(error_class, code, answer.detail(), external_status=str(answer.status))


def _placed(outcome: Outcome, cursor: Cursor, total: int) -> Outcome:
    """The same, with which batch it was about."""
    number, count = len(cursor.batches) + 1, -(-total // BATCH_URLS)
    return replace(outcome, error_detail=f"batch {number} of {count}: {outcome.error_detail or ''}".rstrip(": "))


class CloudflareAdapter:
    """The entry point."""

    system = SYSTEM
    declarations = (PURGE,)
    settings = frozenset({"base_url", "token", "edge_url"})

    def open(self, connection: Connection) -> CloudflareTarget:
        """A target for one connection: base_url (with `/client/v4`), token, and optionally edge_url.

        `edge_url` is where all public URLs are fetched, each with its own `Host`: for networks in which their names do
        not lead to the edge.
        """
        return CloudflareTarget(connection)
