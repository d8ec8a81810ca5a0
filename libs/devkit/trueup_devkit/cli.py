"""The `trueup` command: starting and stopping a plane, and using it over HTTP as any client would.

Every command exits with 0 when it did what it was asked, 1 when that failed, 2 when it was asked wrongly. Imports stand
inside the commands, so that each costs only what it uses.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueup_devkit import operating
from trueup_devkit.options import EXIT_CODES, Gateway, StateDir, Tenant, Token
from trueup_devkit.options import client_of as _client
from trueup_devkit.options import example as _example
from trueup_devkit.options import fail as _fail
from trueup_devkit.state_folder import DEFAULT_FOLDER, PlaneState, StateFolder
from trueup_devkit.told import ToldError

if TYPE_CHECKING:
    from trueup_devkit.gateway_client import GatewayClient

WAIT_STEP_SECONDS = 30
_COMMAND = (
    '{"idempotency_key": "article:1:v1", "command_type": "wordpress.create_draft", '
    '"target": {"system": "wordpress", "resource": "post"}, '
    '"payload": {"title": "A", "content": "<p>B</p>", "slug": "a"}}'
)
_WORKFLOW = '{"idempotency_key": "article-1-v1", "definition": "seo-article-publish", "input": {"article_id": "1", …}}'

_TRACE = "its trace: GET /v1/decisions/<id>"
_APPROVED_FIRST = (
    "`trueup approve` lists what is asked; once it is approved: trueup capability --decision {decision_id}"
)

app = typer.Typer(
    name="trueup",
    help="A governed, durable execution plane for the side effects of AI agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=f"Example: trueup up --detach && trueup status. {EXIT_CODES}",
)
clock_app = typer.Typer(help="Business time of a plane started with --clock virtual.", no_args_is_help=True)
app.add_typer(clock_app, name="clock")
app.add_typer(operating.batch_app, name="batch")


@app.command(epilog=_example("trueup up --detach --replicas gateway=2,adapters=2"))
def up(
    *,
    state_dir: StateDir = DEFAULT_FOLDER,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Gateway port; 0 takes a free one.")] = 8080,
    connections: Annotated[str | None, typer.Option(help="Connections file; default: the sandbox world.")] = None,
    sandbox: Annotated[bool, typer.Option("--sandbox/--no-sandbox", help="Run the sandbox world.")] = True,
    clock: Annotated[
        str, typer.Option(help="system, or virtual: time moves by `trueup clock advance` only.")
    ] = "system",
    replicas: Annotated[str | None, typer.Option(help="service=n,… for more than one process of a service.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when everything is ready.")] = False,
) -> None:
    """Start the plane: PostgreSQL, NATS, the sandbox world and all services."""
    from trueup_devkit import plane
    from trueup_devkit.plan import Plan, PlanError, parse_replicas

    if clock not in ("system", "virtual"):
        raise typer.BadParameter(f"{clock!r} is neither system nor virtual", param_hint="--clock")
    try:
        plan = Plan(
            state_dir=str(state_dir),
            port=port,
            mode=os.environ.get("TRUEUP_MODE") or "development",
            clock=clock,
            sandbox=sandbox,
            connections=connections,
            replicas=parse_replicas(replicas),
            external_database_url=_secret("TRUEUP_DATABASE_URL"),
            external_nats_url=_secret("TRUEUP_NATS_URL"),
        )
        if not detach:
            plane.run_in_foreground(plan)
        state = plane.start_detached(plan, on_progress=_Progress())
    except PlanError as error:
        raise typer.BadParameter(str(error)) from error
    print(f"ready: {state.gateway_url} (documentation {state.gateway_url}/docs, state {state.state_dir})")
    if not sandbox and connections is None and not (Path(state.state_dir) / "connections.yaml").is_file():
        print("no system is connected, so every command will be refused; see --connections", file=sys.stderr)


class _Progress:
    """Says each process once, when it becomes ready."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, state: PlaneState) -> None:
        for process in state.processes:
            if process.ready and process.name not in self._said:
                self._said.add(process.name)
                print(f"  {process.name} ready", file=sys.stderr, flush=True)


