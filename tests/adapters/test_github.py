"""GitHub: a commit whose name is known beforehand, a branch that tells who made it, and reads that lag."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
from tests.adapters.github_world import ARCHIVE, DELETE, REPOSITORY, RESTORE, GitHubWorld, prepared, writes
from tests.adapters.worlds import open_world
from tests.patience import PATIENCE_SECONDS

from trueup_adapters.systems import github
from trueup_adapters.systems.github.repository import outcome_of
from trueup_adapters.systems.http import Answer
from trueup_common.contracts.adapter import Connection, EndsWith, LeaseLost
from trueup_common.contracts.canonical import sha256_hex
from trueup_common.contracts.pointer import fill, take
from trueup_common.contracts.states import EffectClass, ErrorClass, FindVerdict, ProbeVerdict, ReceiptStatus
from trueup_common.contracts.survey import NOT_SURVEYABLE
from trueup_common.contracts.task import ProbeElement
from trueup_common.testing.adapter_conformance import Bench, Case, call_of, elements_of

CONFIRMED = ReceiptStatus.CONFIRMED
BUSINESS = (ReceiptStatus.REJECTED, ErrorClass.BUSINESS)
TRANSIENT = (ReceiptStatus.REJECTED, ErrorClass.TRANSIENT)
PERMANENT = (ReceiptStatus.REJECTED, ErrorClass.PERMANENT)
OBJECTS = ("blobs", "trees", "commits")
SECONDARY = {"message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[GitHubWorld]:
    async with open_world(GitHubWorld, tmp_path) as world:
        yield world


@pytest_asyncio.fixture
async def target(world: GitHubWorld) -> AsyncIterator[Any]:
    target = world.adapter.open(world.connection)
    yield target
    await target.close()


def with_settings(connection: Connection, **settings: Any) -> Connection:
    return replace(connection, settings={**connection.settings, **settings})


def stale(seconds: float = 3600) -> dict[str, Any]:
    return {"seconds": seconds}


async def on_branch(world: GitHubWorld, target: Any) -> tuple[Bench, str]:
    """An archive onto a branch that somebody else made, and where that branch points."""
    made = await prepared(world, target, ARCHIVE)
    head = await world.commit(made.operation.payload["branch"])
    world.write_method = "PATCH"
    return made, head


async def test_an_archive_is_one_commit_that_names_its_operation(world: GitHubWorld, target: Any) -> None:
    """Requirements: E1, E3, X6. Branch, commit, author, date and content are those of the payload, and no other."""
    made = await prepared(world, target, ARCHIVE)
    main = world.head("main")
    outcome = await made.perform()
    payload, result = made.operation.payload, outcome.result
    assert outcome.status is CONFIRMED and result is not None
    commit = world.repository.object(world.head(payload["branch"]), "commit")
    stamp = {**payload["author"], "date": "2026-11-29T11:00:00Z"}
    assert (commit["author"], commit["committer"], commit["parents"]) == (stamp, stamp, [main])
    assert commit["message"] == f"{payload['message']}\n\nTrueup-Operation: {made.operation.command_id}"
    before = world.repository.object(main, "commit")["tree"]
    assert set(world.repository.entries(commit["tree"])) == set(world.repository.entries(before))
    assert world.repository.at(commit["tree"], "articles/welcome.md") == world.repository.at(
        before, "articles/welcome.md"
    )
    assert world.repository.at(commit["tree"], payload["path"]) == ("100644", result["blob_sha"])
    assert result == {
        "commit_sha": world.head(payload["branch"]),
        "branch": payload["branch"],
        "blob_sha": result["blob_sha"],
        "artifact_sha256": sha256_hex(payload["content"].encode()),
        "branch_created": True,
        "repository": REPOSITORY,
        "path": payload["path"],
        "parent_sha": main,
        "resource": f"{REPOSITORY}@{payload['branch']}:{payload['path']}",
    }
    assert jsonschema_rs.validator_for(made.declaration.receipt_schema).is_valid(result)
    assert [(item["kind"], item["action"]) for item in await world.effects()] == [("github.commit", "create")]
    assert outcome.external_resource_id == result["commit_sha"]


@pytest.mark.parametrize("mode", ["create", "append"])
async def test_the_name_is_in_the_ledger_before_anything_leaves(world: GitHubWorld, target: Any, mode: str) -> None:
    """Requirements: E2. The plan with parent and commit is kept first; a lease lost there lets nothing out."""
    made = await prepared(world, target, ARCHIVE) if mode == "create" else (await on_branch(world, target))[0]
    kept: list[dict[str, Any]] = []

    async def progress(cursor: dict[str, Any]) -> None:
        kept.append(cursor)
        raise LeaseLost

    call = call_of(made.operation, made.declaration, made.sending)
    with pytest.raises(LeaseLost):
        await target.perform(replace(call, progress=progress))
    assert not await world.requests("POST") and not await world.requests("PATCH")
    outcome = await made.perform()
    assert outcome.result is not None
    assert kept[0] == made.sending.cursor
    plan = kept[0]["plans"][0]
    assert (plan["mode"], plan["commit"]) == (mode, outcome.result["commit_sha"])
    assert outcome.result["branch_created"] is (mode == "create")


async def test_a_branch_of_others_grows_and_is_not_called_ours(world: GitHubWorld, target: Any) -> None:
    """Requirements: E1, S5. Nothing of theirs is lost, and compensation will not delete it."""
    made, head = await on_branch(world, target)
    outcome = await made.perform()
    assert outcome.status is CONFIRMED and outcome.result is not None
    commit = world.repository.object(outcome.result["commit_sha"], "commit")
    assert commit["parents"] == [head]
    assert world.repository.at(commit["tree"], "notes.md") is not None
    assert outcome.result["branch_created"] is False
    document = {"payload": made.operation.payload, "receipt": outcome.result}
    assert made.declaration.compensation is not None and made.declaration.compensation.only_if is not None
    assert take(document, made.declaration.compensation.only_if) is False
    assert [(item["kind"], item["action"]) for item in await world.effects()] == [("github.commit", "update")]


@pytest.mark.parametrize("mode", ["create", "append"])
async def test_performing_what_is_done_answers_without_writing(world: GitHubWorld, target: Any, mode: str) -> None:
    """Requirements: I1. The same operation again, even without its cursor's first answer, is one commit."""
    made = await prepared(world, target, ARCHIVE) if mode == "create" else (await on_branch(world, target))[0]
    first = await made.perform()
    again = await made.perform()
    assert (again.status, again.result) == (CONFIRMED, first.result)
    assert len(await writes(world)) == 1


