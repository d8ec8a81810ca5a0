"""What goes wrong in each demo, in which order, and what the world must hold at its end.

The faults are ordered in the sandbox before the first command; everything else is what the plane makes of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BATCHES_COUNT: Final = 4
"""95 URLs, at most thirty a call."""
_POSTS: Final = r"/wp-json/wp/v2/posts"
_PURGE: Final = r"/purge_cache$"
_SECONDARY_LIMIT: Final = {
    "message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
    "documentation_url": "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api",
}
_FORBIDDEN_POST: Final = {
    "code": "rest_cannot_publish",
    "message": "Sorry, you are not allowed to publish posts as this user.",
    "data": {"status": 403},
}
_FORBIDDEN_ZONE: Final = {"code": 9109, "message": "Unauthorized to access requested resource"}
_BUSY_ZONE: Final = {"code": 1134, "message": "Unable to purge, please try again"}


def _envelope(error: Mapping[str, Any]) -> dict[str, Any]:
    return {"success": False, "errors": [dict(error)], "messages": [], "result": None}


@dataclass(frozen=True)
class PlannedFault:
    """A fault to order, and what is told when a request meets it. One without words only lets a request pass."""

    system: str
    fault: str
    method: str
    path: str
    told: str = ""
    times: int = 1
    params: Mapping[str, Any] = field(default_factory=dict)
    after_effect: str | None = None
    """Told only once an effect of this kind stands: before it, an old state is no other than the present one."""

    def order(self) -> dict[str, Any]:
        """The body of POST /_faults."""
        match = {"method": self.method, "path": self.path}
        names = {"system": self.system, "match": match, "fault": self.fault}
        return {**names, "params": dict(self.params), "times": self.times}

    def fits(self, request: Mapping[str, Any]) -> bool:
        """True where a request that met a fault may have met this one."""
        same = (request["system"], request["fault"], request["method"]) == (self.system, self.fault, self.method)
        spelling = f"{request['path']}?{request['query']}" if request["query"] else str(request["path"])
        return same and re.search(self.path.removeprefix("^"), spelling) is not None


@dataclass(frozen=True)
class Scenario:
    """One demo."""

    name: str
    title: str
    result: str
    faults: tuple[PlannedFault, ...]
    effects: Mapping[tuple[str, str], int]
    """Every effect that the world must have seen, by kind and action."""
    kills: Mapping[str, str] = field(default_factory=dict)
    """Which process is killed at which moment."""
    unhealthy: frozenset[str] = frozenset()
    """What is not as desired at the end, and a person's to bring about."""

    def counted(self, effects: Counter[tuple[str, str]]) -> bool:
        """True where exactly these effects happened."""
        return effects == Counter(dict(self.effects))


def _limited(method: str, path: str, what: str) -> PlannedFault:
    return PlannedFault(
        "github",
        "status",
        method,
        path,
        f"GitHub answers {what} with 403, a secondary rate limit, and does not say until when",
        params={"status": 403, "body": _SECONDARY_LIMIT},
    )


_BRANCH_LIMITED = _limited("POST", r"/git/refs$", "the new branch")
_READS_LATE = PlannedFault(
    "github",
    "stale_read",
    "GET",
    r"/git/ref/heads/articles/",
    "GitHub does not show its own new branch yet: the read comes from a minute ago",
    times=6,
    params={"seconds": 60},
    after_effect="github.commit",
)
_DRAFT_SILENT = PlannedFault(
    "wordpress",
    "lose_answer",
    "POST",
    _POSTS + "$",
    "WordPress stores the draft, then the connection dies without an answer: from here it looks like a failure",
)
_LOOK_UP_UNAVAILABLE = PlannedFault(
    "wordpress",
    "status",
    "GET",
    # The search for the operation's marker is the question after the fact; the look before the write has none.
    _POSTS + r"\?.*search=",
    "WordPress answers the look-up with 503: that proves neither done nor not done, so nothing is sent again",
    times=2,
    params={"status": 503},
)
_PUBLISH_HANGS = PlannedFault(
    "wordpress",
    "delay",
    "POST",
    _POSTS + r"/\d+$",
    "WordPress publishes, and its answer hangs",
    params={"seconds": 8, "when": "after"},
)


