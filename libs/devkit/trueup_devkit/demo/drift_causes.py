"""What breaks in the drift demo, and how: by faults, by edits of an outsider, by a signal; never through the plane."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from trueup_common.runtime.clock import real_now
from trueup_devkit.demo.business_clock import Clock
from trueup_devkit.demo.run import REPOSITORY, Demo
from trueup_devkit.demo.scenarios import PlannedFault
from trueup_devkit.demo.troubles import Trouble
from trueup_devkit.demo.worker import Worker
from trueup_devkit.gateway_client import GatewayClient
from trueup_devkit.told import ToldError

COUNT: Final = 6
RECORD: Final = "drift:worker"
COMPENSATION: Final = "compensation"
WORKER: Final = "worker"
PATIENCE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.1
HANG_SECONDS: Final = 20
_LASTING: Final = 1000
"""Requests: until the faults are taken away."""
_FORBIDDEN: Final = {
    "code": "rest_cannot_delete",
    "message": "Sorry, you are not allowed to delete this post.",
    "data": {"status": 403},
}
_RIGHT_LOST: Final = PlannedFault(
    *("wordpress", "status", "DELETE", r"/wp-json/wp/v2/posts/\d+$"),
    times=_LASTING,
    params={"status": 403, "body": _FORBIDDEN},
)
_CREDENTIAL_EXPIRED: Final = PlannedFault(
    *("github", "status", "POST", r"/git/"),
    times=_LASTING,
    params={"status": 401, "body": {"message": "Bad credentials"}},
)
_COMMIT_HANGS: Final = PlannedFault(
    *("database", "delay", "COMMIT", r"^/acme/"), params={"seconds": HANG_SECONDS, "when": "after"}
)


class Causes:
    """Breaks things and remembers when."""

    def __init__(self, demo: Demo, operator: GatewayClient, clock: Clock, worker: Worker) -> None:
        self.troubles: list[Trouble] = []
        self.cancelled = ""
        """The second article's case, which is to be undone."""
        self._demo = demo
        self._operator = operator
        self._clock = clock
        self._worker = worker
        self._control = GatewayClient(str(demo.plan.folder.running_state().sandbox_url))

    def lose_a_right(self) -> None:
        """A second article is cancelled before anybody approved it; the account may not delete its draft any more."""
        name = self._begin_second()
        self._until(lambda: self._reason(name) == "approval", "the second article waits for an editor")
        self._demo.world.order(_RIGHT_LOST)
        matches = {"workflow_id": name, "kind": "compensation_failed"}
        told = "the account loses the right to delete posts (403), just when the draft of the second article must go"
        self._broken(COMPENSATION, "undoing fails (403)", matches, told)
        self._operator.cancel(name, "withdrawn by its author")
        self._tell("operator", f"POST /v1/workflows/{name}/cancel")
        self.cancelled = name
        self._until(self._compensation_is_told, "the refused compensation is an exception")

    def kill_a_worker(self) -> None:
        """The effect is there, its answer is on its way, and the process that waits for it dies for good."""
        self._demo.world.order(_COMMIT_HANGS)
        payload = {"business_key": RECORD, "record": {"note": "written while its worker dies"}}
        command = self._command("database.record_publication", f"publication/{RECORD}", payload)
        self._until(lambda: self.records_count() > 0, "the record is written")
        told = f"{self._worker.name} dies between its effect and the answer, and again whenever it comes back"
        self._broken(WORKER, "a worker dies", {"command_id": command}, told)
        self._worker.kill()

    def expire_a_credential(self) -> None:
        """One system refuses every write for a while."""
        self._demo.world.order(_CREDENTIAL_EXPIRED)
        payload = {
            "repository": REPOSITORY,
            "branch": "notes/credential",
            "path": "notes/credential.html",
            "content": "<p>Written while the token was expired.</p>",
            "message": "Archive a note",
            "author": self._demo.article["author"],
            "authored_at": self._demo.article["authored_at"],
        }
        command = self._command("github.archive_version", REPOSITORY, payload)
        told = "the token for GitHub has expired: every write is answered with 401"
        self._broken("credential", "a credential expires", {"command_id": command}, told)

    def edit_the_world(self) -> None:
        """An outsider edits three systems behind the plane's back."""
        effects = self._demo.world.effects()
        objects = {(effect["kind"], effect["action"]): str(effect["object"]) for effect in reversed(effects)}
        check, post = objects["monitoring.check", "create"], objects["wordpress.post", "publish"]
        page, slug = self._demo.world.listings()[0], self._demo.article["slug"]
        self._edit("monitoring", check, {"delete": True})
        self._drifted("monitoring", "the check disappears", f"an outsider removes the check {check}")
        self._edit("cloudflare", page, {"body": "<p>yesterday's list</p>", "age_seconds": 60})
        self._drifted("cloudflare", "a cached page is stale", f"the cache shows an old page again: {page}")
        self._edit("wordpress", post, {"status": "trash", "slug": f"{slug}__trashed"})
        self._drifted("wordpress", "the post is trashed", f"an outsider moves the published post {post} to the trash")

    def give_back(self) -> None:
        """The right and the credential are there again."""
        self._control.call("DELETE", "/_faults")
        self._tell("world", "the token is renewed, and the account may delete posts again")

    def records_count(self) -> int:
        """How often the record of the worker that died stands in the customer's database."""
        effects = self._demo.world.effects()
        return sum(effect["object"].endswith(f"/{RECORD}") for effect in effects)

    def _begin_second(self) -> str:
        article = self._demo.article
        other = {**article, "article_id": f"{article['article_id']}-b", "slug": f"{article['slug']}-b"}
        agent, purpose = self._demo.gateway, "publish a second article"
        definition = str(self._demo.request["definition"])
        decision = agent.decide_workflow(definition, None, purpose)
        capability = agent.capability(decision["decision_id"], 1, 300)["capability"]
        key = f"article-{other['article_id']}"
        request = {**self._demo.request, "idempotency_key": key, "input": other, "purpose": purpose}
        name = str(agent.start(request, capability).body["workflow_id"])
        self._tell("agent", f"POST /v1/workflows → {name}, a second article")
        return name

    def _reason(self, workflow_id: str) -> Any:
        return (self._operator.get(f"/v1/workflows/{workflow_id}").get("wait") or {}).get("reason")

    def _compensation_is_told(self) -> bool:
        return any(self.troubles[0].fits(item) for item in self._operator.items("/v1/exceptions", status="open"))

    def _command(self, command_type: str, resource: str, payload: Mapping[str, Any]) -> str:
        target = {"system": command_type.partition(".")[0], "resource": resource}
        agent = self._demo.gateway
        decision = agent.decide([command_type], target, f"write {resource}")
        capability = agent.capability(decision["decision_id"], 1, 300)["capability"]
        command = {"idempotency_key": resource, "command_type": command_type, "target": target, "payload": payload}
        answer = agent.submit(command, capability)
        self._tell("agent", f"POST /v1/commands {command_type} → {answer.status} {answer.body['command_id']}")
        return str(answer.body["command_id"])

    def _edit(self, system: str, name: str, change: Mapping[str, Any]) -> None:
        self._control.call("POST", "/_tamper", {"system": system, "object": name, "change": change})

    def _drifted(self, system: str, what: str, told: str) -> None:
        self._broken(system, what, {"kind": "state_drift", "target_system": system}, told)

    def _broken(self, name: str, what: str, matches: Mapping[str, str], told: str) -> None:
        self.troubles.append(Trouble(name, what, matches, self._clock.now()))
        self._tell("FAULT", told)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise ToldError(f"it did not come to this: {what}")
            time.sleep(POLL_SECONDS)

    def _tell(self, who: str, text: str) -> None:
        self._demo.teller.tell(real_now(), who, text)
