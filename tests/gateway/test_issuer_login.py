"""Logging in at an external issuer: a small one on this machine that plays by the book, and one that does not."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import pytest_asyncio
import uvicorn
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from tests.gateway.edge import EdgeUnderTest, edge
from tests.servers import Database
from tests.system.plane import eventually

from trueup_common.runtime.clock import real_now
from trueup_gateway.issuers import ExternalIssuer, IssuerAway, checked_issuer, usable_keys
from trueup_gateway.tokens import AUDIENCE

CLIENT = "trueup-console"


class SmallIssuer:
    """An OpenID Connect issuer: it lets everybody in as `operator:ida`. `spoil` makes it err in one way."""

    def __init__(self) -> None:
        self.keys = {"first": ECKey.generate_key("P-256")}
        self.current = "first"
        self.spoil = ""
        self.codes: dict[str, dict[str, str]] = {}
        self.url = ""
        routes = [
            Route("/.well-known/openid-configuration", self.describe),
            Route("/keys", self.publish),
            Route("/authorize", self.authorize),
            Route("/token", self.token, methods=["POST"]),
        ]
        config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="warning")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def start(self) -> None:
        self.thread.start()
        eventually(lambda: self.server.started or None, "the issuer stands")
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    async def describe(self, request: Request) -> Response:
        named = "https://elsewhere.example" if self.spoil == "description" else self.url
        places = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
        return JSONResponse({"issuer": named, **{name: self.url + place for name, place in places.items()}})

    async def publish(self, request: Request) -> Response:
        keys = [{**key.as_dict(private=False), "kid": kid, "use": "sig"} for kid, key in self.keys.items()]
        return JSONResponse({"keys": keys})

    async def authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
        assert asked["client_id"] == CLIENT and len(asked["code_challenge"]) == 43
        code = f"code{len(self.codes)}"
        self.codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?code={code}&state={asked['state']}&iss={self.url}", 302)

    async def token(self, request: Request) -> Response:
        given = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        asked = self.codes.pop(given["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(given["code_verifier"].encode()).digest())
        if asked is None or challenge.rstrip(b"=").decode() != asked["code_challenge"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        assert given["redirect_uri"] == asked["redirect_uri"]
        nonce = "another" if self.spoil == "nonce" else asked["nonce"]
        audience = "another" if self.spoil == "audience" else CLIENT
        proof = self.sign("JWT", {"aud": audience, "nonce": nonce}, forged=self.spoil == "proof")
        access = self.access(aud="another" if self.spoil == "access" else AUDIENCE)
        return JSONResponse({"access_token": access, "id_token": proof, "token_type": "Bearer", "expires_in": 600})

    def access(self, **changes: Any) -> str:
        claims = {"aud": AUDIENCE, "tenant": "acme", "roles": ["operator"], "client_id": CLIENT, "jti": "j", **changes}
        return self.sign("at+jwt", claims)

    def sign(self, kind: str, claims: dict[str, Any], *, forged: bool = False) -> str:
        now = int(real_now().timestamp())
        whole = {"iss": self.url, "sub": "operator:ida", "iat": now, "exp": now + 600, **claims}
        key = ECKey.generate_key("P-256") if forged else self.keys[self.current]
        header = {"alg": "ES256", "kid": self.current, "typ": kind}
        return jws.serialize_compact(header, json.dumps(whole).encode(), key, ["ES256"])


@pytest.fixture
def issuer() -> Iterator[SmallIssuer]:
    small = SmallIssuer()
    small.start()
    yield small
    small.stop()


@pytest_asyncio.fixture
async def gateway(gateway_database: Database, issuer: SmallIssuer) -> AsyncIterator[EdgeUnderTest]:
    """A gateway that trusts the small issuer."""
    async with edge(gateway_database, oidc_issuer=issuer.url, oidc_client_id=CLIENT) as running:
        running.gateway.issuer = ExternalIssuer(issuer.url, running.gateway.verifier)
        yield running


async def begun(gateway: EdgeUnderTest, wish: str = "") -> str:
    """Begin a login and let the issuer answer; the address that the browser comes back to."""
    response = await gateway.client.get(f"/console/login/issuer?next={wish}")
    assert response.status_code == 303, response.text
    assert "samesite=lax" in response.headers["set-cookie"].lower() and "HttpOnly" in response.headers["set-cookie"]
    async with httpx.AsyncClient() as browser:
        answered = await browser.get(response.headers["location"])
    assert answered.status_code == 302
    parts = urlsplit(answered.headers["location"])
    assert parts.path == "/console/login/callback"
    return f"{parts.path}?{parts.query}"


async def test_a_person_logs_in_at_the_issuer_and_acts_under_its_token(
    gateway: EdgeUnderTest, issuer: SmallIssuer
) -> None:
    """Code flow with PKCE: the session is made of the issuer's access token, which is good for the API as well.

    Requirements: G8, O4
    """
    assert "Log in with your organisation" in (await gateway.client.get("/console/login")).text
    back = await begun(gateway, "/console/cases")
    response = await gateway.client.get(back)
    assert (response.status_code, response.headers["location"]) == (303, "/console/cases")
    cookies = response.headers.get_list("set-cookie")
    assert any("trueup_console=" in cookie and "samesite=lax" in cookie.lower() for cookie in cookies)
    page = await gateway.client.get("/console/exceptions")
    assert page.status_code == 200 and "<b>ida</b>" in page.text
    direct = await gateway.client.get("/v1/exceptions", headers={"Authorization": f"Bearer {issuer.access()}"})
    assert direct.status_code == 200
    again = await gateway.client.get(back)
    assert again.status_code == 403, "an answer is taken once"


@pytest.mark.parametrize("spoil", ["nonce", "audience", "proof", "access"])
async def test_an_answer_that_is_not_right_lets_nobody_in(
    gateway: EdgeUnderTest, issuer: SmallIssuer, spoil: str
) -> None:
    """Requirements: G8"""
    back = await begun(gateway)
    issuer.spoil = spoil
    response = await gateway.client.get(back)
    assert response.status_code == 403 and "did not let you in" in response.text
    assert "trueup_console" not in gateway.client.cookies


async def test_another_browsers_login_cannot_be_slipped_in(gateway: EdgeUnderTest, issuer: SmallIssuer) -> None:
    """Without the cookie that began it, with another state, or from another issuer: refused."""
    back = await begun(gateway)
    kept = dict(gateway.client.cookies)
    for changed in (
        back.replace("state=", "state=x"),
        back + "x",
        back.partition("&iss")[0] + "&iss=https://e.example",
    ):
        gateway.client.cookies.update(kept)
        assert (await gateway.client.get(changed)).status_code == 403
    gateway.client.cookies.clear()
    assert (await gateway.client.get(back)).status_code == 403
    assert (await gateway.client.get("/console/login/callback?error=access_denied&state=x")).status_code == 403


async def test_keys_rotate_and_an_old_key_is_forgotten(gateway: EdgeUnderTest, issuer: SmallIssuer) -> None:
    """A token under a new key is refused until the keys are fetched again, and asks for that; the old key's then fail.

    Requirements: G8
    """
    trusted = gateway.gateway.issuer
    assert trusted is not None
    await trusted.refresh()
    asked: list[int] = []
    gateway.gateway.verifier.unknown_key = lambda: asked.append(1)

    async def status(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return (await gateway.client.get("/v1/exceptions", headers=headers)).status_code

    old = issuer.access()
    assert await status(old) == 200
    issuer.keys, issuer.current = {"second": ECKey.generate_key("P-256")}, "second"
    new = issuer.access()
    assert await status(new) == 401 and asked == [1]
    await trusted.refresh()
    assert await status(new) == 200
    assert await status(old) == 401, "what a withdrawn key signed is not believed, however it was remembered"
    issuer.spoil = "description"
    with pytest.raises(IssuerAway, match="another issuer"):
        await trusted.refresh()
    assert await status(new) == 200, "an issuer that is away does not throw anybody out"


async def test_an_issuer_that_is_away_is_told(gateway: EdgeUnderTest, issuer: SmallIssuer) -> None:
    issuer.spoil = "description"
    response = await gateway.client.get("/console/login/issuer")
    assert response.status_code == 503 and "does not answer" in response.text


def test_only_public_signature_keys_are_used() -> None:
    """A private key, a secret, one for encryption, one without an id and nonsense are left out."""
    good = OKPKey.generate_key("Ed25519")
    entries = [
        {**good.as_dict(private=False), "kid": "good", "use": "sig"},
        {**good.as_dict(private=True), "kid": "private"},
        {**OctKey.generate_key(256).as_dict(private=True), "kid": "secret"},
        {**good.as_dict(private=False), "kid": "encryption", "use": "enc"},
        {name: value for name, value in good.as_dict(private=False).items() if name != "kid"},
        {"kty": "EC", "kid": "nonsense", "crv": "P-256", "x": "!", "y": "!"},
        "nothing",
    ]
    assert list(usable_keys({"keys": entries})) == ["good"]
    assert usable_keys({"keys": "none"}) == {} and usable_keys({}) == {}


def test_an_issuer_in_the_clear_is_no_setting(gateway_settings: Any) -> None:
    assert checked_issuer(gateway_settings(oidc_issuer="https://login.example")) == "https://login.example"
    assert checked_issuer(gateway_settings(oidc_issuer="http://127.0.0.1:9")) == "http://127.0.0.1:9"
    for wrong in ({"oidc_issuer": "http://login.example"}, {"oidc_issuer": "login"}, {"oidc_client_id": "x"}):
        with pytest.raises(ValueError, match="TRUEUP_OIDC"):
            checked_issuer(gateway_settings(**wrong))


@pytest.fixture
def gateway_settings() -> Any:
    from tests.gateway.edge import settings_of

    return settings_of
