"""The command line's way to the gateway: plain HTTP exactly as documented, with nothing that needs time to import."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from trueup_common.contracts.problems import PROBLEMS
from trueup_devkit.told import ToldError

TERMINAL_STATES = frozenset({"SUCCESS", "FAILED", "CONFLICT", "DEAD_LETTERED", "NEEDS_REVIEW", "CANCELLED", "RESOLVED"})
PAGE = 200


class GatewayError(ToldError):
    """The gateway refused, or could not be reached; the message is the problem document in words."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status of a refusal; None where nobody answered."""


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: Any


class GatewayClient:
    """Speaks to one gateway. `token` is an access token; commands carry their capability themselves."""

    def __init__(self, url: str, token: str | None = None, timeout_seconds: float = 30.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise GatewayError(f"not an http address: {url} (an example: http://127.0.0.1:8080)")
        self.url = url.rstrip("/")
        self.token = token
        self._secure = parts.scheme == "https"
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._timeout_seconds = timeout_seconds

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        bearer: str | None = None,
        wait_seconds: float = 0.0,
    ) -> Answer:
        """Send one request; raises GatewayError for anything but 2xx."""
        sent = {"Accept": "application/json", **(headers or {})}
        content = None
        if body is not None:
            content = json.dumps(body, allow_nan=False).encode()
            sent["Content-Type"] = "application/json"
        token = bearer or self.token
        if token:
            sent["Authorization"] = f"Bearer {token}"
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_seconds + wait_seconds)
        try:
            connection.request(method, self._prefix + path, content, sent)
            response = connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise GatewayError(
                f"no answer from {self.url}: {error or type(error).__name__}; see what runs with: trueup status"
            ) from error
        finally:
            connection.close()
        answered = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(response.status, answered, _parse(raw))
        if not 200 <= answer.status < 300:
            raise GatewayError(in_words(answer), answer.status)
        return answer

    def get(self, path: str, **query: Any) -> Any:
        """GET one resource."""
        text = urlencode({name: value for name, value in query.items() if value is not None})
        return self.call("GET", f"{path}?{text}" if text else path).body

    def items(self, path: str, **query: Any) -> Iterator[Any]:
        """All items of a list, page by page."""
        cursor: str | None = None
        while True:
            page = self.get(path, limit=PAGE, cursor=cursor, **query)
            yield from page["items"]
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def dev_token(self, sub: str, tenant: str, roles: list[str], scopes: list[str], ttl_seconds: int) -> str:
        """An access token of the development issuer."""
        body = {"sub": sub, "tenant": tenant, "roles": roles, "scopes": scopes, "ttl_seconds": ttl_seconds}
        try:
            return str(self.call("POST", "/dev/token", body).body["access_token"])
        except GatewayError as error:
            if error.status != 404:
                raise
            raise GatewayError(
                f"{self.url} has no development issuer: get a token from the issuer that it trusts, and pass it by "
                "--token or TRUEUP_TOKEN",
                error.status,
            ) from error

    def decide(self, command_types: list[str], resource: Mapping[str, str], purpose: str) -> Any:
        """Ask governance for a decision on single commands."""
        action = {"command_types": command_types, "workflow": None}
        return self._decided(action, dict(resource), purpose)

    def decide_workflow(self, name: str, version: int | None, purpose: str, resource: str | None = None) -> Any:
        """Ask governance for a decision on a workflow; `resource` is a pattern over its business objects."""
        action: dict[str, Any] = {"command_types": [], "workflow": name, "version": version}
        return self._decided(action, {"system": "workflow", "resource": resource or "*"}, purpose)

    def _decided(self, action: dict[str, Any], resource: dict[str, str], purpose: str) -> Any:
        body = {"action": action, "resource": resource, "purpose": purpose, "evidence": [], "context": {}}
        return self.call("POST", "/v1/decisions", body).body

    def capability(self, decision_id: str, max_uses: int, ttl_seconds: int) -> Any:
        """Turn an approved decision into a capability."""
        body = {"decision_id": decision_id, "max_uses": max_uses, "ttl_seconds": ttl_seconds}
        return self.call("POST", "/v1/capabilities", body).body

    def submit(self, command: Mapping[str, Any], capability: str, wait_seconds: int = 0) -> Answer:
        """Send one command; the same key may be sent again at any time."""
        body = {name: value for name, value in command.items() if name != "idempotency_key"}
        headers = {"Idempotency-Key": json.dumps(str(command["idempotency_key"]))}
        if wait_seconds:
            headers["Prefer"] = f"wait={wait_seconds}"
        return self.call("POST", "/v1/commands", body, headers=headers, bearer=capability, wait_seconds=wait_seconds)

    def start(self, workflow: Mapping[str, Any], capability: str) -> Answer:
        """Start a workflow; the same start key may be sent again at any time."""
        body = {name: value for name, value in workflow.items() if name != "idempotency_key"}
        headers = {"Idempotency-Key": json.dumps(str(workflow["idempotency_key"]))}
        return self.call("POST", "/v1/workflows", body, headers=headers, bearer=capability)

    def answer_approval(self, approval: Mapping[str, Any], verdict: str, reason: str) -> Any:
        """Approve or reject exactly what an approval shows: its hash and its nonce go back as they came."""
        body = {
            "decision": verdict,
            "nonce": approval["nonce"],
            "content_sha256": approval["content_sha256"],
            "reason": reason,
        }
        path = f"/v1/approvals/{quote(str(approval['approval_id']), safe='')}/decision"
        headers = {"Idempotency-Key": json.dumps(f"{verdict}:{approval['approval_id']}")}
        return self.call("POST", path, body, headers=headers).body

    def cancel(self, workflow_id: str, reason: str) -> Any:
        """Ask for a case to be cancelled; asking twice changes nothing."""
        path = f"/v1/workflows/{quote(workflow_id, safe='')}/cancel"
        headers = {"Idempotency-Key": json.dumps(f"cancel:{workflow_id}")}
        return self.call("POST", path, {"reason": reason}, headers=headers).body

    def workflow_of(self, identifier: str) -> str:
        """The workflow of a workflow or command id."""
        if identifier.startswith("cmd_"):
            return str(self.get(f"/v1/commands/{quote(identifier, safe='')}")["workflow_id"])
        return identifier

    def history(self, workflow_id: str, after_seq: int = 0) -> Iterator[dict[str, Any]]:
        """Events of a case after a sequence number, in order."""
        while True:
            path = f"/v1/workflows/{quote(workflow_id, safe='')}/history"
            page = self.get(path, limit=PAGE, after_seq=after_seq)["items"]
            yield from page
            if len(page) < PAGE:
                return
            after_seq = int(page[-1]["seq"])


