"""Git's names of objects, against values that everybody knows, against git itself, and against the sandbox's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup_adapters.systems.github.objects import (
    DIRECTORY,
    Entry,
    NoPlace,
    Person,
    Plan,
    blob_sha,
    carries,
    commit_sha,
    grown_tree_sha,
    kept,
    message_of,
    plans_of,
    tree_sha,
)
from trueup_devkit.sandbox.systems.github_git import Repository, blob, commit, tree

EMPTY_BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
HELLO = "3b18e512dba79e4c8300dd08aeb37f8e728b8dad"
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name not in (".", "..") and name.lower() != ".git"
)


def test_names_that_everybody_knows() -> None:
    """Requirements: E3."""
    assert blob_sha(b"") == EMPTY_BLOB
    assert blob_sha(b"hello world\n") == HELLO
    assert tree_sha({}) == EMPTY_TREE


def git(folder: Path, *arguments: str, content: bytes = b"", **environment: str) -> str:
    """What git itself says."""
    run = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        input=content,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
    )
    return run.stdout.decode().strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("path", ["a.md", "a/b/c.md", "articles/Größe.md", "a-b/x", "zz", "a.d/deep/er/file"])
def test_git_gives_the_same_names(tmp_path: Path, path: str) -> None:
    """Requirements: E3. Blob, trees of every depth with git's own order of names, and the commit, as git makes them."""
    git(tmp_path, "init", "--quiet", ".")
    for name in ("a/x.md", "a-b/y.md", "a.d/z.md", "a0/w.md", "articles/old.md", "b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    person = Person.of(" Ada Ökonom. ", "ada@example.org", "2026-11-29T12:00:00.75+01:00")
    # git is given the untrimmed name: both trim the same
    names = {"GIT_AUTHOR_NAME": " Ada Ökonom. ", "GIT_AUTHOR_EMAIL": person.email, "GIT_AUTHOR_DATE": person.date}
    names |= {key.replace("AUTHOR", "COMMITTER"): value for key, value in names.items()}
    git(tmp_path, "add", ".")
    base = git(tmp_path, "write-tree")
    parent = git(tmp_path, "commit-tree", base, "-m", "Begin", **names)

    def listed(sha: str) -> dict[str, Entry]:
        lines = [line for line in git(tmp_path, "ls-tree", "-z", sha).split("\0") if line]
        return {line.partition("\t")[2]: Entry(line.split()[0], line.split()[2]) for line in lines}

    levels = [listed(base)]
    for part in path.split("/")[:-1]:
        entry = levels[-1].get(part)
        if entry is None or entry.mode != DIRECTORY:
            break
        levels.append(listed(entry.sha))
    content = "# Größe & Wirkung\n".encode()
    made = git(tmp_path, "hash-object", "-w", "--stdin", content=content)
    assert blob_sha(content) == made
    git(tmp_path, "update-index", "--add", "--cacheinfo", f"100644,{made},{path}")
    root = git(tmp_path, "write-tree")
    assert grown_tree_sha(levels, path, made) == root
    message = message_of("Archive\n\nVersion 1.\n", "cmd_1")
    found = git(tmp_path, "commit-tree", root, "-p", parent, content=message.encode(), **names)
    assert commit_sha(root, parent, person, message) == found


@given(st.dictionaries(NAMES, st.tuples(st.sampled_from([DIRECTORY, "100644", "100755"]), st.binary(max_size=9))))
def test_two_computations_of_a_tree_agree(entries: dict[str, tuple[str, bytes]]) -> None:
    """Requirements: E3. The adapter's and the sandbox's, written apart from each other."""
    named = {name: (mode, blob_sha(content)) for name, (mode, content) in entries.items()}
    theirs, _ = tree((mode, name, sha) for name, (mode, sha) in named.items())
    assert tree_sha({name: Entry(mode, sha) for name, (mode, sha) in named.items()}) == theirs


@given(st.lists(NAMES, min_size=1, max_size=4), st.binary(max_size=20), st.text(max_size=20))
def test_two_computations_of_a_commit_agree(names: list[str], content: bytes, text: str) -> None:
    """Requirements: E3."""
    path, held = "/".join(names), Repository({}, {})
    root = held.grown(None, path, "100644", held.add(blob(content)))
    assert root is not None
    assert grown_tree_sha([{}], path, blob_sha(content)) == root
    person = Person.of("Ada", "ada@example.org", "2026-11-29T12:00:00Z")
    author = {"name": "Ada", "email": "ada@example.org", "date": "2026-11-29T12:00:00Z"}
    message = message_of(text, "cmd_1")
    assert commit_sha(root, EMPTY_BLOB, person, message) == commit(root, [EMPTY_BLOB], author, author, message)[0]


def test_a_place_that_is_taken_is_refused() -> None:
    directory, file, link = Entry(DIRECTORY, EMPTY_TREE), Entry("100644", EMPTY_BLOB), Entry("120000", EMPTY_BLOB)
    for levels, path in (([{"a": directory}], "a"), ([{"a": file}], "a/b"), ([{"a": link}], "a")):
        with pytest.raises(NoPlace):
            grown_tree_sha(levels, path, HELLO)
    assert grown_tree_sha([{"a": Entry("100755", EMPTY_BLOB)}], "a", HELLO) == tree_sha({"a": Entry("100644", HELLO)})


@pytest.mark.parametrize("moment", ["2026-11-29T12:00:00Z", "2026-11-29T13:00:00+01:00", "2026-11-29T12:00:00.999Z"])
def test_one_moment_has_one_spelling(moment: str) -> None:
    assert Person.of("A", "a@example.org", moment).line == "A <a@example.org> 1795953600 +0000"


@pytest.mark.parametrize(("name", "at"), [("A", "2026-11-29T12:00:00"), ("...", "2026-11-29T12:00:00Z"), ("A", "soon")])
def test_what_is_no_person_or_moment_is_refused(name: str, at: str) -> None:
    with pytest.raises(ValueError):
        Person.of(name, "a@example.org", at)


def test_the_trailer_names_exactly_one_operation() -> None:
    message = message_of("Archive\n", "cmd_12")
    assert message == "Archive\n\nTrueup-Operation: cmd_12"
    assert carries(message, "cmd_12")
    assert not carries(message, "cmd_1")
    assert not carries("see Trueup-Operation: cmd_12", "cmd_12")


def test_a_cursor_keeps_its_plans() -> None:
    plans = [Plan("append", "p", "t", "r", "b", "c"), Plan("create", "p", "t", "r", "b", "d")]
    assert plans_of(kept(plans)) == plans
    assert plans_of(None) == []
