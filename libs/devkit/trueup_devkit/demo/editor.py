"""The editor: a person with an approver's token who reads what is asked, looks at the draft, and answers once."""

from __future__ import annotations

from typing import Any, Final

from trueup_common.runtime.clock import real_now
from trueup_devkit.demo.sentences import moment
from trueup_devkit.demo.telling import Teller
from trueup_devkit.demo.world import World, content_sha256
from trueup_devkit.gateway_client import GatewayClient, GatewayError
from trueup_devkit.told import ToldError

EDITOR: Final = "operator:edith"
SCOPE: Final = "content:publish"


class Editor:
    """Answers the approval of one case."""

    def __init__(self, gateway_url: str, tenant: str, agent: GatewayClient, world: World, teller: Teller) -> None:
        self._gateway = GatewayClient(gateway_url)
        self._gateway.token = self._gateway.dev_token(EDITOR, tenant, ["approver"], [SCOPE], 3600)
        self._agent = agent
        self._world = world
        self._teller = teller
        self._answered: set[str] = set()

    def look(self, workflow_id: str) -> None:
        """Answer what is asked, if anything is."""
        for approval in self._gateway.items("/v1/approvals", status="pending", workflow_id=workflow_id):
            if approval["approval_id"] not in self._answered:
                self._answered.add(approval["approval_id"])
                self._answer(approval)

    def _answer(self, approval: dict[str, Any]) -> None:
        summary = approval.get("summary") or {}
        until = (moment(approval["expires_at"]) - real_now()).total_seconds() / 3600
        for text in (
            f"GET /v1/approvals → {approval['approval_id']}: {approval['requested_by']} asks {approval['owner']} for"
            f" {approval['scope']}, {until:.0f} hours left",
            f"   title    {summary.get('title')}",
            f"   version  {summary.get('version')} by {summary.get('author')}, archived as {summary.get('archive')}",
            f"   draft    {summary.get('draft')}",
            f"   content  SHA-256 {approval['content_sha256']}",
        ):
            self._tell("editor", text)
        self._let_the_agent_try(approval)
        drafts = [post for post in self._world.posts(str(summary.get("title"))) if post["status"] == "draft"]
        if [content_sha256(post) for post in drafts] != [approval["content_sha256"]]:
            raise ToldError(f"the editor does not find exactly that content on the site, but {len(drafts)} drafts")
        words = len(str(drafts[0]["content"]["raw"]).split())
        self._tell("editor", f"reads the draft on the site: {words} words, and its SHA-256 is the same")
        row = self._gateway.answer_approval(approval, "approve", "read on the site, content compared")
        self._tell(
            "editor",
            f"POST …/decision approve, with hash and nonce → {row['status']} by {row['reviewer']}"
            f" (authorized by {row['decision_id']}); nothing else may be published",
        )

    def _let_the_agent_try(self, approval: dict[str, Any]) -> None:
        """Who asks cannot answer."""
        try:
            self._agent.answer_approval({**approval, "nonce": "guessed"}, "approve", "trust me")
        except GatewayError as error:
            if error.status != 403:
                raise
            self._tell("agent", f"tries to approve its own article → {str(error).splitlines()[0]}")
        else:
            raise ToldError("an agent approved its own article")

    def _tell(self, who: str, text: str) -> None:
        self._teller.tell(real_now(), who, text)
