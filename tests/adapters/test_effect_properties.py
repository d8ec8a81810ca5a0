"""Any order of tasks, finds, outcomes, redeliveries, lost commits, crashes and time: the effect happens at most once.

The world here tells the truth when it is asked, loses answers and requests, and acts late within its declared window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.adapters.builders import DECLARATION, Process, answers, execute, find
from tests.adapters.memory import START, Ledger

from trueup_adapters.core.effect import LedgerStatus
from trueup_adapters.core.job import Finished, Looked, LookJob, SendJob, Sent
from trueup_common.contracts.adapter import confirmed, not_sent, rejected, unknown
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.states import ErrorClass, FindVerdict
from trueup_common.contracts.task import ExecuteTask, FindTask, Receipt

FATES = ["refused", "busy", "permanent", "done", "answer lost", "request lost", "late", "late and hung", "hung"]
SEEN = ["truth", "denied", "unproven"]
COMMAND = "cmd_1"


@dataclass
class Outside:
    """What really happened, and what is still on its way."""

    effects: list[str] = field(default_factory=list)
    coming: list[tuple[datetime, str]] = field(default_factory=list)
    open_attempts: set[str] = field(default_factory=set)
    """Attempts that left and of which nobody proved anything yet."""

    def pass_time(self, now: datetime) -> None:
        """Late effects land."""
        landed = [item for item in self.coming if item[0] <= now]
        self.effects += [attempt for _, attempt in landed]
        self.coming = [item for item in self.coming if item[0] > now]


class EffectMachine(RuleBasedStateMachine):
    """Two replicas over one ledger."""

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger()
        self.incarnations = 2
        self.processes = [Process(self.ledger, "adapters-1#1"), Process(self.ledger, "adapters-2#2")]
        self.finished: list[tuple[Process, Finished]] = []
        self.outside = Outside()
        self.fence = 0
        self.tasks: list[ExecuteTask | FindTask] = []
        self.confirmed_receipt: Receipt | None = None
        self.highest = 0

    def _deliver(self, process: Process, *tasks: ExecuteTask | FindTask, settle: bool = True) -> None:
        self._heed(process.deliver(*tasks, settle=settle))

    def _heed(self, outgoing: Any) -> None:
        """Whoever hears MISSING may have the operation sent again: from here the earlier attempts count as absent."""
        for answer in answers(outgoing):
            if answer.finding.verdict is FindVerdict.MISSING:
                assert answer.finding.proof_of_access
                self.outside.open_attempts.clear()

    @rule(replica=st.integers(0, 1), is_find=st.booleans(), settle=st.booleans(), decided=st.booleans())
    def new_task(self, replica: int, is_find: bool, settle: bool, decided: bool) -> None:
        self.fence += 1
        task: ExecuteTask | FindTask = (
            find(self.fence)
            if is_find
            else execute(self.fence, now=self.ledger.now, decided_by="opc_1" if decided else None)
        )
        self.tasks.append(task)
        self._deliver(self.processes[replica], task, settle=settle)
        if not settle:
            self._replace(replica)

    @precondition(lambda self: self.tasks)
    @rule(replica=st.integers(0, 1), picks=st.lists(st.integers(0, 50), min_size=1, max_size=4))
    def redeliver(self, replica: int, picks: list[int]) -> None:
        chosen = [self.tasks[pick % len(self.tasks)] for pick in picks]
        self._deliver(self.processes[replica], *chosen)

    @precondition(lambda self: any(process.jobs for process in self.processes))
    @rule(pick=st.integers(0, 50), fate=st.sampled_from(FATES), seen=st.sampled_from(SEEN), late=st.floats(0, 0.99))
    def run_job(self, pick: int, fate: str, seen: str, late: float) -> None:
        jobs = [(process, job) for process in self.processes for job in process.jobs]
        process, job = jobs[pick % len(jobs)]
        process.jobs.remove(job)
        if isinstance(job, SendJob):
            result = self._transmit(process, job, fate, late)
        else:
            assert isinstance(job, LookJob)
            result = self._look(job, seen)
        if result is not None:
            self.finished.append((process, result))

    def _transmit(self, process: Process, job: SendJob, fate: str, late: float) -> Finished | None:
        attempt = job.attempt.attempt_id
        if process.monotonic() > job.send_by_seconds:
            return Sent(job, not_sent("send_by_passed"))
        if fate == "refused":
            return Sent(job, rejected(ErrorClass.TRANSIENT, "connection_refused"))
        others = self.outside.open_attempts - {attempt}
        assert not others, "sent although an earlier attempt may have acted and nobody proved that it did not"
        if fate in ("busy", "permanent"):
            error_class = ErrorClass.TRANSIENT if fate == "busy" else ErrorClass.PERMANENT
            return Sent(job, rejected(error_class, fate))
        self.outside.open_attempts.add(attempt)
        if fate in ("done", "answer lost"):
            self.outside.effects.append(attempt)
        if fate.startswith("late"):
            left = job.attempt.late_until - self.ledger.now
            self.outside.coming.append((self.ledger.now + left * late, attempt))
        if fate == "done":
            return Sent(job, confirmed({"id": attempt}))
        return None if fate.endswith("hung") else Sent(job, unknown("timeout"))

    def _look(self, job: LookJob, seen: str) -> Finished:
        effects = self.outside.effects
        if seen == "denied":
            return Looked(job, Finding(verdict=FindVerdict.UNKNOWN, reason="denied"))
        if not effects:
            return Looked(job, Finding(verdict=FindVerdict.MISSING, proof_of_access=seen == "truth"))
        verdict = FindVerdict.CONFIRMED if len(effects) == 1 else FindVerdict.AMBIGUOUS
        return Looked(job, Finding(verdict=verdict, proof_of_access=True, candidates=len(effects), result={"id": "x"}))

    @precondition(lambda self: self.finished)
    @rule(pick=st.integers(0, 50), count=st.integers(1, 3), again=st.booleans())
    def finish(self, pick: int, count: int, again: bool) -> None:
        process, result = self.finished[pick % len(self.finished)]
        batch = [result]
        batch += [item for owner, item in self.finished if owner is process and item is not result][: count - 1]
        self._heed(process.finish(*batch))
        if not again:
            self.finished = [(owner, item) for owner, item in self.finished if item not in batch]

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0, 15.0, 60.0]))
    def pass_time(self, seconds: float) -> None:
        self.ledger.now += timedelta(seconds=seconds)
        self.outside.pass_time(self.ledger.now)

    @rule(replica=st.integers(0, 1))
    def scan(self, replica: int) -> None:
        self.processes[replica].look_around()

    @rule(replica=st.integers(0, 1))
    def crash(self, replica: int) -> None:
        self._replace(replica)

    @rule(presumes=st.booleans())
    def presume(self, presumes: bool) -> None:
        self.ledger.presumes = presumes

    @rule()
    def lose_the_next_commit(self) -> None:
        self.ledger.lose_commits = 1

    def _replace(self, replica: int) -> None:
        dead = self.processes[replica]
        self.finished = [(owner, item) for owner, item in self.finished if owner is not dead]
        self.incarnations += 1
        self.processes[replica] = Process(self.ledger, f"adapters-{replica + 1}#{self.incarnations}")

    @invariant()
    def once(self) -> None:
        assert len(self.outside.effects) + len(self.outside.coming) <= 1

    @invariant()
    def the_ledger_holds_its_word(self) -> None:
        row = self.ledger.effects.get(COMMAND)
        if row is None:
            return
        assert row.fence >= self.highest
        self.highest = row.fence
        assert row.fence >= row.sent_fence
        if row.status is LedgerStatus.CONFIRMED:
            assert row.receipt is not None
            assert row.receipt.status.value == "CONFIRMED"
            if self.confirmed_receipt is None:
                self.confirmed_receipt = row.receipt
            assert row.receipt == self.confirmed_receipt
        else:
            assert self.confirmed_receipt is None, "a confirmed effect never becomes anything else"
        if row.status is LedgerStatus.SENT:
            assert row.look_at is not None
            assert row.send_by is not None
            assert row.attempt_id is not None


TestEffect = EffectMachine.TestCase
TestEffect.__doc__ = "Requirements: I1, E2, E5, X4, P3."
TestEffect.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_the_machine_starts_at_the_builders_time() -> None:
    """The machine's late effects stay within the window that the builders' declaration names."""
    assert Ledger().now == START
    assert DECLARATION.late_window_seconds > 0
