"""What the HTML of an article holds: its words, the addresses it leads to, and structured data in it. Pure.

The scanner goes forward only, as browsers do, so hostile markup costs no more than its length.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import unescape
from typing import Final
from urllib.parse import urljoin

_ADDRESSES: Final = {"a": "href", "area": "href", "img": "src", "iframe": "src", "video": "src", "audio": "src"}
_NEEDED: Final = frozenset({"img", "iframe"})
"""Elements that are nothing without an address; an `a` without one is a mark in the text."""
_ELSEWHERE: Final = ("mailto:", "tel:", "sms:")
_UNREAD: Final = {name: re.compile(rf"</{name}(?=[\s/>])", re.I) for name in ("script", "style", "template", "title")}
"""Elements whose content is no text of the article, by how they end."""
_LD: Final = "application/ld+json"
_WORD: Final = re.compile(r"\w+(?:['’.-]\w+)*")
_MARK: Final = re.compile(r"<(?=[a-zA-Z/!?])")
_TAG: Final = re.compile(r"</?([a-zA-Z][^\s/>]*)")
_BETWEEN: Final = re.compile(r"[\s/]*")
_NAME: Final = re.compile(r"=?[^\s/>=]*")
_EQUALS: Final = re.compile(r"\s*=\s*")
_BARE: Final = re.compile(r"[^\s>]*")


@dataclass(slots=True)
class _Tag:
    name: str
    closes: bool
    attributes: dict[str, str] = field(default_factory=dict)
    content: str | None = None
    """What stands inside an element whose content is not read."""


class Article:
    """An article's HTML, read once. `base` is where relative addresses start."""

    def __init__(self, content: str, base: str) -> None:
        text: list[str] = []
        links: dict[str, None] = {}
        data: list[str] = []
        for token in _tokens(content):
            if isinstance(token, str):
                text.append(unescape(token))
                continue
            text.append(" ")
            if token.content is not None and token.attributes.get("type", "").strip().lower() == _LD:
                data.append(token.content)
            name = _ADDRESSES.get(token.name)
            if name is not None and not token.closes and (name in token.attributes or token.name in _NEEDED):
                link = _absolute(token.attributes.get(name, "").strip(), base)
                if link is not None:
                    links[link] = None
        self.words = len(_WORD.findall("".join(text)))
        self.links: Sequence[str] = list(links)
        """Every address that the article leads to, once; an empty one where an element has none."""
        self.structured_data: Sequence[str] = data
        """The texts of all blocks of structured data, as they stand there."""


def _tokens(content: str) -> Iterator[str | _Tag]:
    """Texts and tags in order. What is not closed at the end is dropped, as browsers drop it."""
    at = 0
    while at < len(content):
        mark_at = _MARK.search(content, at)
        if mark_at is None:
            yield content[at:]
            return
        start = mark_at.start()
        if start > at:
            yield content[at:start]
        found = _TAG.match(content, start)
        if found:
            tag = _Tag(found[1].lower(), content[start + 1] == "/")
            at = _attributes(content, found.end(), tag.attributes)
            if at < 0:
                return
            if tag.name in _UNREAD and not tag.closes:
                end = _UNREAD[tag.name].search(content, at)
                tag.content = content[at : end.start() if end else len(content)]
                at = end.start() if end else len(content)
            yield tag
        else:
            mark = "-->" if content.startswith("<!--", start) else ">"
            end_at = content.find(mark, start + 2)
            if end_at < 0:
                return
            at = end_at + len(mark)


def _attributes(content: str, at: int, into: dict[str, str]) -> int:
    """Read attributes up to the end of the tag; answers the place after it, or -1 where it never ends."""
    while True:
        at = _end(_BETWEEN, content, at)
        if at >= len(content):
            return -1
        if content[at] == ">":
            return at + 1
        end = _end(_NAME, content, at)
        name, at = content[at:end].lower(), end
        equals = _EQUALS.match(content, at)
        value = ""
        if equals:
            at = equals.end()
            quote = content[at : at + 1]
            if quote in ('"', "'"):
                end = content.find(quote, at + 1)
                if end < 0:
                    return -1
                value, at = content[at + 1 : end], end + 1
            else:
                end = _end(_BARE, content, at)
                value, at = content[at:end], end
        into.setdefault(name, unescape(value))


def _end(pattern: re.Pattern[str], content: str, at: int) -> int:
    found = pattern.match(content, at)
    return found.end() if found else at


def _absolute(written: str, base: str) -> str | None:
    """The address that a browser would ask for; None where it stays within the page or starts another program."""
    if written.startswith("#") or written.lower().startswith(_ELSEWHERE):
        return None
    try:
        return urljoin(base, written) if written else ""
    except ValueError:
        return written
