"""GitHub: content versions as commits. Each command type stands in its own file, with its find and its declaration."""

from collections.abc import Sequence
from typing import Final, Protocol

from trueup_adapters.systems.github.archive import ArchiveVersion
from trueup_adapters.systems.github.branch import DeleteBranch
from trueup_adapters.systems.github.elements import probe
from trueup_adapters.systems.github.repository import GitHub, Stopped
from trueup_adapters.systems.github.restore import RestoreBranch
from trueup_common.contracts.adapter import Call, Connection, Outcome
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.states import FindVerdict
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


class GitHubAdapter:
    """The entry point."""

    system = "github"
    declarations = tuple(command.declaration for command in COMMANDS)

    def open(self, connection: Connection) -> GitHubTarget:
        """A target for one connection: base_url, token, and optionally read_token and rate_limit_pause_seconds."""
        return GitHubTarget(connection)


ADAPTER: Final = GitHubAdapter()
