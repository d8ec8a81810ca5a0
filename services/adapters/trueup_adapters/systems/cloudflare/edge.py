"""Public URLs as a visitor gets them: is what the edge serves older than the purge?

No credential is sent. Only an answer that the edge itself signed with its headers says anything; what it fetched from
the origin for this look is fresh by definition. An object out of the cache is fresh where it was stored after the purge
was asked for, by the edge's own clock; where whole seconds cannot tell, or it is older, its content is compared with
what the origin says now (the same URL under a query that nobody has cached): the same content is fresh, whatever its
age, another one is stale. One edge location is asked; others may differ.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from trueup_adapters.core.classify import http_date
from trueup_adapters.systems.http import Answer, HttpTarget, TransportFailed
from trueup_common.contracts.adapter import Connection
from trueup_common.contracts.clean import clean_text
from trueup_common.contracts.compare import NORMALISERS
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import ProbeVerdict
from trueup_common.runtime.clock import real_now

ELEMENT: Final = "cloudflare.cache"
SOURCE: Final = "cloudflare.edge"
LOOK_SECONDS: Final = 5.0
CLOCK_SECONDS: Final = 3.0
LOOKS_AT_ONCE: Final = 6
ORIGINS_MAX: Final = 64
SECONDS_APART: Final = timedelta(seconds=2)
"""`Date` and `Age` are whole seconds: so far apart two moments have to be to be in order for certain."""
_PLACE: Final = "/cdn-cgi/trace"
"""Answered by every edge location itself: its clock without touching the cache."""
_FROM_ORIGIN: Final = frozenset({"MISS", "EXPIRED", "REVALIDATED", "DYNAMIC", "BYPASS", "NONE", "UNKNOWN"})
_FROM_CACHE: Final = frozenset({"HIT", "STALE", "UPDATING"})
_JUDGED: Final = frozenset({*range(200, 300), 301, 302, 303, 307, 308, 404, 410, 451})
"""Answers of a site. Anything else (a challenge, an overload) is the answer of somebody in between."""


class Freshness(StrEnum):
    """What one look came to; the first three are values of the element."""

    FRESH = "fresh"
    STALE = "stale"
    LACKING = "content_missing"
    DOUBT = "doubt"


@dataclass(frozen=True, slots=True)
class Look:
    """One URL as it was seen. `reason` says why a look is a doubt."""

    url: str
    freshness: Freshness
    reason: str | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """One URL to look at, and what its page has to contain."""

    url: str
    contains: str | None = None


class Edge:
    """Where the public URLs are fetched: at their own hosts, or all at `edge_url` with their own `Host`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        edge_url = connection.settings.get("edge_url")
        self._fixed = None if edge_url is None else HttpTarget(connection, str(edge_url), timeout_seconds=LOOK_SECONDS)
        self._hosts: dict[str, HttpTarget] = {}
        self._slots = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def clock(self, url: str) -> datetime | None:
        """The edge's own time, None where it does not answer."""
        parts = urlsplit(url)
        try:
            async with asyncio.timeout(CLOCK_SECONDS):
                answer = await self._get(f"{parts.scheme}://{parts.netloc}{_PLACE}")
        except (TransportFailed, TimeoutError, ValueError):
            return None
        return http_date(answer.headers.get("date", ""))

    async def look(self, wanted: Iterable[Wanted], since: datetime | None) -> list[Look]:
        """Look at some URLs, a few at a time."""
        return list(await asyncio.gather(*(self._look(item, since) for item in wanted)))

    async def _look(self, wanted: Wanted, since: datetime | None) -> Look:
        try:
            async with self._slots, asyncio.timeout(LOOK_SECONDS):
                return await self._judge(wanted, since)
        except TimeoutError:
            return Look(wanted.url, Freshness.DOUBT, "timeout")
        except TransportFailed as failure:
            return Look(wanted.url, Freshness.DOUBT, failure.code)
        except ValueError:
            return Look(wanted.url, Freshness.DOUBT, "address_refused")

    async def _judge(self, wanted: Wanted, since: datetime | None) -> Look:
        answer = await self._get(wanted.url)
        etag = clean_text(answer.headers.get("etag", ""), 200) or None
        doubt = doubt_of(answer)
        if doubt is not None:
            return Look(wanted.url, Freshness.DOUBT, doubt, etag)
        freshness, reason = Freshness.FRESH, None
        if cache_status(answer) in _FROM_CACHE and not stored_since(answer, since):
            freshness, reason = await self._compared(wanted.url, answer, since)
        if freshness is Freshness.FRESH and wanted.contains is not None and not shows(answer, wanted.contains):
            freshness = Freshness.LACKING
        return Look(wanted.url, freshness, reason, etag)

    async def _compared(self, url: str, cached: Answer, since: datetime | None) -> tuple[Freshness, str | None]:
        """An object of uncertain age against what the origin says now."""
        try:
            current = await self._get(f"{url}{'&' if '?' in url else '?'}trueup-look={new_id('obs')}")
        except TransportFailed:
            current = None
        if current is None or doubt_of(current) is not None or cache_status(current) in _FROM_CACHE:
            # Nothing to compare with (the zone may ignore queries): then age alone decides, where it can.
            old = stored_before(cached, since)
            return (Freshness.STALE, None) if old else (Freshness.DOUBT, "freshness_undecided")
        same = (current.status, current.body) == (cached.status, cached.body)
        return (Freshness.FRESH if same else Freshness.STALE), None

    async def _get(self, url: str) -> Answer:
        """Raises TransportFailed, and ValueError for a host in a private network that the connection forbids."""
        parts = urlsplit(url)
        target = self._fixed or await self._of_host(f"{parts.scheme}://{parts.netloc}")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"host": parts.netloc, "accept": "text/html,*/*;q=0.8"}
        return await target.read(path, headers=headers)

    async def _of_host(self, origin: str) -> HttpTarget:
        target = self._hosts.get(origin)
        if target is None:
            target = self._hosts[origin] = HttpTarget(self._connection, origin, timeout_seconds=LOOK_SECONDS)
            if len(self._hosts) > ORIGINS_MAX:
                await self._hosts.pop(next(iter(self._hosts))).close()
        return target

    async def close(self) -> None:
        """Close all connections."""
        for target in (self._fixed, *self._hosts.values()):
            if target is not None:
                await target.close()