@pytest.mark.parametrize("mode", ["create", "append"])
@pytest.mark.parametrize("fault", ["lose_answer", "drop_before"])
@pytest.mark.parametrize("step", [*OBJECTS, "refs"])
async def test_a_cut_at_any_request_leaves_one_commit(
    world: GitHubWorld, target: Any, step: str, fault: str, mode: str
) -> None:
    """Requirements: X4, E2, I1. Only the reference is an effect: before it nothing happened, at it nobody knows."""
    made = await prepared(world, target, ARCHIVE) if mode == "create" else (await on_branch(world, target))[0]
    await world.fault(fault, method="PATCH" if (step, mode) == ("refs", "append") else "POST", path=f"/git/{step}")
    outcome = await made.perform()
    if step == "refs":
        assert outcome.status is ReceiptStatus.UNKNOWN
        finding = await made.find()
        landed = fault == "lose_answer"
        assert finding.verdict is (FindVerdict.CONFIRMED if landed else FindVerdict.MISSING)
        assert finding.result is None or finding.result["branch_created"] is (mode == "create")
    else:
        assert (outcome.status, outcome.error_class) == TRANSIENT
        assert made.sending.sends_count == 0
        assert (await made.find()).verdict is FindVerdict.MISSING
    again = await made.perform()
    assert again.status is CONFIRMED and again.result is not None
    assert again.result["branch_created"] is (mode == "create")
    assert len(await world.effects()) == 1


@pytest.mark.parametrize("mode", ["create", "append"])
async def test_two_attempts_at_once_are_one_commit(world: GitHubWorld, target: Any, mode: str) -> None:
    """Requirements: I1, E5. A zombie that sends the same plan late meets its own commit."""
    made = await prepared(world, target, ARCHIVE) if mode == "create" else (await on_branch(world, target))[0]
    await world.fault("drop_before", **world.writes)
    assert (await made.perform()).status is ReceiptStatus.UNKNOWN
    outcomes = await asyncio.gather(*(made.perform() for _ in range(3)))
    assert {item.status for item in outcomes} == {CONFIRMED}
    assert len({(item.result or {})["commit_sha"] for item in outcomes}) == 1
    assert len(await world.effects()) == 1


async def test_an_absence_that_was_only_a_lag_makes_no_second_commit(world: GitHubWorld, target: Any) -> None:
    """Requirements: X4, E3. The look lags and says missing; the resend has the same name and finds itself."""
    made = await prepared(world, target, ARCHIVE)
    await world.fault("lose_answer", **world.writes)
    assert (await made.perform()).status is ReceiptStatus.UNKNOWN
    await world.fault("stale_read", stale(), method="GET", path="git/ref/heads/content")
    lagging = await made.find()
    assert (lagging.verdict, lagging.proof_of_access) == (FindVerdict.MISSING, True)
    assert made.declaration.late_window_seconds > 0, "the ledger does not take this for absence before the window"
    await world.fault("stale_read", stale(), method="GET", path="git/ref/heads/content")
    again = await made.perform()
    assert again.status is CONFIRMED and again.result is not None
    assert again.result["branch_created"] is True
    assert len(await world.effects()) == 1


@pytest.mark.parametrize("mode", ["create", "append"])
async def test_a_branch_that_reads_do_not_show_is_a_doubt(world: GitHubWorld, target: Any, mode: str) -> None:
    """Requirements: X4. The write path says taken, no read shows by whom: it may be our own commit."""
    made = await prepared(world, target, ARCHIVE) if mode == "create" else (await on_branch(world, target))[0]
    branch = made.operation.payload["branch"]
    before = world.sandbox.store.now()
    world.sandbox.store.now = lambda: before + 10
    await world.fault("lose_answer", **world.writes)
    assert (await made.perform()).status is ReceiptStatus.UNKNOWN
    if mode == "append":
        await world.commit(branch, "more.md")
    await world.fault("stale_read", stale(5), times=9, method="GET", path=f"git/ref/heads/{branch}")
    doubt = await made.perform()
    assert (doubt.status, doubt.error_code) == (ReceiptStatus.UNKNOWN, "ref_not_visible")
    await world.heal()
    assert (await made.find()).verdict is FindVerdict.CONFIRMED
    assert len(await world.effects()) == 1


