"""Which resources a pattern of a decision, a capability or a mandate covers: one rule for whoever asks."""


def covers(pattern: str, resource: str) -> bool:
    """True where a resource pattern covers a resource or a narrower pattern: `x/*` covers `x` and everything below.

    `*` alone covers everything; any other pattern covers only itself. A resource with empty, `.` or `..` parts, or
    with `*` anywhere but at the end, is covered by nothing but `*`, so that no spelling climbs out of a pattern.
    """
    if pattern == "*":
        return True
    stem = pattern.removesuffix("/*")
    parts = resource.split("/")
    if "*" in stem or any(part in ("", ".", "..") for part in parts) or "*" in "".join(parts[:-1]):
        return False
    if stem == pattern:
        return pattern == resource
    return resource == stem or resource.startswith(f"{stem}/")
