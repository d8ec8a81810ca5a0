"""What an operator's action takes beside its target and reason: one closed model per action."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from trueup_common.contracts.operators import OperatorAction, Settled
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
