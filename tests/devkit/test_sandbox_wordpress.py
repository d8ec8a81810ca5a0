"""The sandbox's WordPress behaves as the real one was observed to behave, traps included."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.devkit.sandbox_site import POSTS, Hands, running

from trueup_devkit.sandbox.systems.wordpress_text import rendered_content, slug_of


@pytest.fixture
async def hands(tmp_path: Path) -> AsyncIterator[Hands]:
    async with running(tmp_path) as hands:
        yield hands


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_create_answers_201_with_location_and_raw_and_rendered(hands: Hands) -> None:
    answer = await hands.site().post(
        POSTS, json={"title": "A & B", "content": "One & two\n\nthree", "slug": "My Slug", "status": "draft"}
    )
    post = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{hands.world.urls['wordpress']}/acme{POSTS}/{post['id']}"
    assert (post["slug"], post["status"]) == ("my-slug", "draft")
    assert post["title"] == {"raw": "A & B", "rendered": "A &#038; B"}
    assert post["content"]["raw"] == "One & two\n\nthree"
    assert post["content"]["rendered"] == "<p>One &#038; two</p>\n<p>three</p>\n"
    assert await hands.effects() == [(f"acme/{post['id']}", "create")]


async def test_raw_is_shown_in_context_edit_only(hands: Hands) -> None:
    post = await hands.draft()
    view = (await hands.site().get(f"{POSTS}/{post['id']}")).json()
    edit = (await hands.reader().get(f"{POSTS}/{post['id']}?context=edit")).json()
    assert "raw" not in view["content"]
    assert edit["content"]["raw"] == "B"


async def test_a_wrong_password_is_a_stranger_and_drafts_are_invisible_to_strangers(hands: Hands) -> None:
    draft = await hands.draft()
    public = await hands.draft(status="publish", slug="public")
    wrong = hands.site(password="not it")
    listed = await wrong.get(POSTS)
    assert listed.status_code == 200
    assert [post["id"] for post in listed.json()] == [public["id"]]
    assert (await wrong.get(f"{POSTS}/{public['id']}")).status_code == 200
    assert refusal(await wrong.get(f"{POSTS}/{draft['id']}")) == (401, "rest_forbidden")
    assert refusal(await wrong.get(f"{POSTS}/{draft['id']}?context=edit")) == (401, "rest_forbidden_context")
    assert refusal(await wrong.get(f"{POSTS}?context=edit")) == (401, "rest_forbidden_context")
    assert refusal(await wrong.get("/wp-json/wp/v2/users/me?context=edit")) == (401, "rest_not_logged_in")


async def test_a_stranger_asking_for_any_status_gets_400_and_not_401(hands: Hands) -> None:
    answer = await hands.site(username=None).get(f"{POSTS}?slug=x&status=any&context=edit")
    assert refusal(answer) == (400, "rest_invalid_param")
    assert answer.json()["data"]["details"]["status"]["code"] == "rest_forbidden_status"


async def test_strangers_cannot_write(hands: Hands) -> None:
    post = await hands.draft()
    for stranger in (hands.site(username=None), hands.site(password="not it")):
        assert refusal(await stranger.post(POSTS, json={"title": "x"})) == (401, "rest_cannot_create")
        assert refusal(await stranger.post(f"{POSTS}/{post['id']}", json={"title": "x"})) == (401, "rest_cannot_edit")
        assert refusal(await stranger.delete(f"{POSTS}/{post['id']}")) == (401, "rest_cannot_delete")
    assert len(await hands.effects()) == 1


async def test_the_reader_sees_drafts_and_may_edit_but_not_publish_or_delete(hands: Hands) -> None:
    """WordPress shows raw values only to those who may edit: an account that can only read them does not exist."""
    post, reader = await hands.draft(slug="mine"), hands.reader()
    me = await reader.get("/wp-json/wp/v2/users/me?context=edit")
    rights = me.json()["capabilities"]
    assert (me.status_code, me.json()["username"], rights["edit_others_posts"]) == (200, "reader", True)
    assert not {"publish_posts", "delete_posts"} & rights.keys()
    found = await reader.get(f"{POSTS}?slug=mine&status=any&context=edit")
    assert [item["id"] for item in found.json()] == [post["id"]]
    url = f"{POSTS}/{post['id']}"
    for status in ("publish", "future", "private"):
        assert refusal(await reader.post(POSTS, json={"title": "x", "status": status})) == (403, "rest_cannot_publish")
        assert refusal(await reader.put(url, json={"status": status})) == (403, "rest_cannot_publish")
    assert refusal(await reader.delete(url)) == (403, "rest_cannot_delete")
    assert (await reader.put(url, json={"title": "x"})).status_code == 200
    assert [action for _, action in await hands.effects()] == ["create", "update"]


async def test_me_names_the_account_that_proves_access(hands: Hands) -> None:
    answer = await hands.site().get("/wp-json/wp/v2/users/me?context=edit")
    assert (answer.status_code, answer.json()["username"]) == (200, "bot")


async def test_there_is_no_etag_and_if_match_is_ignored(hands: Hands) -> None:
    post = await hands.draft()
    read = await hands.site().get(f"{POSTS}/{post['id']}?context=edit")
    assert "etag" not in read.headers
    changed = await hands.site().post(f"{POSTS}/{post['id']}", json={"title": "n"}, headers={"If-Match": '"other"'})
    assert (changed.status_code, changed.json()["title"]["raw"]) == (200, "n")


async def test_a_taken_slug_gets_a_number_where_the_status_is_given(hands: Hands) -> None:
    slugs = [(await hands.draft(slug="key", status=status))["slug"] for status in ("draft", "draft", "publish")]
    assert slugs == ["key", "key-2", "key-3"]


async def test_without_a_status_a_taken_slug_makes_a_twin(hands: Hands) -> None:
    for _ in range(2):
        answer = await hands.site().post(POSTS, json={"title": "t", "content": "c", "slug": "key"})
        assert answer.status_code == 201
    found = await hands.site().get(f"{POSTS}?slug=key&status=any&context=edit")
    assert [post["slug"] for post in found.json()] == ["key", "key"]


async def test_concurrent_creates_all_succeed_and_slugs_are_no_locks(hands: Hands) -> None:
    """A slug is chosen and stored in two steps: in some round at least two posts end up under the same one."""
    twins = 0
    for number in range(10):
        posts = await asyncio.gather(*(hands.draft(slug=f"key{number}") for _ in range(4)))
        assert len({post["id"] for post in posts}) == 4
        slugs = [post["slug"] for post in posts]
        assert set(slugs) <= {f"key{number}", *(f"key{number}-{suffix}" for suffix in range(2, 5))}
        twins += len(slugs) - len(set(slugs))
    assert len(await hands.effects()) == 40
    assert twins > 0


async def test_a_race_makes_twins(hands: Hands) -> None:
    """Slugs are chosen and stored in two steps; the fault holds the gap open."""
    await hands.fault("delay", method="POST", when="inside", seconds=1, times=2)
    posts = await asyncio.gather(*(hands.draft(slug="key") for _ in range(2)))
    assert [post["slug"] for post in posts] == ["key", "key"]
    assert len({post["id"] for post in posts}) == 2


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("Two Words", "two-words"), ("Ünï çödé ß", "uni-code-s"), ("a--b__c", "a-b__c"), ("a.b/c", "a-b-c"),
        ("  trim - ", "trim"), ("日本語", "%e6%97%a5%e6%9c%ac%e8%aa%9e"), ("100%", "100"), ("op:1", "op1"),
        ("<b>hi</b>there", "hithere"), ("a—b", "a-b"), ("a&b", "ab"), ("x" * 250, "x" * 200),
        ("K" * 190 + "日本", "k" * 190 + "%e6%97%a5"),
    ],
)  # fmt: skip
def test_slugs_are_sanitised(sent: str, stored: str) -> None:
    """The pairs were recorded from a real site."""
    assert slug_of(sent) == stored


def test_rendering_rewrites_text() -> None:
    """The pair was recorded from a real site."""
    raw = '<h2>T</h2>\n<p>One & two</p>\n<p>"quotes" it\'s -- a...</p>\n<script>x</script>\n<!-- trueup:cmd_9 -->'
    assert rendered_content(raw) == (
        "<h2>T</h2>\n<p>One &#038; two</p>\n<p>&#8220;quotes&#8221; it&#8217;s &#8212; a&#8230;</p>\n"
        "<p><script>x</script><br />\n<!-- trueup:cmd_9 --></p>\n"
    )


async def test_the_marker_in_a_comment_is_found_by_search(hands: Hands) -> None:
    post = await hands.draft(content="text\n<!-- trueup:cmd_1 -->")
    await hands.draft(content="text\n<!-- trueup:cmd_2 -->")
    found = await hands.site().get(POSTS, params={"search": "trueup:cmd_1", "status": "any", "context": "edit"})
    assert [item["id"] for item in found.json()] == [post["id"]]


async def test_the_trash_is_not_in_any_and_renames_the_slug(hands: Hands) -> None:
    post = await hands.draft(slug="key")
    trashed = await hands.site().delete(f"{POSTS}/{post['id']}")
    assert (trashed.status_code, trashed.json()["status"], trashed.json()["slug"]) == (200, "trash", "key__trashed")
    assert (await hands.site().get(f"{POSTS}?slug=key&status=any&context=edit")).json() == []
    found = (await hands.site().get(f"{POSTS}?slug=key__trashed&status=trash&context=edit")).json()
    assert [item["id"] for item in found] == [post["id"]]
    assert (await hands.draft(slug="key"))["slug"] == "key"
    assert refusal(await hands.site().delete(f"{POSTS}/{post['id']}")) == (410, "rest_already_trashed")
    assert [action for _, action in await hands.effects()] == ["create", "trash", "create"]


async def test_force_deletes_for_good(hands: Hands) -> None:
    post = await hands.draft()
    answer = await hands.site().delete(f"{POSTS}/{post['id']}?force=true")
    assert (answer.json()["deleted"], answer.json()["previous"]["id"]) == (True, post["id"])
    for call in (hands.site().get, hands.site().delete, hands.site().post):
        assert refusal(await call(f"{POSTS}/{post['id']}")) == (404, "rest_post_invalid_id")
    assert [action for _, action in await hands.effects()] == ["create", "delete"]
    assert (await hands.draft())["id"] > post["id"]


async def test_publish_withdraw_restore_are_told_apart_in_the_ground_truth(hands: Hands) -> None:
    post = await hands.draft(slug="key")
    url = f"{POSTS}/{post['id']}"
    published = (await hands.site().post(url, json={"status": "publish"})).json()
    assert published["link"] == f"{hands.world.urls['wordpress']}/acme/key/"
    await hands.site().patch(url, json={"title": "other"})
    withdrawn = (await hands.site().put(url, json={"status": "draft"})).json()
    assert withdrawn["link"].endswith(f"/acme/?p={post['id']}")
    await hands.site().delete(url)
    restored = (await hands.site().post(url, json={"status": "draft"})).json()
    assert (restored["slug"], restored["title"]["raw"]) == ("key", "other")
    actions = [action for _, action in await hands.effects()]
    assert actions == ["create", "publish", "update", "withdraw", "trash", "restore"]


async def test_a_future_date_turns_publish_into_future(hands: Hands) -> None:
    post = await hands.draft(status="publish", date_gmt="2031-01-01T00:00:00")
    assert post["status"] == "future"
    assert (await hands.site(username=None).get(f"{POSTS}/{post['id']}")).status_code == 401
    past = await hands.draft(status="publish", date_gmt="2020-01-01T00:00:00")
    assert (past["status"], past["modified_gmt"]) == ("publish", "2020-01-01T00:00:00")
    assert refusal(await hands.site().post(POSTS, json={"title": "x", "date": "zz"})) == (400, "rest_invalid_param")


async def test_modified_moves_in_whole_seconds(hands: Hands) -> None:
    post = await hands.draft()
    assert post["modified_gmt"] == "2026-09-21T14:13:20"
    hands.at += 0.5
    same = (await hands.site().post(f"{POSTS}/{post['id']}", json={"content": "changed"})).json()
    assert same["modified_gmt"] == post["modified_gmt"]
    hands.at += 0.5
    later = (await hands.site().post(f"{POSTS}/{post['id']}", json={"content": "again"})).json()
    assert later["modified_gmt"] == "2026-09-21T14:13:21"


async def test_unregistered_meta_is_dropped_silently(hands: Hands) -> None:
    post = await hands.draft(meta={"description": "d", "citations": ["u"], "nobody_knows": 1})
    assert post["meta"] == {"description": "d", "json_ld": [], "citations": ["u"], "featured_image": ""}


async def test_the_registered_meta_can_be_learned_and_configured(hands: Hands) -> None:
    async def meta() -> Any:
        return (await hands.site().options(POSTS)).json()["schema"]["properties"]["meta"]["properties"]

    assert set(await meta()) == {"description", "json_ld", "citations", "featured_image"}
    change: dict[str, Any] = {"registered_meta": {}}
    order = {"system": "wordpress", "object": "acme/site", "change": change}
    assert (await hands.control.post("/_tamper", json=order)).status_code == 200
    assert await meta() == []  # PHP's empty array, where others would show an empty object
    assert (await hands.draft(meta={"description": "d"}))["meta"] == []


META: dict[str, Any] = {
    "number": {"type": "integer", "default": 3},
    "closed": {"type": "object"},
    "open": {"type": "object", "additionalProperties": True},
    "texts": {"type": "array", "items": {"type": "string"}},
    "mixed": {"type": "array", "items": {"type": ["string", "integer"]}},
    "several": {"type": ["object", "string"]},
    "itemless": {"type": "array"},
}


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ({}, {"number": 3, "closed": [], "open": [], "texts": [], "mixed": []}),
        ({"several": "x", "itemless": ["y"]}, {"number": 3}),
        ({"number": "7"}, {"number": 7}),
        ({"number": None}, "rest_invalid_stored_value"),
        ({"texts": None}, {"texts": []}),
        (
            {"open": {"a": {}, "b": [], "c": {"d": 1}, "e": None}},
            {"open": {"a": [], "b": [], "c": {"d": 1}, "e": None}},
        ),
        ({"open": {}}, {"open": []}),
        ({"texts": "a,b c"}, {"texts": ["a", "b", "c"]}),
        ({"mixed": ["a", 7]}, {"mixed": ["a", 7]}),
        ({"open": "text"}, "rest_invalid_type"),
        ({"number": "x"}, "rest_invalid_type"),
        ({"number": True}, "rest_invalid_type"),
        ({"texts": [7]}, "rest_invalid_type"),
        ({"closed": {"a": 1}}, "rest_additional_properties_forbidden"),
    ],
)
async def test_meta_is_kept_as_php_keeps_it(hands: Hands, sent: dict[str, Any], shown: dict[str, Any] | str) -> None:
    """Several types at once and lists without items are never shown; objects are closed unless they say otherwise."""
    order = {"system": "wordpress", "object": "acme/site", "change": {"registered_meta": META}}
    assert (await hands.control.post("/_tamper", json=order)).status_code == 200
    answer = await hands.site().post(POSTS, json={"title": "t", "content": "c", "status": "draft", "meta": sent})
    if isinstance(shown, str):
        assert refusal(answer) == (500 if shown == "rest_invalid_stored_value" else 400, shown)
        assert [action for _, action in await hands.effects()] == ["create"]
        return
    meta = answer.json()["meta"]
    assert {name: meta[name] for name in shown} == shown
    assert not {"several", "itemless"} & meta.keys()


async def test_stored_meta_that_breaks_its_schema_is_not_shown(hands: Hands) -> None:
    """Nor is it refused: a reader sees null."""
    post = await hands.draft(meta={"citations": ["u"]})
    order = {"system": "wordpress", "object": f"acme/{post['id']}", "change": {"meta": {"citations": ["u", 7]}}}
    assert (await hands.control.post("/_tamper", json=order)).status_code == 200
    assert (await hands.reader().get(f"{POSTS}/{post['id']}?context=edit")).json()["meta"]["citations"] is None


async def test_a_number_is_no_slug_of_a_new_post(hands: Hands) -> None:
    """It could be the address of a year's archive."""
    assert [(await hands.draft(slug=slug))["slug"] for slug in ("2026", "7", "0", "a1")] == ["2026-2", "7-2", "", "a1"]


