"""compose.yaml as tests read it: parsed, with its variables put in as an engine would."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = ROOT / "compose.yaml"
SANDBOX = ROOT / "deploy" / "compose" / "sandbox.yaml"
BUS_CONFIGURATION = ROOT / "deploy" / "nats" / "nats.conf"
STORES = ("postgres", "nats")
_VARIABLE = re.compile(r"\$\{([A-Z_]+):-([^}]*)\}")


def compose(variables: Mapping[str, str] | None = None, path: Path = COMPOSE) -> dict[str, Any]:
    """The parsed file. Every variable has a default, so the file works without any."""
    text = path.read_text(encoding="utf-8")
    given = variables or {}
    filled = _VARIABLE.sub(lambda found: given.get(found[1]) or found[2], text)
    assert "${" not in filled, "a variable without a default"
    document: dict[str, Any] = yaml.safe_load(filled.replace("$$", "$"))
    return document


def services(variables: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Everything that runs."""
    found: dict[str, dict[str, Any]] = compose(variables)["services"]
    return found


def services_with_sandbox() -> dict[str, dict[str, Any]]:
    """Everything that runs with the sandbox world beside it: maps are merged, lists put together, as an engine does."""
    return dict(_merged(services(), compose(path=SANDBOX)["services"]))


def _merged(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: _merged(base[key], value) if key in base else value for key, value in over.items()}}
    return [*base, *over] if isinstance(base, list) and isinstance(over, list) else over


def adapters() -> dict[str, str]:
    """System → the service that serves it."""
    return {
        str(service["environment"]["TRUEUP_SYSTEMS"]): name
        for name, service in services().items()
        if "TRUEUP_SYSTEMS" in service.get("environment", {})
    }
