"""The catalog: declarations by hash, the current one of each type, built-in documents, and which connections exist.

Keys of KV `catalog`: `type/<type>/<sha256>` and `definition/<name>/<version>/<sha256>` (both immutable),
`current/<type>`, `connection/<tenant>/<system>`.
"""

import logging
from collections.abc import Iterable

import orjson

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.topology import CATALOG_BUCKET
from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.documents.read import ReadDocument
from trueup_common.runtime.bus import Bus
from trueup_common.runtime.kv import BucketWatch

log = logging.getLogger("trueup.catalog")


class Catalog:
    """Declarations and connections as every service sees them."""

    def __init__(self) -> None:
        self._by_hash: dict[str, CommandDeclaration] = {}
        self._current: dict[str, str] = {}
        self._connections: set[tuple[str, str]] = set()
        self._definitions: dict[tuple[str, int], ReadDocument] = {}
        self._watch: BucketWatch | None = None

    @classmethod
    def of(
        cls,
        declarations: Iterable[CommandDeclaration],
        connections: Iterable[tuple[str, str]] = (),
        documents: Iterable[ReadDocument] = (),
    ) -> "Catalog":
        """A catalog from values, for tests and the simulation."""
        catalog = cls()
        for declaration in declarations:
            catalog._by_hash[declaration.sha256] = declaration
            catalog._current[declaration.type] = declaration.sha256
        catalog._connections = set(connections)
        catalog._definitions = {(item.document.name, item.document.version): item for item in documents}
        return catalog

    async def follow(self, bus: Bus) -> None:
        """Load the bucket and keep following it."""
        self._watch = BucketWatch(bus, CATALOG_BUCKET, self._changed)
        await self._watch.start()

    @property
    def watch(self) -> BucketWatch | None:
        """The watch, for readiness."""
        return self._watch

    @property
    def is_loaded(self) -> bool:
        """False while the content is still on its way: until then, what is not found is not known to be absent."""
        return self._watch is None or self._watch.loaded.is_set()

    def _changed(self, key: str, value: bytes | None) -> None:
        kind, _, rest = key.partition("/")
        if kind == "type" and value is not None:
            declaration = CommandDeclaration.model_validate_json(value)
            if not rest.endswith(declaration.sha256):
                log.error("declaration does not have the hash of its key; ignored", extra={"key": key})
                return
            self._by_hash[declaration.sha256] = declaration
        elif kind == "definition":
            self._define(rest, value)
        elif kind == "current":
            if value is None:
                self._current.pop(rest, None)
            else:
                self._current[rest] = value.decode()
        elif kind == "connection":
            tenant, _, system = rest.partition("/")
            if value is None:
                self._connections.discard((tenant, system))
            else:
                self._connections.add((tenant, system))

    def _define(self, rest: str, value: bytes | None) -> None:
        name, version, sha256 = rest.split("/")
        if value is None:
            self._definitions.pop((name, int(version)), None)
            return
        stored = orjson.loads(value)
        document = WorkflowDocument.model_validate(stored["document"])
        if (document.name, document.version, document.sha256) != (name, int(version), sha256):
            log.error("document does not have the name and hash of its key; ignored", extra={"key": rest})
            return
        self._definitions[name, document.version] = ReadDocument(document, stored["text"])

    def definitions(self) -> list[ReadDocument]:
        """The built-in documents, by name and version."""
        return [self._definitions[key] for key in sorted(self._definitions)]

    def definition(self, name: str, version: int) -> ReadDocument | None:
        """One built-in document."""
        return self._definitions.get((name, version))

    def declaration(self, sha256: str) -> CommandDeclaration | None:
        """The declaration with this hash."""
        return self._by_hash.get(sha256)

    def by_type(self, command_type: str) -> CommandDeclaration | None:
        """The declaration that new commands of this type start with."""
        sha256 = self._current.get(command_type)
        return self._by_hash.get(sha256) if sha256 else None

    def current(self) -> list[CommandDeclaration]:
        """All current declarations, by type."""
        found = (self.by_type(command_type) for command_type in sorted(self._current))
        return [declaration for declaration in found if declaration is not None]

    def has_connection(self, tenant: str, system: str) -> bool:
        """True where this tenant is connected to this system."""
        return (tenant, system) in self._connections

    def connections(self) -> frozenset[tuple[str, str]]:
        """All (tenant, system) pairs."""
        return frozenset(self._connections)
