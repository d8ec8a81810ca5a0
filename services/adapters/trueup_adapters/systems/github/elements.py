"""State elements of an archived content version: what one look at a branch says about its commit and its content.

A branch that has grown on top of the commit still holds it. A look reads where the branch points once, and everything
else by that SHA, so that one answer never mixes two moments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from trueup_adapters.systems.github.repository import GitHub, Stopped
from trueup_common.contracts.declaration import Establishes, Probe
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import ProbeVerdict
from trueup_common.contracts.task import ProbeElement
from trueup_common.runtime.clock import real_now

COMMIT: Final = "github.commit"
CONTENT: Final = "content.version"
ELEMENTS: Final = (COMMIT, CONTENT)
PRESENT_KIND: Final = "github.branch"
ABSENT_KIND: Final = "github.branch_absent"
ABSENT: Final = "absent"
"""The value of both elements once the branch is deleted on purpose."""
WINDOW_SECONDS: Final = 10.0
"""GitHub's reads may lag behind its own writes for so long."""
READ_BACK_PAUSES_SECONDS: Final = (0.0, 0.15, 0.6)
"""Before each read right after a write; what none of them shows is left to the reconciler, within the window."""
SOURCE: Final = "github.rest"


def resource_of(repository: str, branch: str, path: str | None) -> str:
    """The business object of the elements: one archived file of one branch."""
    return f"{repository}@{branch}:{path}" if path else f"{repository}@{branch}"


def establish(element: str, value: ValueFrom, kind: str, **params: str) -> Establishes:
    """An element with its probe; `params` are pointers."""
    return Establishes(
        element=element,
        resource=ValueFrom(pointer="/receipt/resource"),
        value=value,
        window_seconds=WINDOW_SECONDS,
        probe=Probe(kind=kind, params={name: ValueFrom(pointer=pointer) for name, pointer in params.items()}),
    )


class Place(NamedTuple):
    """What a probe looks at. `commit` is None where only the branch itself matters."""

    repository: str
    branch: str
    path: str | None
    commit: str | None


@dataclass(frozen=True, slots=True)
class View:
    """One look at a branch with the read token. `head` is None where there is no such branch."""

    head: str | None
    etag: str | None = None
    has_commit: bool = False
    content_sha256: str | None = None


async def view(github: GitHub, place: Place) -> View:
    """Look once. Raises Stopped."""
    ref = await github.ref(place.repository, place.branch, reader=True)
    if ref.sha is None:
        return View(None)
    has_commit, content = False, None
    if place.commit is not None:
        has_commit = await github.contains(place.repository, ref.sha, place.commit, reader=True)
    if place.path is not None:
        content = await github.content_sha256(place.repository, place.path, ref.sha)
    return View(ref.sha, ref.etag, has_commit, content)


def _value(element: str, seen: View, place: Place) -> Any:
    if element == COMMIT:
        return place.commit if seen.has_commit else seen.head
    return seen.content_sha256


def observe(seen: View, place: Place, *, wants_absence: bool = False) -> tuple[Observation, ...]:
    """What a look says about both elements, access to the repository being proved."""
    found = []
    for element in ELEMENTS:
        value = _value(element, seen, place)
        if value is None and wants_absence:
            value = ABSENT if seen.head is None or place.path is not None else "present"
        found.append(
            Observation(
                element=element,
                verdict=ProbeVerdict.MISSING if value is None else ProbeVerdict.CONFIRMED,
                value=value,
                observed_at=real_now(),
                source=SOURCE,
                version=seen.head,
                etag=seen.etag,
                proof_of_access=True,
            )
        )
    return tuple(found)


def doubtful(element: str, reason: str) -> Observation:
    """A read that says nothing."""
    return Observation(
        element=element, verdict=ProbeVerdict.UNKNOWN, observed_at=real_now(), source=SOURCE, reason=reason
    )


async def _look(github: GitHub, kind: str, place: Place) -> dict[str, Observation]:
    """Both elements of one place; a branch that cannot be seen is missing only where access is proved."""
    try:
        seen = await view(github, place)
    except Stopped as stopped:
        return {element: doubtful(element, stopped.reason) for element in ELEMENTS}
    if seen.head is None:
        denied = await github.prove_access(place.repository)
        if denied:
            return {element: doubtful(element, denied) for element in ELEMENTS}
    return {item.element: item for item in observe(seen, place, wants_absence=kind == ABSENT_KIND)}


def _place(item: ProbeElement) -> Place | None:
    repository, branch, path, commit = map(item.params.get, ("repository", "branch", "path", "commit_sha"))
    if item.kind not in (PRESENT_KIND, ABSENT_KIND) or item.element not in ELEMENTS:
        return None
    if not isinstance(repository, str) or not isinstance(branch, str):
        return None
    return Place(repository, branch, path, commit)


async def probe(github: GitHub, elements: Sequence[ProbeElement]) -> list[Observation]:
    """One observation each, in order; one look per place serves all its elements."""
    looks: dict[tuple[str, Place], dict[str, Observation]] = {}
    found = []
    for item in elements:
        place = _place(item)
        if place is None:
            found.append(doubtful(item.element, "element_unknown"))
            continue
        key = (item.kind, place)
        if key not in looks:
            looks[key] = await _look(github, *key)
        found.append(looks[key][item.element])
    return found
