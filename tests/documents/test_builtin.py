"""The documents that ship with the product are sound, and reach every service through the catalog."""

from typing import Any

import jsonschema_rs
import pytest

from trueup_common.contracts.canonical import sha256_hex
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.workflow import StepKind, StepOutcome
from trueup_common.documents.expressions import expressions_of
from trueup_common.documents.lint import faults
from trueup_common.documents.reactions import DEFAULTS
from trueup_common.documents.read import ReadDocument, read_document
from trueup_common.documents.schema import document_schema
from trueup_common.documents.text import parsed
from trueup_common.runtime.bootstrap import installed_adapters, installed_documents
from trueup_common.runtime.catalog import Catalog
from trueup_orchestrator.core import reactions
from trueup_orchestrator.core.recovery import Pivot, action
from trueup_orchestrator.workflows import texts

DECLARATIONS = [item for adapter in installed_adapters().values() for item in adapter.declarations]
INPUT: dict[str, Any] = {
    "article_id": "0028",
    "version": 3,
    "title": "Success Is Not Proof",
    "slug": "success-is-not-proof",
    "content": '<p>See <a href="https://example.org/a">this</a>.</p>',
    "meta": {
        "description": "When software agents act on the world, a returned success proves little.",
        "json_ld": {"@context": "https://schema.org", "@type": "Article", "headline": "Success Is Not Proof"},
        "citations": ["https://example.org/paper"],
        "featured_image": "https://images.example/success.png",
    },
    "author": {"name": "An Author", "email": "author@example.org"},
    "authored_at": "2026-01-02T03:04:05Z",
    "repository": "acme/articles",
    "zone_id": "0" * 32,
}


def flagship() -> ReadDocument:
    return read_document(texts()["seo-article-publish.v1.yaml"])


def outputs(given: dict[str, Any]) -> dict[str, Any]:
    """What the steps give where the world did as it was told."""
    sha256 = sha256_hex(given["content"].encode())
    return {
        "archive": {"command_id": "cmd_1", "commit_sha": "a" * 40, "artifact_sha256": sha256},
        "draft": {
            "command_id": "cmd_2",
            "post_id": 7,
            "slug": INPUT["slug"],
            "status": "draft",
            "modified_gmt": "2026-11-29T12:00:00",
            "link": "https://blog.example/?p=7",
            "content_sha256": sha256,
        },
        "inspect": {
            "command_id": "cmd_5",
            "post_id": 7,
            "status": "draft",
            "title": given["title"],
            "slug": given["slug"],
            "excerpt": given.get("excerpt", ""),
            "description": given["meta"]["description"],
            "content_sha256": sha256,
            "json_ld_valid": True,
            "headline": given["title"],
            "links_broken": [],
            "links_unknown": [],
            "citations": [{"url": url, "status": 200, "ok": True} for url in given["meta"]["citations"]],
            "citations_broken": [],
            "citations_unknown": [],
            "unchecked_count": 0,
            "featured_image": given["meta"]["featured_image"],
            "featured_image_ok": True,
        },
        "approve": {
            "approved": True,
            "reviewer": "user:eve",
            "content_sha256": sha256,
            "decided_at": "2026-01-03T00:00:00Z",
        },
        "publish": {
            "command_id": "cmd_3",
            "post_id": 7,
            "link": "https://blog.example/success-is-not-proof/",
            "published_at": "2026-01-03T00:00:01",
        },
    }


def scope(**changes: Any) -> dict[str, Any]:
    given = {**INPUT, **changes}
    case = {
        "workflow_id": "wf_1",
        "tenant": "acme",
        "definition": "seo-article-publish",
        "version": 1,
        "started_at": "",
    }
    return {"input": given, "steps": outputs(given), "case": case}


def test_every_built_in_document_is_sound() -> None:
    """With the declarations of the installed adapters, none breaks a rule; all fit the published schema.

    Requirements: S2
    """
    validator = jsonschema_rs.validator_for(document_schema())
    assert texts()
    for text in texts().values():
        read = read_document(text)
        assert [str(fault) for fault in faults(read.document, {d.type: d for d in DECLARATIONS}, read.line_of)] == []
        assert [error.message for error in validator.iter_errors(parsed(text)[0])] == []
    names = {item.document.name for item in installed_documents(DECLARATIONS)}
    assert "seo-article-publish" in names


def test_a_document_that_breaks_a_rule_is_not_installed() -> None:
    """Without the declarations of its commands a built-in document is left out instead of failing later."""
    assert installed_documents([item for item in DECLARATIONS if item.system != "wordpress"]) == []


def test_the_flagship_fills_every_payload() -> None:
    """With and without the optional inputs, each payload is what its command takes."""
    document = flagship().document
    expressions = expressions_of(document)
    declared = {item.type: item for item in DECLARATIONS}
    full = scope(excerpt="Short.", urls=["https://blog.example/feed/"], check_interval_seconds=30)
    full["steps"] |= {"purge": {"urls_count": 2}, "monitor": {"check_id": "chk_1"}}
    for given in (scope(), full):
        assert jsonschema_rs.validator_for(document.input).is_valid(given["input"])
        for step in document.steps:
            if step.command is None:
                continue
            payload = expressions.fill(step.payload, given)
            validator = jsonschema_rs.validator_for(declared[step.command].payload_schema)
            assert [f"{step.id}: {error.message}" for error in validator.iter_errors(payload)] == []
            assert isinstance(expressions.fill(step.key, given), str)
    purge = expressions.fill(document.by_id["purge"].payload, full)
    assert purge["urls"] == ["https://blog.example/success-is-not-proof/", "https://blog.example/feed/"]
    record = expressions.fill(document.by_id["record"].payload, scope())["record"]
    assert "check_id" not in record
    assert record["approved_by"] == "user:eve"


