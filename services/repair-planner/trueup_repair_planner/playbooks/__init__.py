"""Built-in playbooks: one YAML document each, taken in the order that they name."""

from importlib.resources import files


def texts() -> dict[str, str]:
    """The documents in this folder, by file name."""
    found = (item for item in files(__name__).iterdir() if item.name.endswith(".yaml"))
    return {item.name: item.read_text(encoding="utf-8") for item in sorted(found, key=lambda item: item.name)}
