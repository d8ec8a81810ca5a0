"""GitHub: content versions as commits. Each command type stands in its own file, with its find and its declaration."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from trueup_adapters.systems.github.archive import ArchiveVersion
from trueup_adapters.systems.github.branch import DeleteBranch
from trueup_adapters.systems.github.elements import probe
from trueup_adapters.systems.github.repository import GitHub, Stopped
from trueup_adapters.systems.github.restore import RestoreBranch
from trueup_adapters.systems.github.survey import repositories_of, survey
from trueup_common.contracts.adapter import Call, Connection, Outcome
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.states import FindVerdict
from trueup_common.contracts.survey import Page
from trueup_common.contracts.task import ProbeElement


class Command(Protocol):
    """One command type."""

    @property
    def declaration(self) -> CommandDeclaration:
        """Everything about the type, as data."""
        ...

    async def perform(self, github: GitHub, call: Call) -> Outcome:
        """Look, write once, read back. Stopped may leave it only before the effect."""
        ...

    async def find(self, github: GitHub, call: Call) -> Finding:
        """Look for the effect. Stopped may leave it."""
        ...


COMMANDS: Final[tuple[Command, ...]] = (ArchiveVersion(), DeleteBranch(), RestoreBranch())
_BY_TYPE: Final = {command.declaration.type: command for command in COMMANDS}


class GitHubTarget(GitHub):
    """GitHub as the adapter's service uses it."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        name = f"connection {connection.tenant}/{connection.system}"
        self.repositories = repositories_of(connection.settings, name)

    async def perform(self, call: Call) -> Outcome:
        """Perform one command."""
        try:
            return await _BY_TYPE[call.operation.command_type].perform(self, call)
        except Stopped as stopped:
            return stopped.outcome

    async def find(self, call: Call) -> Finding:
        """Find one command's effect."""
        try:
            return await _BY_TYPE[call.operation.command_type].find(self, call)
        except Stopped as stopped:
            return Finding(verdict=FindVerdict.UNKNOWN, reason=stopped.reason)

    async def probe(self, elements: Sequence[ProbeElement]) -> Sequence[Observation]:
        """Elements of archived versions."""
        return await probe(self, elements)

    async def survey(self, cursor: str | None, params: Mapping[str, Any]) -> Page:
        """Operations that commits name, branch by branch. Raises Stopped."""
        return await survey(self, cursor)


class GitHubAdapter:
    """The entry point."""

    system = "github"
    declarations = tuple(command.declaration for command in COMMANDS)
    settings = frozenset({"base_url", "token", "read_token", "repositories", "rate_limit_pause_seconds"})

    def open(self, connection: Connection) -> GitHubTarget:
        """A target for one connection: base_url, token; read_token, repositories, rate_limit_pause_seconds if given."""
        return GitHubTarget(connection)


ADAPTER: Final = GitHubAdapter()
