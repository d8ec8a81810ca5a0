"""Monitoring: checks that Prometheus discovers here and watches there.

The effect is one row of the adapters' own table, committed with the operation's id: what is wanted. Prometheus comes
and asks for it (HTTP service discovery), and whether it did is read from its own `/api/v1/targets`, never from the row.
"""

import base64
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from trueup_adapters.core.classify import classify_failure, http_date
from trueup_adapters.systems.http import HttpTarget, TransportFailed, is_private_literal
from trueup_common.contracts.adapter import (
    Call,
    Connection,
    Document,
    Documents,
    DocumentsAway,
    EndsWith,
    Outcome,
    confirmed,
    rejected,
    unknown,
)
from trueup_common.contracts.clean import clean_text
from trueup_common.contracts.declaration import CommandDeclaration, Establishes, Mapping, Probe, Repair
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import EffectClass, ErrorClass, Findability, FindVerdict, ProbeVerdict, RiskLevel
from trueup_common.contracts.survey import PAGE_MARKS_MAX, Mark, Page
from trueup_common.contracts.task import ProbeElement
from trueup_common.runtime.clock import real_now

SYSTEM: Final = "monitoring"
ELEMENT: Final = "monitoring.registered"
PRESENT: Final = "monitoring.target"
ABSENT: Final = "monitoring.no_target"
REMOVED: Final = "removed"
SOURCE: Final = "prometheus"
TARGETS: Final = "/api/v1/targets"
RUNTIME: Final = "/api/v1/status/runtimeinfo"
CHECK_ID: Final = "trueup_check_id"
"""The label by which a target is known again. The adapter looks for it as discovered, before any relabelling."""

SCRAPE_SECONDS_MAX: Final = 10
WINDOW_SECONDS: Final = 90.0
"""Prometheus asks every 60 seconds unless told otherwise, and puts new targets to use a few seconds later."""

_B, _P = ErrorClass.BUSINESS, ErrorClass.PERMANENT
_TIMES: Final[dict[str, float]] = {
    "timeout_seconds": 10.0,
    "start_window_seconds": 10.0,
    "late_window_seconds": 20.0,
}
"""Together past the database's own limit of 30 seconds for a statement that nobody waits for any more."""

_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[^\\x00-\\x1f\\x7f]+$"}
_NAME: Final = {"type": "string", "maxLength": 200, "pattern": "^[A-Za-z0-9][A-Za-z0-9._/-]*$"}
_URL: Final = {
    "type": "string",
    "maxLength": 2000,
    "pattern": "^https?://[A-Za-z0-9._~%:\\[\\]-]+([/?#][!-~]*)?$",
}
_CHECK_ID: Final = {"type": "string", "pattern": "^chk_[A-Za-z0-9_]+$", "maxLength": 200}
_RECEIPT: Final = {
    "type": "object",
    "required": ["check_id"],
    "properties": {
        "check_id": _CHECK_ID,
        "name": _NAME,
        "url": {"type": "string"},
        "resource": {"type": "string"},
        "registered": {"type": "object"},
    },
}


def check_id_of(operation_id: str) -> str:
    """The check that an operation registers; it follows from the operation, so both name one thing."""
    return "chk_" + operation_id.removeprefix("cmd_")


def operation_id_of(check_id: str) -> str:
    """The operation that registers a check."""
    return "cmd_" + check_id.removeprefix("chk_")


def _establish(kind: str, value: ValueFrom) -> Establishes:
    return Establishes(
        element=ELEMENT,
        resource=ValueFrom(pointer="/receipt/resource"),
        value=value,
        window_seconds=WINDOW_SECONDS,
        probe=Probe(kind=kind, params={"check_id": ValueFrom(pointer="/receipt/check_id")}),
    )


def _result(document: Document) -> dict[str, Any]:
    check_id, url = check_id_of(document.operation_id), document.content.get("url")
    return {
        "check_id": check_id,
        "name": document.key,
        "url": url,
        "resource": f"check/{document.key}",
        "registered": {"check_id": check_id, "url": url},
    }


