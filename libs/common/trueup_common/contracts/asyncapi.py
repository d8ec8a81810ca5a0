"""The AsyncAPI document of the bus, from the tables and models that the services themselves use.

Schema objects of AsyncAPI are those of JSON Schema draft 7: what pydantic writes for a later draft is put in its words.
"""

from typing import Any, Final

from pydantic.json_schema import models_json_schema

from trueup_common.contracts import envelope
from trueup_common.contracts.ids import SYSTEM_PATTERN, TENANT_PATTERN
from trueup_common.contracts.messages import CHANNELS, Channel, covers
from trueup_common.contracts.topology import CONSUMERS, SERVICES, STREAMS, Consumer, permissions, task_consumer

Json = dict[str, Any]
ASYNCAPI: Final = "3.0.0"
VERSION: Final = "1.0.0"
DESCRIPTION: Final = (
    "Messages between the services of Trueup. Headers carry the CloudEvents attributes as `ce-*` and the W3C trace "
    "context, the body is JSON. A message without its required headers is quarantined. Events carry whole state with a "
    "version: their order does not matter, and a receiver ignores fields that it does not know."
)
_PARAMETERS: Final[dict[str, Json]] = {
    "tenant": {"description": f"The tenant; every durable subject ends in it. Pattern: {TENANT_PATTERN}"},
    "system": {"description": f"The external system. Pattern: {SYSTEM_PATTERN}"},
    "service": {"description": "The service that speaks.", "enum": list(SERVICES)},
    "instance": {"description": "One process among the replicas of the gateway."},
}
_EVERYONES: Final = "trueup.evt.*.quarantined.*"
"""What every service may say, in its own name."""
_TEXT: Final[Json] = {"type": "string", "minLength": 1}
_HEADERS: Final[dict[str, Json]] = {
    "ce-specversion": {"type": "string", "const": "1.0"},
    "ce-id": {**_TEXT, "pattern": f"^{envelope.NAME_PATTERN}$", "description": "Identity for deduplication."},
    "ce-type": {"type": "string", "pattern": f"^{envelope.TYPE_PATTERN}$", "description": "The name of the message."},
    "ce-source": {**_TEXT, "pattern": f"^{envelope.NAME_PATTERN}$", "description": "The service that sent it."},
    "ce-time": {"type": "string", "format": "date-time", "description": "When it was decided, in UTC."},
    "ce-tenant": {"type": "string", "pattern": TENANT_PATTERN, "description": "Equals the end of the subject."},
    "ce-causationid": {**_TEXT, "description": "The message that this one follows from, percent-encoded."},
    "ce-replyto": {**_TEXT, "description": "Subject of the replica that waits for the answer."},
    "Nats-Msg-Id": {**_TEXT, "description": "Equals ce-id: the broker drops a repetition within its window."},
    "content-type": {"type": "string", "const": "application/json"},
    "traceparent": {
        "type": "string",
        "pattern": f"^{envelope.TRACE_PATTERN}$",
        "description": "W3C trace context of the command that this message belongs to.",
    },
}


def document() -> Json:
    """The whole document."""
    models = sorted({model for channel in CHANNELS for model in channel.models}, key=lambda model: model.__name__)
    _, defined = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    bare = {model for channel in CHANNELS if not channel.enveloped for model in channel.models}
    return {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": "Trueup bus",
            "version": VERSION,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "bus": {
                "host": "nats:4222",
                "protocol": "nats",
                "description": "NATS with JetStream. Each service has its own user, permissions and inbox prefix.",
                "security": [{"$ref": "#/components/securitySchemes/user"}],
            }
        },
        "channels": {channel.name: _channel(channel) for channel in CHANNELS},
        "operations": _operations(),
        "components": {
            "securitySchemes": {"user": {"type": "userPassword"}},
            "parameters": _PARAMETERS,
            "messages": {model.__name__: _message(model, enveloped=model not in bare) for model in models},
            "schemas": {"Envelope": _envelope(), **_draft_7(defined.get("$defs", {}))},
        },
    }


def _channel(channel: Channel) -> Json:
    names = [token[1:-1] for token in channel.address.split(".") if token.startswith("{")]
    stream = next((s for s in STREAMS if any(covers(subject, channel.pattern) for subject in s.subjects)), None)
    kept = "until acknowledged" if stream and stream.work_queue else "for a time"
    return {
        "address": channel.address,
        "description": f"Stream {stream.name}, kept {kept}." if stream else "Core NATS: at most once, for nudges.",
        "servers": [{"$ref": "#/servers/bus"}],
        **({"parameters": {name: {"$ref": f"#/components/parameters/{name}"} for name in names}} if names else {}),
        "messages": {model.__name__: {"$ref": f"#/components/messages/{model.__name__}"} for model in channel.models},
        **({"x-stream": stream.name} if stream else {}),
    }


def _operations() -> Json:
    found: Json = {}
    for service in SERVICES:
        allowed = permissions(service)
        for channel in CHANNELS:
            if any(covers(pattern, channel.pattern) for pattern in (*allowed.publish, _EVERYONES)):
                found[f"{service}-sends-{channel.name}"] = _operation("send", service, channel)
            consumer = _consumer(service, channel)
            if consumer is not None or any(covers(pattern, channel.pattern) for pattern in allowed.subscribe):
                found[f"{service}-receives-{channel.name}"] = _operation("receive", service, channel, consumer)
    return found


def _consumer(service: str, channel: Channel) -> Consumer | None:
    consumers = [*CONSUMERS, task_consumer("*")]
    return next(
        (c for c in consumers if c.service == service and any(covers(f, channel.pattern) for f in c.filters)), None
    )


def _operation(action: str, service: str, channel: Channel, consumer: Consumer | None = None) -> Json:
    durable = consumer.durable.replace("*", "{system}") if consumer is not None else None
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel.name}"},
        "messages": [{"$ref": f"#/channels/{channel.name}/messages/{model.__name__}"} for model in channel.models],
        "tags": [{"name": service}],
        **({"x-consumer": durable} if durable else {}),
    }


def _message(model: type[Any], *, enveloped: bool) -> Json:
    name = model.__name__
    headers = {
        "allOf": [
            {"$ref": "#/components/schemas/Envelope"},
            {"type": "object", "properties": {"ce-type": {"const": name}}},
        ]
    }
    return {
        "name": name,
        "title": name,
        "summary": " ".join((model.__doc__ or name).strip().partition("\n\n")[0].split()),
        "contentType": "application/json",
        **({"headers": headers} if enveloped else {}),
        "payload": {"$ref": f"#/components/schemas/{name}"},
    }


def _envelope() -> Json:
    return {
        "type": "object",
        "description": "Headers of every durable message; values are ASCII, others percent-encoded.",
        "required": [*envelope.REQUIRED, "Nats-Msg-Id", "content-type"],
        "properties": _HEADERS,
        "patternProperties": {"^ce-[a-z0-9]{1,20}$": {"type": "string"}},
    }


def _draft_7(node: Any) -> Any:
    """The same schema in the words of draft 7."""
    if isinstance(node, list):
        return [_draft_7(item) for item in node]
    if not isinstance(node, dict):
        return node
    written = {key: _draft_7(value) for key, value in node.items()}
    if isinstance(written.get("prefixItems"), list):
        written["items"] = written.pop("prefixItems")
    if isinstance(written.get("discriminator"), dict):
        del written["discriminator"]
    return written