@app.command(epilog=_example("trueup down"))
def down(state_dir: StateDir = DEFAULT_FOLDER) -> None:
    """Stop the plane: work in hand is finished, state stays."""
    from trueup_devkit import plane

    plane.stop(StateFolder(state_dir.resolve()))
    print("stopped")


@app.command(epilog=_example("trueup restart gateway orchestrator"))
def restart(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[SERVICE]...", help="Services or processes; without one, all.")
    ] = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Restart service processes one at a time: each finishes its work, the next waits until it is ready again."""
    from trueup_devkit import rolling

    try:
        rolling.restart(StateFolder(state_dir.resolve()), names or ())
    except rolling.UnknownProcessError as error:
        raise typer.BadParameter(str(error), param_hint="SERVICE") from error


@app.command(epilog=_example("trueup status --json"))
def status(
    state_dir: StateDir = DEFAULT_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show addresses and processes of the running plane."""
    state = StateFolder(state_dir.resolve()).live_state()
    if as_json:
        print(json.dumps(state.public(), indent=2))
        return
    print(f"gateway   {state.gateway_url}")
    print(f"docs      {state.gateway_url}/docs")
    if state.sandbox_url:
        print(f"sandbox   {state.sandbox_url}")
    print(f"state     {state.state_dir}")
    for process in state.processes:
        word = "ready" if process.ready else "NOT READY"
        print(f"  {process.name:<16} pid {process.pid:<8} restarts {process.restarts:<4} {word}")
    if not all(process.ready for process in state.processes):
        raise typer.Exit(1)