def _success(document: Document) -> Outcome:
    result = _result(document)
    return confirmed(result, external_resource_id=result["check_id"])


def _found(document: Document) -> Finding:
    result = _result(document)
    return Finding(
        verdict=FindVerdict.CONFIRMED,
        proof_of_access=True,
        evidence=Findability.NATIVE_KEY.value,
        candidates=1,
        result=result,
        external_resource_id=result["check_id"],
    )


_MISSING: Final = Finding(
    verdict=FindVerdict.MISSING, proof_of_access=True, evidence=Findability.NATIVE_KEY.value, candidates=0
)


class Command(Protocol):
    """One command type."""

    @property
    def declaration(self) -> CommandDeclaration:
        """Everything about the type, as data."""
        ...

    async def perform(self, checks: Documents, call: Call, *, private: bool) -> Outcome:
        """Look, change once. DocumentsAway may leave it."""
        ...

    async def find(self, checks: Documents, call: Call) -> Finding:
        """Look for the effect. DocumentsAway may leave it."""
        ...


class RegisterCheck:
    """`monitoring.register_check`: its business identity is the name."""

    declaration = CommandDeclaration(
        type="monitoring.register_check",
        system=SYSTEM,
        title="Register a check",
        description="Has an address watched under a name, until the check is removed.",
        permission="monitoring:write",
        effect_class=EffectClass.RETRYABLE,
        payload_schema={
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "url", "expect", "interval_seconds"],
            "properties": {
                "name": _NAME,
                "url": _URL,
                "expect": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["status"],
                    "properties": {"status": {"type": "integer", "minimum": 100, "maximum": 599}, "contains": _TEXT},
                },
                "interval_seconds": {"type": "integer", "minimum": 5, "maximum": 86400},
                "replaces": _CHECK_ID,
            },
        },
        receipt_schema=_RECEIPT,
        acts_on="check/{/payload/name}",
        identity=("/payload/name",),
        findability=Findability.NATIVE_KEY,
        find_ladder=(Findability.NATIVE_KEY,),
        **_TIMES,
        expected_version="none",
        success_condition="the check stands under its name with this operation's id",
        read_back=False,
        establishes=(_establish(PRESENT, ValueFrom(pointer="/receipt/registered")),),
        compensation=Mapping(
            command_type="monitoring.remove_check",
            payload={"check_id": ValueFrom(pointer="/receipt/check_id")},
            verification="the monitoring system no longer lists the check",
        ),
        repair=Repair(
            command_type="monitoring.register_check",
            payload={
                "name": ValueFrom(pointer="/payload/name"),
                "url": ValueFrom(pointer="/payload/url"),
                "expect": ValueFrom(pointer="/payload/expect"),
                "interval_seconds": ValueFrom(pointer="/payload/interval_seconds"),
                "replaces": ValueFrom(pointer="/receipt/check_id"),
            },
            verification="the monitoring system lists the check again",
        ),
        forward_recovery="retry",
        risk=RiskLevel.LOW,
        blast_radius=5,
    )

    async def perform(self, checks: Documents, call: Call, *, private: bool) -> Outcome:
        """Put the check where the name is free.

        `replaces` names the check that is not watched any more: it makes room for the new one under its name.
        """
        payload, own = call.operation.payload, call.operation.command_id
        if not private and is_private_literal(urlsplit(payload["url"]).hostname or ""):
            return rejected(_P, "address_refused", "the address to watch is in a private network")
        document = await checks.made_by(own) or await checks.get(payload["name"])
        if document is not None and document.operation_id != own and is_replaced(document, payload):
            await checks.remove(document, operation_id=own, may_send=call.may_send)
            document = None
        if document is None:
            content = {key: payload[key] for key in ("url", "expect", "interval_seconds")}
            document = await checks.put(payload["name"], content, operation_id=own, may_send=call.may_send)
        if document.operation_id != own:
            holder = check_id_of(document.operation_id)
            return rejected(_B, "foreign_object", f"check {holder} holds the name {payload['name']!r}")
        return _success(document)

    async def find(self, checks: Documents, call: Call) -> Finding:
        """By the operation's id, which is exact: also a check that was removed since was registered."""
        document = await checks.made_by(call.operation.command_id)
        return _found(document) if document is not None else _MISSING


