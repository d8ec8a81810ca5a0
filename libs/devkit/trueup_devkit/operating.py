"""`trueup exceptions`, `operate` and `batch`: what the console does, from the command line, over the same HTTP.

The same words again are the same act: the idempotency key follows from them. `--key` makes another act of them.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from trueup_devkit.options import Gateway, StateDir, Tenant, Token, client_of, example
from trueup_devkit.state_folder import DEFAULT_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from trueup_devkit.gateway_client import Answer, GatewayClient

POLL_SECONDS = 0.5
ENDS = frozenset({"DONE", "REFUSED"})
OVER = frozenset({"DONE", "STOPPED"})

batch_app = typer.Typer(help="Act on many exceptions: a frozen selection, worked off at a rate.", no_args_is_help=True)
SAID = {
    "start": "Start a batch, or go on with it.",
    "pause": "Ask for nothing more until it is started again.",
    "stop": "Skip for good what was not asked for yet.",
}
"""What each turn of a batch does."""

Reason = Annotated[str, typer.Option("--reason", help="Why; it stays in the audit trail.")]
Params = Annotated[
    list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="Parameter of the action; JSON or plain text.")
]
Evidence = Annotated[
    list[str] | None, typer.Option("--evidence", metavar="KIND=REF", help="What it rests on; may be repeated.")
]
Key = Annotated[str | None, typer.Option("--key", help="Idempotency key; default: it follows from the words.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _operator(gateway: str | None, state_dir: Path, token: str | None, tenant: str) -> GatewayClient:
    client = client_of(gateway, state_dir)
    client.token = token or client.dev_token("operator:cli", tenant, ["operator"], [], 3600)
    return client


def _pairs(given: Sequence[str] | None, name: str) -> list[tuple[str, str]]:
    pairs = [item.partition("=") for item in given or ()]
    wrong = next(
        (item for item, (left, equals, _) in zip(given or (), pairs, strict=True) if not (left and equals)), None
    )
    if wrong is not None:
        raise typer.BadParameter(f"{wrong!r} is not NAME=VALUE", param_hint=name)
    return [(left, right) for left, _, right in pairs]


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _act(action: str, reason: str, params: Sequence[str] | None, evidence: Sequence[str] | None) -> dict[str, Any]:
    from trueup_common.contracts.operators import OperatorAction

    wanted = action.upper().replace("-", "_")
    if wanted not in set(OperatorAction):
        known = ", ".join(item.value for item in OperatorAction)
        raise typer.BadParameter(f"{action!r} is none of {known}", param_hint="ACTION")
    return {
        "action": wanted,
        "reason": reason,
        "params": {name: _value(text) for name, text in _pairs(params, "--param")},
        "evidence": [{"kind": kind, "ref": ref} for kind, ref in _pairs(evidence, "--evidence")],
    }


def _send(client: GatewayClient, path: str, body: dict[str, Any], key: str | None) -> Answer:
    words = json.dumps([path, body], sort_keys=True).encode()
    name = key or f"cli:{hashlib.sha256(words).hexdigest()}"
    answer = client.call("POST", path, body, headers={"Idempotency-Key": json.dumps(name)})
    if answer.headers.get("idempotent-replayed"):
        print("trueup: asked for before in the same words; --key makes another act of them", file=sys.stderr)
    return answer


def exceptions(
    *,
    identifier: Annotated[str | None, typer.Argument(metavar="[ID]", help="One exception, with all about it.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind, such as dead_letter.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only this owner's.")] = None,
    cause: Annotated[str | None, typer.Option(help="Only this failure class or code.")] = None,
    as_json: Json = False,
    tenant: Tenant = "acme",
    token: Token = None,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """List what is open, the nearest deadline first, with what may be done about each."""
    client = _operator(gateway, state_dir, token, tenant)
    if identifier is not None:
        print(json.dumps(client.get(f"/v1/exceptions/{quote(identifier, safe='')}"), indent=2))
        return
    found = list(client.items("/v1/exceptions", status="open", order="deadline", kind=kind, owner=owner, cause=cause))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from trueup_common.runtime.clock import real_now

    now = real_now()
    for item in found:
        print(line_of(item, now))
    print(f"{len(found)} open", file=sys.stderr)


def line_of(item: dict[str, Any], now: datetime) -> str:
    """One exception on one line."""
    left = datetime.fromisoformat(item["deadline_at"]) - now
    hours = abs(left.total_seconds()) / 3600
    due = f"{'late by' if left.total_seconds() < 0 else 'due in'} {hours:.1f} h"
    code = (item.get("envelope") or {}).get("failure_code") or item["failure_class"]
    about = item.get("command_id") or item.get("workflow_id") or "-"
    element, place = ((item.get("envelope") or {}).get(name) for name in ("element", "target_resource"))
    about = f"{element} of {place}" if element else about  # one operation may have several that drift
    actions = ", ".join(item.get("allowed_actions") or ()) or "nothing"
    return f"{item['exception_id']}  {item['kind']}  {code}  {item['owner']}  {due}  {about}  {actions}"


def operate(
    *,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="REDRIVE, SETTLE, PAUSE, … (closed list).")],
    kind: Annotated[str, typer.Argument(metavar="KIND", help="command, workflow, exception, dead_letter or repair.")],
    identifier: Annotated[str, typer.Argument(metavar="ID", help="On what.")],
    reason: Reason,
    param: Params = None,
    evidence: Evidence = None,
    key: Key = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; REFUSED exits with 1.")] = False,
    tenant: Tenant = "acme",
    token: Token = None,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Act as an operator: governed, asked once, refused with what is possible instead."""
    kind = kind.replace("-", "_")
    if kind not in ("command", "workflow", "exception", "dead_letter", "repair"):
        raise typer.BadParameter(f"{kind!r} is nothing that is operated on", param_hint="KIND")
    body = {**_act(action, reason, param, evidence), "target": {"kind": kind, "id": identifier}}
    client = _operator(gateway, state_dir, token, tenant)
    answer = _send(client, "/v1/operator-commands", body, key).body
    while wait and answer.get("operator_command_id") and answer["state"] not in ENDS:
        time.sleep(POLL_SECONDS)
        answer = client.get(f"/v1/operator-commands/{answer['operator_command_id']}")
    print(json.dumps(answer, indent=2))
    if answer.get("state") == "REFUSED":
        raise typer.Exit(1)