@app.command(epilog=_example("trueup token --sub agent:publisher --tenant acme --role agent"))
def token(
    *,
    sub: Annotated[str, typer.Option(help="Who: agent:<name>, operator:<name> or service:<name>.")],
    tenant: Tenant = "acme",
    role: Annotated[list[str] | None, typer.Option("--role", help="Role; may be repeated.")] = None,
    scope: Annotated[list[str] | None, typer.Option("--scope", help="Scope; may be repeated.")] = None,
    ttl_seconds: Annotated[int, typer.Option(min=1, help="Lifetime.")] = 3600,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Print a development access token."""
    roles = role or [sub.partition(":")[0]]
    print(_client(gateway, state_dir).dev_token(sub, tenant, roles, scope or [], ttl_seconds))


@app.command(epilog=_example("trueup capability --command-type wordpress.create_draft --resource 'post/*'"))
def capability(
    *,
    command_type: Annotated[
        list[str] | None, typer.Option("--command-type", help="Command type; may be repeated.")
    ] = None,
    workflow: Annotated[str | None, typer.Option(help="Instead of command types: a workflow to start.")] = None,
    decision_id: Annotated[
        str | None, typer.Option("--decision", help="Go on with a decision that was approved meanwhile.")
    ] = None,
    resource: Annotated[
        str | None, typer.Option(help="Resource; 'post/*' covers everything below post. Of a workflow: its object.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System; default: that of the first command type.")] = None,
    sub: Annotated[str, typer.Option(help="Subject of the development token.")] = "agent:cli",
    tenant: Tenant = "acme",
    purpose: Annotated[str, typer.Option(help="What it is for; stands in the decision.")] = "command line",
    max_uses: Annotated[int, typer.Option(min=1, help="How many commands it accepts.")] = 1,
    ttl_seconds: Annotated[int, typer.Option(min=1, help="Lifetime.")] = 300,
    token: Token = None,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Ask for a decision and print the capability that follows from it."""
    if sum(map(bool, (command_type, workflow, decision_id))) != 1:
        raise typer.BadParameter("give one of --command-type, --workflow and --decision")
    if command_type and not resource:
        raise typer.BadParameter("is needed with --command-type", param_hint="--resource")
    client = _client(gateway, state_dir)
    client.token = token or client.dev_token(sub, tenant, ["agent"], [], 3600)
    if decision_id:
        print(client.capability(decision_id, max_uses, ttl_seconds)["capability"])
        return
    if workflow:
        decision = client.decide_workflow(workflow, None, purpose, resource)
    else:
        types = command_type or []
        target = {"system": system or types[0].partition(".")[0], "resource": resource or ""}
        decision = client.decide(types, target, purpose)
    if decision["outcome"] != "approved":
        risk, policies = decision.get("risk") or {}, ", ".join(decision.get("determining_policies") or [])
        why = f"risk {risk.get('level')} {risk.get('score')}, policies {policies or 'none'}"
        following = _APPROVED_FIRST if decision["outcome"] == "approval_required" else _TRACE
        _fail(f"{decision['decision_id']} is {decision['outcome']} ({why}); {following.format(**decision)}")
    print(client.capability(decision["decision_id"], max_uses, ttl_seconds)["capability"])


@app.command(epilog=_example("TRUEUP_CAPABILITY=$(trueup capability …) trueup submit command.json --wait"))
def submit(
    file: Annotated[str, typer.Argument(help="JSON of POST /v1/commands plus idempotency_key; - reads stdin.")],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the terminal state; not SUCCESS exits with 1.")
    ] = False,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Send one command under the capability in TRUEUP_CAPABILITY and print the answer."""
    from trueup_devkit.gateway_client import TERMINAL_STATES

    key = _capability()
    command = _read_request(file, _COMMAND)
    client = _client(gateway, state_dir)
    answer = client.submit(command, key, WAIT_STEP_SECONDS if wait else 0).body
    while wait and answer.get("state") not in TERMINAL_STATES:
        answer = client.submit(command, key, WAIT_STEP_SECONDS).body
    print(json.dumps(answer, indent=2))
    if wait and answer.get("state") != "SUCCESS":
        raise typer.Exit(1)


@app.command(epilog=_example("TRUEUP_CAPABILITY=$(trueup capability --workflow …) trueup start case.json --watch"))
def start(
    file: Annotated[str, typer.Argument(help="JSON of POST /v1/workflows plus idempotency_key; - reads stdin.")],
    watch: Annotated[bool, typer.Option("--watch", help="Show it to its end; not CLOSED exits with 1.")] = False,
    tenant: Tenant = "acme",
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Start a workflow under the capability in TRUEUP_CAPABILITY and print the answer."""
    key = _capability()
    request = _read_request(file, _WORKFLOW)
    answer = _client(gateway, state_dir).start(request, key).body
    print(json.dumps(answer, indent=2))
    if watch:
        from trueup_devkit import watching

        reader = _reader(gateway, state_dir, None, tenant)
        if watching.watch(reader, answer["workflow_id"]).status != "CLOSED":
            raise typer.Exit(1)


@app.command(epilog=_example("trueup approve apr_… --content-sha256 1359e6…"))
def approve(
    *,
    identifier: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Approval; without one, what waits for a person is listed.")
    ] = None,
    content_sha256: Annotated[
        str | None, typer.Option("--content-sha256", help="What exactly is approved; without it, it is only shown.")
    ] = None,
    reject: Annotated[bool, typer.Option("--reject", help="Reject it instead.")] = False,
    reason: Annotated[str, typer.Option(help="Why; it stays with the answer.")] = "command line",
    scope: Annotated[
        str, typer.Option(help="Scope of the development token; the approval shows which it needs.")
    ] = "*",
    tenant: Tenant = "acme",
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="TRUEUP_APPROVER_TOKEN", help="An approver's; default: a development token."),
    ] = None,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Show what waits for approval, and answer one: exactly the content with this hash, nothing else."""
    client = _client(gateway, state_dir)
    client.token = token or client.dev_token("operator:cli", tenant, ["approver"], [scope], 3600)
    if identifier is None:
        for item in client.items("/v1/approvals", status="pending"):
            about = item.get("workflow_id") or item.get("subject_decision_id")
            print(f"{item['approval_id']}  {item['scope']}  {about}  until {item['expires_at']}")
        return
    approval = client.get(f"/v1/approvals/{identifier}")
    if content_sha256 is not None:
        asked = {**approval, "content_sha256": content_sha256}
        approval = client.answer_approval(asked, "reject" if reject else "approve", reason)
    print(json.dumps(approval, indent=2))


def _capability() -> str:
    key = _secret("TRUEUP_CAPABILITY")
    if not key:
        raise typer.BadParameter("TRUEUP_CAPABILITY is not set; see: trueup capability --help")
    return key


def _read_request(file: str, example: str) -> dict[str, Any]:
    try:
        content = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(content, dict) or not content.get("idempotency_key"):
        # Outside of the usual frame, so that the example can be copied.
        print(f"trueup: {file}: a JSON object with idempotency_key is needed, such as\n{example}", file=sys.stderr)
        raise typer.Exit(2)
    return content


@app.command(epilog=_example("trueup watch wf_…"))
def watch(
    *,
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Workflow or command id.")],
    tenant: Tenant = "acme",
    timeout_seconds: Annotated[float | None, typer.Option(min=0, help="Give up after this time.")] = None,
    token: Token = None,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Show a case live until nothing moves any more; anything but CLOSED exits with 1."""
    from trueup_devkit import watching

    client = _reader(gateway, state_dir, token, tenant)
    if watching.watch(client, identifier, timeout_seconds).status != "CLOSED":
        raise typer.Exit(1)


