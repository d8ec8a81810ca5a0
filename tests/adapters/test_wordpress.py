"""WordPress' traps, against the sandbox that has them all: slugs that are no locks, meta that vanishes, twins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
from tests.adapters.worlds import WordPressWorld, open_world
from tests.patience import PATIENCE_SECONDS

from trueup_adapters.core.receipt import RESULT_BYTES_MAX
from trueup_adapters.systems.wordpress.commands import COMMANDS, PREVIOUS_BYTES_MAX, CreateDraft
from trueup_adapters.systems.wordpress.site import Post, ReadFailed, exact_sha256, marked, marker, text_sha256
from trueup_common.contracts.compare import same
from trueup_common.contracts.pointer import fill, take
from trueup_common.contracts.states import EffectClass, ErrorClass, FindVerdict, ReceiptStatus
from trueup_common.contracts.task import ProbeElement
from trueup_common.testing.adapter_conformance import Bench, Case, elements_of, operation_of

CREATE = "wordpress.create_draft"
UPDATE = "wordpress.update_post"
PUBLISH = "wordpress.publish_post"
WITHDRAW = "wordpress.withdraw_post"
TRASH = "wordpress.trash_post"
RESTORE = "wordpress.restore_draft"
INSPECT = "wordpress.inspect_post"
BUSINESS = (ReceiptStatus.REJECTED, ErrorClass.BUSINESS)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[WordPressWorld]:
    async with open_world(WordPressWorld, tmp_path) as world:
        yield world


@pytest_asyncio.fixture
async def target(world: WordPressWorld) -> AsyncIterator[Any]:
    target = world.adapter.open(world.connection)
    yield target
    await target.close()


async def bench(world: WordPressWorld, target: Any, command_type: str, **payload: Any) -> Bench:
    """A command ready to run, with parts of its payload replaced."""
    made = await Bench.set_up(world, command_type, target)
    merged = {**made.operation.payload, **payload}
    made.operation = made.operation.evolve(payload={key: item for key, item in merged.items() if item is not None})
    return made


async def on_post(world: WordPressWorld, target: Any, command_type: str, post_id: int, **payload: Any) -> Bench:
    """A command on a post that is there."""
    world.write_method = "DELETE" if command_type == TRASH else "POST"
    declaration = next(item for item in world.adapter.declarations if item.type == command_type)
    case = Case(resource=f"post/{post_id}", payload={"post_id": post_id, **payload})
    return Bench(world, declaration, target, case)


async def posts(world: WordPressWorld) -> dict[int, dict[str, Any]]:
    """The world's own documents."""
    return await world.posts()


async def writes(world: WordPressWorld) -> int:
    """How many requests could have changed something."""
    return sum([len(await world.requests(method)) for method in ("POST", "PUT", "PATCH", "DELETE")])


@pytest.mark.parametrize("command_type", [CREATE, UPDATE, TRASH])
async def test_a_wrong_password_is_permanent(world: WordPressWorld, command_type: str) -> None:
    """Requirements: X5. The site takes a wrong password for a visitor; nothing was sent, and trying again is no use."""
    connection = replace(world.connection, settings={**world.connection.settings, "password": "wrong"})
    target = world.adapter.open(connection)
    made = await bench(world, target, command_type)
    outcome = await made.perform()
    assert (outcome.error_class, outcome.error_code) == (ErrorClass.PERMANENT, "unauthenticated")
    assert await writes(world) == 0
    await target.close()


async def test_a_draft_carries_its_identity(world: WordPressWorld, target: Any) -> None:
    """Requirements: E3, X6. Slug and marker name the operation; the receipt has the documented fields."""
    made = await bench(world, target, CREATE)
    outcome = await made.perform()
    assert outcome.status is ReceiptStatus.CONFIRMED
    result, payload = outcome.result, made.operation.payload
    assert result is not None
    post = (await posts(world))[result["post_id"]]
    assert (post["slug"], post["status"]) == (payload["slug"], "draft")
    assert post["content"] == payload["content"] + f"\n\n<!-- trueup:{made.operation.command_id} -->"
    assert post["meta"]["description"] == "Beschreibung"
    assert result["content_sha256"] == exact_sha256(payload["content"])
    assert {"post_id", "slug", "status", "link", "modified_gmt", "content_sha256"} <= set(result)
    assert outcome.external_resource_id == str(result["post_id"])
    assert outcome.external_version == result["modified_gmt"] == post["modified_gmt"]


@pytest.mark.parametrize("marked_by", [None, "cmd_other"])
async def test_a_foreign_post_on_the_slug_is_a_conflict(
    world: WordPressWorld, target: Any, marked_by: str | None
) -> None:
    """Requirements: I2. Nothing is sent, nothing of others is touched."""
    content = marked("Theirs", (marker(marked_by),)) if marked_by else "Theirs"
    theirs = await world.post(slug="taken", content=content)
    made = await bench(world, target, CREATE, slug="taken")
    outcome = await made.perform()
    assert (outcome.status, outcome.error_class) == BUSINESS
    assert outcome.error_code == "foreign_object"
    assert str(theirs["id"]) in (outcome.error_detail or "")
    assert await writes(world) == 0


