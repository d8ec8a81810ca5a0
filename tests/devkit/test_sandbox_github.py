"""The sandbox's GitHub behaves as GitHub's REST API is documented, and its git as git does."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.devkit.sandbox_site import Hands, running, until

from trueup_devkit.sandbox.systems.github import sandbox_token

REPO = "/repos/acme/articles"
AUTHOR = {"name": "Ada", "email": "ada@example.org", "date": "2026-11-29T12:00:00Z"}


@pytest.fixture
async def hands(tmp_path: Path) -> AsyncIterator[Hands]:
    async with running(tmp_path) as hands:
        yield hands


def github(hands: Hands, token: str | None = "sandbox-acme", **headers: str) -> httpx.AsyncClient:
    client = hands.client(hands.world.urls["github"])
    if token is not None:
        client.headers["authorization"] = f"Bearer {token}"
    client.headers.update(headers)
    return client


def refusal(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    assert body["documentation_url"].startswith("https://docs.github.com/rest")
    assert body["status"] == str(answer.status_code)
    return answer.status_code, body["message"]


async def head(api: httpx.AsyncClient, branch: str = "main") -> str:
    sha: str = (await api.get(f"{REPO}/git/ref/heads/{branch}")).json()["object"]["sha"]
    return sha


async def committed(api: httpx.AsyncClient, content: str = "Hello\n", path: str = "a/b.md", **more: Any) -> str:
    """Blob, tree and commit on top of main, referred to by nobody."""
    parent = await head(api)
    root = (await api.get(f"{REPO}/git/commits/{parent}")).json()["tree"]["sha"]
    blob = (await api.post(f"{REPO}/git/blobs", json={"content": content})).json()["sha"]
    entry = {"path": path, "mode": "100644", "type": "blob", "sha": blob}
    tree = (await api.post(f"{REPO}/git/trees", json={"base_tree": root, "tree": [entry]})).json()["sha"]
    body = {"message": "Hello", "tree": tree, "parents": [parent], "author": AUTHOR, **more}
    answer = await api.post(f"{REPO}/git/commits", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"].endswith(f"{REPO}/git/commits/{answer.json()['sha']}")
    sha: str = answer.json()["sha"]
    return sha


async def kinds(hands: Hands) -> list[tuple[str, str, str]]:
    items = (await hands.control.get("/_effects", params={"system": "github"})).json()["items"]
    return [(item["kind"], item["object"], item["action"]) for item in items]


async def test_the_repository_shows_what_the_caller_may_do(hands: Hands) -> None:
    found = (await github(hands).get(REPO)).json()
    assert (found["full_name"], found["default_branch"], found["archived"]) == ("acme/articles", "main", False)
    assert (found["permissions"]["pull"], found["permissions"]["push"]) == (True, True)
    reader = (await github(hands, sandbox_token("acme", may_write=False)).get(REPO)).json()
    assert (reader["permissions"]["pull"], reader["permissions"]["push"]) == (True, False)


async def test_who_may_not_see_a_repository_is_told_that_there_is_none(hands: Hands) -> None:
    for token in (None, "sandbox-globex"):
        assert refusal(await github(hands, token).get(REPO)) == (404, "Not Found")
        assert refusal(await github(hands, token).post(f"{REPO}/git/blobs", json={"content": ""})) == (404, "Not Found")
    assert refusal(await github(hands, "wrong").get(REPO)) == (401, "Bad credentials")
    assert refusal(await github(hands).get("/repos/acme/other")) == (404, "Not Found")


async def test_a_reading_token_cannot_write(hands: Hands) -> None:
    reader = github(hands, sandbox_token("acme", may_write=False))
    answer = await reader.post(f"{REPO}/git/blobs", json={"content": "x"})
    assert refusal(answer) == (403, "Resource not accessible by personal access token")


async def test_headers_that_github_always_sends(hands: Hands) -> None:
    answer = await github(hands).get(REPO)
    assert answer.headers["x-github-api-version-selected"] == "2022-11-28"
    assert int(answer.headers["x-ratelimit-remaining"]) < int(answer.headers["x-ratelimit-limit"])
    assert int(answer.headers["x-ratelimit-reset"]) > hands.at
    again = await github(hands, **{"if-none-match": answer.headers["etag"]}).get(REPO)
    assert (again.status_code, again.content) == (304, b"")
    assert (await github(hands, **{"x-github-api-version": "1999-01-01"}).get(REPO)).status_code == 400


async def test_objects_are_named_by_their_content_and_are_no_effects(hands: Hands) -> None:
    api = github(hands)
    for content, encoding in (("hello world\n", "utf-8"), (base64.b64encode(b"hello world\n").decode(), "base64")):
        blob = (await api.post(f"{REPO}/git/blobs", json={"content": content, "encoding": encoding})).json()
        assert blob["sha"] == "3b18e512dba79e4c8300dd08aeb37f8e728b8dad"
    first, second = await committed(api), await committed(api)
    assert first == second
    assert await committed(api, author={**AUTHOR, "date": "2026-11-29T12:00:01Z"}) != first
    shown = (await api.get(f"{REPO}/git/commits/{first}")).json()
    assert shown["author"] == shown["committer"] == AUTHOR
    assert shown["verification"]["verified"] is False
    read = (await api.get(f"{REPO}/git/blobs/{blob['sha']}")).json()
    assert (base64.b64decode(read["content"]), read["size"]) == (b"hello world\n", 12)
    assert await kinds(hands) == []


async def test_a_tree_keeps_what_it_is_built_on(hands: Hands) -> None:
    api = github(hands)
    tree = (await api.get(f"{REPO}/git/commits/{await committed(api)}")).json()["tree"]["sha"]
    listed = (await api.get(f"{REPO}/git/trees/{tree}")).json()
    assert [item["path"] for item in listed["tree"]] == ["README.md", "a", "articles"]
    assert listed["truncated"] is False
    deep = (await api.get(f"{REPO}/git/trees/{tree}?recursive=1")).json()
    assert "a/b.md" in {item["path"] for item in deep["tree"]}
    gone = [{"path": "README.md", "mode": "100644", "type": "blob", "sha": None}]
    less = (await api.post(f"{REPO}/git/trees", json={"base_tree": tree, "tree": gone})).json()
    assert [item["path"] for item in less["tree"]] == ["a", "articles"]


@pytest.mark.parametrize(
    ("place", "body", "message"),
    [
        ("git/trees", {"tree": [{"path": "../x", "mode": "100644", "content": ""}]}, "malformed path component"),
        ("git/trees", {"base_tree": "0" * 40, "tree": []}, "base_tree is not a valid tree oid"),
        ("git/trees", {"tree": [{"path": "x", "mode": "100644", "sha": "0" * 40}]}, "not a valid blob"),
        ("git/trees", {"tree": [{"path": "x", "mode": "1", "content": ""}]}, "valid tree.mode"),
        ("git/commits", {"message": "x", "tree": "0" * 40}, "Tree SHA does not exist"),
        ("git/commits", {"message": "x"}, "wasn't supplied"),
        ("git/refs", {"ref": "heads/x", "sha": "0" * 40}, "not a valid ref name"),
        ("git/refs", {"ref": "refs/heads/x..y", "sha": "0" * 40}, "not a valid ref name"),
        ("git/refs", {"ref": "refs/heads/x", "sha": "0" * 40}, "Object does not exist"),
        ("git/blobs", {"content": "?", "encoding": "base64"}, "valid Base64"),
    ],
)
async def test_what_makes_no_sense_is_422(hands: Hands, place: str, body: dict[str, Any], message: str) -> None:
    answer = await github(hands).post(f"{REPO}/{place}", json=body)
    assert answer.status_code == 422
    assert message in refusal(answer)[1]


async def test_a_reference_is_made_once_and_moves_forward_only(hands: Hands) -> None:
    api, main = github(hands), await head(github(hands))
    sha = await committed(api)
    made = await api.post(f"{REPO}/git/refs", json={"ref": "refs/heads/content/x", "sha": sha})
    assert (made.status_code, made.json()["object"]["sha"]) == (201, sha)
    again = await api.post(f"{REPO}/git/refs", json={"ref": "refs/heads/content/x", "sha": sha})
    assert refusal(again) == (422, "Reference already exists")
    below = await api.post(f"{REPO}/git/refs", json={"ref": "refs/heads/content", "sha": sha})
    assert refusal(below) == (422, "Reference update failed")
    place = f"{REPO}/git/refs/heads/content/x"
    assert refusal(await api.patch(place, json={"sha": main})) == (422, "Update is not a fast forward")
    assert (await api.patch(place, json={"sha": sha, "force": False})).status_code == 200
    assert (await api.patch(place, json={"sha": main, "force": True})).json()["object"]["sha"] == main
    missing = await api.patch(f"{REPO}/git/refs/heads/none", json={"sha": main})
    assert refusal(missing) == (422, "Reference does not exist")
    assert (await api.delete(place)).status_code == 204
    assert refusal(await api.delete(place)) == (422, "Reference does not exist")
    assert (await api.get(f"{REPO}/git/ref/heads/content/x")).status_code == 404
    assert refusal(await api.delete(f"{REPO}/git/refs/heads/main"))[0] == 422
    assert await kinds(hands) == [
        ("github.commit", "acme/articles@content/x", "create"),
        ("github.branch", "acme/articles@content/x", "update"),
        ("github.branch", "acme/articles@content/x", "delete"),
    ]


async def test_contents_comparisons_and_history_tell_the_same_story(hands: Hands) -> None:
    api, main = github(hands), await head(github(hands))
    sha = await committed(api)
    await api.post(f"{REPO}/git/refs", json={"ref": "refs/heads/x", "sha": sha})
    file = (await api.get(f"{REPO}/contents/a/b.md?ref=x")).json()
    assert (file["type"], file["encoding"], base64.b64decode(file["content"])) == ("file", "base64", b"Hello\n")
    (listed,) = (await api.get(f"{REPO}/contents/a?ref={sha}")).json()
    assert (listed["name"], listed["size"]) == ("b.md", file["size"])
    assert refusal(await api.get(f"{REPO}/contents/a/b.md")) == (404, "Not Found")
    statuses = {(main, "x"): "ahead", ("x", main): "behind", ("x", sha): "identical"}
    for (base, other), status in statuses.items():
        assert (await api.get(f"{REPO}/compare/{base}...{other}")).json()["status"] == status
    await hands.control.post(
        "/_tamper",
        json={
            "system": "github",
            "object": "acme/articles@main",
            "change": {"commit": {"path": "c.md", "content": "c", "message": "c"}},
        },
    )
    both = (await api.get(f"{REPO}/compare/main...x")).json()
    assert (both["status"], both["ahead_by"], both["behind_by"]) == ("diverged", 1, 1)
    assert both["merge_base_commit"]["sha"] == main
    second = (await api.get(f"{REPO}/compare/{main}...x?per_page=1&page=2")).json()
    assert "files" not in second and second["commits"] == []
    assert refusal(await api.get(f"{REPO}/compare/{'0' * 40}...x"))[0] == 404
    listed = await api.get(f"{REPO}/commits?sha=x&per_page=2")
    assert [item["sha"] for item in listed.json()] == [sha, main]
    assert 'rel="next"' in listed.headers["link"]
    touching = await api.get(f"{REPO}/commits?sha=x&path=a/b.md")
    assert [item["sha"] for item in touching.json()] == [sha]
    assert "link" not in touching.headers


async def test_branches_are_listed_page_by_page(hands: Hands) -> None:
    api = github(hands)
    sha = await committed(api)
    for name in ("a", "x/y"):
        await api.post(f"{REPO}/git/refs", json={"ref": f"refs/heads/{name}", "sha": sha})
    first = await api.get(f"{REPO}/branches?per_page=2")
    assert [(item["name"], item["commit"]["sha"] == sha, item["protected"]) for item in first.json()] == [
        ("a", True, False),
        ("main", False, False),
    ]
    assert 'page=2>; rel="next"' in first.headers["link"]
    second = await api.get(f"{REPO}/branches?per_page=2&page=2")
    assert [item["name"] for item in second.json()] == ["x/y"]
    assert 'rel="prev"' in second.headers["link"] and 'rel="next"' not in second.headers["link"]
    order = {"system": "github", "object": "acme/articles", "change": {"empty": True}}
    assert (await hands.control.post("/_tamper", json=order)).status_code == 200
    assert ((await api.get(f"{REPO}/branches")).status_code, (await api.get(f"{REPO}/branches")).json()) == (200, [])


async def test_an_empty_repository_is_409(hands: Hands) -> None:
    order = {"system": "github", "object": "acme/articles", "change": {"empty": True}}
    assert (await hands.control.post("/_tamper", json=order)).status_code == 200
    api = github(hands)
    assert refusal(await api.get(f"{REPO}/git/ref/heads/main")) == (409, "Git Repository is empty.")
    assert refusal(await api.post(f"{REPO}/git/blobs", json={"content": ""})) == (409, "Git Repository is empty.")
    assert (await api.get(REPO)).status_code == 200


async def test_a_stale_read_shows_the_past_and_never_less_than_the_beginning(hands: Hands) -> None:
    api = github(hands)
    sha = await committed(api)
    hands.at += 10
    await api.post(f"{REPO}/git/refs", json={"ref": "refs/heads/x", "sha": sha})
    hands.at += 2
    await hands.fault("stale_read", system="github", seconds=5, method="GET", path="git/ref/heads/x")
    assert (await api.get(f"{REPO}/git/ref/heads/x")).status_code == 404
    assert await head(api, "x") == sha
    await hands.fault("stale_read", system="github", seconds=10**6, method="GET", path="git/ref/heads/main")
    assert (await api.get(f"{REPO}/git/ref/heads/main")).status_code == 200


async def test_a_secondary_rate_limit_is_an_ordered_status(hands: Hands) -> None:
    body = {"message": "You have exceeded a secondary rate limit.", "documentation_url": "https://docs.github.com/rest"}
    await hands.fault("status", system="github", status=403, body=body, method="POST", path="/git/refs$")
    api = github(hands)
    sha = await committed(api)
    answer = await api.post(f"{REPO}/git/refs", json={"ref": "refs/heads/x", "sha": sha})
    assert (answer.status_code, "retry-after" in answer.headers) == (403, False)
    assert await kinds(hands) == []


async def test_references_move_atomically(hands: Hands) -> None:
    """The one that waited meets what the other did meanwhile."""
    api = github(hands)
    first, second = await committed(api), await committed(api, "Other\n")
    await hands.fault("delay", system="github", seconds=1, when="inside", method="POST", path="/git/refs$")
    slow = asyncio.create_task(api.post(f"{REPO}/git/refs", json={"ref": "refs/heads/x", "sha": first}))

    async def arrived() -> bool:
        return any(item["fault"] == "delay" for item in hands.world.requests.items("github"))

    await until(arrived)
    assert (await api.post(f"{REPO}/git/refs", json={"ref": "refs/heads/x", "sha": second})).status_code == 201
    assert refusal(await slow) == (422, "Reference already exists")
    assert await head(api, "x") == second


async def test_outsiders_edit_branches_and_repositories(hands: Hands) -> None:
    async def tamper(object_: str, change: dict[str, Any]) -> int:
        order = {"system": "github", "object": object_, "change": change}
        return (await hands.control.post("/_tamper", json=order)).status_code

    api, main = github(hands), await head(github(hands))
    commit = {"commit": {"path": "n.md", "content": "n", "message": "n"}}
    assert await tamper("acme/articles@x", commit) == 200
    assert await head(api, "x") != main
    assert await tamper("acme/articles@x", {"sha": main}) == 200
    assert await head(api, "x") == main
    assert await tamper("acme/articles@x", {"delete": True}) == 200
    assert await tamper("acme/articles@x", {"delete": True}) == 404
    assert await tamper("acme/articles@x", {"sha": "0" * 40}) == 400
    assert await tamper("acme/articles@x", {"colour": "red"}) == 400
    assert await tamper("acme/nothing", {"archived": True}) == 404
    assert await tamper("acme/articles", {"stars": 3}) == 400
    assert await tamper("acme/articles", {"archived": True}) == 200
    assert refusal(await api.post(f"{REPO}/git/blobs", json={"content": ""}))[0] == 403
    assert await tamper("acme/articles", {"archived": False, "access": "none"}) == 200
    assert refusal(await api.get(REPO)) == (404, "Not Found")
    assert await tamper("acme/articles", {"access": "read"}) == 200
    assert refusal(await api.post(f"{REPO}/git/blobs", json={"content": ""}))[0] == 403
    assert await kinds(hands) == []


async def test_tenants_have_repositories_of_their_own_and_both_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as hands:
        api = github(hands)
        sha = await committed(api)
        await api.post(f"{REPO}/git/refs", json={"ref": "refs/heads/x", "sha": sha})
        other = github(hands, "sandbox-globex")
        assert (await other.get("/repos/globex/articles/git/ref/heads/x")).status_code == 404
    async with running(tmp_path) as hands:
        assert await head(github(hands), "x") == sha
