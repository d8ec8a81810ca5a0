"""The versions by which a case may go on: those of its workflow that are not retired, and the steps that they add."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from trueup_gateway.console.view import View

VERSIONS_MAX: Final = 8


async def versions_of(view: View, case: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """`versions` (number, when, by whom) and `further_steps` (step, version) of a case that may resume; else nothing.

    `about` is what the act is offered on. A paused case goes on by its own version: it is asked for none.
    """
    name, mine = case.get("definition"), case.get("version")
    if "RESUME" not in (about.get("allowed_actions") or []) or case.get("status") == "PAUSED" or not name:
        return {}
    listed = await view.contract.get("/v1/definitions", name=name, limit=50)
    others = [item for item in listed.items if not item.get("retired_at") and item.get("version") != mine]
    others = sorted(others, key=lambda item: -int(item["version"]))[:VERSIONS_MAX]
    path = f"/v1/definitions/{quote(str(name), safe='')}"
    documents = await asyncio.gather(*(view.contract.get(f"{path}/{item['version']}") for item in others))
    own = {str(step.get("id")) for step in case.get("steps") or []}
    further: dict[str, int] = {}
    for item, read in zip(others, documents, strict=True):
        for step in (read.object.get("document") or {}).get("steps") or []:
            if str(step.get("id")) not in own:
                further[str(step["id"])] = int(item["version"])
    return {
        "versions": [
            {"version": item["version"], "at": item.get("created_at"), "by": item.get("created_by")} for item in others
        ],
        "further_steps": list(further.items()),
    }
