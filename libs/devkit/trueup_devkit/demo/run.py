"""The course of a demo: start a plane, start one workflow, see it through faults to its end, collect what is true."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trueup_common.runtime.clock import real_now
from trueup_devkit import plane
from trueup_devkit.demo.casualties import Casualties, Casualty
from trueup_devkit.demo.editor import Editor
from trueup_devkit.demo.facts import Facts
from trueup_devkit.demo.scenarios import PlannedFault, Scenario
from trueup_devkit.demo.sentences import Entry, entry_of, exception_entry, moment
from trueup_devkit.demo.telling import Teller
from trueup_devkit.demo.world import World
from trueup_devkit.gateway_client import Answer, GatewayClient
from trueup_devkit.history_check import find_break
from trueup_devkit.plan import Plan
from trueup_devkit.sample import load_article
from trueup_devkit.state_folder import PlaneNotRunningError, PlaneState
from trueup_devkit.told import ToldError
from trueup_devkit.watching import Watched, follow, steps_in_short, wait_in_short

TENANT: Final = "acme"
AGENT: Final = "agent:publisher"
REPOSITORY: Final = "acme/articles"
DEFINITION: Final = "seo-article-publish"
FOLLOW_SECONDS: Final = 150.0
POLL_SECONDS: Final = 0.08
AFTERMATH_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0


class Demo:
    """One run on one state folder."""

    def __init__(self, scenario: Scenario, state_dir: Path, port: int, teller: Teller) -> None:
        self.plan = Plan(state_dir=str(state_dir), port=port)
        self.teller = teller
        self.facts = Facts(scenario)
        planned = [Casualty(name, when) for name, when in scenario.kills.items()]
        self.casualties = Casualties(self.plan.folder, teller, planned)
        self._scenario = scenario
        self._silent = frozenset((fault.system, fault.fault) for fault in scenario.faults if not fault.told)
        self._said: set[str] = set()
        self._exceptions_told: set[tuple[str, str]] = set()
        self._effects: list[dict[str, Any]] = []
        self._met: Counter[int] = Counter()
        self._told_steps: tuple[Any, ...] = ()

    # -- the plane ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the whole plane; nothing of the caller's own TRUEUP_* settings reaches it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRUEUP_")}
        state = plane.start_detached(self.plan, environment, on_progress=self._note_progress)
        self._note_progress(state)
        self.gateway = GatewayClient(state.gateway_url)
        self.world = World(str(state.sandbox_url), TENANT)
        self.teller.say(f"gateway {state.gateway_url}, sandbox world {state.sandbox_url}")

    def _note_progress(self, state: PlaneState) -> None:
        for process in state.processes:
            if process.ready and process.name not in self._said:
                self._said.add(process.name)
                self.teller.tell(real_now(), "supervisor", f"{process.name} ready (pid {process.pid})")

    def stop(self) -> None:
        """Stop everything that runs on the folder, also a plane that had not finished starting."""
        deadline = time.monotonic() + STOP_SECONDS
        while self.plan.folder.is_running():
            try:
                plane.stop(self.plan.folder)
            except PlaneNotRunningError:  # its state is not written yet; it will be, or it ends by itself
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)

    # -- the start ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Fill the cache as visitors do, and order everything that is to go wrong."""
        from trueup_devkit.sandbox.systems.cloudflare import ZONES
        from trueup_devkit.sandbox.systems.web import web_url

        listings = self.world.listings()
        for url in listings:
            self.world.visit(url)
        self._tell("demo", f"visitors have filled the cache: {len(listings)} lists and feeds, all without the article")
        for fault in self._scenario.faults:
            self.world.order(fault)
        told = sum(fault.times for fault in self._scenario.faults if fault.told)
        self._tell("demo", f"ordered in the sandbox: {told} requests that will go wrong")
        self.article = load_article(
            repository=REPOSITORY,
            zone_id=ZONES[TENANT],
            urls=listings,
            web=web_url(self.world.urls["wordpress"]),
        )
        size = len(self.article["content"])
        self._tell("demo", f"the article: {self.article['title']!r}, {size} characters of HTML")

    def authorize(self) -> str:
        """Token, decision, capability: each over HTTP, each told."""
        self.operator = GatewayClient(self.gateway.url)
        self.operator.token = self.operator.dev_token("operator:demo", TENANT, ["viewer"], [], 3600)
        self.gateway.token = self.gateway.dev_token(AGENT, TENANT, ["agent"], [], 3600)
        self.editor = Editor(self.gateway.url, TENANT, self.gateway, self.world, self.teller)
        self._tell("agent", f"POST /dev/token → access token for {AGENT} of tenant {TENANT}")
        decision = self.gateway.decide_workflow(DEFINITION, None, f"publish article {self.article['article_id']}")
        risk, policies = decision.get("risk") or {}, ", ".join(decision.get("determining_policies") or [])
        owed = [f"{item.get('kind')} of {item.get('scope')}" for item in decision.get("obligations") or []]
        self._tell(
            "gateway",
            f"POST /v1/decisions → {decision['outcome']} by {policies or 'no policy'}"
            f" (risk {risk.get('level')} {risk.get('score')}), owed: {', '.join(owed) or 'nothing'}",
        )
        if decision["outcome"] != "approved":
            raise ToldError(f"the decision {decision['decision_id']} is {decision['outcome']}")
        capability = self.gateway.capability(decision["decision_id"], 1, 300)
        self._tell("gateway", f"POST /v1/capabilities → {capability['capability_id']}, good for one start")
        return str(capability["capability"])

    def submit(self, capability: str) -> None:
        """Start the workflow."""
        self.request = {
            "idempotency_key": f"article-{self.article['article_id']}-v{self.article['version']}",
            "definition": DEFINITION,
            "version": None,
            "input": self.article,
            "purpose": f"publish article {self.article['article_id']}",
            "max_actions": 20,
            "source_version": f"v{self.article['version']}",
            "stage": "live",
            "on_terminal": "return",
        }
        self.capability = capability
        answer = self.gateway.start(self.request, capability)
        self.accepted: dict[str, Any] = answer.body
        self.facts.workflow_id = self.accepted["workflow_id"]
        key = self.request["idempotency_key"]
        self._tell("agent", f"POST /v1/workflows, key {key} → {answer.status} {self.facts.workflow_id}")

    def repeat(self, why: str) -> None:
        """Send the same start again under the same key; the answer must name the same case."""
        answer: Answer = self.gateway.start(self.request, self.capability)
        marked = answer.headers.get("idempotent-replayed") == "true"
        same = all(answer.body.get(name) == self.accepted[name] for name in ("workflow_id", "saga_id"))
        self.facts.replays.append((answer.status, marked, same))
        told = "the same case, no capability used up" if marked and same else "NOT the same case"
        self._tell("agent", f"{why}: same start, same key → {answer.status} {answer.body.get('state')}, {told}")

    # -- watching -------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Follow the case to its end: answer as the editor, kill whom the scenario kills."""
        self.watched = Watched(self.gateway, self.facts.workflow_id)
        self.teller.lag()
        follow(self.watched, self._look, FOLLOW_SECONDS, POLL_SECONDS)

    def _look(self, events: list[dict[str, Any]]) -> None:
        self.facts.case = self.watched.case
        entries = [*self._news_of_world(), *(entry_of(event) for event in events), *self._news_of_exceptions()]
        for entry in entries:
            self.teller.add(entry)
        self.teller.look()
        self._tell_steps()
        if (self.facts.case.get("wait") or {}).get("reason") == "approval":
            self.editor.look(self.facts.workflow_id)
        if "orchestrator" in self.casualties.look(self.facts.case, self._effects):
            self.repeat("the agent grows impatient")

    def _news_of_world(self) -> list[Entry]:
        requests, effects = self.world.new_faulty_requests(), self.world.new_effects()
        self._effects += effects
        entries = []
        for request in requests:
            fault = self._fault_of(request)
            if fault is None or (fault.told and self._is_felt(fault)):
                text = fault.told if fault else f"{request['system']}: {request['fault']} {request['path']}"
                entries.append(Entry(moment(request["at"]), "FAULT", text))
        for effect in effects:
            what = f"{effect['kind']} {effect['action']}: {effect['object']}"
            entries.append(Entry(moment(effect["at"]), "world", f"effect {effect['seq']}, {what}"))
        return entries

    def _fault_of(self, request: dict[str, Any]) -> PlannedFault | None:
        """The fault that a request met: of several that fit, the first one that is not used up."""
        for fault in self._scenario.faults:
            if fault.fits(request) and self._met[id(fault)] < fault.times:
                self._met[id(fault)] += 1
                return fault
        return None

    def _is_felt(self, fault: PlannedFault) -> bool:
        return fault.after_effect is None or any(effect["kind"] == fault.after_effect for effect in self._effects)

    def _tell_steps(self) -> None:
        """All steps in one line, whenever one of them begins, waits or ends."""
        case = self.facts.case
        phases = [step.get("phase") for step in case.get("steps") or []]
        undone = [step.get("compensation_state") for step in case.get("steps") or []]
        now = (phases, undone, case.get("status"))
        if phases and now != self._told_steps:
            self._told_steps = now
            self._tell("steps", f"{steps_in_short(case)}  | {self.facts.status}{wait_in_short(case)}")

    def _news_of_exceptions(self) -> list[Entry]:
        found = [item for status in ("open", "closed") for item in self.operator.items("/v1/exceptions", status=status)]
        self.facts.exceptions = [item for item in found if item.get("workflow_id") == self.facts.workflow_id]
        entries = []
        for item in self.facts.exceptions:
            for status in ("open", str(item["status"])):  # it may have been opened and closed between two looks
                if (item["exception_id"], status) not in self._exceptions_told:
                    self._exceptions_told.add((item["exception_id"], status))
                    entries.append(exception_entry({**item, "status": status}))
        return entries

    # -- the end --------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Everything that the summary says, asked from the system itself and from the world."""
        facts = self.facts
        self.repeat("the agent asks once more after the end")
        _until(self._views_caught_up)
        facts.commands = [self.operator.get(f"/v1/commands/{command_id}") for command_id in self._command_ids()]
        facts.events = list(self.operator.history(facts.workflow_id))
        facts.history_broken = find_break(facts.events, facts.workflow_id, TENANT)
        branch = f"articles/{self.article['article_id']}/v{self.article['version']}"
        facts.standing = self.world.standing(self.article["title"], self.article["slug"], REPOSITORY, branch)

    def count(self) -> None:
        """The numbers of the last line, as far as there is anybody to ask."""
        state = self.plan.folder.read_state()
        self.facts.restarts = sum(process.restarts for process in state.processes) if state else 0
        self.facts.kills = self.casualties.killed
        deaths = self._deaths()
        self.facts.faults = {"sigkill": deaths} if deaths else {}
        if state is not None and state.sandbox_url and self.plan.folder.is_running():
            with contextlib.suppress(ToldError):
                world = World(state.sandbox_url, TENANT)
                self.facts.effects = world.effects()
                self.facts.faults = {**world.faults_met(self._silent), **self.facts.faults}

    def _command_ids(self) -> list[str]:
        rows = [*(self.facts.case.get("steps") or []), *(self.facts.case.get("compensations") or [])]
        return [str(row["command_id"]) for row in rows if row.get("command_id")]

    def _views_caught_up(self) -> bool:
        """Elements and exceptions reach the gateway on their own ways, a moment after the case itself."""
        self._look(self.watched.look())
        facts = self.facts
        healthy = all(element.get("phase") == "HEALTHY" for element in facts.case.get("vector") or [])
        settled = facts.failure_of_exceptions() is None
        return facts.status != self._scenario.result or (healthy and settled and self.casualties.all_returned)

    def _deaths(self) -> int:
        """Processes that the supervisor saw ending by SIGKILL."""
        with contextlib.suppress(FileNotFoundError):
            log = self.plan.folder.log("supervisor").read_text(encoding="utf-8", errors="replace")
            return log.count(f"ended with exit code {-signal.SIGKILL.value};")
        return 0

    def _tell(self, who: str, text: str) -> None:
        self.teller.tell(real_now(), who, text)


def _until(condition: Callable[[], bool]) -> None:
    """Wait for what must come; what does not come shows in the facts."""
    deadline = time.monotonic() + AFTERMATH_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
