"""Built-in workflows: one YAML document per version, found by the entry point group `trueup.workflows`."""

from importlib.resources import files


def texts() -> dict[str, str]:
    """The documents in this folder, by file name."""
    found = (item for item in files(__name__).iterdir() if item.name.endswith(".yaml"))
    return {item.name: item.read_text(encoding="utf-8") for item in sorted(found, key=lambda item: item.name)}
