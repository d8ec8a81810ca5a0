"""The AsyncAPI document is that of the code, is well formed, and every message that really flows fits it."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from pydantic import BaseModel
from tests.contract.witness import DOCUMENT, Witness
from tests.deployed import ROOT
from tests.simulation.bus import FakeBus
from tests.simulation.run import run_seed

from trueup_common.contracts import asyncapi, events, task
from trueup_common.contracts.envelope import Message
from trueup_common.contracts.messages import CHANNELS, covers
from trueup_common.contracts.topology import CONSUMERS, SERVICES, STREAMS, permissions, task_consumer

CORE = {"answer", "beat-adapter", "beat-governance"}
"""Channels of core NATS: no stream keeps what is said there."""
OFFICIAL = Path(os.environ.get("ASYNCAPI_SCHEMA") or ROOT / "node_modules/@asyncapi/specs/schemas/3.0.0.json")
"""The specification's own schema, where somebody put it (`npm install @asyncapi/specs`)."""
SEEDS = (*range(32), 65, 69)
"""The last two undo an effect that was observed: `Retired` is rare."""


def references(node: Any) -> Iterator[str]:
    """Every `$ref` of the document."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(reference: str) -> Any:
    """What a reference leads to. Raises KeyError."""
    found: Any = DOCUMENT
    assert reference.startswith("#/")
    for token in reference[2:].split("/"):
        found = found[token.replace("~1", "/").replace("~0", "~")]
    return found


def test_the_committed_document_is_that_of_the_code() -> None:
    """Requirements: M4"""
    assert json.loads(json.dumps(asyncapi.document())) == DOCUMENT, "run: make docs"


def test_every_reference_leads_somewhere_and_nothing_is_left_over() -> None:
    """Requirements: M4"""
    used = Counter(references(DOCUMENT))
    for reference in used:
        assert resolve(reference) is not None
    for kind in ("messages", "schemas", "parameters"):
        assert {name for name in DOCUMENT["components"][kind] if not used[f"#/components/{kind}/{name}"]} == set()


def test_every_channel_has_messages_a_sender_and_a_receiver() -> None:
    """Requirements: M4"""
    assert DOCUMENT["asyncapi"].startswith("3.0")
    senders: Counter[str] = Counter()
    receivers: Counter[str] = Counter()
    for name, operation in DOCUMENT["operations"].items():
        channel = operation["channel"]["$ref"].removeprefix("#/channels/")
        assert channel in DOCUMENT["channels"], name
        for reference in operation["messages"]:
            assert reference["$ref"].startswith(f"#/channels/{channel}/messages/"), name
        (senders if operation["action"] == "send" else receivers)[channel] += 1
    for name, channel in DOCUMENT["channels"].items():
        assert channel["messages"] and senders[name], name
        assert receivers[name], f"{name}: nobody listens"
        assert ("x-stream" in channel) == (name not in CORE)
        assert set(re.findall(r"\{(\w+)\}", channel["address"])) == set(channel.get("parameters", {}))
    assert len(DOCUMENT["channels"]) == len(CHANNELS)


def test_headers_are_cloudevents_and_trace_context() -> None:
    """Requirements: M4"""
    headers = DOCUMENT["components"]["schemas"]["Envelope"]
    assert {"ce-id", "ce-type", "ce-source", "ce-specversion", "ce-time"} <= set(headers["required"])
    assert "traceparent" in headers["properties"]
    bare = [name for name, message in DOCUMENT["components"]["messages"].items() if "headers" not in message]
    assert sorted(bare) == ["Beat", "GovernanceBeat"]


def test_the_table_names_every_message_and_every_subject_of_the_code() -> None:
    """A model that says who sends it to whom, a subject that a service builds, a filter of a consumer: all are in it.

    Requirements: M4
    """
    listed = {model for channel in CHANNELS for model in channel.models}
    for module in (events, task):
        for name, model in inspect.getmembers(module, inspect.isclass):
            if issubclass(model, BaseModel) and model.__module__ == module.__name__:
                told = (model.__doc__ or "").strip().partition("\n")[0]
                assert "→" not in told or model in listed, f"{name} is in no channel"
    for path in ROOT.glob("services/*/trueup_*/**/*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            called = call.func.id if isinstance(call.func, ast.Name) else ""
            if called in ("event_subject", "task_subject") and isinstance(call.args[1], ast.Constant):
                kind = str(call.args[1].value)
                assert any(f".{kind}." in f"{channel.address}." for channel in CHANNELS), f"{path.name}: {kind}"
    for consumer in [*CONSUMERS, task_consumer("*")]:
        for pattern in consumer.filters:
            assert any(covers(channel.pattern, pattern) or covers(pattern, channel.pattern) for channel in CHANNELS)
    for service in SERVICES:
        for pattern in permissions(service).publish:
            if pattern.startswith("trueup."):
                assert any(covers(pattern, channel.pattern) for channel in CHANNELS) or pattern.endswith(".>"), pattern
    assert all(any(covers(s, channel.pattern) for channel in CHANNELS) for stream in STREAMS for s in stream.subjects)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.*", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.b.c", False),
        ("a.b", "a.*", False),
        ("a.*.c", "a.*.c", True),
        ("a.*.c", "a.b", False),
    ],
)
def test_covering(pattern: str, subject: str, expected: bool) -> None:
    assert covers(pattern, subject) is expected


def test_what_really_flows_fits_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message of whole simulated planes, faults and repairs included: subject, type, headers and body.

    Requirements: M4
    """
    witness, store = Witness(), FakeBus.store

    def watched(bus: FakeBus, message: Message) -> None:
        if message.source != "nobody":
            witness.look(message)
        store(bus, message)

    monkeypatch.setattr(FakeBus, "store", watched)
    violations = [result.violation for result in map(run_seed, SEEDS) if result.violation]
    assert violations == [], "the planes themselves failed"
    assert witness.wrong == []
    expected = {"StartCase", "GrantRequest", "ExecuteTask", "FindTask", "ProbeTask", "Receipt", "Found", "Observed"}
    expected |= {"CaseChanged", "SettleRequested", "Settlement", "Established", "ElementVerified", "ElementChanged"}
    expected |= {"StartWorkflow", "ApprovalAsked", "ApprovalDecided", "SignalReceived", "SignalDisposed"}
    expected |= {"OperatorCommand", "OperatorCommandEnded", "Retired", "GrantRefused"}
    assert expected | {"ExceptionReported", "ExceptionChanged", "MessageQuarantined"} <= set(witness.seen)


