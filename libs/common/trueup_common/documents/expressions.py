"""Expressions of a document, evaluated: the same scope gives the same value, here and in a replay.

CEL has no clock and no randomness. Values of the scope come in as variables, one per path; what comes out is JSON. The
library bounds the steps of one evaluation by itself (10,000 iterations), `growth` bounds the bytes that come out,
`work` the bytes that are looked at.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

from trueup_common.contracts.canonical import canonical
from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.documents.cel_text import PRESENCE, CelText, Path, TextInvalid, read_expression
from trueup_common.documents.faults import below
from trueup_common.documents.growth import RESULT_BYTES_MAX, bound, size_of
from trueup_common.documents.templates import OPEN, Template, read_template
from trueup_common.documents.work import WORK_MAX, Effort, work

_MISSING: Final = object()
_SAFE_INTEGER: Final = 2**53 - 1
_RESULT_ITEMS_MAX: Final = 100_000
_SHA256: Final = cel.FunctionDecl(
    "sha256",
    [
        cel.Overload(
            "sha256_string",
            return_type=cel.Type.STRING,
            parameters=[cel.Type.STRING],
            impl=lambda text: hashlib.sha256(text.encode()).hexdigest(),
        )
    ],
)
_LIBRARY_ERRORS: Final = (RuntimeError, TypeError, ValueError, OverflowError, MemoryError)


class ExpressionFailed(ValueError):
    """An expression that has no value in this scope. `pointer` says where it stands inside the template."""

    def __init__(self, expression: str, reason: str, pointer: str = "") -> None:
        place = f"{pointer}: " if pointer else ""
        super().__init__(f"{place}{expression[:200]}: {reason}")
        self.expression = expression
        self.reason = reason
        self.pointer = pointer


def compiled(text: CelText, types: Mapping[str, Any]) -> Any:
    """The compiled form; `types` are the types of the variables that it reads. Raises TextInvalid."""
    variables = {".".join(path): types.get(".".join(path), cel.Type.DYN) for path in text.reads}
    variables |= {".".join((PRESENCE, *path)): cel.Type.BOOL for path in text.asks}
    try:
        env = cel.NewEnv(variables=variables, extensions=[ext_strings.ExtStrings()], functions=[_SHA256])
        return env.compile(text.compiled)
    except _LIBRARY_ERRORS as error:
        raise TextInvalid(_reason(str(error))) from error


def _reason(message: str) -> str:
    """The first line of the library's message, without its codes."""
    line = message.splitlines()[0] if message else "not CEL"
    for prefix in ("INVALID_ARGUMENT: ", "UNKNOWN: ", "NOT_FOUND: ", "INTERNAL: ", "ERROR: <input>:"):
        line = line.removeprefix(prefix)
    return line.removesuffix(" (in container '')")[:300]


@dataclass(slots=True)
class _Left:
    """What a template may still come to, in bytes, and what it may still take."""

    size: int
    effort: Effort


class Expressions:
    """The expressions of one document. Each is compiled once, when it is first needed."""

    def __init__(self, document: WorkflowDocument) -> None:
        self.document = document
        self._templates: dict[str, Template] = {}
        self._texts: dict[str, CelText] = {}
        self._programs: dict[str, Any] = {}

    def fill(self, template: Any, scope: Mapping[str, Any], effort: Effort | None = None) -> Any:
        """The template with its values. Raises ExpressionFailed, also where it would come to too much.

        `effort` is what the message that asks may still lead to; without one, one template's worth.
        """
        return self._fill(template, scope, _Left(RESULT_BYTES_MAX, effort or Effort()))

    def _fill(self, template: Any, scope: Mapping[str, Any], left: "_Left") -> Any:
        if isinstance(template, str):
            value = self._filled(template, scope, left)
            if value is _MISSING:
                raise ExpressionFailed(template, "is not there")
            return value
        if isinstance(template, dict):
            members = ((key, self._entry(key, item, scope, left)) for key, item in template.items())
            return {key: item for key, item in members if item is not _MISSING}
        if isinstance(template, list | tuple):
            items = (self._entry(index, item, scope, left) for index, item in enumerate(template))
            return [item for item in items if item is not _MISSING]
        return template

    def holds(self, expression: str, scope: Mapping[str, Any], effort: Effort | None = None) -> bool:
        """The truth of a condition, with `effort` as for `fill`.

        Raises ExpressionFailed, also where the value is no boolean.
        """
        text = self._texts.get(expression)
        if text is None:
            try:
                text = self._texts[expression] = read_expression(expression)
            except TextInvalid as error:
                raise ExpressionFailed(expression, str(error)) from error
        value = self._value(text, scope, effort or Effort())
        if not isinstance(value, bool):
            raise ExpressionFailed(expression, "is neither true nor false")
        return value

    def _entry(self, key: str | int, item: Any, scope: Mapping[str, Any], left: "_Left") -> Any:
        try:
            return self._filled(item, scope, left) if isinstance(item, str) else self._fill(item, scope, left)
        except ExpressionFailed as error:
            raise ExpressionFailed(error.expression, error.reason, below("", key) + error.pointer) from error

    def _filled(self, text: str, scope: Mapping[str, Any], left: "_Left") -> Any:
        if OPEN not in text:
            return text
        value = self._made(text, scope, left)
        if value is not _MISSING:
            _spend(text, value, left)
        return value

    def _made(self, text: str, scope: Mapping[str, Any], left: "_Left") -> Any:
        template = self._templates.get(text)
        if template is None:
            try:
                template = self._templates[text] = read_template(text)
            except TextInvalid as error:
                raise ExpressionFailed(text, str(error)) from error
        whole = template.whole
        if whole is not None:
            if template.optional and whole.path is not None:
                return looked_up(scope, whole.path)
            return self._value(whole, scope, left.effort)
        pieces, bounded = [], _Left(left.size, left.effort)
        for part in template.parts:
            pieces.append(part if isinstance(part, str) else _written(part, self._value(part, scope, left.effort)))
            _spend(text, pieces[-1], bounded)
        return "".join(pieces)

    def _value(self, text: CelText, scope: Mapping[str, Any], effort: Effort) -> Any:
        if text.path is not None:
            value = looked_up(scope, text.path)
            if value is _MISSING:
                raise ExpressionFailed(text.written, "is not there")
            return value
        program = self._programs.get(text.compiled)
        if program is None:
            try:
                program = self._programs[text.compiled] = compiled(text, {})
            except TextInvalid as error:
                raise ExpressionFailed(text.written, str(error)) from error
        return _evaluated(text, program, scope, effort)