async def test_performing_what_is_done_answers_without_writing(world: WordPressWorld, target: Any) -> None:
    """Requirements: I1. The look before the write finds the operation's own post."""
    made = await bench(world, target, CREATE)
    first = await made.perform()
    again = await made.perform()
    assert again.status is ReceiptStatus.CONFIRMED
    assert again.result == first.result
    assert await writes(world) == 1


@pytest.mark.parametrize(
    ("meta", "name"),
    [({"description": "x", "secret_sauce": 1}, "secret_sauce"), ({"citations": "not a list"}, "citations")],
)
async def test_meta_that_the_site_would_lose_is_refused_before_sending(
    world: WordPressWorld, target: Any, meta: dict[str, Any], name: str
) -> None:
    """Requirements: X5. The site drops unknown meta under 201, and refuses a wrong type after it stored the post."""
    made = await bench(world, target, CREATE, meta=meta)
    outcome = await made.perform()
    assert (outcome.error_class, outcome.error_code) == (ErrorClass.PERMANENT, "meta_unregistered")
    assert name in (outcome.error_detail or "")
    assert await writes(world) == 0


@pytest.mark.parametrize(
    ("registered", "value", "status"),
    [
        ({"type": "object"}, {"a": 1}, "meta_unregistered"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": 1}, "meta_unregistered"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": "x"}, None),
        ({"type": "object", "additionalProperties": True}, {"a": {"b": [1, "x"]}}, None),
        ({"type": ["object", "string"]}, {"a": 1}, "meta_unregistered"),
        ({"type": "string"}, {"a": 1}, "meta_unregistered"),
        ({"type": "string"}, '{"a": 1}', None),
    ],
)
async def test_meta_fits_what_the_site_registered(
    world: WordPressWorld, target: Any, registered: dict[str, Any], value: Any, status: str | None
) -> None:
    """Requirements: X5. An object is closed unless its registration opens it; several types at once are none at all."""
    await world.tamper("acme/site", {"registered_meta": {"json_ld": registered}})
    made = await bench(world, target, CREATE, meta={"json_ld": value})
    outcome = await made.perform()
    assert outcome.error_code == status
    assert await writes(world) == (0 if status else 1)
    if status is None:
        assert (await posts(world))[outcome.result["post_id"]]["meta"] == {"json_ld": value}


async def test_a_site_without_meta_takes_a_draft_without_meta(world: WordPressWorld, target: Any) -> None:
    """A site that registered nothing shows a list where others show an object."""
    await world.tamper("acme/site", {"registered_meta": {}})
    refused = await (await bench(world, target, CREATE)).perform()
    assert refused.error_code == "meta_unregistered"
    assert (await (await bench(world, target, CREATE, meta=None)).perform()).status is ReceiptStatus.CONFIRMED


async def test_a_refusal_after_the_post_was_stored_is_unknown(world: WordPressWorld, target: Any) -> None:
    """Requirements: X4. 400 for the meta, but the post is there: the look finds it."""
    made = await bench(world, target, CREATE)
    await world.tamper("acme/site", {"registered_meta": {"description": {"type": "integer"}}})
    schema = {"schema": {"properties": {"meta": {"properties": {
        name: {} for name in ("description", "citations")}}}}}  # fmt: skip
    await world.fault("status", {"status": 200, "body": schema}, method="OPTIONS", path="/posts$")
    outcome = await made.perform()
    assert (outcome.status, outcome.error_code) == (ReceiptStatus.UNKNOWN, "answer_contradictory")
    assert (await made.find()).verdict is FindVerdict.CONFIRMED


async def taken_meanwhile(world: WordPressWorld, made: Bench, **foreign: Any) -> Any:
    """Somebody takes the slug between our look and our write."""
    slug = made.operation.payload["slug"]
    await world.fault("delay", {"seconds": 1.5, "when": "before"}, method="POST", path="/posts$")
    work = asyncio.create_task(made.perform())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await world.requests("POST"):
            await asyncio.sleep(0.01)
    await world.tamper("acme/new", {"title": "Theirs", "content": "Theirs", "slug": slug, **foreign})
    return await work


async def test_a_slug_taken_meanwhile_is_a_conflict_and_leaves_no_twin(world: WordPressWorld, target: Any) -> None:
    """Requirements: I1. The draft that this attempt got under another slug goes to the trash, theirs stays."""
    made = await bench(world, target, CREATE)
    outcome = await taken_meanwhile(world, made)
    assert (outcome.status, outcome.error_class) == BUSINESS
    assert outcome.error_code == "foreign_object"
    by_title = {post["title"]: post for post in (await posts(world)).values()}
    assert by_title["Theirs"]["status"] == "draft"
    assert by_title[made.operation.payload["title"]]["status"] == "trash"
    found = await made.find()
    assert found.verdict is FindVerdict.AMBIGUOUS, "an unmarked post on the slug: a person has to look"


