"""Mutants of loop, inbox, outbox, relay and compare-and-set: how messages and rows may get lost or doubled."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, Seeds

RUNTIME: Final = "libs/common/trueup_common/runtime"
ORDER: Final = "tests/common/test_loop_order.py"
LOOP: Final = "tests/common/test_loop.py"

LOOPS: Final = (
    Mutant(
        name="ack-before-commit",
        law="commit, publish, ack: in this order",
        rows="M1 M2",
        file=f"{RUNTIME}/host.py",
        old="            messages, outgoing = await self._commit(",
        new=(
            "            for delivery in batch:\n                await delivery.ack()\n"
            "            messages, outgoing = await self._commit("
        ),
        killers=(f"{ORDER}::test_commit_publish_ack_then_act", Seeds(100, theme="crashes", sagas=False)),
    ),
    Mutant(
        name="publish-before-commit",
        law="only what was committed is published",
        rows="M1",
        file=f"{RUNTIME}/host.py",
        old="                        await tx.post(outgoing)",
        new=(
            "                        await self.publisher.publish(outgoing)\n"
            "                        await tx.post(outgoing)"
        ),
        killers=(f"{ORDER}::test_commit_publish_ack_then_act", Seeds(100)),
    ),
    Mutant(
        name="outbox-skipped",
        law="outgoing messages are committed with the state that causes them",
        rows="M1",
        file=f"{RUNTIME}/host.py",
        old="                        await tx.post(outgoing)",
        new="                        pass",
        killers=(f"{ORDER}::test_commit_publish_ack_then_act", Seeds(60)),
    ),
    Mutant(
        name="inbox-duplicate-processed",
        law="a message that the inbox knows has no second effect",
        rows="M1 I1",
        file=f"{RUNTIME}/host.py",
        old="(fresh is not None and message.id not in fresh):",
        new="(fresh is None and not message.id):",
        killers=(f"{ORDER}::test_what_the_inbox_knows_is_only_acked", Seeds(100, theme="echo", sagas=False)),
    ),
    Mutant(
        name="twins-in-one-batch",
        law="a message that comes twice in one batch is processed once",
        rows="M1",
        file=f"{RUNTIME}/host.py",
        old="        seen.add(message.id)\n",
        new="",
        killers=(f"{ORDER}::test_what_the_inbox_knows_is_only_acked",),
    ),
    Mutant(
        name="busy-store-counts-as-poison",
        law="a busy store is repeated inside the loop and never counts as a failure",
        rows="M2",
        file=f"{RUNTIME}/host.py",
        old="            except StoreBusy as busy:",
        new="            except TooEarly as busy:",
        killers=(f"{ORDER}::test_a_busy_store_is_repeated_and_counts_no_failure",),
    ),
    Mutant(
        name="poison-takes-its-neighbours",
        law="a failed batch runs again one by one; only who fails alone is counted",
        rows="M3",
        file=f"{RUNTIME}/host.py",
        old="            if len(batch) > 1:",
        new="            if len(batch) > BATCH_MAX:",
        killers=(f"{ORDER}::test_poison_fails_alone_and_is_kept_at_the_limit",),
    ),
    Mutant(
        name="poison-dropped",
        law="a message that cannot be processed is kept with its bytes and owned",
        rows="M3",
        file=f"{RUNTIME}/host.py",
        old="                        await tx.quarantine(self.source.name, message, reason)",
        new="                        log.error(reason)",
        killers=(f"{ORDER}::test_poison_fails_alone_and_is_kept_at_the_limit",),
    ),
    Mutant(
        name="poison-retried-for-ever",
        law="at the limit of failures a message is quarantined",
        rows="M3",
        file=f"{RUNTIME}/host.py",
        old=">= FAILURES_MAX",
        new="> 1000 * FAILURES_MAX",
        killers=(f"{ORDER}::test_poison_fails_alone_and_is_kept_at_the_limit",),
    ),
    Mutant(
        name="a-lost-race-repeated-for-ever",
        law="a batch that loses every race is taken apart, and holds up nothing behind it",
        rows="M2",
        file=f"{RUNTIME}/host.py",
        old="if conflicts >= CONFLICTS_MAX:",
        new="if conflicts >= 1000 * CONFLICTS_MAX:",
        killers=(f"{ORDER}::test_a_batch_that_loses_every_race_is_taken_apart",),
    ),
    Mutant(
        name="tick-published-before-commit",
        law="what time brings is published after its commit, too",
        rows="M1",
        file=f"{RUNTIME}/timers.py",
        old="                await tx.post(outgoing)",
        new="                await self.publisher.publish(outgoing)\n                await tx.post(outgoing)",
        killers=(f"{ORDER}::test_a_tick_commits_then_publishes", Seeds(100)),
    ),
)

RELAY: Final = (
    Mutant(
        name="marked-before-published",
        law="an outbox row is marked only once the broker confirmed it",
        rows="M1 M2",
        file=f"{RUNTIME}/timers.py",
        old="            await tx.mark_sent(self.publisher.take_confirmed())",
        new="            await tx.mark_sent([message.id for message in messages])",
        killers=(f"{ORDER}::test_the_relay_marks_only_what_the_broker_confirmed", Seeds(100)),
    ),
    Mutant(
        name="confirmed-forgotten-by-a-busy-store",
        law="what could not be marked now is marked later",
        rows="M2",
        file=f"{RUNTIME}/timers.py",
        old="            self.publisher.confirmed.extend(confirmed)",
        new="            confirmed.clear()",
        killers=(f"{ORDER}::test_a_busy_store_leaves_the_marks_for_later",),
    ),
    Mutant(
        name="emptied-stream-not-noticed",
        law="a stream that goes back has lost messages: they are sent again",
        rows="M2",
        file=f"{RUNTIME}/timers.py",
        old="count = await tx.forget_sent() if reset else 0",
        new="count = 0",
        killers=(f"{LOOP}::test_an_emptied_stream_is_filled_again", Seeds(100)),
    ),
    Mutant(
        name="relay-takes-rows-by-cursor",
        law="the relay takes every unsent row, also one that commits late under a lower number",
        rows="M2 M1",
        file=f"{RUNTIME}/mail.py",
        old="  SELECT id FROM outbox_unsent WHERE created_at < now() - make_interval(secs => $1)\n",
        new=(
            "  SELECT id FROM outbox_unsent WHERE created_at < now() - make_interval(secs => $1)\n"
            "  AND id > coalesce((SELECT max(o.id) FROM outbox AS o WHERE NOT EXISTS (\n"
            "    SELECT 1 FROM outbox_unsent AS u WHERE u.id = o.id)), 0)\n"
        ),
        killers=(f"{LOOP}::test_a_row_that_commits_late_under_a_lower_number_is_relayed",),
    ),
    Mutant(
        name="unconfirmed-taken-for-sent",
        law="a publication that the broker refused stays in the outbox",
        rows="M2",
        file=f"{RUNTIME}/bus.py",
        old="            if not refusal:",
        new="            if refusal is not None:",
        killers=("tests/common/test_publisher.py::test_what_the_broker_refuses_is_left_to_the_relay",),
    ),
    Mutant(
        name="foreseen-told-after-a-change",
        law="who has begun to write sees what he wrote, whatever the claim told before",
        rows="M2",
        file=f"{RUNTIME}/mail.py",
        old="        if told is not None and not self.connection.begun:",
        new="        if told is not None:",
        killers=("tests/common/test_foreseen.py::test_what_was_foreseen_is_not_told_after_a_change",),
    ),
    Mutant(
        name="unpublished-purged",
        law="old mail is deleted only once it was published",
        rows="M2",
        file=f"{RUNTIME}/mail.py",
        old="\n    AND NOT EXISTS (SELECT 1 FROM outbox_unsent AS u WHERE u.id = oldest.id))",
        new=")",
        killers=(f"{LOOP}::test_mail_that_nobody_confirmed_is_never_purged",),
    ),
)

ROWS: Final = (
    Mutant(
        name="last-writer-wins",
        law="rows move by compare-and-set: the loser reloads",
        rows="X7 M1",
        file=f"{RUNTIME}/rows.py",
        old="""guard = f' AND t."{version}" = r."{version}" - 1' if version else "\"""",
        new='guard = ""',
        killers=("tests/common/test_rows.py::test_another_version_than_the_next_is_a_conflict_and_keeps_nothing",),
    ),
    Mutant(
        name="older-view-replaces-newer",
        law="a projection never goes back, whatever the order of events",
        rows="M2 P3",
        file=f"{RUNTIME}/rows.py",
        old="""newer = f' WHERE t."{version}" < excluded."{version}"' if version else "\"""",
        new='newer = ""',
        killers=("tests/common/test_rows.py::test_an_older_row_never_replaces_a_newer_one",),
    ),
    Mutant(
        name="rows-written-in-any-order",
        law="rows are written in key order, so that batches never deadlock",
        rows="M2",
        file=f"{RUNTIME}/rows.py",
        old="        ordered = sorted(rows, key=self.key_of)\n        return Write(",
        new="        ordered = list(rows)\n        return Write(",
        killers=("tests/common/test_rows.py::test_updates_name_their_rows_in_key_order",),
    ),
    Mutant(
        name="needed-sessions-closed",
        law="a session that is needed again and again stays open; one that only a burst needed does not",
        rows="B5",
        file=f"{RUNTIME}/db.py",
        old="            self._spare = min(self._spare, len(self._at_hand))\n",
        new="",
        killers=("tests/common/test_foreseen.py::test_sessions_that_only_a_burst_needed_are_closed_after_it",),
    ),
    Mutant(
        name="statement-alone-keeps-half",
        law="a statement that is a transaction by itself keeps nothing where one row moved first",
        rows="M1 X7",
        file=f"{RUNTIME}/rows.py",
        old="    IF counted[i] <> wanted[i] THEN\n",
        new="    IF counted[i] > wanted[i] THEN\n",
        killers=("tests/common/test_rows.py::test_a_statement_alone_keeps_all_or_nothing",),
    ),
    Mutant(
        name="claim-not-checked",
        law="of two replicas with one message, one keeps what it did",
        rows="M2",
        file=f"{RUNTIME}/mail.py",
        old='len(fresh), "inbox", plain=_CLAIM))',
        new='None, "inbox", plain=_CLAIM))',
        killers=(f"{LOOP}::test_of_two_replicas_with_one_message_one_keeps_what_it_did",),
    ),
    Mutant(
        name="earlier-send-taken-for-ones-own",
        law="a row tells which transaction it is of: who lost the answer of his commit starts nobody else's attempt",
        rows="I1 E2",
        file="services/adapters/trueup_adapters/handler.py",
        old="self._proposed.get(task.attempt_id) == row.sent_at and not begins",
        new="task.attempt_id in self._proposed and not begins",
        killers=("tests/adapters/test_effect.py::test_a_first_attempt_that_is_presumed_to_be_new_is_sent_once",),
    ),
    Mutant(
        name="governance-presumed-for-good",
        law="what is presumed of governance is compared where the use is counted",
        rows="G6",
        file="services/gateway/trueup_gateway/store/acceptance.py",
        old=" AND ($4::bigint IS NULL OR (SELECT epoch FROM gateway.governance) = $4)",
        new=" AND ($4::bigint IS NULL OR $4 > 0)",
        killers=(
            "tests/gateway/test_acceptance.py::test_what_is_presumed_of_a_known_capability_is_checked_where_it_is_used",
        ),
    ),
    Mutant(
        name="presumed-and-never-checked",
        law="where nothing is saved, nothing checks what was presumed of a case",
        rows="D5",
        file="services/orchestrator/trueup_orchestrator/desk.py",
        old="        if presumed and len(decisions) < len(sealed):\n",
        new="        if False:\n",
        killers=("tests/orchestrator/test_memory.py::test_who_presumes_an_old_case_loses_and_keeps_nothing",),
    ),
    Mutant(
        name="statement-outside-its-transaction",
        law="a transaction begins with its first statement, and all of it ends as one",
        rows="M1",
        file=f"{RUNTIME}/db.py",
        old="            await self._transaction.__aenter__()\n",
        new="",
        killers=("tests/common/test_rows.py::test_a_transaction_begins_with_its_first_statement",),
    ),
    Mutant(
        name="lost-session-as-poison",
        law="a session that the server killed says nothing about the message",
        rows="M2",
        file=f"{RUNTIME}/db.py",
        old="    asyncpg.InterfaceError,\n",
        new="",
        killers=(f"{LOOP}::test_sessions_that_the_server_kills_are_busy_not_poison",),
    ),
)

