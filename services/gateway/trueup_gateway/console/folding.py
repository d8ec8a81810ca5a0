"""Folding: the rows of one incident are one row that opens, in the place of the row that is due first."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

FOLDED_MIN: Final = 3
"""So many rows of one incident on a page are told once."""


def folded(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows in their order, each {"row": ...}, or {"fold": [...], "incident_id", "owners", "classes", "kinds"} where
    an incident has many. The rows in a fold keep their order as well."""
    members: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        if item.get("incident_id"):
            members.setdefault(str(item["incident_id"]), []).append(item)
    found: list[dict[str, Any]] = []
    told: set[str] = set()
    for item in items:
        name = str(item.get("incident_id") or "")
        ours = members.get(name, [])
        if len(ours) < FOLDED_MIN:
            found.append({"row": item})
        elif name not in told:
            told.add(name)
            found.append(
                {
                    "fold": ours,
                    "incident_id": name,
                    "owners": _distinct(ours, "owner"),
                    "classes": _distinct(ours, "failure_class"),
                    "kinds": _distinct(ours, "kind"),
                }
            )
    return found


def _distinct(rows: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """The values of a column in the order of their first row."""
    return list(dict.fromkeys(str(row[name]) for row in rows if row.get(name)))


def unknown(rows: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> list[str]:
    """The incidents of folds that a page has not read yet."""
    return [row["incident_id"] for row in rows if "fold" in row and row["incident_id"] not in known]