async def test_a_twin_of_our_own_is_left_for_a_person(world: WordPressWorld, target: Any) -> None:
    """Requirements: E3. An earlier attempt landed meanwhile: two effects, nothing is cleaned up, no success."""
    made = await bench(world, target, CREATE)
    text = marked("Ours", (marker(made.operation.command_id),))
    outcome = await taken_meanwhile(world, made, content=text)
    assert (outcome.status, outcome.error_code) == (ReceiptStatus.UNKNOWN, "effects_duplicated")
    finding = await made.find()
    assert (finding.verdict, finding.candidates) == (FindVerdict.AMBIGUOUS, 2)
    assert [post["status"] for post in (await posts(world)).values()] == ["draft", "draft"]


async def test_a_twin_that_cannot_be_cleaned_up_is_unknown(world: WordPressWorld, target: Any) -> None:
    """Requirements: X4. The clean-up itself failed: no verdict that its state does not carry."""
    made = await bench(world, target, CREATE)
    await world.fault("drop_before", method="DELETE")
    outcome = await taken_meanwhile(world, made)
    assert (outcome.status, outcome.error_code) == (ReceiptStatus.UNKNOWN, "slug_taken")
    finding = await made.find()
    assert (finding.verdict, finding.reason) == (FindVerdict.AMBIGUOUS, "slug_differs")


async def test_a_slug_that_the_site_does_not_give_out_is_a_conflict(world: WordPressWorld, target: Any) -> None:
    """`feed` is WordPress' own; the draft under `feed-2` goes to the trash."""
    made = await bench(world, target, CREATE, slug="feed")
    outcome = await made.perform()
    assert (outcome.status, outcome.error_class) == BUSINESS
    assert outcome.error_code == "slug_unavailable"
    assert [post["status"] for post in (await posts(world)).values()] == ["trash"]
    assert (await made.find()).verdict is FindVerdict.MISSING


async def test_find_descends_by_strength_of_evidence(world: WordPressWorld, target: Any) -> None:
    """Requirements: E3. Own marker: found. Another's marker: not ours. No marker on our slug: ambiguous."""
    made = await bench(world, target, CREATE, slug="ladder")
    theirs = await world.post(slug="ladder", content=marked("x", (marker("cmd_other"),)))
    assert (await made.find()).verdict is FindVerdict.MISSING
    await world.tamper(f"acme/{theirs['id']}", {"content": "somebody removed the comments"})
    assert (await made.find()).verdict is FindVerdict.AMBIGUOUS
    own = marked("x", (marker("cmd_other"), marker(made.operation.command_id)))
    await world.tamper(f"acme/{theirs['id']}", {"content": own})
    finding = await made.find()
    assert (finding.verdict, finding.evidence) == (FindVerdict.CONFIRMED, "marker")
    await world.tamper(f"acme/{theirs['id']}", {"slug": "renamed"})
    assert (await made.find()).verdict is FindVerdict.AMBIGUOUS
    await world.tamper(f"acme/{theirs['id']}", {"slug": "ladder__trashed", "status": "trash"})
    assert (await made.find()).verdict is FindVerdict.CONFIRMED, "it was done, and then put into the trash"


async def test_a_read_back_is_repeated_and_then_believed_or_not(world: WordPressWorld, target: Any) -> None:
    """Requirements: X6. Two failing reads do no harm; without any read the success is not proved."""
    await world.fault("status", {"status": 503}, method="GET", path=r"/posts/\d+$", times=2)
    assert (await (await bench(world, target, CREATE)).perform()).status is ReceiptStatus.CONFIRMED
    await world.fault("status", {"status": 503}, method="GET", path=r"/posts/\d+$", times=3)
    outcome = await (await bench(world, target, CREATE)).perform()
    assert (outcome.status, outcome.error_code) == (ReceiptStatus.UNKNOWN, "read_back_failed")


@pytest.mark.parametrize(
    ("find", "replace", "equal"), [("Mehr & mehr", "Mehr &amp; mehr", True), ("Ein Satz", "Kein Satz", False)]
)
async def test_harmless_rewriting_is_no_drift(
    world: WordPressWorld, target: Any, find: str, replace: str, equal: bool
) -> None:
    """Requirements: X6. The read-back shows what is there; entities do not count, words do."""
    made = await bench(world, target, CREATE)
    await world.fault("rewrite", {"field": "content", "find": find, "replace": replace}, method="POST")
    outcome = await made.perform()
    assert outcome.status is ReceiptStatus.CONFIRMED
    (content,) = [item for item in outcome.observations if item.element == "wordpress.content"]
    assert outcome.result is not None
    assert same("exact", outcome.result["content_text_sha256"], content.value) is equal