async def test_a_branch_taken_meanwhile_is_a_conflict(world: GitHubWorld, target: Any) -> None:
    """Requirements: I2. Somebody makes the branch between the look and the write: nothing of theirs is touched."""
    made = await prepared(world, target, ARCHIVE)
    await world.fault("delay", {"seconds": 1.5, "when": "inside"}, **world.writes)
    work = asyncio.create_task(made.perform())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await writes(world):
            await asyncio.sleep(0.01)
    theirs = await world.commit(made.operation.payload["branch"])
    outcome = await work
    assert ((outcome.status, outcome.error_class), outcome.error_code) == (BUSINESS, "foreign_object")
    again = await made.perform()
    assert ((again.status, again.error_class), again.error_code) == (BUSINESS, "foreign_object")
    assert theirs in (again.error_detail or "")
    assert world.head(made.operation.payload["branch"]) == theirs
    assert await world.effects_count() == 0


async def test_a_branch_moved_meanwhile_is_planned_again(world: GitHubWorld, target: Any) -> None:
    """Requirements: X5. "Not a fast forward" is known not to have happened; the next attempt stands on the new head."""
    made, _ = await on_branch(world, target)
    await world.fault("delay", {"seconds": 1.5, "when": "inside"}, **world.writes)
    work = asyncio.create_task(made.perform())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await writes(world):
            await asyncio.sleep(0.01)
    theirs = await world.commit(made.operation.payload["branch"], "more.md")
    outcome = await work
    assert ((outcome.status, outcome.error_class), outcome.error_code) == (TRANSIENT, "ref_moved")
    again = await made.perform()
    assert again.status is CONFIRMED and again.result is not None
    assert again.result["parent_sha"] == theirs
    assert made.sending.cursor is not None and len(made.sending.cursor["plans"]) == 2
    assert len(await world.effects()) == 1


async def test_a_bound_version_is_held(world: GitHubWorld, target: Any) -> None:
    """Requirements: I2. Whoever binds the branch's head gets a conflict where it is another one, also on a resend."""
    made, head = await on_branch(world, target)
    bound = made.operation.target.evolve(expected_version="0" * 40)
    made.operation = made.operation.evolve(target=bound)
    outcome = await made.perform()
    assert ((outcome.status, outcome.error_class), outcome.error_code) == (BUSINESS, "version_conflict")
    made.operation = made.operation.evolve(target=bound.evolve(expected_version=head))
    await world.fault("drop_before", **world.writes)
    assert (await made.perform()).status is ReceiptStatus.UNKNOWN
    await world.commit(made.operation.payload["branch"], "more.md")
    later = await made.perform()
    assert ((later.status, later.error_class), later.error_code) == (BUSINESS, "version_conflict")
    assert await world.effects_count() == 0


async def test_our_commit_below_others_is_still_ours(world: GitHubWorld, target: Any) -> None:
    """Requirements: E3, R8. Somebody commits on top before we look: found, healthy, and made once."""
    made = await prepared(world, target, ARCHIVE)
    payload = made.operation.payload
    await world.fault("lose_answer", **world.writes)
    assert (await made.perform()).status is ReceiptStatus.UNKNOWN
    await world.commit(payload["branch"], "other.md")
    finding = await made.find()
    assert (finding.verdict, finding.candidates) == (FindVerdict.CONFIRMED, 1)
    assert finding.result is not None and finding.result["branch_created"] is True
    commit, content = await made.probe(finding.result)
    assert (commit.value, content.value) == (finding.result["commit_sha"], finding.result["artifact_sha256"])
    assert commit.version == world.head(payload["branch"]) != commit.value
    assert (await made.perform()).status is CONFIRMED
    await world.commit(payload["branch"], payload["path"], "Overwritten")
    commit, content = await made.probe(finding.result)
    assert (commit.value, content.value) == (finding.result["commit_sha"], sha256_hex(b"Overwritten"))


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (403, {}, SECONDARY, (ErrorClass.TRANSIENT, "rate_limited", 2.0)),
        (403, {"retry-after": "7"}, SECONDARY, (ErrorClass.TRANSIENT, "rate_limited", 7.0)),
        (403, {"retry-after": "7"}, {"message": "Slow down"}, (ErrorClass.TRANSIENT, "rate_limited", 7.0)),
        (429, {}, SECONDARY, (ErrorClass.TRANSIENT, "rate_limited", 2.0)),
        (403, {}, {"message": "Resource not accessible by integration"}, (ErrorClass.PERMANENT, "forbidden", None)),
        (401, {}, {"message": "Bad credentials"}, (ErrorClass.PERMANENT, "unauthenticated", None)),
        (301, {"location": "/repositories/1"}, None, (ErrorClass.PERMANENT, "redirected", None)),
        (307, {"location": "/repositories/1"}, None, (ErrorClass.PERMANENT, "redirected", None)),
        (404, {}, {"message": "Not Found"}, (ErrorClass.PERMANENT, "not_found", None)),
        (422, {}, {"message": "Validation Failed"}, (ErrorClass.PERMANENT, "payload_invalid", None)),
        (422, {}, {"message": "Repository rule violations found"}, (ErrorClass.PERMANENT, "branch_protected", None)),
        (422, {}, {"message": "Reference update failed"}, (ErrorClass.TRANSIENT, "ref_update_failed", None)),
        (422, {}, {"message": "Object does not exist"}, (ErrorClass.TRANSIENT, "object_not_visible", None)),
        (409, {}, {"message": "Conflict"}, (ErrorClass.BUSINESS, "version_conflict", None)),
        (503, {}, {"message": "Unavailable"}, (ErrorClass.TRANSIENT, "unavailable", None)),
        (500, {}, {"message": "Server Error"}, (ErrorClass.UNKNOWN, "target_failed", None)),
        (502, {"content-type": "text/html"}, "<html>", (ErrorClass.UNKNOWN, "target_failed", None)),
    ],
)
async def test_what_an_answer_to_the_write_means(
    world: GitHubWorld, target: Any, status: int, headers: dict[str, str], body: Any, expected: tuple[Any, ...]
) -> None:
    """Requirements: X4, X5. GitHub's own words decide; a limit without an end waits for the connection's pause."""
    made = await prepared(world, target, ARCHIVE)
    await world.answer(status, headers, body)
    outcome = await made.perform()
    assert (outcome.error_class, outcome.error_code, outcome.retry_after_seconds) == expected
    assert outcome.external_status == str(status)
    await world.heal()
    if outcome.error_class in (ErrorClass.UNKNOWN, ErrorClass.TRANSIENT):
        assert (await made.perform()).status is CONFIRMED
        assert await world.effects_count() == 1


