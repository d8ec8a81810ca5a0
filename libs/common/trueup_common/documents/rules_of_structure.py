"""Rules about how the steps hang together. Nothing else is checked while one of these is broken."""

from collections import Counter
from collections.abc import Iterator

from trueup_common.documents.ground import Found, Ground
from trueup_common.documents.reactions import DEFAULTS, gotos


def duplicate_step(ground: Ground) -> Iterator[Found]:
    """Two steps have the same id."""
    counted = Counter(step.id for _, step in ground.steps)
    seen: set[str] = set()
    for pointer, step in ground.steps:
        if counted[step.id] > 1 and step.id in seen:
            yield f"{pointer}/id", f"there are {counted[step.id]} steps {step.id!r}"
        seen.add(step.id)


def unknown_step(ground: Ground) -> Iterator[Found]:
    """A step is named that does not exist."""
    for pointer, step in ground.steps:
        for index, need in enumerate(step.needs or ()):
            if need not in ground.document.by_id:
                yield f"{pointer}/needs/{index}", f"there is no step {need!r}"
        for outcome, target in gotos(step).items():
            if target not in ground.document.by_id:
                yield f"{pointer}/on/{outcome.value}/goto", f"there is no step {target!r}"


def cycle(ground: Ground) -> Iterator[Found]:
    """Steps need one another in a circle, so none of them can ever begin."""
    if len(ground.document.by_id) < len(ground.steps):
        return  # with two steps of one name there is no order
    for pointer, step in ground.steps:
        if step.id in ground.order.before[step.id]:
            circle = sorted(other for other in ground.order.before[step.id] if step.id in ground.order.before[other])
            yield f"{pointer}/needs", f"{step.id!r} waits for itself, by way of {', '.join(circle)}"


def outcome(ground: Ground) -> Iterator[Found]:
    """`on` answers an outcome that this kind of step does not have."""
    for pointer, step in ground.steps:
        for found in step.on:
            if found not in DEFAULTS[step.kind]:
                possible = ", ".join(item.value for item in DEFAULTS[step.kind])
                yield f"{pointer}/on/{found.value}", f"a {step.kind.value} ends with {possible}, not with {found.value}"
