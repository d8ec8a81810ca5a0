"""The main path on real processes, exactly as the HTTP contract words it."""

from tests.system.plane import Plane, eventually, http
from trueup_common.contracts.history import GENESIS, verify
from trueup_common.contracts.journal import HistoryEvent


def test_one_command_becomes_one_verified_closed_effect(plane: Plane) -> None:
    """Accepted, done once, read back, closed; the journal, the case, the history and the world agree.

    Requirements: G1, X1, X2, X3, X6, L4, R1
    """
    answer = plane.draft("main-path")
    assert answer.status == 202
    assert answer.headers["location"] == answer.body["links"]["self"]
    assert answer.body["state"] == "RECEIVED"
    command_id, workflow_id = answer.body["command_id"], answer.body["workflow_id"]
    case = plane.closed(workflow_id)
    assert case["steps"][0]["state"] == "SUCCESS"
    assert case["obligations"] == []
    assert {item["element"] for item in case["vector"]} >= {"wordpress.status", "wordpress.content"}
    assert {item["phase"] for item in case["vector"]} == {"HEALTHY"}
    row = plane.journal(command_id)
    assert row["state"] == "SUCCESS"
    assert row["attempt_count"] == 1
    assert len(row["attempts"]) == 1
    assert row["receipt"]["post_id"] is not None
    assert row["trace_id"]
    posts = plane.posts_of(command_id)
    assert [post["slug"] for post in posts] == ["main-path"]
    history = plane.get(f"/v1/workflows/{workflow_id}/history").body["items"]
    events = [HistoryEvent.model_validate({"tenant": "acme", "workflow_id": workflow_id, **event}) for event in history]
    assert len(events) >= 2
    assert events[0].prev_hash == GENESIS
    assert verify(events) is None


def test_the_same_command_again_is_answered_not_repeated(plane: Plane) -> None:
    """Three times the same key and payload: one effect, the same ids, and the stored result once it is terminal.

    Requirements: I1, I2
    """
    first = plane.draft("again")
    plane.closed(first.body["workflow_id"])
    for _ in range(2):
        replay = plane.draft("again")
        assert replay.status == 200
        assert replay.headers["idempotent-replayed"] == "true"
        assert replay.body["command_id"] == first.body["command_id"]
    assert len(plane.posts_of(first.body["command_id"])) == 1


def test_another_key_for_the_same_business_identity_is_pointed_to_the_first(plane: Plane) -> None:
    """A random key per attempt cannot double a draft.

    Requirements: I2
    """
    first = plane.draft("one-identity", key="key-1")
    plane.closed(first.body["workflow_id"])
    second = plane.draft("one-identity", key="key-2")
    assert second.status == 409
    assert second.body["type"] == "/problems/identity-in-use"
    assert first.body["command_id"] in str(second.body)


def test_prefer_wait_answers_with_the_terminal_row(plane: Plane) -> None:
    """Requirements: F1"""
    answer = plane.draft("waited", prefer="wait=60")
    assert answer.status == 200
    assert answer.body["state"] == "SUCCESS"


def test_a_lost_answer_is_looked_up_never_repeated(plane: Plane) -> None:
    """The site stores the draft and the answer is lost; two look-ups fail; then it is found. One post.

    Requirements: X4, E2, E3
    """
    plane.fault("lose_answer", method="POST", path="/posts$")
    plane.fault("status", method="GET", path="search=", times=2, status=503, body={})
    answer = plane.draft("lost-answer")
    case = plane.closed(answer.body["workflow_id"])
    row = plane.journal(answer.body["command_id"])
    assert case["status"] == "CLOSED"
    assert row["state"] == "SUCCESS"
    assert row["attempt_count"] == 1
    assert len(plane.posts_of(row["command_id"])) == 1
    types = [event["type"] for event in plane.get(f"/v1/workflows/{row['workflow_id']}/history").body["items"]]
    assert "SettlementFinished" in types


def test_only_transient_failures_are_retried_and_a_retry_is_a_new_attempt(plane: Plane) -> None:
    """503 before anything was done: retried under a new fence, with a grant of its own.

    Requirements: X5, I4
    """
    plane.fault("status", method="POST", path="/posts$", times=2, status=503, headers={"Retry-After": "1"}, body={})
    answer = plane.draft("transient")
    plane.closed(answer.body["workflow_id"])
    row = plane.journal(answer.body["command_id"])
    assert row["attempt_count"] == 3
    assert len({attempt["attempt_id"] for attempt in row["attempts"]}) == 3
    assert len(plane.posts_of(row["command_id"])) == 1


def test_a_permanent_refusal_becomes_an_owned_exception(plane: Plane) -> None:
    """403 from the site: failed at once, without retry; the exception has owner, deadline, class and envelope.

    Requirements: X5, Q2, Q3, Q4
    """
    plane.fault("status", method="POST", path="/posts$", status=403, body={"code": "rest_cannot_create"})
    answer = plane.draft("refused", prefer="wait=60")
    assert answer.body["state"] == "FAILED"
    row = plane.journal(answer.body["command_id"])
    assert row["error_class"] == "permanent"
    assert row["attempt_count"] == 1
    operator = plane.token("operator:olga", roles=("operator", "viewer"))

    def found() -> dict[str, object] | None:
        items = plane.get("/v1/exceptions?status=open", operator).body["items"]
        return next((item for item in items if item["command_id"] == row["command_id"]), None)

    item = eventually(found, "the exception is listed")
    assert item["kind"] == "failed"
    assert item["owner"] == "operators"
    assert item["deadline_at"]
    assert item["failure_class"] == "PERMISSION_ERROR"
    envelope = item["envelope"]
    assert isinstance(envelope, dict)
    assert envelope["command_id"] == row["command_id"]
    assert envelope["failure_code"] == row["error_code"]
    case = plane.get(f"/v1/workflows/{row['workflow_id']}").body
    assert case["status"] == "HUMAN_TAKEOVER"