@pytest.mark.parametrize("step", ["", *OBJECTS])
@pytest.mark.parametrize(
    ("status", "code"), [(500, "target_failed"), (403, "rate_limited"), (502, "target_failed"), (409, None)]
)
async def test_trouble_before_the_effect_is_known_not_to_have_happened(
    world: GitHubWorld, target: Any, step: str, status: int, code: str | None
) -> None:
    """Requirements: X5. Reads and unreferenced objects: whatever goes wrong there, nothing has happened."""
    made = await prepared(world, target, ARCHIVE)
    match = {"method": "POST", "path": f"/git/{step}$"} if step else {"method": "GET", "path": "^/repos/acme/articles$"}
    await world.fault("status", {"status": status, "headers": {}, "body": SECONDARY}, **match)
    outcome = await made.perform()
    assert outcome.status is ReceiptStatus.REJECTED
    assert made.sending.sends_count == 0
    if code is not None:
        assert (outcome.error_class, outcome.error_code) == (ErrorClass.TRANSIENT, code)
        assert (await made.perform()).status is CONFIRMED


def test_a_spent_limit_waits_for_its_reset() -> None:
    """Requirements: X5. `x-ratelimit-reset` counts from the answer's own date; a pause is what is left without one."""
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1790000042", "date": "Mon, 21 Sep 2026 14:13:20 GMT"}
    body = b'{"message": "API rate limit exceeded for user ID 1."}'
    answer = Answer(403, {**headers, "content-type": "application/json"}, body)
    waited = outcome_of(answer, 60.0).retry_after_seconds
    assert waited == 42.0
    assert outcome_of(Answer(403, {"x-ratelimit-remaining": "0"}, b""), 60.0).retry_after_seconds == 60.0
    assert outcome_of(Answer(429, {"retry-after": "9", **headers}, body), 60.0).retry_after_seconds == 9.0
    plain = outcome_of(Answer(403, {"x-ratelimit-remaining": "17"}, b'{"message": "Must have admin rights"}'), 60.0)
    assert (plain.error_class, plain.retry_after_seconds) == (ErrorClass.PERMANENT, None)


async def test_without_a_setting_a_nameless_limit_waits_a_minute(world: GitHubWorld) -> None:
    """Requirements: X5. That is what GitHub asks for."""
    settings = {key: item for key, item in world.connection.settings.items() if key != "rate_limit_pause_seconds"}
    assert github.ADAPTER.open(replace(world.connection, settings=settings)).pause_seconds == 60.0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"access": "none"}, "not_found"),
        ({"access": "read"}, "forbidden"),
        ({"archived": True}, "repository_archived"),
        ({"default_branch": "trunk"}, "default_branch_missing"),
        ({"empty": True}, "repository_empty"),
    ],
)
async def test_a_repository_that_takes_nothing_is_permanent(
    world: GitHubWorld, target: Any, change: dict[str, Any], code: str
) -> None:
    """Requirements: X5. Found before the effect; nothing happened, and trying again is no use."""
    made = await prepared(world, target, ARCHIVE)
    await world.tamper(REPOSITORY, change)
    outcome = await made.perform()
    assert ((outcome.status, outcome.error_class), outcome.error_code) == (PERMANENT, code)
    assert made.sending.sends_count == 0
    assert not await writes(world)


async def test_a_wrong_token_and_a_reading_token_are_permanent(world: GitHubWorld) -> None:
    """Requirements: X5."""
    for token, code in (("wrong", "unauthenticated"), (world.connection.settings["read_token"], "forbidden")):
        target = github.ADAPTER.open(with_settings(world.connection, token=token))
        for command_type in (ARCHIVE, DELETE):
            outcome = await (await prepared(world, target, command_type)).perform()
            assert ((outcome.status, outcome.error_class), outcome.error_code) == (PERMANENT, code)
        await target.close()
    assert await world.effects_count() == 0