class RemoveCheck:
    """`monitoring.remove_check`: a check that is gone already is as good as removed."""

    declaration = CommandDeclaration(
        type="monitoring.remove_check",
        system=SYSTEM,
        title="Remove a check",
        description="Ends the watching of an address.",
        permission="monitoring:write",
        effect_class=EffectClass.RETRYABLE,
        payload_schema={
            "type": "object",
            "additionalProperties": False,
            "properties": {"check_id": _CHECK_ID, "name": _NAME},
            "oneOf": [{"required": ["check_id"]}, {"required": ["name"]}],
        },
        receipt_schema=_RECEIPT,
        acts_on="check/{/payload/name|/payload/check_id}",
        findability=Findability.NATIVE_KEY,
        find_ladder=(Findability.NATIVE_KEY,),
        **_TIMES,
        expected_version="none",
        success_condition="the check does not stand any more",
        read_back=False,
        establishes=(_establish(ABSENT, ValueFrom(const=REMOVED)),),
        forward_recovery="retry",
        risk=RiskLevel.LOW,
        blast_radius=10,
    )

    async def perform(self, checks: Documents, call: Call, *, private: bool) -> Outcome:
        """Remove exactly the check that was looked up."""
        own = call.operation.command_id
        document = await checks.removed_by(own) or await self._named(checks, call)
        if document is None:
            return rejected(_P, "not_found", "no such check")
        if document.removed_by is None:
            document = await checks.remove(document, operation_id=own, may_send=call.may_send)
        return _success(document)

    async def find(self, checks: Documents, call: Call) -> Finding:
        """By the operation's id, else by the check's own end, whoever brought it about."""
        document = await checks.removed_by(call.operation.command_id) or await self._named(checks, call)
        return _found(document) if document is not None and document.removed_by is not None else _MISSING

    async def _named(self, checks: Documents, call: Call) -> Document | None:
        payload = call.operation.payload
        if "check_id" not in payload:
            return await checks.get(payload["name"])
        document = await checks.made_by(operation_id_of(payload["check_id"]))
        while document is not None and document.removed_by is not None:
            successor = await checks.made_by(document.removed_by)
            if successor is None:
                break
            document = successor  # a repair put it in the place of the one that is meant
        return document


def is_replaced(document: Document, payload: MappingOf[str, Any]) -> bool:
    """True where this is the check that a registration is to replace."""
    return payload.get("replaces") == check_id_of(document.operation_id)


COMMANDS: Final[tuple[Command, ...]] = (RegisterCheck(), RemoveCheck())
_BY_TYPE: Final = {command.declaration.type: command for command in COMMANDS}