@batch_app.command("new", epilog=example("trueup batch new REDRIVE --reason 'the outage is over' --kind dead_letter"))
def new(
    *,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="What is done with each.")],
    reason: Reason,
    kind: Annotated[str | None, typer.Option(help="Only exceptions of this kind.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only this owner's.")] = None,
    cause: Annotated[str | None, typer.Option(help="Only this failure class or code.")] = None,
    system: Annotated[str | None, typer.Option(help="Only about this system.")] = None,
    incident: Annotated[str | None, typer.Option(help="Only of this incident.")] = None,
    rate: Annotated[float, typer.Option(min=0.001, max=50, help="Items a second.")] = 1.0,
    param: Params = None,
    evidence: Evidence = None,
    start: Annotated[bool, typer.Option("--start", help="Begin at once; else it is only a preview.")] = False,
    key: Key = None,
    tenant: Tenant = "acme",
    token: Token = None,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Select once and for all what a batch acts on, and show it; nothing is done until it is started."""
    chosen = {"kind": kind, "owner": owner, "cause": cause, "system": system, "incident_id": incident}
    body = {
        **_act(action, reason, param, evidence),
        "filter": {name: value for name, value in chosen.items() if value is not None},
        "rate_per_second": rate,
        "dry_run": not start,
    }
    print(
        json.dumps(
            _send(_operator(gateway, state_dir, token, tenant), "/v1/operator-batches", body, key).body, indent=2
        )
    )


@batch_app.command("list", epilog=example("trueup batch list"))
def listed(
    *,
    tenant: Tenant = "acme",
    token: Token = None,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """List batches, newest first, with how far each is."""
    for item in _operator(gateway, state_dir, token, tenant).items("/v1/operator-batches"):
        print(progress_of(item))


def progress_of(item: dict[str, Any]) -> str:
    """One batch on one line."""
    ended = sum(item[name] for name in ("done", "failed", "skipped"))
    parts = ", ".join(f"{item[name]} {name}" for name in ("done", "failed", "skipped"))
    return f"{item['batch_id']}  {item['action']}  {item['state']}  {ended}/{item['total']} ({parts})  {item['actor']}"


@batch_app.command("show", epilog=example("trueup batch show bat_… --items"))
def show(
    *,
    identifier: Annotated[str, typer.Argument(metavar="ID", help="The batch.")],
    items: Annotated[bool, typer.Option("--items", help="Also what became of each item, and why.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; a failed item exits with 1.")] = False,
    tenant: Tenant = "acme",
    token: Token = None,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Show one batch."""
    client = _operator(gateway, state_dir, token, tenant)
    path = f"/v1/operator-batches/{quote(identifier, safe='')}"
    batch = client.get(path)
    while wait and not (batch["state"] in OVER and not batch["running"]):
        time.sleep(POLL_SECONDS)
        batch = client.get(path)
    print(progress_of(batch))
    after: int | None = 0
    while items and after is not None:
        page = client.get(f"{path}/items", after=after)
        for item in page["items"]:
            print(f"{item['position']:>5}  {item['exception_id']}  {item['state']}  {item['reason'] or ''}".rstrip())
        after = page["next_after"]
    if wait and batch["failed"]:
        raise typer.Exit(1)


def _turn(turn: str) -> Any:
    def command(
        *,
        identifier: Annotated[str, typer.Argument(metavar="ID", help="The batch.")],
        reason: Annotated[str | None, typer.Option("--reason", help="Why; it stays in the batch's trail.")] = None,
        key: Key = None,
        tenant: Tenant = "acme",
        token: Token = None,
        gateway: Gateway = None,
        state_dir: StateDir = DEFAULT_FOLDER,
    ) -> None:
        client = _operator(gateway, state_dir, token, tenant)
        path = f"/v1/operator-batches/{quote(identifier, safe='')}/{turn}"
        body = {"reason": reason} if reason is not None else {}
        # Started, paused and started again in the same words is three acts: how often it was turned tells them apart.
        turned = len(client.get(path.rpartition("/")[0]).get("trail") or ())
        answer = _send(client, path, body, key or f"cli:{turn}:{identifier}:{turned}").body
        print(json.dumps(answer, indent=2))

    return command


for _name, _help in SAID.items():
    batch_app.command(_name, help=_help, epilog=example(f"trueup batch {_name} bat_… --reason 'the target answers'"))(
        _turn(_name)
    )