async def test_a_path_that_is_something_else_is_a_conflict(world: GitHubWorld, target: Any) -> None:
    """Requirements: I2. A directory is not replaced by a file, nor a file by a directory."""
    for path in ("articles", "README.md/part.md"):
        outcome = await (await prepared(world, target, ARCHIVE, path=path)).perform()
        assert ((outcome.status, outcome.error_class), outcome.error_code) == (BUSINESS, "path_taken")
    assert not await world.requests("POST")


@pytest.mark.parametrize("authored_at", ["2026-02-30T00:00:00Z", "2026-01-01T25:00:00Z"])
async def test_a_date_that_does_not_exist_is_permanent(world: GitHubWorld, target: Any, authored_at: str) -> None:
    """Requirements: X5. Such dates pass the pattern of the schema and are refused before anything is sent."""
    outcome = await (await prepared(world, target, ARCHIVE, authored_at=authored_at)).perform()
    assert ((outcome.status, outcome.error_class), outcome.error_code) == (PERMANENT, "payload_invalid")
    assert not await world.requests("POST")


async def test_a_target_that_rewrites_the_commit_gets_no_reference(world: GitHubWorld, target: Any) -> None:
    """Requirements: X6. What GitHub made is not what was meant: nothing points to it, so nothing happened."""
    made = await prepared(world, target, ARCHIVE)
    await world.fault("rewrite", {"field": "message", "find": "Archive", "replace": "archive"}, path="/git/commits")
    outcome = await made.perform()
    assert ((outcome.status, outcome.error_class), outcome.error_code) == (PERMANENT, "object_differs")
    assert await world.effects_count() == 0


async def test_reads_that_lag_leave_the_proof_to_the_window(world: GitHubWorld, target: Any) -> None:
    """Requirements: R4, X6. GitHub said done, its reads do not show it yet: success, and nothing called verified."""
    made = await prepared(world, target, ARCHIVE)
    reads = f"git/ref/heads/{made.operation.payload['branch']}"
    await world.fault("stale_read", stale(), times=4, method="GET", path=reads)
    outcome = await made.perform()
    assert (outcome.status, outcome.observations) == (CONFIRMED, ())
    assert all(item.window_seconds > 0 for item in made.declaration.establishes)
    assert [item.verdict for item in await made.probe(outcome.result)] == [ProbeVerdict.CONFIRMED] * 2


async def test_an_appended_commit_whose_branch_is_gone_is_ambiguous(world: GitHubWorld, target: Any) -> None:
    """Requirements: E3. Nobody can see whether the commit came before the end of the branch."""
    made, _ = await on_branch(world, target)
    await world.fault("drop_before", **world.writes)
    assert (await made.perform()).status is ReceiptStatus.UNKNOWN
    await world.tamper(f"{REPOSITORY}@{made.operation.payload['branch']}", {"delete": True})
    assert (await made.find()).verdict is FindVerdict.AMBIGUOUS


async def test_without_the_ledger_the_trailer_finds_the_commit(world: GitHubWorld, target: Any) -> None:
    """Requirements: E3, R10. The second rung; who made the branch is not known then, so it is nobody's to delete."""
    made = await prepared(world, target, ARCHIVE)
    outcome = await made.perform()
    assert outcome.result is not None
    made.sending.cursor = None
    finding = await made.find()
    assert (finding.verdict, finding.evidence) == (FindVerdict.CONFIRMED, "marker")
    assert finding.result is not None
    assert finding.result["commit_sha"] == outcome.result["commit_sha"]
    assert finding.result["branch_created"] is False


async def test_a_commit_that_only_bears_our_name_is_ambiguous(world: GitHubWorld, target: Any) -> None:
    """Requirements: E3. Rebased or copied by somebody: a fuzzy match is never "not found" and never ours."""
    made = await prepared(world, target, ARCHIVE)
    payload = made.operation.payload
    await world.fault("drop_before", **world.writes)
    assert (await made.perform()).status is ReceiptStatus.UNKNOWN
    message = f"Copied\n\nTrueup-Operation: {made.operation.command_id}"
    change = {"commit": {"path": payload["path"], "content": payload["content"], "message": message}}
    await world.tamper(f"{REPOSITORY}@{payload['branch']}", change)
    finding = await made.find()
    assert (finding.verdict, finding.reason) == (FindVerdict.AMBIGUOUS, "commit_rewritten")


async def test_what_is_hidden_is_not_missing(world: GitHubWorld, target: Any) -> None:
    """Requirements: E4. 404 of a repository that the token may not see proves nothing, for a look and for a probe."""
    made = await prepared(world, target, ARCHIVE)
    outcome = await made.perform()
    await world.tamper(REPOSITORY, {"access": "none"})
    finding = await made.find()
    assert (finding.verdict, finding.reason) == (FindVerdict.UNKNOWN, "no_proof_of_access")
    assert {item.reason for item in await made.probe(outcome.result)} == {"no_proof_of_access"}