@lru_cache(maxsize=256)
def _kept(sha256: str) -> list[Expressions]:
    return []


def expressions_of(document: WorkflowDocument) -> Expressions:
    """The expressions of a document, kept by its hash: cases of one version share what is compiled."""
    kept = _kept(document.sha256)
    if not kept:
        kept.append(Expressions(document))
    return kept[0]


def looked_up(scope: Mapping[str, Any], path: Path) -> Any:
    """The value at a path, or the mark of a missing one."""
    node: Any = scope
    for part in path:
        if not isinstance(node, Mapping) or part not in node:
            return _MISSING
        node = node[part]
    return node


def _evaluated(text: CelText, program: Any, scope: Mapping[str, Any], effort: Effort) -> Any:
    data: dict[str, Any] = {".".join((PRESENCE, *path)): looked_up(scope, path) is not _MISSING for path in text.asks}
    for path in text.reads:
        value = looked_up(scope, path)
        if value is not _MISSING:
            data[".".join(path)] = value
    names = {".".join(path): path in text.repeated for path in text.reads}
    values = [(data[name], again) for name, again in names.items() if name in data]
    possible = bound(text.growth, values)
    if possible > RESULT_BYTES_MAX:
        raise ExpressionFailed(text.written, f"could become {possible} bytes; {RESULT_BYTES_MAX} are possible")
    needed = work(text.work, values)
    if needed > WORK_MAX or not effort.take(needed):
        left = min(WORK_MAX, effort.left)
        raise ExpressionFailed(text.written, f"could take {needed} steps through these values; {left} are possible")
    try:
        result = program.eval(data=data)
        kind, value = result.type(), result.plain_value()
    except _LIBRARY_ERRORS as error:
        raise ExpressionFailed(text.written, _reason(str(error))) from error
    if kind == cel.Type.ERROR:
        raise ExpressionFailed(text.written, _reason(str(value)))
    return _json(text, value, [_RESULT_ITEMS_MAX])


def _json(text: CelText, value: Any, left: list[int]) -> Any:
    """The result as JSON, in plain types and of bounded size."""
    left[0] -= 1
    if left[0] < 0:
        raise ExpressionFailed(text.written, f"gives more than {_RESULT_ITEMS_MAX} values")
    if value is None or type(value) in (str, bool):
        return value
    if type(value) is int and abs(value) <= _SAFE_INTEGER:
        return value
    if type(value) is float and value - value == 0:
        return value
    if isinstance(value, list):
        return [_json(text, item, left) for item in value]
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {key: _json(text, item, left) for key, item in value.items()}
    raise ExpressionFailed(text.written, f"gives {type(value).__name__} ({str(value)[:40]}), which is no JSON value")


def _spend(text: str, value: Any, left: _Left) -> None:
    """Take a value's size from what a template may still come to."""
    left.size -= size_of(value, left.size)
    if left.size < 0:
        raise ExpressionFailed(text, f"comes to more than {RESULT_BYTES_MAX} bytes")


def _written(text: CelText, value: Any) -> str:
    """A value inside text: strings as they are, numbers and booleans in their JSON form."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        try:
            return canonical(value).decode()
        except ValueError as error:
            raise ExpressionFailed(text.written, str(error)) from error
    raise ExpressionFailed(text.written, f"{type(value).__name__} cannot stand inside text")