def _batch_passes() -> PlannedFault:
    return PlannedFault("cloudflare", "delay", "POST", _PURGE, params={"seconds": 0})


_PURGE_FAULTS = (
    PlannedFault(
        "cloudflare",
        "status",
        "POST",
        _PURGE,
        "Cloudflare answers the first batch with 503",
        params={"status": 503, "body": "<html>upstream unavailable</html>"},
    ),
    _batch_passes(),
    PlannedFault(
        "cloudflare",
        "status",
        "POST",
        _PURGE,
        "Cloudflare answers the second batch with 429, Retry-After: 1",
        params={"status": 429, "headers": {"retry-after": 1}, "body": _envelope({"code": 971, "message": "Throttled"})},
    ),
    _batch_passes(),
    PlannedFault(
        "cloudflare",
        "status",
        "POST",
        _PURGE,
        'Cloudflare answers the third batch with 200 and {"success": false}: a refusal that looks like a success',
        params={"status": 200, "body": _envelope(_BUSY_ZONE)},
    ),
)
_TARGETS_AWAY = PlannedFault(
    "monitoring",
    "status",
    "GET",
    r"/api/v1/targets",
    "Prometheus answers 503 when it is asked for its targets",
    params={"status": 503},
)
_COMMIT_LOST = PlannedFault(
    "database",
    "lose_answer",
    "COMMIT",
    r"^/acme/",
    "the customer's database commits, and the connection dies during COMMIT",
)
_PUBLISH_FORBIDDEN = PlannedFault(
    "wordpress",
    "status",
    "POST",
    _POSTS + r"/\d+$",
    "WordPress refuses to publish for good: 403, the account may not; no retry can cure that",
    params={"status": 403, "body": _FORBIDDEN_POST},
)
_TRASH_SILENT = PlannedFault(
    "wordpress",
    "lose_answer",
    "DELETE",
    _POSTS + r"/\d+$",
    "WordPress moves the draft to the trash and the answer is lost: undoing can be unknown, too",
)
_PURGE_FORBIDDEN = PlannedFault(
    "cloudflare",
    "status",
    "POST",
    _PURGE,
    "Cloudflare refuses the purge for good: 403, the token may not; no retry can cure that",
    params={"status": 403, "body": _envelope(_FORBIDDEN_ZONE)},
)

_PUBLISHED: Final[dict[tuple[str, str], int]] = {
    ("github.commit", "create"): 1,
    ("wordpress.post", "create"): 1,
    ("wordpress.post", "publish"): 1,
    ("monitoring.check", "create"): 1,
    ("database.publication", "insert"): 1,
}

SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="publish",
            title="one article through five systems, exactly once, while everything around it fails",
            result="CLOSED",
            faults=(
                *(_BRANCH_LIMITED, _READS_LATE, _DRAFT_SILENT, _LOOK_UP_UNAVAILABLE, _PUBLISH_HANGS),
                *(*_PURGE_FAULTS, _TARGETS_AWAY, _COMMIT_LOST),
            ),
            effects={**_PUBLISHED, ("cloudflare.purge", "purge"): BATCHES_COUNT},
            kills={"orchestrator": "draft is unknown", "adapters": "publish has happened"},
        ),
        Scenario(
            name="undo",
            title="a failure for good before the article is public: everything is taken back",
            result="COMPENSATED",
            faults=(
                *(_DRAFT_SILENT, _PUBLISH_FORBIDDEN, _TRASH_SILENT),
                _limited("DELETE", r"/git/refs/heads/", "the deletion of the branch"),
            ),
            effects={
                ("github.commit", "create"): 1,
                ("wordpress.post", "create"): 1,
                ("wordpress.post", "trash"): 1,
                ("github.branch", "delete"): 1,
            },
        ),
        Scenario(
            name="forward",
            title="a failure for good after the article is public: nothing is taken back, the rest is done",
            result="HUMAN_TAKEOVER",
            faults=(_BRANCH_LIMITED, _PURGE_FORBIDDEN, _COMMIT_LOST),
            effects=_PUBLISHED,
            unhealthy=frozenset({"cloudflare.cache"}),
        ),
    )
}