async def test_a_repository_whose_branches_are_hidden_proves_nothing(world: GitHubWorld, target: Any) -> None:
    """Requirements: E4. The token sees the repository but not its contents: an absent branch may be a hidden one."""
    made = await prepared(world, target, ARCHIVE)
    outcome = await made.perform()
    await world.fault("deny_reads", times=9, method="GET", path="/git/ref/")
    finding = await made.find()
    assert (finding.verdict, finding.reason) == (FindVerdict.UNKNOWN, "no_proof_of_access")
    assert {item.reason for item in await made.probe(outcome.result)} == {"no_proof_of_access"}


async def test_a_success_that_names_another_commit_is_unknown(world: GitHubWorld, target: Any) -> None:
    """Requirements: X6. The reference points elsewhere as far as the answer says: looking tells."""
    made = await prepared(world, target, ARCHIVE)
    other = {"ref": "refs/heads/x", "object": {"sha": world.head("main"), "type": "commit"}}
    await world.fault("body", {"body": other}, **world.writes)
    outcome = await made.perform()
    assert (outcome.status, outcome.error_code) == (ReceiptStatus.UNKNOWN, "answer_contradictory")
    assert (await made.find()).verdict is FindVerdict.CONFIRMED


async def test_probes_share_one_look_and_tell_what_moved(world: GitHubWorld, target: Any) -> None:
    """Requirements: E4, R8. Two elements of a place cost two reads; a moved branch shows where it points now."""
    made = await prepared(world, target, ARCHIVE)
    outcome = await made.perform()
    before = len(await world.requests("GET"))
    observations = await made.probe(outcome.result)
    assert len(await world.requests("GET")) == before + 2
    assert [item.element for item in observations] == ["github.commit", "content.version"]
    assert all(item.source == "github.rest" and item.etag and item.proof_of_access for item in observations)
    main = world.head("main")
    await world.tamper(f"{REPOSITORY}@{made.operation.payload['branch']}", {"sha": main})
    commit, content = await made.probe(outcome.result)
    assert (commit.verdict, commit.value) == (ProbeVerdict.CONFIRMED, main)
    assert (content.verdict, content.proof_of_access) == (ProbeVerdict.MISSING, True)


async def test_an_element_that_nobody_knows_is_a_doubt(target: Any) -> None:
    """Requirements: E4."""
    wanted = [
        ProbeElement(element="github.stars", kind="github.branch", params={"repository": REPOSITORY, "branch": "main"}),
        ProbeElement(element="github.commit", kind="github.branch", params={}),
        ProbeElement(element="github.commit", kind="github.colour", params={"repository": "a/b", "branch": "main"}),
    ]
    assert {item.reason for item in await target.probe(wanted)} == {"element_unknown"}


async def compensated(world: GitHubWorld, target: Any) -> tuple[Bench, Bench]:
    """An archive, and the compensation that its declaration maps it to."""
    made = await prepared(world, target, ARCHIVE)
    outcome = await made.perform()
    compensation = made.declaration.compensation
    assert compensation is not None and compensation.command_type == DELETE and compensation.only_if is not None
    document = {"payload": made.operation.payload, "receipt": outcome.result}
    assert take(document, compensation.only_if) is True
    world.write_method = "DELETE"
    declaration = next(item for item in world.adapter.declarations if item.type == DELETE)
    payload = fill(document, compensation.payload)
    assert jsonschema_rs.validator_for(declaration.payload_schema).is_valid(payload)
    return made, Bench(world, declaration, target, Case(resource=REPOSITORY, payload=payload))


async def test_compensation_leaves_the_world_as_it_was(world: GitHubWorld, target: Any) -> None:
    """Requirements: S5, E1. The branch goes; the same elements now stand for its absence, on the same object."""
    refs = dict(world.repository.refs)
    made, back = await compensated(world, target)
    outcome = await back.perform()
    assert outcome.status is CONFIRMED and outcome.result is not None
    assert world.repository.refs == refs
    assert [item["action"] for item in await world.effects()] == ["create", "delete"]
    resource = f"{REPOSITORY}@{made.operation.payload['branch']}:{made.operation.payload['path']}"
    assert outcome.result["resource"] == resource
    assert [(item.element, item.value) for item in await back.probe(outcome.result)] == [
        ("github.commit", "absent"),
        ("content.version", "absent"),
    ]
    assert (await back.perform()).status is CONFIRMED
    assert len(await world.effects()) == 2


async def test_a_branch_that_moved_is_not_deleted(world: GitHubWorld, target: Any) -> None:
    """Requirements: I2. Work of others on the branch is never thrown away, and looking for the deletion says so."""
    made, back = await compensated(world, target)
    branch = made.operation.payload["branch"]
    theirs = await world.commit(branch, "more.md")
    outcome = await back.perform()
    assert ((outcome.status, outcome.error_class), outcome.error_code) == (BUSINESS, "version_conflict")
    assert (await back.find()).verdict is FindVerdict.MISSING
    assert world.head(branch) == theirs
    await world.tamper(f"{REPOSITORY}@{branch}", {"sha": world.head("main")})
    assert (await back.find()).verdict is FindVerdict.AMBIGUOUS
    assert [item["action"] for item in await world.effects()] == ["create"]