@pytest.mark.parametrize(
    ("given", "seen", "says"),
    [
        ({"title": " Success Is Not Proof"}, {}, "the site has the title"),
        ({"title": "Success"}, {}, "the site has the title"),
        ({}, {"title": "Success Is Not Proof &amp; More"}, "the site has the title"),
        ({}, {"slug": "success-is-not-proof-2"}, "the site stored a draft"),
        ({}, {"status": "publish"}, "the site stored a draft"),
        ({"meta": {**INPUT["meta"], "description": "Short."}}, {}, "the site has the description"),
        ({}, {"description": ""}, "the site has the description"),
        ({"excerpt": "Short."}, {"excerpt": ""}, "the site has the excerpt"),
        ({}, {"json_ld_valid": False}, "the structured data that"),
        ({}, {"headline": "x"}, "the structured data has"),
        ({}, {"links_broken": ["https://a.example/ (status_404)"]}, "no link"),
        ({}, {"links_unknown": ["https://a.example/ (timeout)"]}, "every link, citation and image"),
        ({"meta": {**INPUT["meta"], "citations": []}}, {}, "there are citations"),
        ({}, {"citations_broken": ["ftp://b.example (not_http)"]}, "there are citations"),
        ({}, {"citations_unknown": ["https://b.example (timeout)"]}, "every link, citation and image"),
        ({}, {"unchecked_count": 1}, "every link, citation and image"),
        ({}, {"featured_image_ok": False}, "the site has the featured image"),
        ({}, {"featured_image": ""}, "the site has the featured image"),
        ({}, {"featured_image_ok": None}, "every link, citation and image"),
        ({}, {"content_sha256": "0" * 64}, "the site holds exactly the content"),
    ],
)
def test_the_flagship_validates_before_the_pivot(given: dict[str, Any], seen: dict[str, Any], says: str) -> None:
    """Each part of the validation notices its fault and no other; the check stands before approval and pivot.

    It judges what an inspection saw on the site, not what was sent there.

    Requirements: S7
    """
    faulty = scope(**given)
    faulty["steps"]["inspect"] |= seen
    document = flagship().document
    expressions = expressions_of(document)
    assertions = [item for item in document.by_id["validate"].check or () if not isinstance(item, str)]
    assert all(expressions.holds(item.that, scope()) for item in assertions)
    failed = [item.says or "" for item in assertions if not expressions.holds(item.that, faulty)]
    assert [text[: len(says)] for text in failed] == [says]
    order = [step.id for step in document.steps]
    assert order.index("inspect") < order.index("validate") < order.index("approve") < order.index("publish")


def test_the_flagship_notices_another_archive() -> None:
    """What GitHub keeps is what the site holds.

    Requirements: S7
    """
    faulty = scope()
    faulty["steps"]["archive"]["artifact_sha256"] = "0" * 64
    document = flagship().document
    assertions = [item for item in document.by_id["validate"].check or () if not isinstance(item, str)]
    failed = [item.says for item in assertions if not expressions_of(document).holds(item.that, faulty)]
    assert failed == ["the archive holds exactly the content of this version"]


def test_the_approval_binds_what_the_pivot_is_given() -> None:
    """The hash that the editor approves is the one that publishing demands.

    Requirements: S6
    """
    read = flagship()
    for wanted, instead in (
        ('binds: ["${steps.draft.content_sha256}"]', 'binds: ["${input.title}"]'),
        (
            'content_sha256: "${steps.draft.content_sha256}"\n      expected',
            'content_sha256: "${sha256(input.content)}"\n      expected',
        ),
    ):
        assert wanted in read.text
        changed = read_document(read.text.replace(wanted, instead))
        found = faults(changed.document, {item.type: item for item in DECLARATIONS}, changed.line_of)
        assert [fault.rule for fault in found] == ["unbound-hash"]


def test_the_catalog_keeps_documents_by_hash() -> None:
    """What the bootstrap wrote is what a service reads; another content under the same key is ignored."""
    read = flagship()
    document = read.document
    key = f"definition/{document.name}/{document.version}/{document.sha256}"
    catalog = Catalog()
    catalog._changed(key, json_bytes({"document": document.dumped(), "text": read.text}))
    found = catalog.definition("seo-article-publish", 1)
    assert found is not None
    assert (found.document, found.text) == (document, read.text)
    assert found.document.sha256 == document.sha256
    assert catalog.definitions() == [found]
    assert catalog.definition("seo-article-publish", 2) is None
    forged = {**document.dumped(), "title": "Something else"}
    other = Catalog()
    other._changed(key, json_bytes({"document": forged, "text": read.text}))
    assert other.definitions() == []
    catalog._changed(key, None)
    assert catalog.definitions() == []
    assert Catalog.of(DECLARATIONS, documents=[read]).definition(document.name, 1) is read


def test_the_defaults_are_those_that_the_orchestrator_follows() -> None:
    """The table that documents and the linter show is what happens."""
    for kind, outcomes in DEFAULTS.items():
        for outcome, default in outcomes.items():
            if kind is StepKind.CHECK:
                continue  # stands in the code of the saga itself
            said = reactions.DEFAULT_REACTION.get(outcome)
            if said is None:
                situation = reactions.SITUATION_OF_OUTCOME[outcome]
                said = reactions.REACTION_OF_ACTION[action(situation, Pivot.NO)]
            assert said is default, (kind, outcome)
    assert set(StepOutcome) == {outcome for outcomes in DEFAULTS.values() for outcome in outcomes}
