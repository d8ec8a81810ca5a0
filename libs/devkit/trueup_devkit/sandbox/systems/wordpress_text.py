"""How WordPress rewrites text: slugs and rendered HTML, as observed on a real site. Pure."""

import html
import re
import unicodedata
from typing import Final
from urllib.parse import quote

SLUG_BYTES: Final = 200
EXCERPT_WORDS: Final = 55
_TAG: Final = re.compile(r"(<!--.*?-->|<[^>]*>)", re.S)
_BLOCK: Final = (
    "table|thead|tfoot|caption|col|colgroup|tbody|tr|td|th|div|dl|dd|dt|ul|ol|li|pre|form|map|area|blockquote|address|"
    "style|p|h[1-6]|hr|fieldset|legend|section|article|aside|hgroup|header|footer|nav|figure|figcaption|details|summary"
)
_BLOCK_OPEN: Final = re.compile(rf"(<(?:{_BLOCK})[\s/>])")
_BLOCK_CLOSE: Final = re.compile(rf"(</(?:{_BLOCK})>)")
_STARTS_BLOCK: Final = re.compile(rf"</?(?:{_BLOCK})[\s/>]")
_LITERAL: Final = frozenset({"pre", "code", "kbd", "style", "script", "tt", "samp"})
_LETTERS: Final = str.maketrans(
    {"ß": "s", "æ": "ae", "Æ": "AE", "ø": "o", "Ø": "O", "œ": "oe", "Œ": "OE", "đ": "d", "Đ": "D", "ł": "l", "Ł": "L",
     "ð": "d", "Ð": "D", "þ": "th", "Þ": "TH", "ı": "i", "€": "E", "£": ""}
)  # fmt: skip


def _without_accents(text: str) -> str:
    """Latin letters lose their accents; other scripts stay as they are."""
    plain = []
    for letter in text.translate(_LETTERS):
        base = unicodedata.normalize("NFKD", letter)[:1]
        plain.append(base if base.isascii() and base.isalpha() else letter)
    return "".join(plain)


def _percent_encoded(text: str) -> str:
    """Everything beyond ASCII as %xx, cut at the length of a slug without cutting a letter in two."""
    encoded, length = [], 0
    for letter in text:
        piece = letter if letter.isascii() else quote(letter.encode("utf-8", "ignore")).lower()
        if length + len(piece) > SLUG_BYTES:
            break
        encoded.append(piece)
        length += len(piece)
    return "".join(encoded)


def slug_of(title: str) -> str:
    """A title, or a slug as sent, as WordPress stores it in the slug."""
    text = _without_accents(re.sub(r"<[^>]*>", "", title))
    text = re.sub(r"%(?![0-9a-fA-F]{2})", "", text)
    text = _percent_encoded(text.lower())
    text = re.sub(r"%c2%a0|%e2%80%9[345]|&nbsp;|&#160;|&ndash;|&mdash;", "-", text)
    text = text.replace("/", "-")
    text = re.sub(r"%e2%80%(?:9[89cde]|a6)|%c2%(?:ab|bb|ae|a9|b0|b4)|%e2%84%a2", "", text)
    text = re.sub(r"&.+?;", "", text).replace(".", "-")
    text = re.sub(r"[^%a-z0-9 _-]", "", text)
    return re.sub(r"-+", "-", re.sub(r"\s+", "-", text)).strip("-")


def with_suffix(slug: str, suffix: str) -> str:
    """A slug with a suffix, cut so that both fit."""
    return slug[: SLUG_BYTES - len(suffix)].rstrip("-") + suffix


def _typographic(text: str) -> str:
    text = re.sub(r"&(?!#?\w+;)", "&#038;", text)
    text = text.replace("...", "&#8230;").replace("---", "&#8212;").replace("--", "&#8212;")
    text = re.sub(r"(^|[\s(\[{])\"", r"\1&#8220;", text).replace('"', "&#8221;")
    return re.sub(r"(^|[\s(\[{])'", r"\1&#8216;", text).replace("'", "&#8217;")


def texturized(text: str) -> str:
    """Ampersands and quotes as entities, outside tags, comments and literal elements."""
    pieces, literal = [], ""
    for piece in _TAG.split(text):
        name = re.match(r"<(/?)([a-zA-Z]+)", piece)
        if name and name[2].lower() in _LITERAL:
            literal = "" if name[1] else name[2].lower()
        pieces.append(piece if literal or piece.startswith("<") else _typographic(piece))
    return "".join(pieces)


def rendered_content(raw: str) -> str:
    """The content as HTML: paragraphs where the author left empty lines, line breaks where he broke lines."""
    text = texturized(raw.replace("\r\n", "\n").replace("\r", "\n"))
    text = _BLOCK_OPEN.sub(r"\n\n\1", text)
    text = _BLOCK_CLOSE.sub(r"\1\n\n", text)
    paragraphs: list[str] = []
    for piece in re.split(r"\n\s*\n", text):
        chunk = piece.strip("\n")
        if not chunk.strip():
            continue
        if _STARTS_BLOCK.match(chunk) or re.search(rf"</(?:{_BLOCK})>$", chunk):
            paragraphs.append(f"{chunk}\n")
        else:
            paragraphs.append("<p>" + re.sub(r"\n", "<br />\n", chunk) + "</p>\n")
    return "".join(paragraphs)


def rendered_excerpt(excerpt: str, content: str) -> str:
    """The excerpt as HTML; where the author gave none, the first words of the content."""
    if excerpt:
        return rendered_content(excerpt)
    text = re.sub(r"<(script|style)\b.*?</\1>", "", content, flags=re.S | re.I)
    words = re.findall(r"[^ \t\r\n\f\v]+", _TAG.sub(" ", text))  # to PHP, no other space parts words
    if not words:
        return ""
    more = " [&hellip;]" if len(words) > EXCERPT_WORDS else ""
    return f"<p>{texturized(' '.join(words[:EXCERPT_WORDS]))}{more}</p>\n"


def page(title: str, head: str, body: str) -> str:
    """A public page."""
    return (
        f'<!DOCTYPE html>\n<html lang="en-US">\n<head>\n<meta charset="UTF-8" />\n<title>{html.escape(title)}</title>\n'
        f"{head}</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