async def test_json_is_read_to_a_depth_of_512(hands: Hands) -> None:
    for depth, status in ((500, 201), (520, 400)):
        deep: Any = 1
        for _ in range(depth):
            deep = {"a": deep}
        answer = await hands.site().post(POSTS, json={"title": "x", "status": "draft", "meta": {"json_ld": deep}})
        assert answer.status_code == status
    assert refusal(answer) == (400, "rest_invalid_json")


async def test_a_wrong_type_in_registered_meta_is_400_after_the_post_was_stored(hands: Hands) -> None:
    answer = await hands.site().post(POSTS, json={"title": "t", "slug": "key", "meta": {"description": ["x"]}})
    assert refusal(answer) == (400, "rest_invalid_type")
    assert len((await hands.site().get(f"{POSTS}?slug=key&status=any")).json()) == 1
    assert len(await hands.effects()) == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{nope", "rest_invalid_json"), (b"\xff\xfe", "rest_invalid_json"), (b"", "empty_content"),
        (b"[1]", "empty_content"),
        (b'{"title": "", "content": ""}', "empty_content"), (b'{"title": ["x"]}', "empty_content"),
        (b'{"title": "x", "status": "bogus"}', "rest_invalid_param"),
        (b'{"title": "x", "status": "trash"}', "rest_invalid_param"),
        (b'{"title": "x", "status": ["draft"]}', "rest_invalid_param"),
        (b'{"title": "x", "slug": 7}', "rest_invalid_param"), (b'{"title": "x", "meta": "m"}', "rest_invalid_param"),
        (b'{"title": "x", "id": 1}', "rest_post_exists"), (b'{"title": "x", "author": 99}', "rest_invalid_author"),
        (b"[" * 100_000, "rest_invalid_json"), (b'{"title": "\\ud800"}', "rest_invalid_json"),
    ],
)  # fmt: skip
async def test_bad_bodies_are_400_and_change_nothing(hands: Hands, body: bytes, code: str) -> None:
    answer = await hands.site().post(POSTS, content=body, headers={"content-type": "application/json"})
    assert refusal(answer) == (400, code)
    assert await hands.effects() == []