async def differing(made: Bench, observations: Any, result: Any) -> set[str]:
    """The elements that are not as the command wants them."""
    seen = {item.element: item.value for item in observations}
    return {
        item.element
        for item in made.declaration.establishes
        if not same(item.normaliser, made.facts_of(item, result).desired, seen[item.element])
    }


@pytest.mark.parametrize(
    ("field", "sent", "stored", "element"),
    [
        ("title", "Ours", "Theirs", "wordpress.fields"),
        ("title", "Ours & yours", "Ours &amp; yours", None),
        ("excerpt", "In short", "At length", "wordpress.fields"),
        ("excerpt", "In short", "", "wordpress.fields"),
        ("excerpt", 'Say "so"', "Say &quot;so&quot;", None),
        ("meta", {"description": "Ours"}, {"description": "Theirs"}, "wordpress.meta"),
        ("meta", {"citations": ["https://a.example"]}, {"citations": []}, "wordpress.meta"),
    ],
)
async def test_every_field_that_was_sent_is_read_back(
    world: WordPressWorld, target: Any, field: str, sent: Any, stored: Any, element: str | None
) -> None:
    """Requirements: X6, R8, L15. What the site makes of title, excerpt or meta is seen at once, and what an outsider
    makes of it later as well."""
    made = await bench(world, target, CREATE, **{field: sent})
    outcome = await made.perform()
    assert outcome.status is ReceiptStatus.CONFIRMED
    assert outcome.result is not None
    assert await differing(made, outcome.observations, outcome.result) == set()
    assert await differing(made, (await made.find()).observations, outcome.result) == set()
    await world.tamper(f"acme/{outcome.result['post_id']}", {field: stored})
    expected = set() if element is None else {element}
    assert await differing(made, await made.probe(outcome.result), outcome.result) == expected


@pytest.mark.parametrize(("command_type", "field"), [(CREATE, "title"), (CREATE, "excerpt"), (UPDATE, "title")])
async def test_what_the_site_stores_instead_is_no_healthy_success(
    world: WordPressWorld, target: Any, command_type: str, field: str
) -> None:
    """Requirements: X6, L15. The receipt's own read-back shows it, and so does a look for the effect."""
    made = await bench(world, target, command_type, **{field: "Ours"})
    await world.fault("rewrite", {"field": field, "replace": "Theirs"}, method="POST")
    outcome = await made.perform()
    assert await differing(made, outcome.observations, outcome.result) == {"wordpress.fields"}
    found = await made.find()
    assert await differing(made, found.observations, found.result) == {"wordpress.fields"}


async def test_an_update_leaves_the_other_fields_as_they_were(world: WordPressWorld, target: Any) -> None:
    """Requirements: X6. A site that loses the excerpt over an update of the content did not do what was asked."""
    draft = await bench(world, target, CREATE, excerpt="In short")
    receipt = (await draft.perform()).result
    assert receipt is not None
    version = {"post_id": receipt["post_id"], "expected_modified_gmt": receipt["modified_gmt"]}
    made = await bench(world, target, UPDATE, title=None, content="New", **version)
    outcome = await made.perform()
    assert outcome.result is not None
    assert outcome.result["fields"] == receipt["fields"]
    await world.tamper(f"acme/{receipt['post_id']}", {"excerpt": ""})
    assert await differing(made, await made.probe(outcome.result), outcome.result) == {"wordpress.fields"}


async def test_an_update_needs_the_version_that_was_seen(world: WordPressWorld, target: Any) -> None:
    """Requirements: G5. A changed post is a conflict, never overwritten, whichever way the version was bound."""
    made = await bench(world, target, UPDATE, expected_modified_gmt="2020-01-01T00:00:00")
    outcome = await made.perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (*BUSINESS, "version_conflict")
    bound = await bench(world, target, PUBLISH)
    bound.operation = bound.operation.evolve(
        target=bound.operation.target.evolve(expected_version="2020-01-01T00:00:00")
    )
    assert (await bound.perform()).error_code == "version_conflict"
    assert await writes(world) == 0


