"""Checks messages that really flow against the committed AsyncAPI document."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import jsonschema_rs
from tests.deployed import ROOT

from trueup_common.contracts.envelope import Message, headers_of
from trueup_common.contracts.messages import channel_of

DOCUMENT: dict[str, Any] = json.loads((ROOT / "docs" / "asyncapi.json").read_text(encoding="utf-8"))


class Witness:
    """Checks messages against the document as they are published."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._validators: dict[tuple[str, str], Any] = {}

    def look(self, message: Message) -> None:
        self.look_at(message.subject, headers_of(message), message.data)

    def look_at(self, subject: str, headers: dict[str, str], data: bytes) -> None:
        """One message as it travels."""
        channel = channel_of(subject)
        if channel is None:
            self.wrong.append(f"{subject}: no such channel")
            return
        described = DOCUMENT["channels"][channel.name]["messages"]
        kind = headers.get("ce-type", "")
        if kind not in described:
            self.wrong.append(f"{kind} is not a message of {channel.name}")
            return
        self.seen[kind] += 1
        self._fits(kind, "payload", json.loads(data))
        self._fits(kind, "headers", headers)

    def _fits(self, name: str, part: str, value: Any) -> None:
        validator = self._validators.get((name, part))
        if validator is None:
            schema = {**DOCUMENT["components"]["messages"][name][part], "components": DOCUMENT["components"]}
            if "$ref" in schema:  # draft 7 ignores what stands beside a reference
                schema = {"allOf": [{"$ref": schema["$ref"]}], "components": DOCUMENT["components"]}
            validator = self._validators[name, part] = jsonschema_rs.Draft7Validator(schema)
        self.wrong += [
            f"{name} {part} {error.instance_path}: {error.message}" for error in validator.iter_errors(value)
        ]
