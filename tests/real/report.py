"""What a run against the real systems came to: one line per system, and what it taught the sandbox."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

INTRO: Final = """
The same tests run against the real system and against its stand-in in the sandbox; where they differ, the stand-in is
wrong and is repaired. GitHub is not reachable from a test: there its official OpenAPI description is the judge of every
request of the adapter and every answer of the stand-in. The gateway is held to its own document.
"""
_FROM: Final = r"^test_(sandbox_wordpress|sandbox_github|wordpress|inspection|monitoring|github)_"
SYSTEMS: Final = {
    "test_wordpress.py": ("WordPress", "the adapter: conformance suite, its own tests and inspections, on both"),
    "test_wordpress_rest.py": ("WordPress", "the REST API request by request"),
    "test_wordpress_answers.py": ("WordPress", "one script of requests; every field that the sandbox shows"),
    "test_wordpress_traps.py": ("WordPress", "maintenance, fatal errors, the trash, on both"),
    "test_plane.py": ("WordPress", "draft, publication and withdrawal on a whole plane"),
    "test_prometheus.py": ("Prometheus", "discovery and reading of registered checks, on both"),
    "test_github.py": ("GitHub's description", "every request of the adapter, every answer of the sandbox"),
    "test_gateway.py": (
        "the gateway's document",
        "schemathesis: every operation, valid and invalid requests, all roles",
    ),
}
DIFFERENCES: Final = (
    ("WordPress", "an account that is shown raw values may edit; one that can only read them does not exist",
     "test_the_reader_sees_drafts_and_may_edit_but_not_publish_or_delete"),
    ("WordPress", "concurrent creates under one slug make twins without any fault",
     "test_concurrent_creates_all_succeed_and_slugs_are_no_locks"),
    ("WordPress", "meta registered with several types at once, or a list without items, is never shown or taken",
     "test_meta_is_kept_as_php_keeps_it"),
    ("WordPress", "an object in meta refuses properties that its registration does not name (400 after the post was"
     " stored; the adapter now sees that before it sends)", "test_meta_fits_what_the_site_registered"),
    ("WordPress", "an empty object comes back as an empty list, and 1.0 as 1", "test_meta_is_kept_as_php_keeps_it"),
    ("WordPress", "text is taken for a list or a number where it reads like one", "test_meta_is_kept_as_php_keeps_it"),
    ("WordPress", "null for meta that was never stored is 500, after the post was stored",
     "test_meta_is_kept_as_php_keeps_it"),
    ("WordPress", "stored meta that breaks its schema is shown as null",
     "test_stored_meta_that_breaks_its_schema_is_not_shown"),
    ("WordPress", "a slug of digits only gets a number appended, and `0` is no slug",
     "test_a_number_is_no_slug_of_a_new_post"),
    ("WordPress", "JSON deeper than 512 is refused", "test_json_is_read_to_a_depth_of_512"),
    ("WordPress", "a post without a title gets its number and `-2` as its slug", "test_every_answer_is_the_real_ones"),
    ("WordPress", "`_fields` is heard by `/users/me` too", "test_every_answer_is_the_real_ones"),
    ("WordPress", "an unknown author is refused in a change, too", "test_every_answer_is_the_real_ones"),
    ("WordPress", "a draft without a slug comes back from the trash as `__trashed`",
     "test_every_answer_is_the_real_ones"),
    ("WordPress", "guid, proposed slug, and address template of published and trashed posts",
     "test_every_answer_is_the_real_ones"),
    ("WordPress", "a no-break space parts no words in a made excerpt", "test_every_answer_is_the_real_ones"),
    (
        "the gateway's document",
        "an artifact is read under the media type that it was kept with, or answered with 304",
        "test_the_document_is_kept",
    ),
    ("GitHub", "a directory shows the sizes of its files", "test_contents_comparisons_and_history_tell_the_same_story"),
    ("WordPress", "a plain theme does not show the meta description in a page's head",
     "test_visitors_see_published_posts_only"),
)  # fmt: skip
"""What the real systems taught: system, difference, and the test that holds the stand-in to it since."""


@dataclass
class Report:
    """Results by file, and the versions that the fixtures met."""

    results: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)
    versions: dict[str, str] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    states: dict[str, set[str]] = field(default_factory=dict)

    def add(self, nodeid: str, outcome: str, seconds: float, reason: str = "") -> None:
        """One test's end."""
        name = re.split("::|/", nodeid.partition("::")[0])[-1]
        if outcome == "skipped" and "empty parameter set" in reason:
            return
        self.results.setdefault(name, Counter())[outcome] += 1
        self.seconds[name] += round(seconds * 1000)
        test = re.sub(_FROM, "test_", nodeid.rpartition("::")[2].partition("[")[0])
        self.states.setdefault(test, set()).add(outcome)
        if outcome == "skipped":
            self.reasons[reason] += 1

    def totals(self) -> Counter[str]:
        """Over all systems."""
        return sum(self.results.values(), Counter())

    def lines(self) -> list[str]:
        """The tables, as Markdown."""
        table = [
            "| system | version | what is held to it | checks run | passed | failed | skipped | seconds |",
            "|---|---|---|---:|---:|---:|---:|---:|",
        ]
        for name, (system, what) in SYSTEMS.items():
            found = self.results.get(name)
            if found is None:
                table.append(f"| {system} | | {what} | not run | | | | |")
                continue
            passed, failed, skipped = found["passed"], found["failed"], found["skipped"]
            run, seconds = passed + failed, self.seconds[name] / 1000
            version = self.versions.get(system, "")
            table.append(f"| {system} | {version} | {what} | {run} | {passed} | {failed} | {skipped} | {seconds:.0f} |")
        if self.reasons:
            table += ["", "Skipped, by reason:", ""]
            table += [f"- {count}: {reason}" for reason, count in sorted(self.reasons.items())]
        table += [
            "", "Differences found and repaired (in the sandbox, unless named otherwise), each held by a test:", "",
            "| system | difference | test | in this run |", "|---|---|---|---|",
        ]  # fmt: skip
        for system, difference, test in DIFFERENCES:
            table.append(f"| {system} | {difference} | `{test}` | {self._state(test)} |")
        return table

    def _state(self, test: str) -> str:
        outcomes = self.states.get(test, set())
        return "failed" if "failed" in outcomes else "passed" if "passed" in outcomes else "not run"

    def document(self) -> Mapping[str, Any]:
        """For machines."""
        totals = self.totals()
        return {
            "result": "FAILED" if totals["failed"] else "PASSED",
            **{name: totals[name] for name in ("passed", "failed", "skipped")},
            "versions": self.versions,
            "systems": {name: dict(found) for name, found in self.results.items()},
            "differences_repaired": len(DIFFERENCES),
        }

    def json(self) -> str:
        """One line."""
        return json.dumps(self.document())