async def test_forms_and_queries_work_as_parameters(hands: Hands) -> None:
    form = await hands.site().post(POSTS, data={"title": "form", "content": "c"})
    query = await hands.site().post(f"{POSTS}?title=query&content=c")
    assert (form.json()["title"]["raw"], query.json()["title"]["raw"]) == ("form", "query")


@pytest.mark.parametrize("query", ["per_page=0", "per_page=101", "per_page=abc", "page=0", "status=bogus", "context=x"])
async def test_bad_queries_are_rest_invalid_param(hands: Hands, query: str) -> None:
    assert refusal(await hands.site().get(f"{POSTS}?{query}")) == (400, "rest_invalid_param")


async def test_listing_pages_with_headers_and_links(hands: Hands) -> None:
    for number in range(5):
        await hands.draft(title=f"t{number}", date_gmt=f"2026-01-01T00:00:0{number}")
    answer = await hands.site().get(f"{POSTS}?status=any&per_page=2&page=2&_fields=id,title.rendered")
    assert answer.headers["x-wp-total"] == "5"
    assert answer.headers["x-wp-totalpages"] == "3"
    assert [post["title"] for post in answer.json()] == [{"rendered": "t2"}, {"rendered": "t1"}]
    assert 'rel="next"' in answer.headers["link"]
    assert 'rel="prev"' in answer.headers["link"]
    beyond = await hands.site().get(f"{POSTS}?status=any&per_page=2&page=4")
    assert refusal(beyond) == (400, "rest_post_invalid_page_number")