def test_a_message_that_does_not_fit_is_noticed() -> None:
    """The check above bites: a lost header, another type, a field of another kind, a foreign subject."""
    witness = Witness()
    run: list[Message] = []
    store = FakeBus.store
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeBus, "store", lambda bus, message: (run.append(message), store(bus, message))[1])
        run_seed(0)
    sent = (message for message in run if message.type == "StartCase")
    good = next(message for message in sent if message.subject.startswith("trueup.cmd."))  # poison goes astray
    body = json.loads(good.data)
    witness.look(good)
    assert not witness.wrong
    for changed in (
        {"data": json.dumps({**body, "workflow_id": 7}).encode()},
        {"data": json.dumps({name: value for name, value in body.items() if name != "mandate"}).encode()},
        {"type": "Receipt"},
        {"subject": "trueup.evt.gateway.nonsense.acme"},
        {"tenant": "Not A Tenant"},
        {"traceparent": "nonsense"},
    ):
        before = len(witness.wrong)
        fields = {name: getattr(good, name) for name in Message.__slots__}
        witness.look(Message(**{**fields, **changed}))
        assert len(witness.wrong) > before, changed


@pytest.mark.skipif(not OFFICIAL.is_file(), reason="the specification's own schema is not installed")
def test_the_document_fits_the_schema_of_the_specification() -> None:
    """Requirements: M4"""
    schema = json.loads(OFFICIAL.read_text(encoding="utf-8"))
    assert [error.message for error in jsonschema_rs.Draft7Validator(schema).iter_errors(DOCUMENT)] == []