def test_an_unknown_system_type_or_tenant_is_told_as_such(plane: Plane) -> None:
    """Requirements: F1"""
    capability = plane.capability("wordpress.create_draft", "post")
    payload = {"title": "t", "content": "c", "slug": "s"}
    answer = plane.submit(capability, "k-unknown", "wordpress.invent", "post", payload)
    assert (answer.status, answer.body["type"]) == (422, "/problems/unknown-command-type")


def test_authority_for_one_post_touches_no_other(plane: Plane) -> None:
    """A capability for one draft changes that draft; under none of its labels does it reach another one, and a draft
    has no second place to be made in.

    Requirements: G3, G4, G5, S6, E2
    """
    made = []
    for slug in ("object-a", "object-b"):
        answer = plane.draft(slug)
        plane.closed(answer.body["workflow_id"])
        made.append(plane.journal(answer.body["command_id"])["receipt"])
    own, other = made
    before = [plane.posts(slug) for slug in ("object-a", "object-b")]
    capability = plane.capability("wordpress.update_post", f"post/{own['post_id']}")
    for label in (f"post/{own['post_id']}", "post", f"post/{other['post_id']}"):
        payload = {
            "post_id": other["post_id"],
            "content": "<p>Taken over.</p>",
            "expected_modified_gmt": other["modified_gmt"],
        }
        refused = plane.submit(capability, f"reach:{label}", "wordpress.update_post", label, payload)
        assert (refused.status, refused.body["check"]) == (403, "resource"), refused
    drafting = plane.capability("wordpress.create_draft", "*")
    twin = {"title": "Twin", "content": "<p>Twin.</p>", "slug": "object-a"}
    refused = plane.submit(drafting, "reach:twin", "wordpress.create_draft", "post/other", twin)
    assert (refused.status, refused.body["type"]) == (409, "/problems/identity-in-use"), refused
    assert [plane.posts(slug) for slug in ("object-a", "object-b")] == before
    payload = {
        "post_id": own["post_id"],
        "content": "<p>As permitted.</p>",
        "expected_modified_gmt": own["modified_gmt"],
    }
    target = f"post/{own['post_id']}"
    accepted = plane.submit(capability, "reach:own", "wordpress.update_post", target, payload)
    plane.closed(accepted.body["workflow_id"])
    assert plane.journal(accepted.body["command_id"])["target_resource"] == target


def test_a_title_that_the_site_rewrote_is_no_healthy_end(plane: Plane) -> None:
    """Content and marker are right, the title is not: done, but not as desired, so a person's and not closed.

    Requirements: X6, L15
    """
    plane.fault("rewrite", method="POST", path="/posts$", field="title", replace="Somebody's title")
    answer = plane.draft("retitled")
    workflow_id = answer.body["workflow_id"]
    told = eventually(lambda: plane.exceptions(workflow_id) or None, "a person is told")
    case = plane.case(workflow_id)
    phases = {item["element"]: item["phase"] for item in case["vector"]}
    assert phases.pop("wordpress.fields") == "DRIFT"
    assert set(phases.values()) == {"HEALTHY"}
    assert case["status"] != "CLOSED", told


def test_another_tenant_sees_nothing(plane: Plane) -> None:
    """Requirements: T1"""
    answer = plane.draft("private")
    plane.closed(answer.body["workflow_id"])
    stranger = plane.token(tenant="globex")
    operator = plane.token("operator:gina", tenant="globex", roles=("operator", "viewer", "auditor"))
    for path in (f"/v1/commands/{answer.body['command_id']}", f"/v1/workflows/{answer.body['workflow_id']}"):
        assert plane.get(path, stranger).status == 404
        assert plane.get(path, operator).status == 404
    assert plane.get("/v1/workflows", operator).body["items"] == []


def test_documentation_works_offline_and_names_every_route(plane: Plane) -> None:
    """No page of /docs refers to another host, and the OpenAPI document is 3.1.

    Requirements: F1
    """
    document = http("GET", f"{plane.url}/openapi.json").body
    assert document["openapi"].startswith("3.1")
    assert "/v1/commands" in document["paths"]
    page = http("GET", f"{plane.url}/docs").body
    assert "swagger" in page.lower()
    assert "https://" not in page
    assert "cdn" not in page.lower()


def test_a_freeze_holds_new_effects_within_seconds(plane: Plane) -> None:
    """A frozen system: acceptance is refused, and lifting the freeze lets work pass again.

    Requirements: G6
    """
    admin = plane.token("operator:ada", roles=("admin", "operator"))
    headers = {"authorization": f"Bearer {admin}", "idempotency-key": '"freeze-1"'}
    body = {"scope": {"tenant": "acme", "system": "wordpress"}, "reason": "drill", "expires_at": None}
    made = http("POST", f"{plane.url}/v1/controls/freezes", body, headers=headers)
    assert made.status in (200, 201), made
    capability_refused = plane.draft("frozen")
    assert capability_refused.status == 403
    assert capability_refused.body["check"] == "frozen"
    lifted = http(
        "DELETE",
        f"{plane.url}/v1/controls/freezes/{made.body['freeze_id']}",
        headers={**headers, "idempotency-key": '"thaw-1"'},
    )
    assert lifted.status in (200, 204), lifted
    answer = plane.draft("thawed")
    plane.closed(answer.body["workflow_id"])