class MonitoringTarget(HttpTarget):
    """One tenant's checks, and the Prometheus that watches them."""

    def __init__(self, connection: Connection) -> None:
        settings = connection.settings
        super().__init__(connection, str(settings.get("base_url", "")))
        if connection.documents is None:
            raise ValueError(f"connection {connection.tenant}/{connection.system}: checks have no place to be kept")
        self._checks = connection.documents
        self._private = connection.allow_private_network
        self._tenant = connection.tenant
        self._modules = _modules(settings)
        self._pool = settings.get("scrape_pool")
        self._headers = _credential(settings)

    async def perform(self, call: Call) -> Outcome:
        """Change the checks once."""
        try:
            return await _BY_TYPE[call.operation.command_type].perform(self._checks, call, private=self._private)
        except DocumentsAway as away:
            detail = clean_text(str(away), 200)
            if away.sent:
                return unknown("connection_lost", detail)
            return rejected(ErrorClass.TRANSIENT, "unavailable", detail)

    async def find(self, call: Call) -> Finding:
        """Look into the checks."""
        try:
            return await _BY_TYPE[call.operation.command_type].find(self._checks, call)
        except DocumentsAway:
            return Finding(verdict=FindVerdict.UNKNOWN, reason="unavailable")

    async def discovery(self) -> list[dict[str, Any]]:
        """All checks in the format of Prometheus' HTTP service discovery."""
        return [target_group(self._tenant, check, self._modules) for check in await self._checks.standing()]

    async def probe(self, elements: Sequence[ProbeElement]) -> Sequence[Observation]:
        """What Prometheus lists as its active targets; one read for all elements."""
        params = {"state": "active"} | ({"scrapePool": str(self._pool)} if self._pool else {})
        try:
            answer = await self.read(TARGETS, params=params, headers=self._headers)
        except TransportFailed as failure:
            reason = classify_failure(sent=True, code=failure.code).error_code or "unavailable"
            return [_doubtful(item, reason) for item in elements]
        targets = active_targets(answer.document())
        if targets is None:
            return [_doubtful(item, answer.outcome().error_code or "answer_unreadable") for item in elements]
        doubt = None
        if any(item.params.get("check_id") not in targets for item in elements):
            doubt = await self._warming_up()
        return [_observed(item, targets, doubt) for item in elements]

    async def survey(self, cursor: str | None, params: MappingOf[str, Any]) -> Page:
        """The checks of this tenant that Prometheus watches, all of them in the order of their ids. Raises EndsWith."""
        asked = {"state": "active"} | ({"scrapePool": str(self._pool)} if self._pool else {})
        try:
            answer = await self.read(TARGETS, params=asked, headers=self._headers)
        except TransportFailed as failure:
            raise EndsWith(failure.outcome_of_read()) from failure
        targets = active_targets(answer.document())
        if targets is None:
            raise EndsWith(unknown(answer.outcome().error_code or "answer_unreadable"))
        own = sorted(
            check_id
            for check_id, target in targets.items()
            if target["discoveredLabels"].get("trueup_tenant") == self._tenant and check_id > (cursor or "")
        )
        marks = tuple(
            Mark(operation_id=operation_id_of(check_id), external_resource_id=check_id)
            for check_id in own[:PAGE_MARKS_MAX]
        )
        return Page(marks=marks, next_cursor=own[PAGE_MARKS_MAX - 1] if len(own) > PAGE_MARKS_MAX else None)

    async def _warming_up(self) -> str | None:
        """Why the silence of this Prometheus proves nothing: its list does not outlive it, and it began only lately.

        Compatible systems that do not tell when they began are taken at their word.
        """
        try:
            answer = await self.read(RUNTIME, headers=self._headers)
        except TransportFailed as failure:
            return classify_failure(sent=True, code=failure.code).error_code or "unavailable"
        if answer.status == 404:
            return None
        document = answer.document()
        if document is None:
            return answer.outcome().error_code or "answer_unreadable"
        return "warming_up" if is_young(document, answer.headers.get("date", "")) else None


def target_group(tenant: str, check: Document, modules: MappingOf[str, str]) -> dict[str, Any]:
    """One check as a target group, labelled for the blackbox exporter: only `__address__` is left to the operator."""
    url, expect = check.content["url"], check.content["expect"]
    interval_seconds, status = check.content["interval_seconds"], str(expect["status"])
    labels = {
        CHECK_ID: check_id_of(check.operation_id),
        "trueup_check": check.key,
        "trueup_tenant": tenant,
        "instance": url,
        "__param_target": url,
        "__param_module": modules.get(status) or ("http_2xx" if status[0] == "2" else f"http_{status}"),
        "__scrape_interval__": f"{interval_seconds}s",
        "__scrape_timeout__": f"{min(interval_seconds, SCRAPE_SECONDS_MAX)}s",
        "__meta_trueup_expect_status": status,
    }
    if "contains" in expect:
        labels["__meta_trueup_expect_contains"] = expect["contains"]
    return {"targets": [url], "labels": labels}


