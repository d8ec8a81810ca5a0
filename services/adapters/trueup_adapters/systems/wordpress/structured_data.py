"""Structured data of an article: JSON-LD in the vocabulary of schema.org, as search engines document it. Pure.

What makes search engines drop the article is an error; what only makes them show less of it is a warning.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import jsonschema_rs
import orjson

from trueup_common.contracts.clean import clean_text

ARTICLE_TYPES: Final = (
    "Article",
    "BlogPosting",
    "LiveBlogPosting",
    "NewsArticle",
    "AnalysisNewsArticle",
    "BackgroundNewsArticle",
    "OpinionNewsArticle",
    "ReportageNewsArticle",
    "ReviewNewsArticle",
    "Report",
    "ScholarlyArticle",
    "SocialMediaPosting",
    "TechArticle",
)
HEADLINE_CHARACTERS: Final = 110
FINDINGS_MAX: Final = 20
_CONTEXT: Final = {"type": "string", "pattern": "^https?://schema\\.org/?$"}
_TEXT: Final = {"type": "string", "pattern": "\\S"}
_ADDRESS: Final = {"type": "string", "pattern": "^https?://[^\\s/]+(/\\S*)?$"}
_MOMENT: Final = {
    "type": "string",
    "pattern": "^\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])"
    "(T([01]\\d|2[0-3]):[0-5]\\d(:[0-5]\\d(\\.\\d+)?)?(Z|[+-]\\d{2}:?\\d{2})?)?$",
}


def _one_or_more(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A property of schema.org may always have several values."""
    several = {"type": "array", "minItems": 1, "maxItems": 100, "items": schema}
    return {"if": {"type": "array"}, "then": several, "else": schema}


def _thing(types: Sequence[str], required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["@type", *required],
        "properties": {"@type": _one_or_more({"enum": list(types)}), **properties},
    }


_SOMEBODY: Final = _thing(("Person", "Organization", "NewsMediaOrganization"), ("name",), name=_TEXT, url=_ADDRESS)
_PICTURE: Final = {
    "if": {"type": "string"},
    "then": _ADDRESS,
    "else": _thing(("ImageObject",), ("url",), url=_ADDRESS),
}
SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Structured data of an article",
    "type": "object",
    "required": ["@context", "@type", "headline", "author", "datePublished", "image"],
    "properties": {
        "@context": {
            "anyOf": [
                _CONTEXT,
                {"type": "array", "contains": _CONTEXT},
                {"type": "object", "required": ["@vocab"], "properties": {"@vocab": _CONTEXT}},
            ]
        },
        "@type": {
            "if": {"type": "array"},
            "then": {"contains": {"enum": list(ARTICLE_TYPES)}},
            "else": {"enum": list(ARTICLE_TYPES)},
        },
        "headline": _TEXT,
        "description": {"type": "string"},
        "author": _one_or_more(_SOMEBODY),
        "publisher": _one_or_more(_SOMEBODY),
        "datePublished": _MOMENT,
        "dateModified": _MOMENT,
        "image": _one_or_more(_PICTURE),
        "url": _ADDRESS,
        "mainEntityOfPage": {
            "if": {"type": "object"},
            "then": {"required": ["@id"], "properties": {"@id": _ADDRESS}},
            "else": _ADDRESS,
        },
    },
}
_VALIDATOR: Final = jsonschema_rs.validator_for(SCHEMA)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the structured data is worth. Without any errors it is valid."""

    type: str = ""
    headline: str = ""
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def judge(written: Any, blocks: Sequence[str] = ()) -> Judgement:
    """The article among the structured data: that of the post's own field, or else of blocks in its content."""
    values: list[Any] = []
    for text in (written,) if written else blocks:
        try:
            values.append(orjson.loads(text) if isinstance(text, str) else text)
        except ValueError:
            return Judgement(errors=("it is not JSON",))
    things = [thing for value in values for thing in _things(value)]
    if not things:
        return Judgement(errors=("there is none",))
    thing = next((item for item in things if _is_article(item)), things[0])
    errors = (f"{_pointer(error.instance_path)}: {error.message}" for error in _VALIDATOR.iter_errors(thing))
    headline = thing.get("headline")
    return Judgement(
        type=_name(thing.get("@type")),
        headline=clean_text(headline, 1000) if isinstance(headline, str) else "",
        errors=_bounded(errors),
        warnings=_bounded(_warnings(thing)),
    )


def _things(value: Any) -> Iterator[dict[str, Any]]:
    """The objects of a document: itself, those of a list, or those of its graph, which share its context."""
    for item in value if isinstance(value, list) else (value,):
        if not isinstance(item, dict):
            continue
        graph = item.get("@graph")
        if isinstance(graph, list):
            context = {"@context": item["@context"]} if "@context" in item else {}
            yield from ({**context, **node} for node in graph if isinstance(node, dict))
        else:
            yield item


def _types(value: Any) -> list[str]:
    return [item for item in (value if isinstance(value, list) else (value,)) if isinstance(item, str)]


def _is_article(thing: Mapping[str, Any]) -> bool:
    return any(name in ARTICLE_TYPES for name in _types(thing.get("@type")))


def _name(value: Any) -> str:
    names = _types(value)
    return clean_text(next((name for name in names if name in ARTICLE_TYPES), names[0] if names else ""), 100)


def _warnings(thing: Mapping[str, Any]) -> Iterator[str]:
    headline = thing.get("headline")
    if isinstance(headline, str) and len(headline) > HEADLINE_CHARACTERS:
        yield f"/headline: longer than {HEADLINE_CHARACTERS} characters, so it may be cut"
    for name in ("dateModified", "publisher"):
        if name not in thing:
            yield f"/{name}: recommended, and not there"


def _pointer(path: Iterable[str | int]) -> str:
    return "/" + "/".join(str(part) for part in path)


def _bounded(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(clean_text(text, 300) for text in islice(texts, FINDINGS_MAX))