_SAID: Final = frozenset({"type", "title", "status", "detail", "instance", "check", "errors", "advice"})
"""Members of a problem document that have words of their own."""


def in_words(answer: Answer) -> str:
    """A problem document for a person: what was refused, every place that does not fit, and what to do next."""
    problem = answer.body if isinstance(answer.body, dict) else {}
    title, detail = str(problem.get("title") or "refused"), str(problem.get("detail") or "")
    text = f"{answer.status} {title}"
    if problem.get("check"):
        text += f" (check: {problem['check']})"
    if detail and detail.rstrip(".") != title:
        text += f": {detail}"
    if answer.headers.get("retry-after"):
        text += f" (repeat after {answer.headers['retry-after']} s)"
    for error in problem.get("errors") or []:
        text += f"\n  {error.get('pointer')}: {error.get('detail')}"
    for name, value in problem.items():
        if name not in _SAID and value not in (None, [], {}):
            text += f"\n  {name}: {_plain(value)}"
    known = PROBLEMS.get(str(problem.get("type") or "").rpartition("/")[2])
    advice = problem.get("advice") or (known.advice if known else None)
    return f"{text}\n  {advice}" if advice else text


def _plain(value: Any) -> str:
    """A further member of a problem document: what a list of words holds, and anything else as JSON."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return raw.decode("utf-8", "replace")