def active_targets(document: Any) -> dict[str, MappingOf[str, Any]] | None:
    """Prometheus' own targets by check, from its answer; None where that is not its answer."""
    if not isinstance(document, dict) or document.get("status") != "success":
        return None
    listed = document.get("data", {}).get("activeTargets") if isinstance(document.get("data"), dict) else None
    if not isinstance(listed, list):
        return None
    found: dict[str, MappingOf[str, Any]] = {}
    for target in listed:
        labels = target.get("discoveredLabels") if isinstance(target, dict) else None
        if isinstance(labels, dict) and isinstance(labels.get(CHECK_ID), str):
            found.setdefault(labels[CHECK_ID], target)
    return found


def is_young(document: Any, date: str) -> bool:
    """True where Prometheus' runtime information tells, by its own clock, that it began within the window."""
    data, now = document.get("data"), http_date(date)
    try:
        started = datetime.fromisoformat(data["startTime"])
        return now is not None and (now - started).total_seconds() < WINDOW_SECONDS
    except (TypeError, KeyError, ValueError):
        return False


def _observed(item: ProbeElement, targets: MappingOf[str, MappingOf[str, Any]], doubt: str | None) -> Observation:
    """Discovery decides; how the watched address does is told along with it. `doubt` says why silence is no proof."""
    check_id = item.params.get("check_id")
    if item.kind not in (PRESENT, ABSENT) or not isinstance(check_id, str):
        return _doubtful(item, "element_unknown")
    target = targets.get(check_id)
    if target is None and doubt is not None:
        return _doubtful(item, doubt)
    value: Any = None
    if target is not None:
        value = {"check_id": check_id, "url": target["discoveredLabels"].get("__param_target")}
    elif item.kind == ABSENT:
        value = REMOVED
    health = target.get("health") if target is not None else None
    return Observation(
        element=item.element,
        verdict=ProbeVerdict.MISSING if value is None else ProbeVerdict.CONFIRMED,
        value=value,
        observed_at=real_now(),
        source=SOURCE,
        version=f"health:{health}" if isinstance(health, str) else None,
        proof_of_access=True,
    )


def _doubtful(item: ProbeElement, reason: str) -> Observation:
    return Observation(
        element=item.element, verdict=ProbeVerdict.UNKNOWN, observed_at=real_now(), source=SOURCE, reason=reason
    )


def _modules(settings: MappingOf[str, Any]) -> dict[str, str]:
    """Names of the operator's blackbox modules by expected status."""
    modules = settings.get("modules", {})
    if not isinstance(modules, dict):
        raise ValueError("modules: {status: name of a blackbox module} is needed")
    return {str(status): str(name) for status, name in modules.items()}


def _credential(settings: MappingOf[str, Any]) -> dict[str, str]:
    """Prometheus is only ever read here: the read credential where there is one, else the plain one, else none."""
    for prefix in ("read_", ""):
        token, username = settings.get(f"{prefix}token"), settings.get(f"{prefix}username")
        if token is not None:
            return {"authorization": f"Bearer {token}"}
        if username is not None:
            pair = f"{username}:{settings.get(f'{prefix}password', '')}"
            return {"authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
    return {}


class MonitoringAdapter:
    """The entry point."""

    system = SYSTEM
    declarations = tuple(command.declaration for command in COMMANDS)
    settings = frozenset(
        {
            "base_url",
            "discovery_token",
            "scrape_pool",
            "modules",
            "token",
            "username",
            "password",
            "read_token",
            "read_username",
            "read_password",
        }
    )

    def open(self, connection: Connection) -> MonitoringTarget:
        """A target for one connection: base_url; optional are a credential, `scrape_pool` and `modules`."""
        return MonitoringTarget(connection)


ADAPTER: Final = MonitoringAdapter()
