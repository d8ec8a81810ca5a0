"""The reduced payload: of a payload that is kept as an artifact, exactly what the plane itself needs to look at.

Whatever a declaration's pointers find in the whole payload they find in the reduced one, and what they miss they miss
in both. So identity, desired state, compensation and repair come out the same, while the journal and the messages stay
small.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.pointer import ValueFrom

_PAYLOAD: Final = "payload"
CONTENT: Final = "content_sha256"
"""What an approval binds, where a payload has it: granting looks at it, whatever the declaration says."""

Path = tuple[str, ...]


class NotReducible(ValueError):
    """The declaration points at the payload as a whole, so nothing of it may be left out."""


def pointers(declaration: CommandDeclaration) -> Iterator[str]:
    """Everything that a declaration points at."""
    yield from declaration.identity
    if declaration.object_template is not None:
        yield from declaration.object_template.pointers()
    for source in _sources(declaration):
        if source.pointer is not None:
            yield source.pointer


def _sources(declaration: CommandDeclaration) -> Iterator[ValueFrom]:
    for item in declaration.establishes:
        yield item.resource
        yield item.value
        yield from item.probe.params.values()
    for mapping in (declaration.compensation, *declaration.repairs()):
        if mapping is not None:
            yield from mapping.payload.values()
            if mapping.only_if is not None:
                yield mapping.only_if


def reduced(declaration: CommandDeclaration, payload: Any) -> Any:
    """The payload without what nothing points at. Raises NotReducible."""
    if not isinstance(payload, dict):
        raise NotReducible("only an object has parts")
    paths: set[Path] = {(CONTENT,)}
    for pointer in pointers(declaration):
        root, *rest = _parts(pointer)
        if root != _PAYLOAD:
            continue
        if not rest:
            raise NotReducible("the declaration points at the whole payload")
        paths.add(tuple(rest))
    return _kept(payload, sorted(paths))


def _parts(pointer: str) -> list[str]:
    return [raw.replace("~1", "/").replace("~0", "~") for raw in pointer.split("/")[1:]]


def _kept(node: Any, paths: Sequence[Path]) -> Any:
    """The parts of a node that the paths lead to. A list on the way is kept whole: its places are its meaning."""
    if not isinstance(node, dict) or () in paths:
        return node
    kept = {}
    for name, value in node.items():
        onward = [path[1:] for path in paths if path[0] == name]
        if () in onward or (onward and isinstance(value, dict | list)):
            kept[name] = _kept(value, onward)
    return kept