async def test_an_update_can_be_undone_from_its_receipt(world: WordPressWorld, target: Any) -> None:
    """The declared compensation restores the recorded earlier content, markers and all kept."""
    made = await bench(world, target, UPDATE)
    before = (await posts(world))[made.operation.payload["post_id"]]
    outcome = await made.perform()
    assert outcome.status is ReceiptStatus.CONFIRMED
    assert made.sending.cursor is not None
    assert made.sending.cursor["previous_title"] == before["title"]
    assert made.sending.cursor["previous_content"] == before["content"]
    compensation = made.declaration.compensation
    assert compensation is not None
    document = {"payload": made.operation.payload, "receipt": outcome.result}
    payload = fill(document, compensation.payload)
    undo = await on_post(world, target, compensation.command_type, **payload)
    assert (await undo.perform()).status is ReceiptStatus.CONFIRMED
    after = (await posts(world))[payload["post_id"]]
    assert after["title"] == before["title"]
    own = (marker(made.operation.command_id), marker(undo.operation.command_id))
    assert after["content"] == marked(before["content"], own)
    assert (await made.find()).verdict is FindVerdict.CONFIRMED, "the marker of the first operation is still there"


async def test_what_a_receipt_cannot_hold_is_not_replaced(world: WordPressWorld, target: Any) -> None:
    """A post too large to be put back is a person's, before anything is sent: its update could not be undone.

    Requirements: S1, S4
    """
    made = await bench(world, target, UPDATE)
    post_id = made.operation.payload["post_id"]
    large = "<p>" + "x" * PREVIOUS_BYTES_MAX + "</p>"
    await world.tamper(f"acme/{post_id}", {"content": large})
    current = (await posts(world))[post_id]["modified_gmt"]
    again = await on_post(world, target, UPDATE, post_id=post_id, content="<p>Neu</p>", expected_modified_gmt=current)
    outcome = await again.perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (*BUSINESS, "too_large_to_undo")
    assert (await posts(world))[post_id]["content"] == large
    assert PREVIOUS_BYTES_MAX < RESULT_BYTES_MAX


async def test_an_update_of_the_title_keeps_the_content(world: WordPressWorld, target: Any) -> None:
    """Only what was asked for changes; the marker comes with it."""
    made = await bench(world, target, UPDATE, content=None)
    before = (await posts(world))[made.operation.payload["post_id"]]
    outcome = await made.perform()
    assert outcome.status is ReceiptStatus.CONFIRMED
    after = (await posts(world))[before["id"]]
    assert (after["title"], after["content"]) == (
        "Neu",
        marked(before["content"], (marker(made.operation.command_id),)),
    )


async def test_only_the_approved_content_goes_out(world: WordPressWorld, target: Any) -> None:
    """Requirements: G5. One changed letter, and the approval does not hold for this post."""
    made = await bench(world, target, PUBLISH)
    post_id = made.operation.payload["post_id"]
    content = (await posts(world))[post_id]["content"]
    await world.tamper(f"acme/{post_id}", {"content": content + "!"})
    outcome = await made.perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (*BUSINESS, "version_conflict")
    assert await writes(world) == 0


async def test_nothing_else_of_the_approved_post_was_changed(world: WordPressWorld, target: Any) -> None:
    """Requirements: G5, X7. A title that somebody changed after the draft was bound is not published."""
    prepared = await bench(world, target, PUBLISH)
    post_id = prepared.operation.payload["post_id"]
    seen = (await posts(world))[post_id]["modified_gmt"]
    await world.tamper(f"acme/{post_id}", {"title": "PWNED", "modified_gmt": "2999-01-01T00:00:00"})
    made = await on_post(
        world,
        target,
        PUBLISH,
        post_id,
        content_sha256=prepared.operation.payload["content_sha256"],
        expected_modified_gmt=seen,
    )
    outcome = await made.perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (*BUSINESS, "version_conflict")
    assert await writes(world) == 0


async def test_undoing_a_draft_leaves_a_published_page_alone(world: WordPressWorld, target: Any) -> None:
    """Requirements: S4. Somebody published the draft meanwhile: its undoing is a person's, the page stays."""
    prepared = await bench(world, target, TRASH)
    post_id = prepared.operation.payload["post_id"]
    await world.tamper(f"acme/{post_id}", {"status": "publish"})
    made = await on_post(world, target, TRASH, post_id, only_status="draft")
    outcome = await made.perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (*BUSINESS, "version_conflict")
    assert (await posts(world))[post_id]["status"] == "publish"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"status": "publish"}, "already_published"),
        ({"date_gmt": "2999-01-01T00:00:00"}, "scheduled"),
        ({"status": "trash"}, "gone"),
    ],
)
async def test_a_post_that_cannot_go_out_now_is_a_conflict(
    world: WordPressWorld, target: Any, change: dict[str, Any], code: str
) -> None:
    """Public already, dated ahead, or in the trash: nothing is sent."""
    made = await bench(world, target, PUBLISH)
    await world.tamper(f"acme/{made.operation.payload['post_id']}", change)
    outcome = await made.perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (*BUSINESS, code)
    assert await writes(world) == 0