BOUNDS: Final = (
    Mutant(
        name="queued-not-counted",
        law="a backlog waits with the broker, not in memory",
        rows="B5",
        file=f"{RUNTIME}/bus.py",
        old=" - self._queue.qsize()",
        new="",
        killers=("tests/common/test_source.py::test_a_backlog_waits_with_the_broker",),
    ),
    Mutant(
        name="crowd-told-of-at-once",
        law="progress of a crowd waits longer than that of one case",
        rows="B1",
        file=f"{RUNTIME}/bus.py",
        old="max(item.delay_seconds, crowd_seconds)",
        new="item.delay_seconds",
        killers=("tests/common/test_progress.py::test_a_crowd_is_told_of_no_faster_than_one_case_after_the_other",),
    ),
    Mutant(
        name="full-portion-forgotten",
        law="mail goes as fast as it comes",
        rows="B5",
        file=f"{RUNTIME}/timers.py",
        old="= full, full and self._purging_inbox",
        new="= False, False",
        killers=(f"{LOOP}::test_old_mail_goes_as_fast_as_it_came",),
    ),
    Mutant(
        name="stalled-broker-buffered",
        law="a broker that takes nothing fills no memory",
        rows="B5 M2",
        file=f"{RUNTIME}/lean_client.py",
        old="            raise OutboundBufferLimitError  #",
        new="            pass  #",
        killers=("tests/common/test_lean_client.py::test_a_broker_that_takes_nothing_fills_no_memory",),
    ),
    Mutant(
        name="signals-among-receipts",
        law="no receipt waits behind a burst of callbacks",
        rows="B4",
        file="libs/common/trueup_common/contracts/topology.py",
        old='"orchestrator", ("trueup.evt.gateway.signal.*",)',
        new='"orchestrator", ("trueup.evt.gateway.signal.*", "trueup.evt.adapter.*.receipt.*")',
        killers=("tests/common/test_topology.py::test_no_receipt_waits_behind_a_burst_of_callbacks",),
    ),
    Mutant(
        name="everybody-looks-for-himself",
        law="all who wait for signals share one look",
        rows="B4",
        file="services/gateway/trueup_gateway/dispositions.py",
        old="if self._poller is None or self._poller.done():",
        new="if True:",
        killers=("tests/gateway/test_dispositions.py::test_all_who_wait_share_one_look",),
    ),
)

MUTANTS: Final[tuple[Mutant, ...]] = (*LOOPS, *RELAY, *ROWS, *BOUNDS)
