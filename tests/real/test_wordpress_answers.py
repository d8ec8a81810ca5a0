"""The same requests to the sandbox and the real site: status and every field that the sandbox shows are the same."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.devkit.sandbox_site import POSTS, Hands, running
from tests.real.wordpress_server import WordPressServer
from tests.real.wordpress_world import real_hands

ME: Final = "/wp-json/wp/v2/users/me"
Asked = tuple[str, str, Any]
_NEW: Final[tuple[dict[str, Any], ...]] = (
    {"title": "A & B", "content": "One & two\n\nthree", "slug": "x", "status": "draft"},
    {"title": 'A <b>B</b> "q" it\'s', "content": "<p>a</p><ul><li>x</li></ul>text\nline", "excerpt": "Ex & c"},
    {"title": "pub", "content": "c", "status": "publish"},
    {"title": "pub", "content": "c", "status": "publish"},
    {"title": "priv", "content": "c", "status": "private"},
    {"title": "pend", "content": "c", "status": "pending"},
    {"title": "fut", "content": "c", "status": "future", "date_gmt": "2031-01-01T00:00:00"},
    {"title": "fut without date", "content": "c", "status": "future"},
    {"title": "nbsp", "content": "😀 \u00a0 x", "slug": "emoji-ü", "status": "draft"},
    {"title": "s" * 300, "content": "c", "status": "publish"},
    {"title": "   ", "content": " ", "status": "draft"},
    {"content": "only content", "status": "publish"},
    {"title": "<script>x</script>", "content": "<script>alert(1)</script><!-- trueup:cmd_1 -->", "status": "draft"},
    {"title": "back\\slash \\n", "content": "a\\b \\\\ c", "status": "draft"},
    {"title": "crlf", "content": "a\r\nb\r\n\r\nc", "status": "draft"},
)
"""Posts by number: {0} is the first."""
_CHANGES: Final[tuple[Any, ...]] = (
    {"status": "publish"}, {"status": "publish"}, {"status": "draft"}, {}, {"slug": "pub"}, {"slug": ""},
    {"title": ""}, {"title": "", "content": "", "excerpt": ""},
    {"date_gmt": "2031-01-01T00:00:00", "status": "publish"}, {"date_gmt": "2020-01-01T00:00:00"},
    {"date": "nope"}, {"status": "nope"}, {"author": 99}, {"unknown": 1},
    {"title": {"raw": "r"}}, {"content": {"raw": "r2", "rendered": "no"}}, {"title": 7}, {"content": None},
    {"meta": []}, {"meta": None}, {"meta": {"description": ["x"]}}, {"meta": {"description": "d", "nobody": 1}},
)  # fmt: skip
SCRIPT: Final[tuple[Asked, ...]] = (
    *(("POST", POSTS, body) for body in _NEW),
    *(("GET", POSTS + rest, None) for rest in (
        "/{0}", "/{0}?context=edit", "/{2}", "/{6}", "?slug=x&status=any", "?slug=x", "?status=trash", "?include={2}",
        "?exclude={2}&_fields=slug&orderby=slug", "?orderby=slug&order=asc&_fields=slug&status=any",
        "?status=draft,pending&_fields=slug,status&orderby=id",
        "?offset=1&per_page=1&_fields=slug&orderby=id&order=asc",
        "?search=trueup:cmd_1&status=any&_fields=slug,title", "?per_page=1000", "?page=99", "?orderby=nope",
        "?order=up", "?context=nope", "?status=nope", "/999999", "/0", "/abc",
    )),
    *(("POST", POSTS + "/{0}", body) for body in _CHANGES),
    ("DELETE", POSTS + "/{0}", None), ("GET", POSTS + "/{0}?context=edit", None), ("DELETE", POSTS + "/{0}", None),
    ("POST", POSTS + "/{0}", {"title": "in the trash"}), ("POST", POSTS + "/{0}", {"status": "publish"}),
    ("DELETE", POSTS + "/{1}", None), ("POST", POSTS + "/{1}", {"status": "draft"}),
    ("DELETE", POSTS + "/{2}?force=true", None), ("GET", POSTS + "/{2}", None), ("DELETE", POSTS + "/{2}", None),
    ("DELETE", POSTS + "/{8}", None), ("POST", POSTS, {**_NEW[8], "title": "its slug is free again"}),
    ("POST", POSTS + "/{8}", {"status": "draft"}), ("POST", POSTS + "/999999", {"title": "x"}),
    ("PUT", POSTS, {"title": "x"}), ("DELETE", POSTS, None), ("PATCH", POSTS + "/{3}", {"title": "patched"}),
    ("GET", ME + "?context=edit&_fields=username", None), ("GET", "/wp-json/wp/v2/nothing", None),
)  # fmt: skip
STRANGERS: Final[tuple[Asked, ...]] = (
    ("GET", POSTS + "?_fields=slug&orderby=slug&order=asc", None), ("GET", POSTS + "/{4}", None),
    ("GET", POSTS + "/{4}?context=edit", None), ("GET", POSTS + "?status=draft", None), ("GET", ME, None),
    ("GET", POSTS + "?status=any&context=edit", None), ("GET", POSTS + "?context=edit", None),
    ("POST", POSTS, {"title": "x"}), ("POST", POSTS + "/{3}", {"title": "x"}), ("DELETE", POSTS + "/{3}", None),
    ("POST", POSTS + "/999999", {"title": "x"}),
)  # fmt: skip


def alike(value: Any, ids: list[int], url: str, key: str = "") -> Any:
    """Without what two sites can't have in common: addresses, the numbers of posts, and the time."""
    if isinstance(value, dict):
        return {name: alike(item, ids, url, name) for name, item in value.items()}
    if isinstance(value, list):
        return [alike(item, ids, url, key) for item in value]
    if isinstance(value, int) and key == "id" and value in ids:
        return f"#{ids.index(value)}"
    if not isinstance(value, str):
        return value
    text = value.replace(url, "SITE")
    for position, number in enumerate(ids):
        text = re.sub(rf"(p=|/posts/|^|SITE/){number}(-2)?(?=__trashed|/?$)", rf"\g<1>#{position}\g<2>", text)
    return re.sub(r"20(?:2[6-9])-\d\d-\d\dT[0-9:]{8}", "NOW", text)