async def test_a_publication_that_became_a_schedule_is_no_success(world: WordPressWorld, target: Any) -> None:
    """Requirements: X6. `future` is not published: unknown for the machine, ambiguous for the look."""
    made = await bench(world, target, PUBLISH)
    await world.fault("rewrite", {"field": "status", "replace": "future"}, method="POST")
    outcome = await made.perform()
    assert (outcome.status, outcome.error_code) == (ReceiptStatus.UNKNOWN, "verification_failed")
    finding = await made.find()
    assert (finding.verdict, finding.reason) == (FindVerdict.AMBIGUOUS, "scheduled")


async def test_publication_and_withdrawal(world: WordPressWorld, target: Any) -> None:
    """Withdrawing is an action of its own: back to draft, marked, the content untouched."""
    made = await bench(world, target, PUBLISH)
    published = await made.perform()
    assert published.status is ReceiptStatus.CONFIRMED
    assert published.result is not None
    assert {"post_id", "status", "link", "published_at", "post_version"} <= set(published.result)
    assert published.result["status"] == "publish"
    compensation = made.declaration.compensation
    assert compensation is not None
    payload = fill({"payload": made.operation.payload, "receipt": published.result}, compensation.payload)
    back = await on_post(world, target, compensation.command_type, **payload)
    withdrawn = await back.perform()
    assert withdrawn.status is ReceiptStatus.CONFIRMED
    post = (await posts(world))[payload["post_id"]]
    assert post["status"] == "draft"
    assert f"<!-- trueup:{back.operation.command_id} withdrawn -->" in post["content"]
    assert [effect["action"] for effect in await world.effects()] == ["publish", "withdraw"]
    assert exact_sha256(Post.of(_shown(post)).text) == made.operation.payload["content_sha256"]


async def test_published_by_somebody_else_is_ambiguous(world: WordPressWorld, target: Any) -> None:
    """Requirements: E3. Public, but without our marker: a fuzzy match is never "not found"."""
    made = await bench(world, target, PUBLISH)
    await world.tamper(f"acme/{made.operation.payload['post_id']}", {"status": "publish"})
    assert (await made.find()).verdict is FindVerdict.AMBIGUOUS


async def trashed(world: WordPressWorld, target: Any) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """What was published and then thrown away by somebody: its receipt, the declared repair, and its version now."""
    made = await bench(world, target, PUBLISH)
    published = await made.perform()
    assert published.result is not None, published
    await world.trash(published.result["post_id"])
    (status,) = [item for item in made.declaration.establishes if item.element == "wordpress.status"]
    assert status.repair is not None
    (seen,) = await target.probe([made.element_of(status, published.result)])
    assert seen.value == "trash"
    document = {"payload": made.operation.payload, "receipt": published.result}
    return published.result, fill(document, status.repair.payload), seen.version


async def test_a_trashed_page_is_public_again_as_it_was(world: WordPressWorld, target: Any) -> None:
    """Requirements: R3. The same id, slug, address, content and meta, by one write; a second one changes nothing."""
    receipt, payload, version = await trashed(world, target)
    before = (await posts(world))[receipt["post_id"]]
    assert before["slug"] == f"{receipt['slug']}__trashed"
    repair = await on_post(world, target, PUBLISH, **payload, expected_modified_gmt=version)
    written = await writes(world)
    outcome = await repair.perform()
    assert outcome.status is ReceiptStatus.CONFIRMED, outcome
    assert outcome.result is not None
    assert await writes(world) == written + 1
    same_as_before = ("post_id", "resource", "slug", "status", "link", "content_sha256")
    assert {name: outcome.result[name] for name in same_as_before} == {name: receipt[name] for name in same_as_before}
    post = (await posts(world))[receipt["post_id"]]
    assert (post["slug"], post["status"], post["meta"]) == (receipt["slug"], "publish", before["meta"])
    assert len(await posts(world)) == 1
    assert (await repair.find()).verdict is FindVerdict.CONFIRMED
    assert (await repair.perform()).status is ReceiptStatus.CONFIRMED
    assert await writes(world) == written + 1


@pytest.mark.parametrize("change", ["slug_taken", "content_changed", "seen_too_long_ago"])
async def test_a_page_that_is_not_as_it_was_is_not_put_back(world: WordPressWorld, target: Any, change: str) -> None:
    """Requirements: R3, R5, R9. Another post on its address, another content, a newer version: a person decides."""
    receipt, payload, version = await trashed(world, target)
    if change == "slug_taken":
        await world.post(slug=receipt["slug"], status="publish")
    elif change == "content_changed":
        await world.tamper(f"acme/{receipt['post_id']}", {"content": "<p>By somebody else</p>"})
        version = None
    else:
        version = "2020-01-01T00:00:00"
    repair = await on_post(world, target, PUBLISH, **payload, **({"expected_modified_gmt": version} if version else {}))
    written = await writes(world)
    outcome = await repair.perform()
    code = "foreign_object" if change == "slug_taken" else "version_conflict"
    assert (outcome.status, outcome.error_class, outcome.error_code) == (*BUSINESS, code)
    assert await writes(world) == written
    assert (await repair.find()).verdict is FindVerdict.MISSING
    assert (await posts(world))[receipt["post_id"]]["status"] == "trash"


