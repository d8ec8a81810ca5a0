"""How values look: times that a person reads, texts from outside that are cut and cannot disguise themselves."""

import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from markupsafe import Markup, escape

from trueup_common.contracts.shape import rfc3339
from trueup_gateway.console.words import Words

TEXT_MAX: Final = 280
VALUE_MAX: Final = 120
FIELDS_MAX: Final = 6
_HEX: Final = re.compile(r"[0-9a-f]{32,128}")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LONG_ID: Final = re.compile(r"\b([a-z]{2,5}_)([0-9a-f]{20,})")
_LONG_HEX: Final = re.compile(r"[0-9a-f]{20,}")
_SPOKEN: Final = re.compile(r'"(?:message|detail|error|title)"\s*:\s*"((?:[^"\\]|\\.)*)')
_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(?:[/?#][!-~]*)?")
_SPACE: Final = re.compile(r"\s+")


def moment_of(value: object) -> datetime | None:
    """A time from its RFC 3339 text."""
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not value:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo is not None else None


def exact(moment: datetime) -> str:
    """A time to the second, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def relative_time(value: object, now: datetime, words: Words) -> Markup:
    """A moment as a person says it, with the exact time behind it."""
    moment = moment_of(value)
    if moment is None:
        return Markup('<span class="none">–</span>')
    seconds = (moment - now).total_seconds()
    machine = rfc3339(moment.astimezone(UTC))
    text = words.relative(seconds)
    return Markup('<time datetime="{}" title="{}" data-relative>{}</time>').format(machine, exact(moment), text)


def both_times(value: object, now: datetime, words: Words) -> Markup:
    """A moment as a person says it, and beneath it by the clock: today by the hour, any other day with its date."""
    moment = moment_of(value)
    if moment is None:
        return relative_time(value, now, words)
    shape = "%H:%M UTC" if moment.date() == now.astimezone(UTC).date() else "%Y-%m-%d %H:%M UTC"
    clock = moment.astimezone(UTC).strftime(shape)
    return Markup('{}<small class="utc">{}</small>').format(relative_time(value, now, words), clock)


def clock_time(value: object) -> Markup:
    """A moment of a timeline: the time of day, with the date behind it."""
    moment = moment_of(value)
    if moment is None:
        return Markup('<span class="none">–</span>')
    machine = rfc3339(moment.astimezone(UTC))
    text = moment.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]
    return Markup('<time datetime="{}" title="{}">{}</time>').format(machine, exact(moment), text)


def plain(value: object) -> str:
    """Text in which nothing hides: controls and characters that turn the reading direction are written out."""
    return "".join(_spelled(character) for character in str(value))


def _spelled(character: str) -> str:
    if character in "\n\t ":
        return character
    if unicodedata.category(character) in {"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"}:
        return f"⟨U+{ord(character):04X}⟩"
    return character


def cut(value: object, most: int = TEXT_MAX) -> str:
    """Text from outside on one line, at most so long."""
    raw = str(value)
    text = _SPACE.sub(" ", plain(raw[: most * 2])).strip()
    if len(text) <= most and len(raw) <= most * 2:
        return text
    return f"{text[:most].rstrip()}…"


def cut_marked(value: object, words: Words, most: int = TEXT_MAX) -> Markup:
    """Text from outside, cut, with a word about what was left out."""
    raw, text = str(value), cut(value, most)
    if not text.endswith("…"):
        return escape(text)
    rest = words("shown.more", count=max(1, len(raw) - most))
    return Markup('{} <span class="rest">{}</span>').format(text, rest)


def spelled(value: object) -> str:
    """A value of a state or a payload, as text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except (TypeError, ValueError):
        return str(value)


def place_mark(value: object, most: int = 64) -> Markup:
    """A name from outside in which long numbers are shortened; the whole of it when pointed at."""
    whole = cut(value or "–", 400)
    named = _LONG_ID.sub(lambda found: f"{found.group(1)}…{found.group(2)[-8:]}", whole)
    short = cut(_LONG_HEX.sub(lambda found: f"{found.group()[:8]}…", named), most)
    if short == whole:
        return escape(whole)
    return Markup('<span title="{}">{}</span>').format(whole, short)


def fields_mark(value: Mapping[str, Any]) -> Markup:
    """A small document, a line for each of its fields."""
    lines = Markup("").join(
        Markup("<span><i>{}</i> {}</span>").format(cut(name, 40), place_mark(spelled(item), 40))
        for name, item in list(value.items())[:FIELDS_MAX]
    )
    return Markup('<code class="value fields" title="{}">{}</code>').format(cut(spelled(value), 1500), lines)


def value_mark(value: object, most: int = VALUE_MAX) -> Markup:
    """A value in its own type, cut; the whole of it (within reason) when pointed at."""
    if value is None or value == "":
        return Markup('<span class="none">–</span>')
    if isinstance(value, Mapping):
        return fields_mark(value)
    text = spelled(value)
    if _HEX.fullmatch(text):
        return hash_mark(text)
    short = cut(text, most)
    if short == text:
        return Markup('<code class="value">{}</code>').format(short)
    return Markup('<code class="value" title="{}">{}</code>').format(cut(text, 1500), short)


def hash_mark(value: object) -> Markup:
    """A hash: its beginning, the whole when pointed at."""
    text = cut(value or "", 100)
    if not text:
        return Markup('<span class="none">–</span>')
    return Markup('<code class="hash" title="{}">{}</code>').format(text, text[:10])


def said(reason: object) -> str:
    """What a target said, out of the document in which it said it; else the text as it is."""
    text = str(reason or "")
    if text.startswith("{"):
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            return _spoken(text)
        for name in ("message", "detail", "error", "title"):
            if isinstance(found.get(name), str) and found[name].strip():
                return str(found[name])
    return text


def _spoken(text: str) -> str:
    """The same out of a document that was cut off."""
    found = _SPOKEN.search(text)
    if found is None or not found.group(1).strip():
        return text
    try:
        return str(orjson.loads(f'"{found.group(1)}"'))
    except orjson.JSONDecodeError:
        return found.group(1)


def linked(value: object, most: int = 400) -> Markup:
    """Text from outside; where the whole of it is a web address, as a link that tells where it leads."""
    text = cut(value, most)
    if not _ADDRESS.fullmatch(text):
        return escape(text)
    return Markup('<a href="{}" rel="noopener noreferrer nofollow" target="_blank">{}</a>').format(text, text)


def sentence(text: object) -> str:
    """Text that begins as a sentence does."""
    whole = str(text)
    return whole[:1].upper() + whole[1:]


def spaced(name: object) -> str:
    """A name in camel case as words."""
    return _CAMEL.sub(" ", str(name)).capitalize()


def short_id(value: object) -> str:
    """The end of an id: ids of one minute begin alike."""
    text = cut(value or "", 60)
    prefix, mark, rest = text.partition("_")
    return f"{prefix}_…{rest[-8:]}" if mark and len(rest) > 8 else text


def pretty(value: object, most: int = 6000) -> str:
    """A document, indented, cut."""
    if isinstance(value, str):
        text = value
    else:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    text = plain(text[: most + 1])
    return text if len(text) <= most else f"{text[:most]}…"


def number(value: Any) -> str:
    """A number with thin spaces between thousands."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"{value:,.2f}".replace(",", " ")