async def test_a_branch_that_is_gone_already_is_success_with_proof(world: GitHubWorld, target: Any) -> None:
    """Requirements: I1, E4. Asked of the write path, because a read may lag; without access it proves nothing."""
    made, back = await compensated(world, target)
    await world.tamper(f"{REPOSITORY}@{made.operation.payload['branch']}", {"delete": True})
    outcome = await back.perform()
    assert outcome.status is CONFIRMED
    assert [method for method, _ in await writes(world)] == ["POST", "PATCH"]
    assert [item["action"] for item in await world.effects()] == ["create"]
    await world.tamper(REPOSITORY, {"access": "none"})
    denied = await back.perform()
    assert ((denied.status, denied.error_class), denied.error_code) == (PERMANENT, "not_found")


async def test_a_branch_that_a_read_does_not_show_yet_is_deleted(world: GitHubWorld, target: Any) -> None:
    """Requirements: X6, E4. The read lags and shows no branch: the write path knows it, and it goes."""
    made, back = await compensated(world, target)
    branch = made.operation.payload["branch"]
    await world.fault("stale_read", stale(), method="GET", path=f"git/ref/heads/{branch}")
    assert (await back.perform()).status is CONFIRMED
    assert world.head(branch) is None
    assert [item["action"] for item in await world.effects()] == ["create", "delete"]
    second, again = await compensated(world, target)
    await world.commit(second.operation.payload["branch"], "more.md")
    place = f"git/ref/heads/{second.operation.payload['branch']}"
    await world.fault("stale_read", stale(), method="GET", path=place)
    outcome = await again.perform()
    assert ((outcome.status, outcome.error_class), outcome.error_code) == (BUSINESS, "version_conflict")


async def test_the_default_branch_is_never_deleted(world: GitHubWorld, target: Any) -> None:
    """Requirements: I2."""
    made = await prepared(world, target, DELETE, branch="main", expected_sha=world.head("main"))
    outcome = await made.perform()
    assert ((outcome.status, outcome.error_class), outcome.error_code) == (BUSINESS, "default_branch")
    assert not await writes(world)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"token": None}, "token"),
        ({"token": "two words"}, "token"),
        ({"read_token": ""}, "read_token"),
        ({"rate_limit_pause_seconds": -1}, "rate_limit_pause_seconds"),
        ({"rate_limit_pause_seconds": True}, "rate_limit_pause_seconds"),
        ({"base_url": "ftp://api.example"}, "base_url"),
    ],
)
async def test_unusable_settings_are_refused(world: GitHubWorld, settings: dict[str, Any], what: str) -> None:
    """Requirements: E6."""
    with pytest.raises(ValueError, match=what):
        github.ADAPTER.open(with_settings(world.connection, **settings))


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"path": "größe/à propos.md"}, True),
        ({"path": ".github/workflows/x.yml"}, False),
        ({"path": "a/.git/config"}, False),
        ({"path": "a/../b"}, False),
        ({"path": "/a"}, False),
        ({"path": "a//b"}, False),
        ({"branch": "content/a-1.2"}, True),
        ({"branch": "a..b"}, False),
        ({"branch": "a.lock"}, False),
        ({"branch": "/a"}, False),
        ({"branch": "refs/heads/a"}, False),
        ({"branch": "0123456789012345678901234567890123456789"}, False),
        ({"repository": "acme/articles"}, True),
        ({"repository": "acme"}, False),
        ({"repository": "acme/.."}, False),
        ({"repository": "acme/a/b"}, False),
        ({"message": "x\n\nTrueup-Operation: cmd_other"}, False),
        ({"message": " \n"}, False),
        ({"author": {"name": "A <b>", "email": "a@example.org"}}, False),
        ({"author": {"name": "..", "email": "a@example.org"}}, False),
        ({"author": {"name": "A"}}, False),
        ({"authored_at": "2026-01-01"}, False),
        ({"authored_at": "2026-01-01T00:00:00"}, False),
        ({"force": True}, False),
    ],
)
async def test_the_payload_schema_of_an_archive(world: GitHubWorld, change: dict[str, Any], fits: bool) -> None:
    """Requirements: X8. Nobody can bring another operation's trailer along, leave the tree, or touch hidden files."""
    payload = {**(await world.case(ARCHIVE)).payload, **change}
    declaration = next(item for item in github.ADAPTER.declarations if item.type == ARCHIVE)
    assert jsonschema_rs.validator_for(declaration.payload_schema).is_valid(payload) is fits


async def archived(world: GitHubWorld, target: Any) -> tuple[Bench, dict[str, Any], dict[str, Any]]:
    """An archived version, its receipt, and the payload of its declared repair."""
    made = await prepared(world, target, ARCHIVE)
    outcome = await made.perform()
    assert outcome.result is not None, outcome
    assert made.declaration.repair is not None
    document = {"payload": made.operation.payload, "receipt": outcome.result}
    return made, outcome.result, fill(document, made.declaration.repair.payload)


