"""What the commands of `trueup` share: options, the example under each help page, and the way to the gateway."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trueup_devkit.state_folder import StateFolder

if TYPE_CHECKING:
    from trueup_devkit.gateway_client import GatewayClient

EXIT_CODES = "Exit codes: 0 ok, 1 failed, 2 usage."

StateDir = Annotated[Path, typer.Option("--state-dir", envvar="TRUEUP_STATE_DIR", help="Folder of the plane's state.")]
Gateway = Annotated[
    str | None, typer.Option("--gateway", envvar="TRUEUP_GATEWAY_URL", help="Gateway; default: the running plane.")
]
Token = Annotated[
    str | None, typer.Option("--token", envvar="TRUEUP_TOKEN", help="Access token; default: a development token.")
]
Tenant = Annotated[str, typer.Option("--tenant", help="Tenant id.")]


def example(text: str) -> str:
    """The line under a command's help."""
    return f"Example: {text}. {EXIT_CODES}"


def client_of(gateway: str | None, state_dir: Path) -> GatewayClient:
    """A client of the gateway that is named, or of the running plane."""
    from trueup_devkit.gateway_client import GatewayClient

    return GatewayClient(gateway or StateFolder(state_dir.resolve()).running_state().gateway_url)


def fail(text: str) -> NoReturn:
    """Say why, and exit with 1."""
    print(f"trueup: {text}", file=sys.stderr)
    raise typer.Exit(1)
