"""The course of the demo: start a plane, send one command through faults, watch it to its end, collect what is true."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from trueup_common.contracts.shape import rfc3339
from trueup_common.runtime.clock import real_now
from trueup_devkit import plane
from trueup_devkit.demo.facts import Facts
from trueup_devkit.demo.telling import Teller, entry_of, exception_entry, moment
from trueup_devkit.demo.world import FAULTS, SYSTEM, World
from trueup_devkit.gateway_client import Answer, GatewayClient
from trueup_devkit.history_check import find_break
from trueup_devkit.plan import Plan
from trueup_devkit.sample import load_article
from trueup_devkit.state_folder import PlaneNotRunningError, PlaneState, ProcessState
from trueup_devkit.told import ToldError
from trueup_devkit.watching import Watched, follow

TENANT = "acme"
VICTIM = "orchestrator"
COMMAND_TYPE = "wordpress.create_draft"
UNDECIDED = frozenset({"OUTCOME_UNKNOWN", "ORPHAN_SUSPECTED", "RECONCILING"})
DEADLINE_MINUTES = 10
FOLLOW_SECONDS = 120.0
POLL_SECONDS = 0.08
AFTERMATH_SECONDS = 15.0
STOP_SECONDS = 30.0


class Demo:
    """One run on one state folder."""

    def __init__(self, state_dir: Path, port: int, teller: Teller) -> None:
        self.plan = Plan(state_dir=str(state_dir), port=port)
        self.teller = teller
        self.facts = Facts()
        self._said: set[str] = set()
        self._killed: ProcessState | None = None
        self._restarted = self._returned = False
        self._exceptions_told: set[tuple[str, str]] = set()

    # -- the plane ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the whole plane; nothing of the caller's own TRUEUP_* settings reaches it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRUEUP_")}
        state = plane.start_detached(self.plan, environment, on_progress=self._note_progress)
        self._note_progress(state)
        self.gateway = GatewayClient(state.gateway_url)
        self.world = World(str(state.sandbox_url))
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

    def _process(self, name: str) -> ProcessState | None:
        state = self.plan.folder.read_state()
        return next((process for process in state.processes if process.name == name), None) if state else None

    # -- the command ----------------------------------------------------------------------------------------------

    def authorize(self) -> str:
        """Token, decision, capability: each over HTTP, each told."""
        self.operator = GatewayClient(self.gateway.url)
        self.operator.token = self.operator.dev_token("operator:demo", TENANT, ["viewer"], [], 3600)
        agent = "agent:publisher"
        self.gateway.token = self.gateway.dev_token(agent, TENANT, ["agent"], [], 3600)
        self._tell("agent", f"POST /dev/token → access token for {agent} of tenant {TENANT}")
        purpose = "publish article 0028 as a draft"
        decision = self.gateway.decide([COMMAND_TYPE], {"system": SYSTEM, "resource": "post/*"}, purpose)
        risk = decision.get("risk") or {}
        policies = ", ".join(decision.get("determining_policies") or []) or "no policy"
        self._tell(
            "gateway",
            f"POST /v1/decisions → {decision['outcome']} by {policies} (risk {risk.get('level')} {risk.get('score')})",
        )
        if decision["outcome"] != "approved":
            raise ToldError(f"the decision {decision['decision_id']} is {decision['outcome']}")
        capability = self.gateway.capability(decision["decision_id"], 1, 300)
        self._tell("gateway", f"POST /v1/capabilities → {capability['capability_id']}, good for one command")
        return str(capability["capability"])

    def submit(self, capability: str) -> None:
        """Order the faults, then send the article as one command."""
        article = load_article()
        for fault in FAULTS:
            self.world.order(fault)
        self._tell("demo", "ordered in the sandbox: lose the answer of the POST, then 503 to two look-ups")
        self._tell("demo", f"the article: {article['title']!r}, {len(article['content'])} characters of HTML")
        self.command = {
            "idempotency_key": "article:0028:draft:v1",
            "command_type": COMMAND_TYPE,
            "target": {"system": SYSTEM, "resource": "post", "expected_version": None},
            "payload": article,
            "deadline": rfc3339(real_now() + timedelta(minutes=DEADLINE_MINUTES)),
            "correlation_id": "demo",
        }
        self.capability = capability
        answer = self.gateway.submit(self.command, capability)
        self.accepted: dict[str, Any] = answer.body
        self.facts.workflow_id = self.accepted["workflow_id"]
        self._tell(
            "agent",
            f"POST /v1/commands, key {self.command['idempotency_key']} → {answer.status}"
            f" {self.accepted['state']} {self.accepted['command_id']}",
        )

    def repeat(self, why: str) -> None:
        """Send the same command again under the same key; the answer must be the stored one."""
        answer: Answer = self.gateway.submit(self.command, self.capability)
        marked = answer.headers.get("idempotent-replayed") == "true"
        same = all(answer.body.get(name) == self.accepted[name] for name in ("command_id", "workflow_id", "saga_id"))
        self.facts.replays.append((answer.status, marked, same))
        told = "the stored answer, same ids, no capability used up" if marked and same else "NOT the stored answer"
        self._tell("agent", f"{why}: same command, same key → {answer.status} {answer.body.get('state')}, {told}")

    # -- watching -------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Follow the case to its end, and kill the orchestrator once the outcome is unknown."""
        self.watched = Watched(self.gateway, self.facts.workflow_id)
        follow(self.watched, self._look, FOLLOW_SECONDS, POLL_SECONDS)

    def _look(self, events: list[dict[str, Any]]) -> None:
        self.facts.case, self.facts.command = self.watched.case, self.watched.command
        for request in self.world.new_faulty_requests():
            told = next((fault.told for fault in FAULTS if fault.fault == request["fault"]), request["fault"])
            self.teller.tell(moment(request["at"]), "FAULT", told)
        for effect in self.world.new_effects():
            text = f"effect {effect['seq']}: {effect['kind']} {effect['object']} {effect['action']}"
            self.teller.tell(moment(effect["at"]), "world", f"{text} (the ground truth; the plane cannot see this)")
        for event in events:
            self.teller.add(entry_of(event))
        self._look_at_exceptions()
        state = str(self.watched.command.get("state"))
        if self._killed is None and state in UNDECIDED:
            self._kill(state)
        elif self._killed is not None and not self._returned:
            self._note_return(self._killed)

    def _look_at_exceptions(self) -> None:
        found = [item for status in ("open", "closed") for item in self.operator.items("/v1/exceptions", status=status)]
        self.facts.exceptions = [item for item in found if item.get("workflow_id") == self.facts.workflow_id]
        for item in self.facts.exceptions:
            for status in ("open", str(item["status"])):  # it may have been opened and closed between two looks
                if (item["exception_id"], status) not in self._exceptions_told:
                    self._exceptions_told.add((item["exception_id"], status))
                    self.teller.add(exception_entry({**item, "status": status}))

    def _kill(self, state: str) -> None:
        victim = self._process(VICTIM)
        if victim is None or victim.pid <= 0:
            return
        os.kill(victim.pid, signal.SIGKILL)
        self._killed = victim
        self._tell("FAULT", f"SIGKILL to the {VICTIM} (pid {victim.pid}) while the operation is {state}")
        self.repeat("the agent grows impatient")

    def _note_return(self, killed: ProcessState) -> None:
        victim = self._process(VICTIM)
        if victim is None or victim.pid in (0, killed.pid) or victim.restarts <= killed.restarts:
            return
        if not self._restarted:
            self._restarted = True
            self._tell("supervisor", f"saw the {VICTIM} end and started it again (pid {victim.pid})")
        if victim.ready:
            self._returned = True
            self._tell("supervisor", f"the {VICTIM} is back and goes on from its rows")

    # -- the end --------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Everything that the summary says, asked from the system itself."""
        facts = self.facts
        self.repeat("the agent asks once more after the end")
        _until(self._views_caught_up)
        facts.events = list(self.operator.history(facts.workflow_id))
        facts.history_broken = find_break(facts.events, facts.workflow_id, TENANT)
        facts.posts = self.world.posts_of(self.accepted["command_id"], TENANT)

    def count(self) -> None:
        """The numbers of the last line, as far as there is anybody to ask."""
        state = self.plan.folder.read_state()
        self.facts.restarts = sum(process.restarts for process in state.processes) if state else 0
        deaths = self._deaths()
        self.facts.faults = {"sigkill": deaths} if deaths else {}
        if state is not None and state.sandbox_url and self.plan.folder.is_running():
            with contextlib.suppress(ToldError):
                world = World(state.sandbox_url)
                self.facts.effects = world.effects()
                self.facts.faults = {**world.faults_met(), **self.facts.faults}

    def _views_caught_up(self) -> bool:
        """Elements and exceptions reach the gateway on their own ways, a moment after the case itself."""
        self._look(self.watched.look())
        facts = self.facts
        healthy = [element.get("phase") == "HEALTHY" for element in facts.case.get("vector") or []]
        seen = healthy and all(healthy) and facts.exceptions and not facts.open_exceptions()
        return facts.status != "CLOSED" or bool(seen)

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
