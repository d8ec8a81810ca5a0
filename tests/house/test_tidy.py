"""House rules as tests: sizes, names, docstrings, and what must never be committed."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.turns import LONGEST_FIRST, SHARED_PLANE, InLots, in_turns, lot_of

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES_MAX = 70
CORE_FILE_LINES_MAX = 300
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "manager", "base", "misc"}


def sources() -> list[Path]:
    return sorted(path for area in ("libs", "services", "bench") for path in (ROOT / area).rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def tracked() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_keeps_the_house_rules(path: Path) -> None:
    """Functions fit on a page, cores stay small, modules say their one rule, names say what a thing is."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in functions(tree)
        if node.end_lineno and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long or "migrations" in path.parts, f"functions over {FUNCTION_LINES_MAX} lines: {', '.join(long)}"
    if "core" in path.parts:
        assert text.count("\n") <= CORE_FILE_LINES_MAX, "a core file grew over its bound: split it by its rules"
    assert path.stem not in FORBIDDEN_NAMES
    assert not any(node.name in FORBIDDEN_NAMES for node in functions(tree))
    if text.strip() and "migrations" not in path.parts:
        assert ast.get_docstring(tree), "a module's docstring says its one rule"


def test_no_test_takes_a_fast_machine_for_granted() -> None:
    """What only ends a test that hangs is as patient as tests.patience: a short bound fails where the machine is slow.

    What is meant to run out is a setting of what is tested, or is named.
    """
    bound = re.compile(r"(?:asyncio\.timeout\(|asyncio\.wait_for\(.+, |communicate\(.*timeout=)(\d+(?:\.\d+)?)\)")
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "real" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if any(0 < float(seconds) < PATIENCE_SECONDS for seconds in bound.findall(line))
    ]
    assert not hits, f"say PATIENCE_SECONDS of tests.patience: {hits}"


def test_every_file_has_its_turn() -> None:
    """Files that are named as the longest exist; whatever there is comes once, the longest first and spread."""
    tests = ROOT / "tests"
    assert [name for name in LONGEST_FIRST if not (tests / name).is_file()] == []
    names = [path.relative_to(tests).as_posix() for path in sorted(tests.rglob("test_*.py"))]
    order = list(in_turns(names))
    assert sorted(order) == sorted(names) and len(set(order)) == len(names)
    assert [name for name in order if name in LONGEST_FIRST] == list(LONGEST_FIRST)
    assert order[0] == LONGEST_FIRST[0] and order[1] not in LONGEST_FIRST
    assert list(in_turns(["b", "a"])) == ["b", "a"]


def test_files_that_share_a_plane_are_in_one_of_the_lots() -> None:
    """Whoever uses the shared plane goes where it runs already; every other file is a lot of its own."""
    sharing = set()
    for path in (ROOT / "tests" / "system").glob("test_*.py"):
        known = list(functions(ast.parse(path.read_text(encoding="utf-8"))))
        asking = [node for node in known if node.decorator_list or node.name.startswith("test_")]
        asks = any(argument.arg == "plane" for node in asking for argument in node.args.args)
        if asks and "plane" not in {node.name for node in known}:
            sharing.add(f"system/{path.name}")
    assert sorted(name for lot in SHARED_PLANE for name in lot) == sorted(sharing)
    assert {lot_of(name) for lot in SHARED_PLANE for name in lot} == {lot[0] for lot in SHARED_PLANE}
    assert lot_of("house/test_tidy.py") == "house/test_tidy.py"
    scheduler = InLots.__new__(InLots)
    assert scheduler._split_scope(f"tests/{SHARED_PLANE[0][1]}::test_a[1]") == SHARED_PLANE[0][0]


def test_nothing_committed_names_an_address_of_this_machine_or_a_secret() -> None:
    """No registry host, lock file with download addresses, private key or machine path is in the tree."""
    patterns = [
        r"files\.pythonhosted",
        r"registry\.npmjs\.org",
        r"deb\.debian\.org",
        "BEGIN " + "(EC |RSA |OPENSSH )?PRIVATE KEY",
        r"/wo" + r"rk/(main|shared|notes)",
        r"/ro" + r"ot/\.",
    ]
    hits = []
    for path in tracked():
        if path.suffix in {".png", ".ico", ".gz"}:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        hits += [f"{path.relative_to(ROOT)}: {pattern}" for pattern in patterns if re.search(pattern, text)]
        assert path.name not in {"uv.lock", "poetry.lock", "package-lock.json", "pylock.toml"}
    assert not hits, hits


def test_constraints_pin_versions_without_addresses() -> None:
    """Every line is `name==version`."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 30
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[0-9][A-Za-z0-9.]*", line) for line in lines), lines


def test_imports_keep_to_the_layers() -> None:
    """import-linter's contracts hold: pure cores, services that are strangers, one direction of flow."""
    command = Path(sys.executable).parent / "lint-imports"
    run = subprocess.run([str(command)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:]


def test_the_clock_and_randomness_have_one_place() -> None:
    """Time comes from the clock module and ids from the ids module; nothing else reads either."""
    pattern = re.compile(r"datetime\.now\(|utcnow\(|uuid4\(|time\.time\(\)")
    allowed = {"clock.py", "ids.py"}
    hits = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.name not in allowed
        and path.parts[len(ROOT.parts)] == "services"
        and pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert not hits, hits


SPELLED_BY_OTHERS = {
    "common/trueup_common/contracts/shape.py": "rfc3339 itself",
    "gateway/trueup_gateway/api/http.py": "inside an opaque cursor",
    "gateway/trueup_gateway/core/measures.py": "the minute that a counter is kept by",
    "adapters/trueup_adapters/systems/database/publications.py": "a version, compared with itself",
}
"""Sources of the product that spell a moment by `isoformat()` after all, and why nobody reads it as a time."""


def test_a_time_that_leaves_the_process_ends_in_z() -> None:
    """Times are RFC 3339 in UTC with `Z`: `rfc3339` spells them, because `isoformat()` says `+00:00`.

    Requirements: F1
    """
    product = [path for path in sources() if "services" in path.parts or "common" in path.parts]
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in product
        if not path.as_posix().endswith(tuple(SPELLED_BY_OTHERS))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if ".isoformat()" in line
    ]
    assert not hits, f"say rfc3339 of contracts.shape: {hits}"


def test_links_between_documents_lead_somewhere() -> None:
    """A relative link names a file that is committed; the sample article's links are filled in when it is used."""
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in tracked()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8"))
        if not target.startswith(("http://", "https://", "mailto:", "{")) and not (path.parent / target).exists()
    ]
    assert broken == []


def test_generated_documentation_is_current() -> None:
    """Diagrams and tables in docs/ are those of the code: `make docs` would change nothing."""
    run = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"{run.stdout}{run.stderr[-2000:]}\nrun: make docs"
