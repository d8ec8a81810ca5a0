"""The command types of the simulated world: every effect class, every way to find an effect, and what undoes what.

`COMMANDS` may come as single commands, all of them as steps of workflows.
"""

from __future__ import annotations

from typing import Any, Final

from trueup_common.contracts.declaration import CommandDeclaration, Establishes, Mapping, Probe, Repair, RetryPolicy
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import EffectClass, Findability

SYSTEMS: Final = ("alpha", "beta")
TIMEOUT_SECONDS: Final = 4.0
START_WINDOW_SECONDS: Final = 5.0
LATE_WINDOW_SECONDS: Final = 3.0


_RECEIPT: Final = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "text": {"type": "string"}, "created": {"type": "boolean"}},
    "required": ["id", "text", "created"],
}


def _declaration(type_: str, effect_class: EffectClass, findability: Findability, **more: Any) -> CommandDeclaration:
    system = type_.split(".", 1)[0]
    values: dict[str, Any] = {
        "title": type_,
        "permission": f"{system}:write",
        "payload_schema": {"type": "object"},
        "receipt_schema": _RECEIPT,
        "success_condition": "the object carries the value",
        "timeout_seconds": TIMEOUT_SECONDS,
        "start_window_seconds": START_WINDOW_SECONDS,
        "late_window_seconds": LATE_WINDOW_SECONDS,
        "retry": RetryPolicy(attempts_max=4, initial_seconds=0.5, factor=2.0, ceiling_seconds=4.0),
    }
    values.update(more)
    return CommandDeclaration(type=type_, system=system, effect_class=effect_class, findability=findability, **values)


def _again(command_type: str) -> Repair:
    """The command itself, which puts the same text there again."""
    return Repair(
        command_type=command_type,
        payload={"text": ValueFrom(pointer="/payload/text")},
        verification="the object carries the value again",
    )


def _establishes(element: str, window_seconds: float) -> Establishes:
    return Establishes(
        element=element,
        resource=ValueFrom(pointer="/target/resource"),
        value=ValueFrom(pointer="/payload/text"),
        window_seconds=window_seconds,
        normaliser="text",
        probe=Probe(kind="object", params={"resource": ValueFrom(pointer="/target/resource")}),
    )


def _undo(command_type: str, also: dict[str, ValueFrom] | None = None, **more: Any) -> Mapping:
    """The command that takes back an operation, which it names."""
    payload = {"text": ValueFrom(const="undone"), "undoes": ValueFrom(pointer="/command_id"), **(also or {})}
    return Mapping(command_type=command_type, payload=payload, **more)


def _edits(type_: str, effect_class: EffectClass, **more: Any) -> CommandDeclaration:
    """A type that reads a page, compares and writes, at a target that compares nothing."""
    page = {"type": "object", "properties": {"page": {"type": "string"}}, "required": ["page"]}
    alone = {"payload_schema": page, "acts_on": "page/{/payload/page}", "exclusive": True}
    return _declaration(type_, effect_class, Findability.MARKER, **alone, **more)


COMMANDS: Final = (
    _declaration(
        "alpha.put_note",
        EffectClass.RETRYABLE,
        Findability.MARKER,
        establishes=(_establishes("note.text", 0.0),),
        repair=_again("alpha.put_note"),
    ),
    _declaration(
        "alpha.make_draft",
        EffectClass.COMPENSABLE,
        Findability.MARKER,
        establishes=(_establishes("draft.text", 4.0),),
        compensation=_undo("alpha.put_note"),
        repair=_again("alpha.make_draft"),
    ),
    _declaration(
        "alpha.publish",
        EffectClass.PIVOT,
        Findability.NATIVE_KEY,
        target_key_lifetime_seconds=86400,
        establishes=(_establishes("page.text", 2.0),),
        repair=_again("alpha.publish"),
    ),
    _declaration(
        "beta.send_mail",
        EffectClass.IRREVERSIBLE,
        Findability.NONE,
        manual_policy="look into the mailbox",
        reconciliation="person",
    ),
    _declaration("beta.charge", EffectClass.RETRYABLE, Findability.BUSINESS_KEY, identity=("/payload/text",)),
    _edits(
        "alpha.edit",
        EffectClass.COMPENSABLE,
        compensation=_undo("alpha.edit_back", {"page": ValueFrom(pointer="/payload/page")}),
    ),
)
EDIT: Final = COMMANDS[-1]
"""Has its page alone while it may act on it."""

STEPS: Final = (
    _declaration(
        "alpha.make_page",
        EffectClass.COMPENSABLE,
        Findability.MARKER,
        establishes=(_establishes("page.made", 4.0),),
        compensation=_undo("alpha.remove_page"),
    ),
    _declaration("alpha.remove_page", EffectClass.RETRYABLE, Findability.MARKER),
    _edits("alpha.edit_back", EffectClass.RETRYABLE),
    _declaration(
        "beta.reserve",
        EffectClass.COMPENSABLE,
        Findability.BUSINESS_KEY,
        compensation=_undo("beta.free", only_if=ValueFrom(pointer="/receipt/created")),
        forward_recovery="retry",
    ),
    _declaration("beta.free", EffectClass.RETRYABLE, Findability.NATIVE_KEY, target_key_lifetime_seconds=86400),
    _declaration(
        "alpha.release",
        EffectClass.PIVOT,
        Findability.NATIVE_KEY,
        target_key_lifetime_seconds=86400,
        establishes=(_establishes("page.live", 2.0),),
        compensation=_undo("alpha.withdraw"),
    ),
    _declaration("alpha.withdraw", EffectClass.RETRYABLE, Findability.MARKER),
    _declaration("beta.look", EffectClass.READ, Findability.NATIVE_KEY, target_key_lifetime_seconds=86400),
    _declaration(
        "beta.notify",
        EffectClass.RETRYABLE,
        Findability.MARKER,
        establishes=(_establishes("note.sent", 3.0),),
        forward_recovery="retry",
    ),
)
APPROVED: Final = frozenset({"alpha.release"})
"""What policy permits only with a person's approval."""

DECLARATIONS: Final = (*COMMANDS, *STEPS)
BY_TYPE: Final = {declaration.type: declaration for declaration in DECLARATIONS}