async def test_without_a_restoration_what_is_in_the_trash_stays_there(world: WordPressWorld, target: Any) -> None:
    """Requirements: R3. Publishing anew is no way to take a post out of the trash."""
    _, payload, _ = await trashed(world, target)
    plain = {name: value for name, value in payload.items() if name != "restored_slug"}
    outcome = await (await on_post(world, target, PUBLISH, **plain)).perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (*BUSINESS, "gone")


async def test_a_draft_that_was_published_meanwhile_is_not_taken_off_the_site(
    world: WordPressWorld, target: Any
) -> None:
    """Requirements: R3, R9. The repair of a draft brings a trashed one back; a published one is a person's."""
    made = await bench(world, target, CREATE)
    created = await made.perform()
    assert created.result is not None
    await world.tamper(f"acme/{created.result['post_id']}", {"status": "publish"})
    repair = await on_post(world, target, RESTORE, created.result["post_id"], slug=created.result["slug"])
    outcome = await repair.perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (*BUSINESS, "version_conflict")
    assert (await posts(world))[created.result["post_id"]]["status"] == "publish"


async def test_a_survey_lists_every_marker_and_no_post_of_others(world: WordPressWorld, target: Any) -> None:
    """Requirements: R10. Drafts and public posts, each operation on them; nothing that carries no marker of ours."""
    await world.post(content="<p>trueup:cmd is only mentioned here</p>")
    made = await bench(world, target, CREATE)
    created = await made.perform()
    assert created.result is not None
    post_id = created.result["post_id"]
    publishing = await on_post(
        world, target, PUBLISH, post_id, content_sha256=exact_sha256(made.operation.payload["content"])
    )
    assert (await publishing.perform()).status is ReceiptStatus.CONFIRMED
    page = await target.survey(None, {})
    assert [(mark.operation_id, mark.external_resource_id) for mark in page.marks] == [
        (made.operation.command_id, str(post_id)),
        (publishing.operation.command_id, str(post_id)),
    ]
    assert page.next_cursor is None
    assert (await target.survey("100", {})).marks == ()


async def test_a_survey_that_may_not_look_proves_nothing(world: WordPressWorld, target: Any) -> None:
    """Requirements: R10, E4"""
    blind = world.adapter.open(world.unreadable)
    with pytest.raises(ReadFailed):
        await blind.survey(None, {})
    await blind.close()


async def test_trashing_twice_is_one_effect(world: WordPressWorld, target: Any) -> None:
    """Requirements: I1. The second answers from what is there; 410 in between is settled by the read-back."""
    made = await bench(world, target, TRASH)
    assert (await made.perform()).status is ReceiptStatus.CONFIRMED
    second = await on_post(world, target, TRASH, made.operation.payload["post_id"])
    assert (await second.perform()).status is ReceiptStatus.CONFIRMED
    assert len(await world.effects()) == 1
    third = await bench(world, target, TRASH)
    await world.fault("delay", {"seconds": 1.5}, method="DELETE")
    work = asyncio.create_task(third.perform())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(await world.requests("DELETE")) < 2:
            await asyncio.sleep(0.01)
    await world.tamper(f"acme/{third.operation.payload['post_id']}", {"status": "trash"})
    assert (await work).status is ReceiptStatus.CONFIRMED


@pytest.mark.parametrize("command_type", [UPDATE, PUBLISH, WITHDRAW, TRASH])
async def test_a_post_that_does_not_exist(world: WordPressWorld, target: Any, command_type: str) -> None:
    """Requirements: X5, E3. Permanent before sending; for a look, whatever happened before its end is undecidable."""
    made = await bench(world, target, command_type)
    await world.tamper(f"acme/{made.operation.payload['post_id']}", {"delete": True})
    outcome = await made.perform()
    assert (outcome.error_class, outcome.error_code) == (ErrorClass.PERMANENT, "not_found")
    finding = await made.find()
    assert (finding.verdict, finding.reason) == (FindVerdict.AMBIGUOUS, "object_gone")


async def test_probes_share_one_read_per_post(world: WordPressWorld, target: Any) -> None:
    """Requirements: E4. All elements of a post cost one request, and carry version and source."""
    made = await bench(world, target, CREATE)
    outcome = await made.perform()
    before = len(await world.requests("GET"))
    observations = await made.probe(outcome.result)
    assert len(await world.requests("GET")) == before + 1
    assert {item.element for item in observations} == {
        "wordpress.post_id", "wordpress.status", "wordpress.content", "wordpress.fields", "wordpress.meta",
    }  # fmt: skip
    assert all(item.version == outcome.external_version and item.source for item in observations)