async def test_a_deleted_branch_holds_the_very_same_commit_again(world: GitHubWorld, target: Any) -> None:
    """Requirements: R3, S3. No new commit: the version keeps its name, and undoing the archiving still works."""
    made, receipt, payload = await archived(world, target)
    await world.tamper(f"{REPOSITORY}@{payload['branch']}", {"delete": True})
    repair = await prepared(world, target, RESTORE)
    repair.operation = repair.operation.evolve(payload=payload)
    outcome = await repair.perform()
    assert outcome.status is ReceiptStatus.CONFIRMED, outcome
    assert world.head(payload["branch"]) == receipt["commit_sha"]
    assert [item.value for item in await made.probe(receipt)] == [receipt["commit_sha"], receipt["artifact_sha256"]]
    written = await writes(world)
    assert (await repair.perform()).status is ReceiptStatus.CONFIRMED
    assert await writes(world) == written, "what stands is not made again"
    compensation = made.declaration.compensation
    assert compensation is not None
    undoing = await prepared(world, target, DELETE)
    undoing.operation = undoing.operation.evolve(
        payload=fill({"payload": made.operation.payload, "receipt": receipt}, compensation.payload)
    )
    assert (await undoing.perform()).status is ReceiptStatus.CONFIRMED
    assert world.head(payload["branch"]) is None


async def test_a_branch_of_somebody_else_is_not_moved(world: GitHubWorld, target: Any) -> None:
    """Requirements: R3, R9. The branch is there again, with other commits: two owners, and a person decides."""
    _, _, payload = await archived(world, target)
    await world.tamper(f"{REPOSITORY}@{payload['branch']}", {"delete": True})
    theirs = await world.commit(payload["branch"])
    repair = await prepared(world, target, RESTORE)
    repair.operation = repair.operation.evolve(payload=payload)
    outcome = await repair.perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (
        ReceiptStatus.REJECTED, ErrorClass.BUSINESS, "version_conflict",
    )  # fmt: skip
    assert world.head(payload["branch"]) == theirs
    finding = await repair.find()
    assert (finding.verdict, finding.reason) == (FindVerdict.AMBIGUOUS, "branch_differs")


async def test_a_commit_that_is_gone_for_good_is_said_to_be(world: GitHubWorld, target: Any) -> None:
    """Requirements: R3, X5. GitHub throws unreachable commits away some day: known not to have happened, for good."""
    repair = await prepared(world, target, RESTORE, branch="never/was", commit_sha="ab" * 20)
    outcome = await repair.perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (
        ReceiptStatus.REJECTED, ErrorClass.PERMANENT, "commit_gone",
    )  # fmt: skip
    assert world.head("never/was") is None


def test_declarations_name_what_they_establish() -> None:
    """Requirements: X8, R1. Classes and elements are those of the first command types' table and of the vector."""
    declared = {item.type: item for item in github.ADAPTER.declarations}
    assert {name: item.effect_class for name, item in declared.items()} == {
        ARCHIVE: EffectClass.COMPENSABLE,
        DELETE: EffectClass.RETRYABLE,
        RESTORE: EffectClass.RETRYABLE,
    }
    for item in declared.values():
        assert [element.element for element in item.establishes] == ["github.commit", "content.version"]
        assert item.late_window_seconds >= 10


async def test_what_is_probed_follows_from_the_receipt(world: GitHubWorld, target: Any) -> None:
    """Requirements: R1. Every parameter of a probe comes from payload and receipt, so that nothing else is needed."""
    made = await prepared(world, target, ARCHIVE)
    outcome = await made.perform()
    for element in elements_of(made.declaration, made.operation, outcome.result):
        assert set(element.params) == {"repository", "branch", "path", "commit_sha"}


async def listed(target: Any) -> dict[str, str]:
    """A whole survey: operation → commit."""
    found: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = await target.survey(cursor, {})
        found |= {mark.operation_id: mark.external_resource_id for mark in page.marks}
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_a_survey_lists_the_operations_that_commits_name_branch_by_branch(
    world: GitHubWorld, target: Any
) -> None:
    """Ours, a stranger's with our marker, and nothing of those who do not name one; however many branches there are.

    Requirements: R10
    """
    bench, _ = await on_branch(world, target)
    made = await bench.perform()
    assert made.status is CONFIRMED and made.result is not None
    ours = made.result["commit_sha"]
    for number in range(7):
        await world.commit(f"theirs/{number}")
    forged = {"path": "x.md", "content": "x", "message": "Copied\n\nTrueup-Operation: cmd_stranger"}
    theirs = (await world.tamper(f"{REPOSITORY}@restored", {"commit": forged}))["sha"]
    assert await listed(target) == {bench.operation.command_id: ours, "cmd_stranger": theirs}


async def test_a_survey_that_may_not_see_says_so_and_an_empty_repository_is_empty(world: GitHubWorld) -> None:
    """Requirements: R10, E4. Nothing is proved by a list that is not shown."""
    hidden = world.adapter.open(world.unreadable)
    with pytest.raises(EndsWith) as stopped:
        await hidden.survey(None, {})
    assert stopped.value.reason == "unauthenticated"
    await hidden.close()
    nowhere = world.adapter.open(with_settings(world.connection, repositories=[]))
    with pytest.raises(EndsWith) as unnamed:
        await nowhere.survey(None, {})
    assert unnamed.value.reason == NOT_SURVEYABLE
    await nowhere.close()
    several = world.adapter.open(with_settings(world.connection, repositories=[REPOSITORY, REPOSITORY]))
    first = await several.survey(None, {})
    assert first.next_cursor == "1:1"
    assert (await several.survey("7:1", {})).marks == ()
    await world.tamper(REPOSITORY, {"empty": True})
    assert (await several.survey("1:1", {})).next_cursor is None
    await several.close()
