"""Guards of tokens: every way in which a token may be almost right."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey
from tests.gateway.edge import ISSUER, SIGNING

from trueup_common.runtime.clock import real_now
from trueup_gateway.core.refusal import Refused
from trueup_gateway.main import verifier_of
from trueup_gateway.tokens import ACCESS_TYPE, CAPABILITY_TYPE, SigningKey, sign_access, sign_capability

NOW = real_now()
STRANGER = SigningKey.generate()


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def claims(**changes: Any) -> dict[str, Any]:
    issued = int(NOW.timestamp())
    base = {
        "iss": "trueup-dev-issuer",
        "aud": "trueup-gateway",
        "client_id": "test",
        "sub": "agent:publisher",
        "tenant": "acme",
        "roles": ["agent"],
        "iat": issued,
        "exp": issued + 60,
        "jti": "one",
    }
    base.update(changes)
    return {name: value for name, value in base.items() if value is not ...}


def raw_token(header: bytes, payload: bytes, key: SigningKey = ISSUER) -> str:
    """A token over exactly these bytes, genuinely signed."""
    signed = f"{encoded(header)}.{encoded(payload)}"
    private = key.key.get_op_key("sign")
    return f"{signed}.{encoded(private.sign(signed.encode()))}"


def token(header: dict[str, Any] | None = None, key: SigningKey = ISSUER, **changes: Any) -> str:
    head = {"alg": "Ed25519", "kid": ISSUER.kid, "typ": ACCESS_TYPE, **(header or {})}
    head = {name: value for name, value in head.items() if value is not ...}
    return raw_token(json.dumps(head).encode(), json.dumps(claims(**changes)).encode(), key)


def other_algorithm(algorithm: str, key: Any) -> str:
    header = {"alg": algorithm, "kid": ISSUER.kid, "typ": ACCESS_TYPE}
    return jws.serialize_compact(header, json.dumps(claims()).encode(), key, [algorithm])


def with_public_key_as_secret() -> str:
    """The classic confusion: HMAC with the public key as its secret."""
    public = base64.urlsafe_b64decode(ISSUER.public()["x"] + "=")
    return other_algorithm("HS256", OctKey.import_key(public))


def unsigned() -> str:
    header = encoded(json.dumps({"alg": "none", "kid": ISSUER.kid, "typ": ACCESS_TYPE}).encode())
    return f"{header}.{encoded(json.dumps(claims()).encode())}."


def duplicate_claim() -> str:
    header = json.dumps({"alg": "Ed25519", "kid": ISSUER.kid, "typ": ACCESS_TYPE}).encode()
    body = json.dumps(claims()).encode()[:-1] + b', "tenant": "globex"}'
    return raw_token(header, body)


def duplicate_header() -> str:
    header = f'{{"alg":"none","alg":"Ed25519","kid":"{ISSUER.kid}","typ":"at+jwt"}}'.encode()
    return raw_token(header, json.dumps(claims()).encode())


GUARDS: dict[str, tuple[Callable[[], str], str]] = {
    "nothing": (lambda: "", "signature"),
    "not a token": (lambda: "a.b.c", "signature"),
    "too long": (lambda: token(scopes=["x" * 9000]), "signature"),
    "four parts": (lambda: token() + ".x", "signature"),
    "padding": (lambda: token() + "==", "signature"),
    "alg none": (unsigned, "signature"),
    "alg none, signed": (lambda: token({"alg": "none"}), "signature"),
    "alg EdDSA": (lambda: token({"alg": "EdDSA"}), "signature"),
    "alg HS256 with the public key": (with_public_key_as_secret, "signature"),
    "alg ES256": (lambda: other_algorithm("ES256", ECKey.generate_key("P-256")), "signature"),
    "no kid": (lambda: token({"kid": ...}), "signature"),
    "unknown kid": (lambda: token({"kid": "another"}), "signature"),
    "kid that is no text": (lambda: token({"kid": ["x"]}), "signature"),
    "b64": (lambda: token({"b64": False, "crit": ["b64"]}), "signature"),
    "a header more": (lambda: token({"jku": "http://elsewhere"}), "signature"),
    "an embedded key": (lambda: token({"jwk": STRANGER.public()}, key=STRANGER), "signature"),
    "signed by a stranger": (lambda: token(key=STRANGER), "signature"),
    "signed by a stranger under its own kid": (lambda: token({"kid": STRANGER.kid}, key=STRANGER), "signature"),
    "signed by the capability key": (lambda: token({"kid": SIGNING.kid}, key=SIGNING), "signature"),
    "duplicate claim": (duplicate_claim, "signature"),
    "duplicate header": (duplicate_header, "signature"),
    "claims that are a list": (
        lambda: raw_token(
            b'{"alg":"Ed25519","kid":"%s","typ":"at+jwt"}' % ISSUER.kid.encode(), b'["claims that are a list"]'
        ),
        "signature",
    ),
    "typ of a capability": (lambda: token({"typ": CAPABILITY_TYPE}), "audience"),
    "typ JWT": (lambda: token({"typ": "JWT"}), "audience"),
    "typ in other letters": (lambda: token({"typ": "AT+JWT"}), "audience"),
    "no issuer": (lambda: token(iss=...), "issuer"),
    "another issuer": (lambda: token(iss="https://elsewhere"), "issuer"),
    "no audience": (lambda: token(aud=...), "audience"),
    "another audience": (lambda: token(aud="another"), "audience"),
    "other audiences": (lambda: token(aud=["a", "b"]), "audience"),
    "no expiry": (lambda: token(exp=...), "time"),
    "expired": (lambda: token(exp=int(NOW.timestamp()) - 1), "time"),
    "expiry as text": (lambda: token(exp="9999999999"), "time"),
    "expiry as a fraction": (lambda: token(exp=NOW.timestamp() + 60.5), "time"),
    "expiry true": (lambda: token(exp=True), "time"),
    "no iat": (lambda: token(iat=...), "time"),
    "from the future": (lambda: token(iat=int(NOW.timestamp()) + 60, exp=int(NOW.timestamp()) + 120), "time"),
    "not before later": (lambda: token(nbf=int(NOW.timestamp()) + 60), "time"),
    "no subject": (lambda: token(sub=...), "holder"),
    "subject of no kind": (lambda: token(sub="publisher"), "holder"),
    "subject with a line": (lambda: token(sub="agent:a\n"), "holder"),
    "no jti": (lambda: token(jti=...), "holder"),
    "no client": (lambda: token(client_id=...), "holder"),
    "no roles": (lambda: token(roles=...), "holder"),
    "roles as text": (lambda: token(roles="agent"), "holder"),
    "bound to a key": (lambda: token(cnf={"jkt": "x"}), "holder"),
    "no tenant": (lambda: token(tenant=...), "issuer"),
}


@pytest.mark.parametrize(("make", "check"), GUARDS.values(), ids=GUARDS.keys())
def test_a_token_that_is_almost_right_is_refused(make: Callable[[], str], check: str) -> None:
    """401 and the name of the check, for each guard.

    Requirements: G4
    """
    with pytest.raises(Refused) as caught:
        verifier_of(SIGNING, ISSUER).caller(make(), NOW)
    assert (caught.value.problem.status, caught.value.check) == (401, check)


@pytest.mark.parametrize("tenant", ["Acme", "acme ", "acme\n", "", "a" * 64, "-acme", "ac_me", "acmé"])
def test_another_spelling_of_a_tenant_is_400(tenant: str) -> None:
    """Tenants have one spelling; nothing is folded or trimmed.

    Requirements: T1
    """
    with pytest.raises(Refused) as caught:
        verifier_of(SIGNING, ISSUER).caller(token(tenant=tenant), NOW)
    assert caught.value.problem.slug == "tenant-invalid"


def test_a_right_token_tells_who_calls_until_it_expires() -> None:
    """A verified token is remembered, and its expiry is still asked for each time."""
    verifier = verifier_of(SIGNING, ISSUER)
    minted = sign_access(
        ISSUER, subject="operator:ops", tenant="acme", roles=["operator"], scopes=["site:p4"], ttl_seconds=60, real=NOW
    )
    for _ in range(2):
        caller = verifier.caller(minted, NOW)
        assert (caller.subject, caller.tenant, caller.roles, caller.scopes) == (
            "operator:ops",
            "acme",
            ("operator",),
            ("site:p4",),
        )
    with pytest.raises(Refused) as caught:
        verifier.caller(minted, NOW + timedelta(seconds=60))
    assert caught.value.check == "time"


def test_remembering_does_not_let_a_token_pass_as_another_kind() -> None:
    """A capability is no access token and the reverse, however often it was seen.

    Requirements: G4
    """
    verifier = verifier_of(SIGNING, ISSUER)
    access = token()
    capability = sign_capability(
        SIGNING,
        capability_id="cap_1",
        subject="agent:publisher",
        tenant="acme",
        permissions=["wordpress:write"],
        command_types=["wordpress.create_draft"],
        system="wordpress",
        resource="post/*",
        payload_sha256=None,
        expected_version=None,
        decision_id="dec_1",
        issued_at=NOW,
        expires_at=NOW + timedelta(seconds=60),
    )
    assert verifier.caller(access, NOW).subject == verifier.capability(capability, NOW).subject
    with pytest.raises(Refused):
        verifier.capability(access, NOW)
    with pytest.raises(Refused):
        verifier.caller(capability, NOW)
    header, payload, signature = capability.split(".")
    changed = encoded(base64.urlsafe_b64decode(payload + "==").replace(b'"post/*"', b'"*"'))
    with pytest.raises(Refused) as caught:
        verifier.capability(f"{header}.{changed}.{signature}", NOW)
    assert caught.value.check == "signature"


def test_key_files_that_are_no_private_keys_are_refused_without_showing_them() -> None:
    """The error names the setting only."""
    weak = OKPKey.generate_key("X25519").as_dict(private=True)
    for document in ("", "{}", "not json", json.dumps(SIGNING.public()), json.dumps(weak)):
        with pytest.raises(ValueError, match="TRUEUP_SIGNING_KEY") as caught:
            SigningKey.read(document, "TRUEUP_SIGNING_KEY")
        assert caught.value.__cause__ is None and "x" not in str(caught.value).split()
