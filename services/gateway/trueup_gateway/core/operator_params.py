"""What an operator's action takes beside its target and reason: one closed model per action."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from trueup_common.contracts.operators import OperatorAction, Settled
from trueup_common.contracts.shape import record
from trueup_gateway.core.timestamps import Timestamp

A = OperatorAction


class Params(BaseModel):
    """Base of an action's parameters: closed to misspelt ones. JSON keeps its types: nothing is read into another."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Text = Annotated[str, Field(min_length=1, max_length=300)]


class AgainParams(Params):
    """`deadline`: until when it may take; left out, as long as it was given at first."""

    deadline: Timestamp | None = None
    repair_id: Text | None = None


class ResumeParams(Params):
    """From which step a case in a person's hands goes on; nothing for the end of a pause. `version`: its own."""

    from_step: Text | None = None
    version: int | None = Field(default=None, ge=1, strict=True)
    dry_run: bool = Field(default=False, strict=True)
    deadline: Timestamp | None = None


class HandBackParams(Params):
    """Until when the case may take from here on."""

    deadline: Timestamp | None = None


class TakeOverParams(Params):
    """`stop`: the case does not come back; it ends once what is out is settled."""

    stop: bool = Field(default=False, strict=True)


class AssignParams(Params):
    """Who owns it from here on."""

    owner: Text
    deadline: Timestamp | None = None


class EscalateParams(Params):
    """To whom; left out, to the duty of the plane."""

    owner: Text | None = None


class Disposed(Params):
    """What became of one effect."""

    effect: Text
    became: Annotated[str, Field(min_length=1, max_length=2000)]


class SettleParams(Params):
    """A person's finding."""

    finding: Settled
    receipt: dict[str, Any] | None = None
    external_resource_id: Text | None = None
    external_version: Text | None = None
    disposition: list[Disposed] = Field(default=[], max_length=100)


class Observed(Params):
    """One element that was observed."""

    system: Text
    resource: Text
    element: Text


class ResolvedParams(Params):
    """What shows that nothing is owed: a fresh observation, or what became of every effect.

    Of a case as a whole, every element that it owes was observed a moment ago (`observation` names one of them), and
    `disposition` names every other effect that stands by its command id, and nothing else.
    """

    observation: Observed | None = None
    disposition: list[Disposed] = Field(default=[], max_length=100)


class NoParams(Params):
    """Nothing."""


PARAMS: Final[dict[OperatorAction, type[Params]]] = {
    A.RETRY: AgainParams,
    A.RECONCILE: AgainParams,
    A.REDRIVE: AgainParams,
    A.REPAIR: AgainParams,
    A.COMPENSATE: AgainParams,
    A.PAUSE: NoParams,
    A.RESUME: ResumeParams,
    A.CANCEL: NoParams,
    A.MARK_RESOLVED: ResolvedParams,
    A.ESCALATE: EscalateParams,
    A.ASSIGN: AssignParams,
    A.SETTLE: SettleParams,
    A.TAKE_OVER: TakeOverParams,
    A.HAND_BACK: HandBackParams,
}
"""Action → the parameters that it takes."""


@record
class Told:
    """An action as its documentation has it: on what, with which parameters, and what becomes of the exception."""

    kind: str
    params: Mapping[str, Any]
    effect: str
    evidence: tuple[Mapping[str, Any], ...] = ()


_UNTIL: Final = {"deadline": "2026-12-01T12:00:00Z"}
_NO_EXCEPTION: Final = "An exception of the case stays open until what it is about is true."
_EFFECT: Final = "cmd_00000000000000000000000000000000"

TOLD: Final[Mapping[OperatorAction, Told]] = MappingProxyType(
    {
        A.RETRY: Told("command", _UNTIL, "What waits, or was never sent, is sent now; its success closes it."),
        A.RECONCILE: Told("exception", {}, "The target is only looked at; what is found decides whether it closes."),
        A.REDRIVE: Told(
            "exception", _UNTIL, "Looked at first, then sent again if nothing is there; only success closes it."
        ),
        A.REPAIR: Told("exception", {}, "The planned repair begins; it closes when the element is seen to be right."),
        A.COMPENSATE: Told(
            "exception", {}, "It closes, as `undone`, when nothing of the case stands any more; the act ends then, too."
        ),
        A.PAUSE: Told("workflow", {}, _NO_EXCEPTION),
        A.RESUME: Told(
            "workflow",
            {"from_step": "publish", "version": 2, "dry_run": True},
            "Of a case that a person has: it closes, and comes again if the step ends badly again.",
        ),
        A.CANCEL: Told("workflow", {}, "It closes at once; the case ends once what stood before the pivot is undone."),
        A.MARK_RESOLVED: Told(
            "exception",
            {"disposition": [{"effect": _EFFECT, "became": "kept; corrected by hand in the editor"}]},
            "It closes at once, by your word; nothing is sent and nothing is looked at again.",
        ),
        A.ESCALATE: Told(
            "exception", {"owner": "duty-manager"}, "It stays open, with another owner and a new deadline."
        ),
        A.ASSIGN: Told("exception", {"owner": "editors", **_UNTIL}, "It stays open with another owner."),
        A.SETTLE: Told(
            "exception",
            {"finding": "EXISTS", "receipt": {"id": 7}, "external_resource_id": "7"},
            "EXISTS and CLOSE close it; ABSENT says that nothing happened, and sending it again needs a new approval.",
            ({"kind": "screenshot", "ref": "art_00000000000000000000000000000000"},),
        ),
        A.TAKE_OVER: Told("workflow", {"stop": False}, "One opens: from here on the case is a person's."),
        A.HAND_BACK: Told("workflow", _UNTIL, "It closes; the case may be a person's again at once, see `result`."),
    }
)
"""Action → how it is used. The OpenAPI document shows each with its parameters."""


def documented(schema: dict[str, Any]) -> None:
    """Add to the schema of a request what `params` each action takes, with an example of each."""
    schema["allOf"] = [
        {
            "if": {"properties": {"action": {"const": action.value}}},
            "then": {"properties": {"params": {"title": f"Params of {action.value}", **_inlined(model)}}},
        }
        for action, model in PARAMS.items()
    ]
    schema["examples"] = [
        {
            "action": action.value,
            "target": {"kind": told.kind, "id": _IDS[told.kind]},
            "reason": "why it shall be done",
            "evidence": [dict(item) for item in told.evidence],
            "params": dict(told.params),
        }
        for action, told in TOLD.items()
    ]
    effects = "".join(f"\n- `{action.value}`: {told.effect}" for action, told in TOLD.items())
    schema["description"] = f"{schema.get('description', '')}\n\nWhat becomes of the exception:\n{effects}"


_IDS: Final = {
    "command": _EFFECT,
    "workflow": "wf_00000000000000000000000000000000",
    "exception": "exc_00000000000000000000000000000000",
}


def _inlined(model: type[BaseModel]) -> dict[str, Any]:
    """A schema that refers to nothing outside of itself."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return whole(parts[value["$ref"].rpartition("/")[2]])
            return {name: whole(item) for name, item in value.items()}
        return [whole(item) for item in value] if isinstance(value, list) else value

    found: dict[str, Any] = whole(schema)
    return found
