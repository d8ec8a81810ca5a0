"""A condition over facts whose names and types are known beforehand: what is not among them cannot be asked for.

Unlike a workflow's expressions, a condition is compiled and type-checked when it is made, and every fact is always
there: so it has a value, true or false, for every case.
"""

from collections.abc import Mapping
from typing import Any, Final

from cel_expr_python import cel

from trueup_common.documents.cel_text import TextInvalid, read_expression
from trueup_common.documents.expressions import ExpressionFailed, compiled

TYPES: Final[Mapping[type, Any]] = {
    str: cel.Type.STRING,
    bool: cel.Type.BOOL,
    int: cel.Type.INT,
}


class Condition:
    """One condition. `facts` names every fact (`exception.kind`) with its Python type. Raises TextInvalid."""

    def __init__(self, written: str, facts: Mapping[str, type]) -> None:
        roots = tuple({name.partition(".")[0] for name in facts})
        self.written = written
        self._text = read_expression(written, roots)
        if self._text.asks:
            raise TextInvalid("every fact is always there: has() is not needed")
        unknown = sorted(name for name in map(".".join, self._text.reads) if name not in facts)
        if unknown:
            raise TextInvalid(f"there is no fact {', '.join(unknown)}")
        self._names = [".".join(path) for path in self._text.reads]
        self._program = compiled(self._text, {name: TYPES[facts[name]] for name in self._names})
        if self._program.return_type() != cel.Type.BOOL:
            raise TextInvalid("a condition is either true or false")

    def holds(self, facts: Mapping[str, Any]) -> bool:
        """The truth of it. Raises ExpressionFailed, which a fact that is missing or of another type leads to."""
        try:
            result = self._program.eval(data={name: facts[name] for name in self._names})
            value = result.plain_value()
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ExpressionFailed(self.written, str(error)) from error
        if not isinstance(value, bool):
            raise ExpressionFailed(self.written, "is neither true nor false")
        return value