@app.command(epilog=_example("trueup cancel wf_… --reason 'not needed any more'"))
def cancel(
    *,
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Workflow or command id.")],
    reason: Annotated[str, typer.Option(help="Why; it stays in the history.")] = "command line",
    tenant: Tenant = "acme",
    token: Token = None,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Ask for a case to be cancelled: what was not sent never is, what can be taken back is, before the pivot."""
    client = _client(gateway, state_dir)
    client.token = token or client.dev_token("operator:cli", tenant, ["operator"], [], 3600)
    print(json.dumps(client.cancel(client.workflow_of(identifier), reason), indent=2))


@app.command(epilog=_example("trueup history wf_… --verify"))
def history(
    *,
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Workflow or command id.")],
    verify: Annotated[bool, typer.Option("--verify", help="Check the hash chain; a broken one exits with 1.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON event a line.")] = False,
    tenant: Tenant = "acme",
    token: Token = None,
    gateway: Gateway = None,
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Print the history of a case; with --verify also check that nothing in it was changed or left out."""
    from trueup_devkit.watching import line_of

    client = _reader(gateway, state_dir, token, tenant)
    workflow_id = client.workflow_of(identifier)
    events = list(client.history(workflow_id))
    for event in events:
        print(json.dumps(event) if as_json else line_of(event))
    if verify:
        from trueup_devkit.history_check import find_break

        broken = find_break(events, workflow_id, tenant)
        if broken:
            _fail(f"history of {workflow_id} does not verify: {broken}")
        print(f"verified {len(events)} events of {workflow_id}", file=sys.stderr)


app.command(epilog=_example("trueup exceptions --kind dead_letter"))(operating.exceptions)
app.command(
    epilog=_example(
        "trueup operate REDRIVE exception exc_… --reason 'the target is back' --wait; with parameters: trueup operate "
        "ASSIGN exception exc_… --reason 'their article' --param owner=editors (each action's stand in /docs)"
    )
)(operating.operate)


@app.command(epilog=_example("trueup migrate"))
def migrate(state_dir: StateDir = DEFAULT_FOLDER) -> None:
    """Bring database and bus of the running plane, or of TRUEUP_DATABASE_URL and TRUEUP_NATS_URL, up to date."""
    import asyncio

    from trueup_devkit import migrate as migrating
    from trueup_devkit.secret_files import installed_systems, make_secrets

    folder = StateFolder(state_dir.resolve())
    database_url, nats_url = _secret("TRUEUP_DATABASE_URL"), _secret("TRUEUP_NATS_URL")
    if not (database_url and nats_url):
        state = folder.running_state()
        database_url, nats_url = database_url or state.database_url, nats_url or state.nats_url
    folder.prepare()
    secrets = make_secrets(folder.secrets, installed_systems())
    given = os.environ.get("TRUEUP_CONNECTIONS") or str(folder.path / "connections.yaml")
    connections = Path(given) if Path(given).is_file() else None
    asyncio.run(migrating.migrate(database_url, nats_url, secrets.read(secrets.database), connections))
    print("migrated")


@app.command(epilog=_example("trueup secrets deploy/compose/secrets && docker compose up"))
def secrets(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that gets the files.")],
    *,
    database_host: Annotated[str, typer.Option(help="host:port of PostgreSQL as services see it.")] = "postgres:5432",
    bus_host: Annotated[str, typer.Option(help="host:port of NATS as services see it.")] = "nats:4222",
) -> None:
    """Make the secrets of a deployment, one file each; what is there already is kept."""
    from trueup_devkit.deployment import Hosts, deployed_systems, write_secrets

    names = write_secrets(folder, deployed_systems(), Hosts(database_host, bus_host))
    print(f"{len(names)} files in {folder}")


@app.command(epilog=_example("trueup settings"))
def settings() -> None:
    """List the TRUEUP_* settings of services with their defaults; of secrets, NAME_FILE names a file instead."""
    from trueup_common.runtime.settings import SECRETS, Settings

    for name, field in Settings.model_fields.items():
        twin = "  (or _FILE)" if name in SECRETS else ""
        default = "" if name in SECRETS else str(field.default if field.default is not None else "")
        print(f"TRUEUP_{name.upper():<24} {default:<14} {field.description or ''}{twin}".rstrip())


@clock_app.command("advance", epilog=_example("trueup clock advance 2h"))
def advance(
    distance: Annotated[str, typer.Argument(metavar="DURATION", help="90s, 15m, 2h, 1d12h.")],
    state_dir: StateDir = DEFAULT_FOLDER,
) -> None:
    """Move business time forward, from due time to due time, each step acknowledged by every process."""
    import asyncio

    from trueup_common.contracts.topology import SERVICES
    from trueup_devkit import virtual_clock

    try:
        duration = virtual_clock.parse_duration(distance)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="DURATION") from error
    state = StateFolder(state_dir.resolve()).running_state()
    if state.clock != "virtual":
        _fail("this plane runs on the system clock; start it with --clock virtual")
    # Replicas carry a number after the service's name; servers and the sandbox keep no business time.
    instances = [p.name for p in state.processes if p.name.rstrip("0123456789").rstrip("-") in SERVICES]

    async def move() -> list[virtual_clock.Step]:
        async with virtual_clock.plane_timeline(state.database_url, state.nats_url, instances) as timeline:
            return await virtual_clock.advance(timeline, duration)

    steps = asyncio.run(move())
    last = f"; business time is {steps[-1].moment:%Y-%m-%dT%H:%M:%SZ}" if steps else ""
    print(f"advanced in {len(steps)} steps{last}")


@app.command(epilog=_example("trueup console"))
def console(state_dir: StateDir = DEFAULT_FOLDER) -> None:
    """Print the address of the operator console."""
    print(StateFolder(state_dir.resolve()).running_state().console_url)


def _reader(gateway: str | None, state_dir: Path, token: str | None, tenant: str) -> GatewayClient:
    client = _client(gateway, state_dir)
    client.token = token or client.dev_token("operator:cli", tenant, ["viewer"], [], 3600)
    return client


def _secret(name: str) -> str | None:
    """A secret from the environment, or from the file that its `_FILE` twin names."""
    file = os.environ.get(f"{name}_FILE")
    if file and not os.environ.get(name):
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise typer.BadParameter(f"{name}_FILE cannot be read: {error.strerror}") from error
    return os.environ.get(name) or None


def main() -> None:
    """Entry point: known failures become one line and exit code 1; a bug keeps its traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except ToldError as error:
        print(f"trueup: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
