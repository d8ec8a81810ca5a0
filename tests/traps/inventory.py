"""Every trap that was measured or read before building, in one table: what happens, and which test holds it.

A test may hold several traps, and a trap may need several tests. `python -m tests.traps` prints the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trap:
    """One trap: where it waits, what it does to the unwary, and the tests (`file::function` below `tests/`)."""

    where: str
    what: str
    tests: tuple[str, ...]


def _traps(where: str, *rows: tuple[str, str]) -> list[Trap]:
    return [Trap(where, what, tuple(tests.split())) for what, tests in rows]


TRAPS: tuple[Trap, ...] = (
    *_traps(
        "embedded servers",
        (
            "the programs of a wheel are not on PATH, and on some platforms there is no wheel",
            "devkit/test_embedded.py::test_finds_the_nats_server_through_the_wheel_itself "
            "devkit/test_embedded.py::test_says_where_it_looked_when_nothing_is_installed",
        ),
        (
            "initdb refuses root",
            "devkit/test_embedded.py::test_as_root_prefers_the_namespace "
            "devkit/test_embedded.py::test_as_root_falls_back_to_nobody "
            "devkit/test_embedded.py::test_copies_the_programs_to_a_place_that_nobody_can_read",
        ),
        (
            "children outlive a supervisor that was killed",
            "devkit/test_embedded.py::test_a_child_and_its_lease_end_with_a_killed_parent "
            "devkit/test_supervisor.py::test_everything_dies_with_a_killed_supervisor_and_a_new_start_works",
        ),
        (
            "two nats-servers start on one store without complaint",
            "traps/test_bus.py::test_two_servers_never_share_a_store",
        ),
        (
            "two planes on one state folder",
            "devkit/test_supervisor.py::test_a_second_start_is_refused "
            "devkit/test_embedded.py::test_a_second_cluster_on_the_folder_is_refused",
        ),
        (
            "a postmaster.pid that names another live process blocks the start for ever",
            "devkit/test_embedded.py::test_ignores_a_pid_file_that_names_a_foreign_process "
            "devkit/test_embedded.py::test_does_not_remove_the_pid_file_of_a_live_server",
        ),
        (
            "a killed postmaster keeps what it acknowledged only with fsync on",
            "devkit/test_embedded.py::test_keeps_the_durable_settings "
            "devkit/test_embedded.py::test_survives_a_warm_restart_and_a_killed_postmaster",
        ),
        (
            "the broker's confirmation means written, not synced: what it lost must be sent again",
            "common/test_loop.py::test_an_emptied_stream_is_filled_again",
        ),
    ),
    *_traps(
        "broker",
        (
            "answers that are in flight when the connection breaks never come",
            "traps/test_bus.py::test_answers_that_are_lost_with_the_connection_are_not_waited_for",
        ),
        (
            "a body that only its headers make too large passes the client's check and ends the client",
            "traps/test_bus.py::test_what_only_its_headers_make_too_large_never_reaches_the_wire "
            "traps/test_bus.py::test_a_client_that_closed_for_good_is_noticed",
        ),
        (
            "a deleted consumer or a recreated stream looks idle, then fails in a hot loop",
            "traps/test_bus.py::test_a_consumer_that_vanished_is_asked_for_at_a_bounded_rate_and_taken_up_again "
            "devkit/test_supervisor.py::test_a_service_that_stays_unready_gets_its_streams_made_again",
        ),
        (
            "the late ack of an expired delivery settles what another worker holds by now",
            "traps/test_bus.py::test_a_late_ack_settles_what_another_holds_and_costs_nothing "
            "adapters/test_store.py::test_an_outcome_does_not_undo_a_raised_fence",
        ),
        (
            "a full stream drops its oldest messages silently",
            "traps/test_bus.py::test_a_full_stream_drops_nothing_and_the_outbox_waits "
            "traps/test_bus.py::test_streams_and_consumers_are_made_so_that_nothing_gets_lost",
        ),
        (
            "delayed redeliveries hold places of the consumer and starve healthy tenants",
            "traps/test_bus.py::test_what_is_handed_back_does_not_starve_others "
            "traps/test_bus.py::test_a_message_is_handed_back_for_moments_only",
        ),
        (
            "the same message id is swallowed inside the duplicate window and stored twice after it",
            "traps/test_bus.py::test_the_same_message_outside_of_the_duplicate_window_has_one_effect",
        ),
        (
            "after max_deliver a message is in no list",
            "traps/test_bus.py::test_streams_and_consumers_are_made_so_that_nothing_gets_lost "
            "traps/test_bus.py::test_poison_is_kept_before_it_is_settled",
        ),
        (
            "core publishing to a subject without a stream raises nothing",
            "common/test_publisher.py::test_what_the_broker_refuses_is_left_to_the_relay",
        ),
        (
            "permission violations come later and by a callback only",
            "system/test_separation.py::test_a_user_cannot_say_what_another_says",
        ),
        ("keys of buckets refuse @", "traps/test_bus.py::test_keys_of_buckets_are_made_of_what_a_bucket_takes"),
        (
            "subjects accept wildcards in publications",
            "common/test_loop.py::test_a_message_without_a_usable_subject_never_enters_the_outbox "
            "common/test_shape.py::test_a_tenant_has_one_accepted_spelling_that_is_safe_in_a_subject "
            "common/test_loop.py::test_a_message_that_cannot_be_written_to_the_bus_does_not_keep_others_back",
        ),
        (
            "header values are ASCII only",
            "common/test_envelope.py::test_a_message_is_read_back_exactly_as_it_was_sent_through_ascii_headers "
            "common/test_envelope.py::test_headers_that_no_store_or_bus_would_take_are_broken_at_the_door",
        ),
        (
            "one unreadable message in a batch of 200 costs the whole batch",
            "common/test_loop.py::test_one_poison_message_in_a_batch_of_200_is_quarantined_alone",
        ),
        (
            "whoever holds a broker user may say, take and settle whatever the permissions forgot",
            "system/test_separation.py::test_a_user_cannot_take_settle_or_overhear_what_is_anothers "
            "system/test_separation.py::test_a_user_cannot_make_change_or_empty_streams_and_consumers "
            "system/test_separation.py::test_an_ack_of_anothers_delivery_is_not_heard",
        ),
    ),
    *_traps(
        "database",
        (
            "a cursor over ids misses a row that commits late",
            "common/test_loop.py::test_a_row_that_commits_late_under_a_lower_number_is_relayed",
        ),
        (
            "ON CONFLICT DO NOTHING still deadlocks when keys come in different order",
            "common/test_rows.py::test_batches_in_opposite_order_do_not_wait_for_each_other_for_ever "
            "traps/test_database.py::test_a_real_deadlock_costs_one_repetition",
        ),
        (
            "deadlocks and serialization failures look like failures of the message",
            "traps/test_database.py::test_what_passes_is_repeated_inside_and_counts_as_nothing "
            "common/test_loop.py::test_a_busy_store_repeats_the_whole_transaction_and_counts_no_failure",
        ),
        (
            "a session that the server killed surfaces as `another operation is in progress`",
            "common/test_loop.py::test_sessions_that_the_server_kills_are_busy_not_poison "
            "traps/test_database.py::test_what_passes_is_repeated_inside_and_counts_as_nothing",
        ),
        (
            "NUL, lone surrogates, NaN and numbers beyond doubles cannot be stored or read: an effect looks failed",
            "adapters/test_store.py::test_a_result_that_no_database_takes_is_no_reason_to_send_again "
            "adapters/test_effect.py::test_foreign_text_never_costs_an_effect",
        ),
        (
            "a result that no message of the bus holds",
            "adapters/test_receipt.py::test_a_result_that_no_message_holds_keeps_what_fits "
            "adapters/test_receipt.py::test_a_value_that_no_message_holds_is_a_doubt",
        ),
        (
            "a time without a zone is stored hours off without an error",
            "common/test_shape.py::test_a_naive_time_is_refused_at_every_field "
            "traps/test_database.py::test_every_time_has_its_zone "
            "house/test_tidy.py::test_the_clock_and_randomness_have_one_place",
        ),
        (
            "a plan made while a table was empty scans it for ever",
            "traps/test_database.py::test_plans_do_not_depend_on_when_they_were_made "
            "traps/test_database.py::test_what_is_due_is_found_by_an_index",
        ),
        (
            "every role of a server may connect to every database",
            "system/test_separation.py::test_only_services_may_connect_to_the_plane "
            "devkit/test_sandbox_database.py::test_roles_of_the_plane_cannot_enter",
        ),
    ),
    *_traps(
        "HTTP edge",
        (
            "NaN, 1e999, duplicate keys, UTF-16, lone surrogates, depth, invalid UTF-8 are accepted or answered 500",
            "gateway/test_hostile_bodies.py::test_no_route_takes_a_hostile_body "
            "gateway/test_strict_json.py::test_hostile_bytes_are_malformed "
            "gateway/test_strict_json.py::test_no_bytes_break_the_reader",
        ),
        (
            "bodies have no limit unless one is set",
            "gateway/test_hostile_bodies.py::test_no_route_takes_a_hostile_body "
            "gateway/test_process.py::test_the_wire_is_bounded",
        ),
        ("a 500 tells the text of the exception", "gateway/test_refusals.py::test_a_failure_inside_tells_nothing"),
        ("documentation pages load from elsewhere", "gateway/test_openapi.py::test_docs_need_no_other_server"),
        (
            "slow clients hold connections for ever",
            "gateway/test_patience.py::test_a_request_that_does_not_come_is_cut",
        ),
        (
            "a closing listener resets who is connected but not accepted; a closing idle connection loses a request",
            "gateway/test_leaving.py::test_who_was_connected_but_not_accepted_is_served "
            "gateway/test_leaving.py::test_a_connection_at_work_gets_its_answers_and_is_then_let_go",
        ),
        (
            "an HTTP client sends a request again by itself where a kept connection turned out stale",
            "adapters/test_http.py::test_a_stale_connection_is_not_papered_over "
            "adapters/test_http.py::test_a_connection_that_dies_after_the_request_is_unknown_and_never_sent_again",
        ),
        (
            "a request is traced twice",
            "gateway/test_tracing.py::test_a_request_is_traced_once",
        ),
        (
            "an idempotency key comes quoted or not, and 400, 409 and 422 mean different things",
            "gateway/test_acceptance.py::test_a_key_is_what_its_spelling_means "
            "gateway/test_refusals.py::test_a_refusal_says_what_failed_and_leaves_no_row "
            "gateway/test_acceptance.py::test_a_key_with_another_payload_is_422 "
            "gateway/test_acceptance.py::test_a_key_in_another_transaction_is_409_in_flight",
        ),
    ),
    *_traps(
        "peers",
        (
            "killed between sending and recording, everybody else sends again",
            "system/test_crash_windows.py::test_death_at_any_point_leaves_one_effect_and_a_closed_case "
            "system/test_crash_adapters.py::test_death_at_any_point_leaves_one_effect",
        ),
        (
            "an answer that comes after the timeout is taken for a failure, or the request is sent again and again",
            "system/test_main_path.py::test_a_lost_answer_is_looked_up_never_repeated "
            "adapters/test_execution.py::test_a_timeout_is_judged_by_the_first_byte",
        ),
    ),
    *_traps(
        "tokens and policy",
        (
            "decoding checks neither type nor claims: none, b64, embedded keys, duplicate claims, unknown kids pass",
            "gateway/test_tokens.py::test_a_token_that_is_almost_right_is_refused",
        ),
        (
            "a token of one kind passes as another once it was verified",
            "gateway/test_tokens.py::test_remembering_does_not_let_a_token_pass_as_another_kind",
        ),
        (
            "a key that is no signing key, or is shown in the error",
            "gateway/test_tokens.py::test_key_files_that_are_no_private_keys_are_refused_without_showing_them",
        ),
        (
            "a use is counted twice, or not at all, under concurrency",
            "gateway/test_acceptance.py::test_exactly_as_many_as_uses_are_accepted "
            "system/test_twins.py::test_uses_of_a_capability_are_counted_across_gateways",
        ),
        (
            "a proof of possession does not cover the body: the payload's hash must",
            "adapters/test_authority.py::test_a_payload_that_does_not_match_its_hash_is_refused "
            "gateway/test_refusals.py::test_bounds_of_a_capability_hold",
        ),
        (
            "a forbid that reads a missing attribute is skipped, and the answer is Allow",
            "gateway/test_policy.py::test_a_set_that_could_mean_less_than_it_says_is_refused "
            "gateway/test_policy.py::test_an_error_while_evaluating_denies_although_a_policy_permits",
        ),
        (
            "a misspelt name in an expression compiles",
            "documents/test_expressions.py::test_names_are_checked_at_registration",
        ),
        (
            "a grant serves another adapter, tenant, operation, attempt, or outlives its time",
            "adapters/test_authority.py::test_a_grant_covers_exactly_one_attempt "
            "adapters/test_authority.py::test_a_forged_grant_is_refused",
        ),
        (
            "an id of another tenant is told apart from one that never was",
            "gateway/test_tenants.py::test_what_has_an_id_is_not_there_for_another_tenant "
            "gateway/test_tenants.py::test_lists_show_nothing_of_another_tenant "
            "gateway/test_tenants.py::test_a_body_that_reaches_for_another_tenant_gets_nothing",
        ),
    ),
    *_traps(
        "WordPress",
        (
            "with a wrong password, public reads answer 200 as for a stranger, and drafts seem to be missing",
            "adapters/test_wordpress.py::test_a_wrong_password_is_permanent "
            "devkit/test_sandbox_wordpress.py::test_a_wrong_password_is_a_stranger_and_drafts_are_invisible_to_strangers",
        ),
        (
            "there is no ETag, and If-Match is ignored",
            "adapters/test_wordpress.py::test_an_update_needs_the_version_that_was_seen "
            "devkit/test_sandbox_wordpress.py::test_there_is_no_etag_and_if_match_is_ignored",
        ),
        (
            "slugs are not atomic: concurrent creates make twins, and a taken slug becomes another with 201",
            "adapters/test_wordpress.py::test_a_slug_taken_meanwhile_is_a_conflict_and_leaves_no_twin "
            "adapters/test_wordpress.py::test_a_twin_of_our_own_is_left_for_a_person "
            "devkit/test_sandbox_wordpress.py::test_a_race_makes_twins",
        ),
        (
            "the trash is not in `any`, and renames the slug; trashing again is 410",
            "adapters/test_wordpress.py::test_trashing_twice_is_one_effect "
            "devkit/test_sandbox_wordpress.py::test_the_trash_is_not_in_any_and_renames_the_slug",
        ),
        (
            "meta that is not registered is dropped with 201",
            "adapters/test_wordpress.py::test_meta_that_the_site_would_lose_is_refused_before_sending "
            "devkit/test_sandbox_wordpress.py::test_unregistered_meta_is_dropped_silently",
        ),
        (
            "rendered fields are rewritten",
            "adapters/test_wordpress.py::test_harmless_rewriting_is_no_drift "
            "adapters/test_wordpress.py::test_the_text_digest_forgives_what_sites_do",
        ),
        (
            "a future date turns a publication into a schedule",
            "adapters/test_wordpress.py::test_a_publication_that_became_a_schedule_is_no_success",
        ),
        (
            "an effect is found by its marker, through a search over all statuses",
            "adapters/test_wordpress.py::test_find_descends_by_strength_of_evidence "
            "devkit/test_sandbox_wordpress.py::test_the_marker_in_a_comment_is_found_by_search",
        ),
    ),
    *_traps(
        "others",
        (
            "a commit's identity moves with its date: with fixed author and dates it is known before it is sent",
            "adapters/test_github_objects.py::test_git_gives_the_same_names "
            "adapters/test_github_objects.py::test_two_computations_of_a_commit_agree",
        ),
        (
            "a repository that may not be seen answers as one that is not there",
            "adapters/test_github.py::test_what_is_hidden_is_not_missing",
        ),
        (
            "a connection that dies behind COMMIT has committed",
            "adapters/test_database.py::test_a_connection_that_dies_behind_commit_has_committed "
            "adapters/test_database.py::test_absence_is_never_claimed_while_commit_is_under_way",
        ),
        (
            "an API answers 200 and says in the body that it failed",
            "adapters/test_cloudflare.py::test_refusals_follow_cloudflares_own_codes "
            "adapters/test_cloudflare.py::test_a_success_that_is_no_envelope_is_unknown",
        ),
    ),
)

NOT_BUILT: tuple[tuple[str, str], ...] = (
    (
        "an unknown kid asks the issuer for its keys without end",
        "no external issuer yet: it is refused",
    ),
    ("holder keys of a large kind exhaust the header cap", "there are no holder proofs yet: a bound token is refused"),
    ("webhook signatures have a fixed tolerance and are replayed", "there is no webhook adapter yet"),
)
"""Traps of what the product does not have yet; the refusals are among the guards of tokens."""


def table() -> list[str]:
    """The inventory as a Markdown table."""
    lines = ["| where | what happens | held by |", "|---|---|---|"]
    for trap in TRAPS:
        tests = "<br>".join(f"`{name}`" for name in trap.tests)
        lines.append(f"| {trap.where} | {trap.what} | {tests} |")
    lines += ["", "Of what is not built yet:", ""]
    lines += [f"- {what}: {why}" for what, why in NOT_BUILT]
    return lines
