"""GitHub's world for the adapter's tests: the sandbox, its faults aimed at the one request that has an effect."""

from __future__ import annotations

from typing import Any, Final

import aiohttp
from tests.adapters.worlds import SandboxWorld, connection_of

from trueup_adapters.systems import github
from trueup_common.contracts.canonical import sha256_hex
from trueup_common.contracts.task import ProbeElement
from trueup_common.testing.adapter_conformance import Bench, Case
from trueup_devkit.sandbox import Sandbox, sandbox_connections
from trueup_devkit.sandbox.systems.github import GitHub
from trueup_devkit.sandbox.systems.github_git import Repository

ARCHIVE: Final = "github.archive_version"
DELETE: Final = "github.delete_branch"
RESTORE: Final = "github.restore_branch"
REPOSITORY: Final = "acme/articles"
REFS: Final = r"^/repos/[^/]+/[^/]+/git/refs(/heads/.+)?$"
AUTHOR: Final = {"name": "Ada Ökonom", "email": "ada@example.org"}


class GitHubWorld(SandboxWorld):
    """A repository."""

    system = "github"
    adapter = github.ADAPTER
    writes: Final = {"method": "*", "path": REFS}
    """Narrowed to the method of the case's write: only moving a reference is an effect."""

    def __init__(self, sandbox: Sandbox, http: aiohttp.ClientSession) -> None:
        super().__init__(sandbox, http)
        self.unreadable = connection_of(sandbox_connections(sandbox.urls), "github", read_token="wrong")
        self.write_method = "POST"

    async def fault(self, name: str, params: dict[str, Any] | None = None, *, times: int = 1, **match: str) -> None:
        """Aim at the write."""
        if match.get("method") == "*":
            match["method"] = self.write_method
        await super().fault(name, params, times=times, **match)

    @property
    def repository(self) -> Repository:
        """The world's own repository."""
        system = self.sandbox.systems["github"]
        assert isinstance(system, GitHub)
        return system._repository(REPOSITORY)

    def head(self, branch: str) -> str | None:
        """Where a branch really points."""
        return self.repository.refs.get(f"refs/heads/{branch}")

    async def commit(self, branch: str, path: str = "notes.md", content: str = "Theirs") -> str:
        """An outsider commits to a branch, making it where it is not there."""
        change = {"commit": {"path": path, "content": content, "message": "By somebody else"}}
        return str((await self.tamper(f"{REPOSITORY}@{branch}", change))["sha"])

    async def case(self, command_type: str) -> Case:
        """What the command acts on."""
        number = next(self.counter)
        self.write_method = "DELETE" if command_type == DELETE else "POST"
        branch, path = f"content/article-{number}", f"articles/2026/article-{number}.md"
        if command_type == DELETE:
            sha = await self.commit(branch, path)
            payload = {"repository": REPOSITORY, "branch": branch, "path": path, "expected_sha": sha}
            return Case(resource=REPOSITORY, payload=payload)
        if command_type == RESTORE:
            sha = await self.commit(branch, path, "Theirs")
            await self.tamper(f"{REPOSITORY}@{branch}", {"delete": True})
            held = {"commit_sha": sha, "artifact_sha256": sha256_hex(b"Theirs")}
            return Case(resource=REPOSITORY, payload={"repository": REPOSITORY, "branch": branch, "path": path, **held})
        payload = {
            "repository": REPOSITORY,
            "branch": branch,
            "path": path,
            "content": f"# Größe & Wirkung {number}\n\nEin Satz.\n",
            "message": f"Archive article {number}\n\nVersion 1.",
            "author": AUTHOR,
            "authored_at": "2026-11-29T12:00:00.25+01:00",
        }
        return Case(resource=REPOSITORY, payload=payload)

    async def remove(self, element: ProbeElement) -> bool:
        """Delete the branch; for an element whose value is that absence there is nothing to remove."""
        if element.kind != "github.branch":
            return False
        await self.tamper(f"{REPOSITORY}@{element.params['branch']}", {"delete": True})
        return True


async def prepared(world: GitHubWorld, target: Any, command_type: str, **payload: Any) -> Bench:
    """A command ready to run, with parts of its payload replaced."""
    made = await Bench.set_up(world, command_type, target)
    made.operation = made.operation.evolve(payload={**made.operation.payload, **payload})
    return made


async def writes(world: GitHubWorld) -> list[tuple[str, str]]:
    """Every request that could have changed a reference."""
    found = []
    for method in ("POST", "PATCH", "DELETE"):
        found += [(method, item["path"]) for item in await world.requests(method) if "/git/refs" in item["path"]]
    return found