async def test_unknown_routes_and_methods_are_rest_no_route(hands: Hands) -> None:
    site = hands.site()
    answers = [await site.get("/wp-json/wp/v2/x"), await site.delete(POSTS), await site.get(f"{POSTS}/abc")]
    assert [refusal(answer) for answer in answers] == [(404, "rest_no_route")] * 3


async def test_visitors_see_published_posts_only(hands: Hands) -> None:
    post = await hands.draft(slug="key", content="Hello <b>there</b>")
    visitor = hands.site(username=None)
    assert (await visitor.get("/key/")).status_code == 404
    assert (await visitor.get(f"/?p={post['id']}")).status_code == 404
    await hands.site().post(f"{POSTS}/{post['id']}", json={"status": "publish"})
    shown = await visitor.get(f"/?p={post['id']}", follow_redirects=True)
    assert (shown.status_code, shown.url.path, shown.history[0].status_code) == (200, "/acme/key/", 301)
    assert "Hello <b>there</b>" in shown.text
    assert post["title"]["raw"] in (await visitor.get("/")).text


async def test_sites_are_separate(hands: Hands) -> None:
    post = await hands.draft(slug="key", status="publish")
    other = hands.site("globex")
    assert refusal(await other.get(f"{POSTS}/{post['id']}")) == (404, "rest_post_invalid_id")
    assert (await other.get(f"{POSTS}?slug=key&status=any")).json() == []
    crossed = hands.site("globex", "bot", "sandbox-acme")
    assert refusal(await crossed.post(POSTS, json={"title": "x"})) == (401, "rest_cannot_create")
    mine = (await other.post(POSTS, json={"title": "x", "slug": "key", "status": "draft"})).json()
    assert mine["slug"] == "key"
    assert await hands.effects() == [("acme/1", "create"), ("globex/1", "create")]
    assert (await hands.client(hands.world.urls["wordpress"]).get("/initech/wp-json/")).status_code == 404


async def test_deep_json_in_meta_is_stored_or_refused_but_never_500(hands: Hands) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    body = json.dumps({"title": "x", "status": "draft", "meta": {"json_ld": deep}})
    answer = await hands.site().post(POSTS, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 201
    assert answer.json()["meta"]["json_ld"] == deep
