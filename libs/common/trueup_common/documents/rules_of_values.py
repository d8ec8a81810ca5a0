"""Rules about values: expressions that cannot fail for a reason that was known when the document was registered."""

from collections.abc import Iterable, Iterator
from typing import Any

import jsonschema_rs

from trueup_common.contracts.workflow import Step
from trueup_common.documents.cel_text import CelText, Path, TextInvalid
from trueup_common.documents.faults import below
from trueup_common.documents.ground import Found, Ground
from trueup_common.documents.payloads import validator_of
from trueup_common.documents.places import Place, Reading
from trueup_common.documents.schema_work import SchemaTooMuch, looks
from trueup_common.documents.scope import NotThere

_JSON = frozenset("STRING INT UINT DOUBLE BOOL NULL LIST MAP DYN".split())
_IN_TEXT = frozenset("STRING INT UINT DOUBLE BOOL DYN".split())


def schema(ground: Ground) -> Iterator[Found]:
    """The schema of the input, or of a wait's data, is no JSON Schema, refers outside of itself or looks too often."""
    schemas: list[tuple[str, dict[str, Any]]] = [("/input", ground.document.input)]
    schemas += [(f"{pointer}/wait/data", step.wait.data) for pointer, step in ground.steps if step.wait]
    for pointer, found in schemas:
        outside = next(_references(found, pointer), None)
        if outside is not None:
            yield outside, "a schema refers only to its own parts (#/…)"
            continue
        try:
            looks(found)
            validator_of(found)
        except SchemaTooMuch as error:
            yield f"{pointer}{error.pointer}", str(error)
        except (jsonschema_rs.ValidationError, ValueError, RuntimeError) as error:
            yield pointer, f"no JSON Schema: {str(error).splitlines()[0][:200]}"


def _references(value: Any, pointer: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("$ref", "$dynamicRef", "$schema") and isinstance(item, str):
                local = item.startswith("#") if key != "$schema" else item.startswith("https://json-schema.org/")
                if not local:
                    yield below(pointer, key)
            yield from _references(item, below(pointer, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _references(item, below(pointer, index))


def expression(ground: Ground) -> Iterator[Found]:
    """An expression cannot be read."""
    yield from ground.unreadable


def unknown_value(ground: Ground) -> Iterator[Found]:
    """An expression reads what does not exist: a misspelt input, step or field, or one that is not known here."""
    for place, _, path in _paths(ground):
        if path[0] not in place.roots:
            known = ", ".join(sorted(place.roots))
            yield place.pointer, f"{'.'.join(path)} is not known here: {place.name} reads {known}"
            continue
        try:
            ground.seen(place, path)
        except NotThere as error:
            yield place.pointer, f"{'.'.join(path)}: {error}"


def reads_ahead(ground: Ground) -> Iterator[Found]:
    """An expression reads a step that need not have ended by then."""
    for place, _, path in _paths(ground):
        if path[0] != "steps" or place.step is None or len(path) < 2 or path[1] not in ground.document.by_id:
            continue
        if path[1] not in ground.order.before[place.step.id]:
            yield (
                place.pointer,
                f"{'.'.join(path)} may not exist yet: {place.step.id!r} does not need {path[1]!r}, "
                "neither directly nor by way of others",
            )


def value_type(ground: Ground) -> Iterator[Found]:
    """An expression has the wrong type, or mixes types that do not go together."""
    for reading in ground.readings:
        for text in reading.expressions:
            if not _all_there(ground, reading.place, text):
                continue
            try:
                kind = kind_of(ground.type_of(reading.place, text))
            except TextInvalid as error:
                yield reading.place.pointer, f"{text.written[:200]}: {error}"
                continue
            wanted, what = _wanted(reading)
            if kind not in wanted:
                yield reading.place.pointer, f"{text.written[:200]} is of type {kind.lower()}; {what}"


def _wanted(reading: Reading) -> tuple[frozenset[str], str]:
    if reading.template is None:
        return frozenset({"BOOL", "DYN"}), "a condition is true or false"
    if reading.template.whole is None:
        return _IN_TEXT, "only strings, numbers and booleans stand inside text"
    if reading.place.name in ("id", "locks", "resource", "expected_version", "key"):
        return _IN_TEXT, f"{reading.place.name} is a string"
    return _JSON, "a value is JSON"


def kind_of(found: Any) -> str:
    """The name of a CEL type, without its parameters."""
    return str(found).split("<")[0]


def _all_there(ground: Ground, place: Place, text: CelText) -> bool:
    """False where unknown_value tells already."""
    try:
        return all(path[0] in place.roots and bool(ground.seen(place, path)) for path in (*text.reads, *text.asks))
    except NotThere:
        return False


def may_be_missing(ground: Ground) -> Iterator[Found]:
    """An expression reads what may be absent: an optional input, or a step that may be skipped or left behind."""
    for reading in ground.readings:
        if reading.template is not None and reading.template.optional:
            continue
        for text in reading.expressions:
            asked = {*text.asks, *_asked_before(ground, reading.place.step, reading.place.name)}
            for path in text.reads:
                if not _all_there(ground, reading.place, text):
                    continue
                optional = ground.seen(reading.place, path).optional
                lacking = path[0] == "steps" and path[1] in ground.may_lack_output
                if lacking and not _same_guard(ground, reading.place.step, path[1]) and not _asks(asked, path[:2]):
                    why = f"step {path[1]!r} may be over without it"
                elif not all(_asks(asked, part) for part in optional):
                    why = "it is optional"
                else:
                    continue
                name = ".".join(path)
                yield (
                    reading.place.pointer,
                    f"{name} may be missing ({why}): ask has({name}) first, or write ${{?{name}}} to leave it out",
                )


def _asks(asked: Iterable[Path], part: Path) -> bool:
    """True where the presence of this, or of something inside it, was asked for."""
    return any(ask[: len(part)] == part for ask in asked)


def _asked_before(ground: Ground, step: Step | None, name: str) -> set[Path]:
    """What the guard of a step asked already."""
    if step is None or step.when is None or name == "when":
        return set()
    guards = (reading for reading in ground.readings if reading.place.step is step and reading.place.name == "when")
    return {path for guard in guards for text in guard.expressions for path in text.asks}


def _same_guard(ground: Ground, step: Step | None, other: str) -> bool:
    """True where both steps stand under one guard, and nothing but that can keep the other from ending well."""
    source = ground.document.by_id[other]
    return step is not None and source.when is not None and step.when == source.when and not source.on


def constant(ground: Ground) -> Iterator[Found]:
    """A condition reads nothing, so it decides nothing: its step is unreachable, or its check proves nothing."""
    for reading in ground.readings:
        if reading.template is None and not any(text.reads or text.asks for text in reading.expressions):
            yield reading.place.pointer, "this is always the same: a condition reads the input, a step or an event"


def constant_key(ground: Ground) -> Iterator[Found]:
    """A key is the same for every object, so two objects would share one effect."""
    reads = {reading.place.pointer for reading in ground.readings if reading.roots & {"input", "steps"}}
    unread = {pointer for pointer, _ in ground.unreadable}
    for pointer, step in ground.steps:
        if step.key is not None and f"{pointer}/key" not in reads | unread:
            yield f"{pointer}/key", "the key is the same for every object: name the object in it, by input or steps"


def _paths(ground: Ground) -> Iterator[tuple[Place, CelText, Path]]:
    for reading in ground.readings:
        for text in reading.expressions:
            for path in dict.fromkeys((*text.reads, *text.asks)):
                yield reading.place, text, path
