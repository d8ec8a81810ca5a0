"""A purge of many batches on real processes: its worker dies in the third one, its successor goes on from there."""

from typing import Any

from tests.system.plane import Plane, eventually, http
from trueup_devkit.sandbox.systems.cloudflare import ZONES


def test_a_purge_goes_on_where_its_worker_died(plane: Plane) -> None:
    """95 URLs: two batches confirmed and in the ledger, SIGKILL in the third, then only three and four are sent.

    Requirements: E5, E2, X4, R7
    """
    systems = http("GET", f"{plane.sandbox_url}/").body["systems"]
    urls = [f"{systems['wordpress']}/acme/category/topic-{number}/" for number in range(95)]
    # Faults are consumed in their order: the first two batches pass, the third one never gets through.
    plane.fault("delay", method="POST", path="/purge_cache$", system="cloudflare", times=2, seconds=0)
    plane.fault("delay", method="POST", path="/purge_cache$", system="cloudflare", seconds=3000)
    asked = len(plane.requests("cloudflare", "POST", "/purge_cache$"))
    before = len(plane.effects("cloudflare.purge"))
    payload = {"zone_id": ZONES["acme"], "urls": urls}
    capability = plane.capability("cloudflare.purge", "zone")
    answer = plane.submit(capability, "purge:resume", "cloudflare.purge", "zone", payload)
    assert answer.status in (200, 202), answer

    def purges() -> int:
        return len(plane.requests("cloudflare", "POST", "/purge_cache$")) - asked

    eventually(lambda: purges() >= 3 or None, "the third batch is under way")
    plane.kill("adapters")
    case = plane.closed(answer.body["workflow_id"], seconds=120)
    assert case["steps"][0]["state"] == "SUCCESS"
    assert purges() == 5
    assert len(plane.effects("cloudflare.purge")) == before + 4
    receipt = plane.journal(answer.body["command_id"])
    assert receipt["attempt_count"] == 2


def test_a_purge_gets_through_everything_that_an_api_answers(plane: Plane) -> None:
    """One batch refused under 200, one with 503, one with 429, the last answer lost: closed, and every batch applied.

    Requirements: X4, X5, E3, E5
    """
    systems = http("GET", f"{plane.sandbox_url}/").body["systems"]
    urls = [f"{systems['wordpress']}/acme/tag/topic-{number}/" for number in range(95)]
    before = len(plane.effects("cloudflare.purge"))
    refused = {"success": False, "errors": [{"code": 10001, "message": "purging failed"}], "result": None}

    def order(fault: str, **params: Any) -> None:
        plane.fault(fault, method="POST", path="/purge_cache$", system="cloudflare", **params)

    order("delay", seconds=0)
    order("status", status=200, body=refused)
    order("status", status=503, body="busy")
    order("delay", seconds=0)
    order("status", status=429, headers={"retry-after": "1"}, body=refused)
    order("delay", seconds=0)
    order("lose_answer")
    payload = {"zone_id": ZONES["acme"], "urls": [*urls, *urls]}
    capability = plane.capability("cloudflare.purge", "zone")
    answer = plane.submit(capability, "purge:faults", "cloudflare.purge", "zone", payload)
    assert answer.status in (200, 202), answer
    plane.closed(answer.body["workflow_id"], seconds=90)
    assert len(plane.effects("cloudflare.purge")) == before + 4
    assert plane.journal(answer.body["command_id"])["attempt_count"] == 4
