"""The planner's way to the gateway: plain HTTP as any agent's, under the planner's own narrow identity.

Nothing is repeated here. What did not answer is told as such, and the caller asks again under the same key. The HTTP
library is loaded with the first request: a planner that never repairs does not carry it.
"""

import logging
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from trueup_common.runtime.clock import monotonic
from trueup_common.runtime.settings import Settings
from trueup_repair_planner.core.calls import Answer, Call

log = logging.getLogger("trueup.planner.gateway")

SUBJECT: Final = "service:repair-planner"
ROLE: Final = "repairer"
TIMEOUT_SECONDS: Final = 15.0
TOKEN_SECONDS: Final = 900
TOKEN_SLACK_SECONDS: Final = 60.0
ANSWER_BYTES_MAX: Final = 1024 * 1024
CONNECTIONS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where access tokens come from: the development issuer, or a token endpoint with client credentials."""

    url: str
    client_id: str | None = None
    client_secret: str | None = None

    @property
    def development(self) -> bool:
        """True for the built-in issuer of a laptop."""
        return self.client_id is None


def token_source(settings: Settings, gateway_url: str) -> TokenSource | None:
    """Where this process gets its tokens; None where nothing is configured, and then nothing is repaired by itself."""
    if settings.planner_token_url:
        secret = settings.planner_client_secret.get_secret_value()
        return TokenSource(settings.planner_token_url, settings.planner_client_id, secret)
    return TokenSource(f"{gateway_url}/dev/token") if settings.development else None


class GatewayClient:
    """One client for the life of the process. A token per tenant is kept until shortly before it expires."""

    def __init__(self, url: str, source: TokenSource) -> None:
        self.url = url
        self._source = source
        self._client: Any = None
        self._tokens: dict[str, tuple[str, float]] = {}

    async def send(self, asked: Call) -> Answer:
        """One request; status 0 where nothing came back that could be read."""
        bearer = asked.capability or await self._token(asked.tenant)
        if bearer is None:
            return Answer(0, {"title": "no access token"})
        headers = {"authorization": f"Bearer {bearer}"}
        if asked.key is not None:
            headers["idempotency-key"] = f'"{asked.key}"'
        answer = await self._request(asked.method, self.url + asked.path, asked.body, headers)
        if answer.status == 401 and asked.capability is None:
            self._tokens.pop(asked.tenant, None)
        return answer

    async def close(self) -> None:
        """Let go of the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _token(self, tenant: str) -> str | None:
        kept = self._tokens.get(tenant)
        if kept is not None and kept[1] > monotonic():
            return kept[0]
        answer = await self._ask_for_token(tenant)
        token = answer.body.get("access_token")
        if answer.status != 200 or not isinstance(token, str):
            log.warning("no access token", extra={"status": answer.status, "tenant": tenant})
            return None
        seconds = float(answer.body.get("expires_in") or TOKEN_SECONDS)
        self._tokens[tenant] = (token, monotonic() + max(1.0, seconds - TOKEN_SLACK_SECONDS))
        return token

    async def _ask_for_token(self, tenant: str) -> Answer:
        source = self._source
        if source.development:
            wanted = {"sub": SUBJECT, "tenant": tenant, "roles": [ROLE], "ttl_seconds": TOKEN_SECONDS}
            return await self._request("POST", source.url, wanted, {})
        form = {"grant_type": "client_credentials", "scope": f"tenant:{tenant} {ROLE}"}
        basic = (source.client_id or "", source.client_secret or "")
        return await self._request("POST", source.url, None, {}, form=form, basic=basic)

    async def _request(  # noqa: PLR0917 - one request
        self,
        method: str,
        url: str,
        body: dict[str, Any] | None,
        headers: dict[str, str],
        form: dict[str, str] | None = None,
        basic: tuple[str, str] | None = None,
    ) -> Answer:
        import httpx

        content = orjson.dumps(body) if body is not None else None
        if content is not None:
            headers = {**headers, "content-type": "application/json"}
        try:
            client = self._opened(httpx)
            response = await client.request(method, url, content=content, headers=headers, data=form, auth=basic)
            raw = response.content[: ANSWER_BYTES_MAX + 1]
        except (httpx.HTTPError, OSError) as error:
            log.info("no answer", extra={"path": urlsplit(url).path, "reason": type(error).__name__})
            return Answer(0, {"title": type(error).__name__})
        return Answer(response.status_code, _members(raw))

    def _opened(self, httpx: Any) -> Any:
        if self._client is None:
            from httpx_aiohttp import HttpxAiohttpClient

            self._client = HttpxAiohttpClient(
                limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX),
                timeout=httpx.Timeout(TIMEOUT_SECONDS),
                follow_redirects=False,
                trust_env=False,
            )
        return self._client


def _members(raw: bytes) -> dict[str, Any]:
    """The members of a JSON object, none where the answer is anything else."""
    if len(raw) > ANSWER_BYTES_MAX:
        return {}
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