async def test_an_element_that_nobody_knows_is_a_doubt(target: Any) -> None:
    """Requirements: E4."""
    wanted = [
        ProbeElement(element="wordpress.colour", kind="wordpress.post", params={"post_id": 1}),
        ProbeElement(element="wordpress.status", kind="wordpress.post", params={}),
        ProbeElement(element="wordpress.meta", kind="wordpress.post", params={"post_id": 1}),
    ]
    assert [item.verdict.value for item in await target.probe(wanted)] == ["UNKNOWN"] * 3


async def test_an_old_answer_of_the_site_is_not_taken_for_absence_too_early(world: WordPressWorld, target: Any) -> None:
    """A stale read says missing although the post is there: only the late window guards this.

    The ledger refuses the same finding until the window is over; here it is shown what it has to guard against.
    """
    made = await bench(world, target, CREATE)
    assert (await made.perform()).status is ReceiptStatus.CONFIRMED
    await world.fault("stale_read", {"seconds": 60}, method="GET", path="/posts", times=3)
    finding = await made.find()
    assert (finding.verdict, finding.proof_of_access) == (FindVerdict.MISSING, True)
    assert made.declaration.late_window_seconds > 0


def _shown(post: dict[str, Any]) -> dict[str, Any]:
    return {**post, "title": {"raw": post["title"]}, "content": {"raw": post["content"]}}


@pytest.mark.parametrize("text", ["Hello", "Hello\n", "Hello\n\n", "", "a\n\n<!-- more -->\n", "x <!-- trueup -->"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_markers_come_off_exactly(text: str, count: int) -> None:
    """Requirements: E3. The content without markers is the content that was asked for, to the last line break."""
    names = tuple(f"cmd_{number}" for number in range(count))
    stored = marked(text, [marker(name, withdrawn=name == "cmd_1") for name in names]) if count else text
    post = Post.of(_shown({"id": 1, "slug": "s", "status": "draft", "title": "t", "content": stored}))
    assert post.operations == names
    assert post.text == text


@pytest.mark.parametrize("value", [{}, {"id": 1}, {"id": "1"}, [], None, {"id": 1, "content": {"rendered": "x"}}])
def test_what_is_no_post_is_said_to_be_none(value: Any) -> None:
    """Requirements: X6. An answer without raw values proves nothing."""
    with pytest.raises(ValueError, match="not a post"):
        Post.of(value)


def test_the_text_digest_forgives_what_sites_do() -> None:
    assert text_sha256("<p>a &amp; b</p>\n") == text_sha256("a & b")
    assert text_sha256("a & b") != text_sha256("a & c")


@pytest.mark.parametrize(
    ("payload", "fits"),
    [
        ({"title": "t", "content": "c", "slug": "a-b"}, True),
        ({"title": "t", "content": "c", "slug": "A b"}, False),
        ({"title": "t", "content": "c", "slug": "a-"}, False),
        ({"title": "t", "content": "x <!-- trueup:cmd_1 -->", "slug": "a"}, False),
        ({"title": "t", "content": "c", "slug": "a", "status": "publish"}, False),
        ({"title": "t", "content": "", "slug": "a"}, False),
    ],
)
def test_the_payload_schema_of_a_draft(payload: dict[str, Any], fits: bool) -> None:
    """Requirements: X8. In particular nobody can bring a marker of another operation along."""
    assert jsonschema_rs.validator_for(CreateDraft.declaration.payload_schema).is_valid(payload) is fits


async def test_declarations_name_what_they_establish(world: WordPressWorld) -> None:
    """Requirements: X8. Classes and identities are those of the first command types' table."""
    declared = {command.declaration.type: command.declaration for command in COMMANDS}
    assert {name: item.effect_class for name, item in declared.items()} == {
        CREATE: EffectClass.COMPENSABLE,
        UPDATE: EffectClass.COMPENSABLE,
        PUBLISH: EffectClass.PIVOT,
        WITHDRAW: EffectClass.RETRYABLE,
        TRASH: EffectClass.RETRYABLE,
        RESTORE: EffectClass.RETRYABLE,
        INSPECT: EffectClass.READ,
    }
    assert declared[CREATE].identity == ("/target/resource", "/payload/slug")
    case = await world.case(CREATE)
    operation = operation_of(world.connection, declared[CREATE], case)
    receipt = {"post_id": 4, "resource": "post/4", "content_text_sha256": "x", "fields": {}, "meta_sha256": "y"}
    document = {"payload": case.payload, "receipt": receipt, "target": {}, "command_id": operation.command_id}
    values = {item.element: take(document, item.value) for item in declared[CREATE].establishes}
    assert values == {
        "wordpress.post_id": 4,
        "wordpress.status": "draft",
        "wordpress.content": "x",
        "wordpress.fields": {},
        "wordpress.meta": "y",
    }
    assert all(item.params == {"post_id": 4} for item in elements_of(declared[CREATE], operation, receipt))