def cache_status(answer: Answer) -> str:
    """`cf-cache-status` as it stands in the table; empty where the answer has none."""
    return str(answer.headers.get("cf-cache-status", "")).strip().upper()


def doubt_of(answer: Answer) -> str | None:
    """Why an answer says nothing about the cache; None where it does."""
    if answer.status not in _JUDGED:
        return answer.outcome().error_code or "answer_unreadable"
    status = cache_status(answer)
    if status in _FROM_ORIGIN or status in _FROM_CACHE:
        return None
    if not status and answer.headers.get("cf-ray"):
        return None  # made at the edge itself, a redirect rule for example
    return "not_from_edge"


def stored_at(answer: Answer) -> datetime | None:
    """When the edge stored this object, as far as its headers say."""
    date, age = http_date(answer.headers.get("date", "")), str(answer.headers.get("age", "")).strip()
    if date is None or not (age.isascii() and age.isdigit()):
        return None
    return date - timedelta(seconds=int(age[:9]))


def stored_since(answer: Answer, since: datetime | None) -> bool:
    """True where the object was stored after that moment for certain."""
    stored = stored_at(answer)
    return stored is not None and since is not None and stored >= since + SECONDS_APART


def stored_before(answer: Answer, since: datetime | None) -> bool:
    """True where the object was stored before that moment for certain."""
    stored = stored_at(answer)
    return stored is not None and since is not None and stored <= since - SECONDS_APART


def shows(answer: Answer, text: str) -> bool:
    """True where the page contains the text, as it is or as HTML writes it."""
    page, normalise = answer.body.decode("utf-8", "replace"), NORMALISERS["html_text"]
    return text in page or str(normalise(text)) in str(normalise(page))


def observation(looks: Sequence[Look], element: str = ELEMENT) -> Observation:
    """One value for all URLs looked at: the worst one. A stale URL is certain even where another one is a doubt."""
    seen = {look.freshness for look in looks}
    worst = next((item for item in (Freshness.STALE, Freshness.DOUBT, Freshness.LACKING) if item in seen), None)
    about = next((look for look in looks if look.freshness is worst), looks[0] if looks else None)
    if about is None or worst is Freshness.DOUBT:
        return doubtful(element, about.reason or "unavailable" if about else "nothing_to_look_at")
    return Observation(
        element=element,
        verdict=ProbeVerdict.CONFIRMED,
        value=(worst or Freshness.FRESH).value,
        observed_at=real_now(),
        source=SOURCE,
        etag=about.etag,
        proof_of_access=True,
        reason=clean_text(about.url, 300) if worst is not None else None,
    )


def doubtful(element: str, reason: str) -> Observation:
    """The edge says nothing."""
    return Observation(
        element=element, verdict=ProbeVerdict.UNKNOWN, observed_at=real_now(), source=SOURCE, reason=reason
    )


def wanted_of(params: Mapping[str, Any]) -> list[Wanted]:
    """The URLs of a probe; empty where its parameters are none."""
    sample, verify = params.get("sample"), params.get("verify")
    if not isinstance(sample, list) or not all(isinstance(url, str) for url in sample):
        return []
    contains = {item.get("url"): item.get("contains") for item in verify or () if isinstance(item, Mapping)}
    return [Wanted(url, contains.get(url)) for url in sample]


def moment(value: Any) -> datetime | None:
    """A stored moment; None where it is none."""
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else None


def stored(at: datetime) -> str:
    """A moment as it is stored: whole seconds, as the edge says them."""
    return at.astimezone(UTC).isoformat(timespec="seconds")
