"""Which operations a repository's history names: branch by branch, in the commits that were made last.

A branch holds more commits than anybody wants to list again and again: the newest ones of each are looked at. An older
commit that is not listed any more is looked at by itself, which proves that it is still there.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from trueup_adapters.systems.github.objects import operation_in
from trueup_adapters.systems.github.repository import GitHub, Stopped
from trueup_adapters.systems.github.schemas import REPOSITORY
from trueup_common.contracts.adapter import rejected
from trueup_common.contracts.states import ErrorClass
from trueup_common.contracts.survey import NOT_SURVEYABLE, PAGE_MARKS_MAX, Mark, Page

BRANCHES_PER_PAGE: Final = 5
COMMITS_PER_BRANCH: Final = PAGE_MARKS_MAX
_CURSOR: Final = re.compile(r"([0-9]{1,6}):([0-9]{1,6})")


def repositories_of(settings: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The repositories of a connection that are surveyed. Raises ValueError."""
    given = settings.get("repositories", [])
    known = re.compile(str(REPOSITORY["pattern"]))
    if not isinstance(given, list) or not all(isinstance(item, str) and known.search(item) for item in given):
        raise ValueError(f"{name}: repositories is a list of owner/name")
    return tuple(given)


async def survey(github: GitHub, cursor: str | None) -> Page:
    """The marks of a few branches. Raises Stopped."""
    if not github.repositories:
        raise Stopped(rejected(ErrorClass.PERMANENT, NOT_SURVEYABLE, "the connection names no repositories"))
    at = _CURSOR.fullmatch(cursor or "")
    place, number = (int(at[1]), int(at[2])) if at else (0, 1)
    if place >= len(github.repositories):
        return Page()
    repository = github.repositories[place]
    branches = await github.branches(repository, number, BRANCHES_PER_PAGE)
    if not branches and number == 1:
        denied = await github.prove_access(repository)
        if denied:
            raise Stopped(rejected(ErrorClass.TRANSIENT, denied))
    marks: dict[str, Mark] = {}
    for head in branches:
        for sha, message in await github.commits(repository, head, COMMITS_PER_BRANCH):
            operation = operation_in(message)
            if operation is not None:
                marks.setdefault(operation, Mark(operation_id=operation, external_resource_id=sha))
    if len(branches) == BRANCHES_PER_PAGE:
        following: str | None = f"{place}:{number + 1}"
    else:
        following = f"{place + 1}:1" if place + 1 < len(github.repositories) else None
    return Page(marks=tuple(marks.values()), next_cursor=following)