async def told(hands: Hands) -> list[tuple[str, int, Any]]:
    """Every answer, by what was asked."""
    answers, ids, url = [], [], f"{hands.world.urls['wordpress']}/acme"
    for who, script in (("bot", SCRIPT), (None, STRANGERS)):
        site = hands.site(username=who)
        for method, path, body in script:
            asked = re.sub(r"{(\d+)}", lambda found: str(ids[int(found[1])]), path)
            answer = await site.request(method, asked, **({} if body is None else {"json": body}))
            document = answer.json()
            if answer.status_code == 201:
                ids.append(document["id"])
            shown = "" if body is None else json.dumps(body)[:80]
            name = f"{'' if who else 'a stranger: '}{method} {path} {shown}"
            answers.append((name, answer.status_code, alike(document, ids, url)))
    return answers


def differences(ours: Any, real: Any, where: str = "") -> Iterator[str]:
    """What of ours is not so in the real one; the real one may show more."""
    if isinstance(ours, dict) and isinstance(real, dict):
        for name, item in ours.items():
            if name not in real:
                yield f"{where}/{name}: not shown by the real site"
            elif name != "_links":
                yield from differences(item, real[name], f"{where}/{name}")
    elif isinstance(ours, list) and isinstance(real, list) and len(ours) == len(real):
        for number, (item, other) in enumerate(zip(ours, real, strict=True)):
            yield from differences(item, other, f"{where}/{number}")
    elif ours != real:
        yield f"{where}: {json.dumps(ours)[:200]}, really {json.dumps(real)[:200]}"


async def test_every_answer_is_the_real_ones(
    wordpress_server: WordPressServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Creating, reading, listing, changing, trashing and refusing, for an account and for strangers.

    Requirements: X8
    """
    async with running(tmp_path / "sandbox") as hands:
        hands.at = time.time()
        ours = await told(hands)
    async with real_hands(wordpress_server, tmp_path / "real") as hands:
        real = await told(hands)
    assert len(ours) == len(real) == len(SCRIPT) + len(STRANGERS)
    found = []
    for (name, status, document), (_, really, other) in zip(ours, real, strict=True):
        if status != really:
            found.append(f"{name}: {status}, really {really} {json.dumps(other)[:200]}")
        else:
            found += [f"{name} -> {difference}" for difference in differences(document, other)]
    assert not found, "\n" + "\n".join(found)
