"""Tokens: signing, verification, and their end with that of a key."""

import argparse
import base64
import json
import logging
from pathlib import Path

import jwt
import pytest
from tests.puppets import SecondsClock

from stoker.commands import keys as keys_command
from stoker.commands import token as command
from stoker.errors import InvalidSettings, NotReady, Unauthorized
from stoker.keys.access import Access
from stoker.keys.keyring import Keyring, Keys, read_signing_secret, services_that_sign
from stoker.keys.tokens import (
    DEFAULT_VALID_S,
    LONGEST_VALID_S,
    Token,
    TokenVerifier,
    issue_token,
)
from stoker.keys.verifier import KeyVerifier

NOW_S = 1_800_000_000.75
GIVEN = Keys("primary-key-of-the-tests", "secondary-key-of-the-tests")


@pytest.fixture
def clock() -> SecondsClock:
    return SecondsClock(NOW_S)


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    keyring = Keyring(tmp_path / "keys", "mnist")
    keyring.ensure_signing_secret()
    return keyring


@pytest.fixture
def verifier(keyring: Keyring, clock: SecondsClock) -> TokenVerifier:
    keys = KeyVerifier(keyring.keys_dir, "mnist", GIVEN)
    return TokenVerifier(keyring.keys_dir, "mnist", keys, clock_s=clock)


def signed(keyring: Keyring, **options: int) -> Token:
    return issue_token(
        read_signing_secret(keyring.keys_dir, keyring.service), "mnist", now_s=NOW_S, **options
    )


def bearer(text: str) -> bytes:
    return b"Bearer " + text.encode()


def test_token_names_its_service(keyring: Keyring) -> None:
    """It is a JWT with the service as its audience, twelve hours long, to be renewed halfway."""
    token = signed(keyring)
    secret = read_signing_secret(keyring.keys_dir, "mnist")
    claims = jwt.decode(token.text, secret, ["HS256"], audience="mnist", options={"verify_iat": False})
    assert claims == {
        "iss": "stoker",
        "aud": "mnist",
        "iat": 1_800_000_000,
        "exp": 1_800_000_000 + DEFAULT_VALID_S,
    }
    assert (token.refresh_after_s, token.expires_s) == (1_800_021_600, 1_800_043_200)
    assert token.to_json() == {
        "accessToken": token.text,
        "tokenType": "Bearer",
        "refreshAfter": 1_800_021_600,
        "expiryOn": 1_800_043_200,
        "refreshInSeconds": 21_600,
        "expiresInSeconds": 43_200,
    }
    assert token.text not in repr(token)


@pytest.mark.parametrize("valid_s", [-1, 0, LONGEST_VALID_S + 1])
def test_tokens_are_short_lived(keyring: Keyring, valid_s: int) -> None:
    """A token that never was valid, or would be for more than 30 days, is not signed."""
    with pytest.raises(InvalidSettings, match=r"1 second to 30 days, not for -?[0-9]+ seconds"):
        signed(keyring, valid_s=valid_s)


def test_the_secret_is_made_once_for_the_owner_alone(keyring: Keyring) -> None:
    """It has 256 bits, mode 0600, and is the same at the next start."""
    secret = read_signing_secret(keyring.keys_dir, "mnist")
    path = keyring.keys_dir / "mnist.signing"
    assert len(secret) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert keyring.ensure_signing_secret() == secret
    assert services_that_sign(keyring.keys_dir) == ["mnist"]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_token_is_accepted_until_its_end(
    keyring: Keyring, verifier: TokenVerifier, clock: SecondsClock, scheme: str
) -> None:
    """At first sight and when remembered; the second in which it ends it is refused, remembered or not."""
    header = f"{scheme} {signed(keyring, valid_s=60).text}".encode()
    assert verifier.verify(header)
    clock.now_s = 1_800_000_059.9
    assert verifier.verify(header)
    clock.now_s = 1_800_000_060.0
    assert not verifier.verify(header)
    assert not verifier.verify(header)


def test_expired_token_has_its_own_reason(
    keyring: Keyring, verifier: TokenVerifier, clock: SecondsClock
) -> None:
    """The body and `WWW-Authenticate` say which, and where to get another one; no token is no bad token."""
    header = bearer(signed(keyring, valid_s=60).text)
    clock.now_s += 60
    expired = verifier.refusal(header)
    assert str(expired) == (
        "The token has expired; fetch one from /api/v1/service/mnist/token with a key of the service, and send it as "
        "the header 'Authorization: Bearer <token>'."
    )
    assert str(verifier.refusal(header, "the metadata '{}'")).endswith("send it as the metadata 'token'.")
    assert expired.challenge == 'Bearer error="invalid_token", error_description="The token has expired"'
    assert str(verifier.refusal(bearer("expired-key"))).startswith(
        "This is no token, and no key that is valid"
    )
    invalid = verifier.refusal(bearer("a.b.c"))
    assert str(invalid).startswith("The token is not valid: ")
    assert invalid.challenge.startswith(
        'Bearer error="invalid_token", error_description="The token is not valid'
    )
    for nothing in (b"", b"Bearer", b"Bearer ", b"Basic abc"):
        absent = verifier.refusal(nothing)
        assert (str(absent)[:24], absent.challenge) == ("A valid token is needed:", "Bearer")


def forged(keyring: Keyring) -> dict[str, str]:
    """Tokens that are not right, and why."""
    secret = read_signing_secret(keyring.keys_dir, "mnist")
    claims = {"iss": "stoker", "aud": "mnist", "iat": 1_800_000_000, "exp": 1_800_000_600}
    header, payload, signature = signed(keyring).text.split(".")
    longer = (
        base64.urlsafe_b64encode(json.dumps({**claims, "exp": 1_900_000_000}).encode()).decode().rstrip("=")
    )
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")
    return {
        "another service": jwt.encode({**claims, "aud": "cifar"}, secret, "HS256"),
        "another issuer": jwt.encode({**claims, "iss": "azure"}, secret, "HS256"),
        "another secret": jwt.encode(claims, b"0" * 32, "HS256"),
        "another algorithm": jwt.encode(claims, secret * 2, "HS512"),
        "no end": jwt.encode({"iss": "stoker", "aud": "mnist", "iat": 1}, secret, "HS256"),
        "an end that is no number": jwt.encode({**claims, "exp": "late"}, secret, "HS256"),
        "an endless end": jwt.encode({**claims, "exp": float("inf")}, secret, "HS256"),
        "an endless beginning": jwt.encode({**claims, "nbf": float("inf")}, secret, "HS256"),
        "no signature": f"{none}.{payload}.",
        "a changed payload": f"{header}.{longer}.{signature}",
        "a changed signature": f"{header}.{payload}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}",
        "two parts": f"{header}.{payload}",
        "four parts": f"{header}.{payload}.{signature}.{signature}",
        "dots": "..",
        "a huge one": f"{header}.{payload}.{'x' * 5000}",
    }


FORGERIES = [
    *("another service", "another issuer", "another secret", "another algorithm", "no end"),
    *("an end that is no number", "an endless end", "an endless beginning", "no signature"),
    *("a changed payload", "a changed signature", "two parts"),
    *("four parts", "dots", "a huge one"),
]


@pytest.mark.parametrize("case", FORGERIES)
def test_forged_tokens_are_refused(keyring: Keyring, verifier: TokenVerifier, case: str) -> None:
    """A token that this service's secret did not sign for this service is refused, twice alike."""
    assert set(forged(keyring)) == set(FORGERIES)
    header = bearer(forged(keyring)[case])
    assert not verifier.verify(header)
    assert not verifier.verify(header)


def test_header_that_is_no_bearer_token_is_refused(keyring: Keyring, verifier: TokenVerifier) -> None:
    """A valid token outside a well-formed header is refused."""
    text = signed(keyring).text
    assert verifier.verify(f"Bearer   {text}\t".encode())
    for header in ("", text, f"Basic {text}", f"Bearer{text}", f" Bearer {text}", f"Bearer {text} {text}"):
        assert not verifier.verify(header.encode()), header


def test_a_remembered_token_costs_no_signature(
    keyring: Keyring, verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its first request is checked against the secret; memory of tokens has a bound."""
    header = bearer(signed(keyring).text)
    assert verifier.verify(header)
    decoded = []
    monkeypatch.setattr(jwt, "decode", lambda *_, **__: decoded.append(1) or {"exp": NOW_S + 10})
    assert verifier.verify(header)
    assert decoded == []
    for number in range(1024):
        assert verifier.verify(f"Bearer a.b.{number}".encode())
    assert len(decoded) == 1024
    assert verifier.verify(header)
    assert len(decoded) == 1025, "the first one was forgotten"


def test_a_replaced_secret_ends_all_tokens_at_once(keyring: Keyring, verifier: TokenVerifier) -> None:
    """A running frontend refuses the next request with an old token, remembered or not, and takes a new one."""
    old, other = bearer(signed(keyring).text), bearer(signed(keyring, valid_s=60).text)
    assert verifier.verify(old)
    keyring.regenerate_signing_secret()
    assert not verifier.verify(old)
    assert not verifier.verify(other)
    assert verifier.verify(bearer(signed(keyring).text))


def test_a_replaced_key_leaves_tokens_valid(keyring: Keyring, verifier: TokenVerifier) -> None:
    """Keys and tokens share the counter, not their fate."""
    keyring.ensure()
    header = bearer(signed(keyring).text)
    assert verifier.verify(header)
    keyring.regenerate("primary")
    assert verifier.verify(header)


def test_an_unreadable_secret_closes_the_service(
    keyring: Keyring, verifier: TokenVerifier, caplog: pytest.LogCaptureFixture
) -> None:
    """Every token is refused, nothing is signed, the log says so once; a mended file needs no restart."""
    header = bearer(signed(keyring).text)
    path = keyring.keys_dir / "mnist.signing"
    stored = path.read_bytes()
    path.write_text('{"signing_secret": ""}')
    keyring.ensure()  # which raises the counter
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert not verifier.verify(header)
        with pytest.raises(NotReady, match="signing secret of mnist cannot be read"):
            verifier.fresh(bearer(GIVEN.primary))
        assert isinstance(Access(None, verifier).refusal(header), NotReady)
    assert [record.getMessage()[:40] for record in caplog.records] == [
        "requests with tokens of service mnist ge"
    ]
    path.write_bytes(stored)
    assert verifier.verify(header)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"signing_secret": "xyz"}', '{"signing_secret": "ab"}'])
def test_a_malformed_secret_stops_the_start(keyring: Keyring, content: str) -> None:
    """Its file is named, never used, and never replaced unasked."""
    path = keyring.keys_dir / "mnist.signing"
    path.write_text(content)
    with pytest.raises(InvalidSettings, match=r"mnist\.signing is"):
        keyring.ensure_signing_secret()
    assert path.read_text() == content


def test_a_service_without_a_secret_has_no_verifier(tmp_path: Path, clock: SecondsClock) -> None:
    """A frontend cannot take tokens that nobody can sign."""
    Keyring(tmp_path, "mnist").ensure()
    with pytest.raises(FileNotFoundError):
        TokenVerifier(tmp_path, "mnist", KeyVerifier(tmp_path, "mnist"), clock_s=clock)
    with pytest.raises(InvalidSettings, match="signs no tokens; start it with --token-auth"):
        Keyring(tmp_path, "mnist").regenerate_signing_secret()


def test_a_key_fetches_a_token(verifier: TokenVerifier, clock: SecondsClock) -> None:
    """Either key does; a token does not, so a leaked one cannot be prolonged."""
    for key in (GIVEN.primary, GIVEN.secondary):
        token = verifier.fresh(bearer(key))
        assert token.issued_s == int(NOW_S)
        assert verifier.verify(bearer(token.text))
    for refused in (b"", bearer("not-a-key-of-the-tests"), bearer(token.text)):
        with pytest.raises(Unauthorized, match="A key of the service is needed for a token"):
            verifier.fresh(refused)


@pytest.mark.parametrize(
    ("keys", "tokens", "taken"),
    [
        (True, False, "key"),
        (False, True, "token"),
        (True, True, "key token"),
        (False, False, "key token none"),
    ],
)
def test_keys_or_tokens_or_both_are_taken(
    keyring: Keyring, verifier: TokenVerifier, keys: bool, tokens: bool, taken: str
) -> None:
    """Each credential opens a service that takes it; with neither asked for, nothing is needed."""
    access = Access(
        KeyVerifier(keyring.keys_dir, "mnist", GIVEN) if keys else None, verifier if tokens else None
    )
    presented = {"key": bearer(GIVEN.primary), "token": bearer(signed(keyring).text), "none": b""}
    for _ in range(2):
        assert [name for name, header in presented.items() if access.allows(header)] == taken.split()
    assert ("invalid_token" in access.refusal(bearer("wrong")).challenge) is tokens


def run(module: object, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)  # type: ignore[attr-defined]
    return module.run(parser.parse_args(arguments))  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(
    ("valid", "valid_s"), [("90s", 90), ("5m", 300), ("12h", 43_200), ("30d", 2_592_000)]
)
def test_the_command_prints_a_token(
    tmp_path: Path, keyring: Keyring, capsys: pytest.CaptureFixture[str], valid: str, valid_s: int
) -> None:
    """It is alone on standard output, and valid for the set time."""
    assert run(command, "--valid", valid, "--workspace", str(tmp_path)) == 0
    secret = read_signing_secret(keyring.keys_dir, "mnist")
    claims = jwt.decode(capsys.readouterr().out.strip(), secret, ["HS256"], audience="mnist")
    assert claims["exp"] - claims["iat"] == valid_s


def test_the_command_prints_json(
    tmp_path: Path, keyring: Keyring, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` gives the token route's answer, for keys of one form."""
    run(command, "--json", "--name", "mnist", "--workspace", str(tmp_path))
    shown = json.loads(capsys.readouterr().out)
    assert shown["expiry_on"] - shown["refresh_after"] == DEFAULT_VALID_S // 2


@pytest.mark.parametrize("valid", ["12", "h", "1.5h", "-1h", "1 h", "", "12w"])
def test_a_malformed_time_is_refused(tmp_path: Path, keyring: Keyring, valid: str) -> None:
    """The message shows how times are written."""
    with pytest.raises(InvalidSettings, match="such as 12h, not"):
        run(command, f"--valid={valid}", "--workspace", str(tmp_path))


def test_service_without_signing_secret_explains_how_to_get_one(tmp_path: Path, keyring: Keyring) -> None:
    """Keys alone are not enough, and the error lists the services that sign."""
    Keyring(tmp_path / "keys", "cifar").ensure()
    with pytest.raises(InvalidSettings, match=r"cifar has no signing secrets in .*signing secrets of: mnist"):
        run(command, "--name", "cifar", "--workspace", str(tmp_path))
    (tmp_path / "keys" / "mnist.signing").unlink()
    with pytest.raises(InvalidSettings, match=r"there are no signing secrets: .*stoker serve --token-auth"):
        run(command, "--workspace", str(tmp_path))


def test_regenerating_the_secret(
    tmp_path: Path, keyring: Keyring, capsys: pytest.CaptureFixture[str]
) -> None:
    """`stoker keys regenerate signing` replaces it, shows nothing of it, and takes none."""
    before = read_signing_secret(keyring.keys_dir, "mnist")
    assert run(keys_command, "regenerate", "signing", "--workspace", str(tmp_path)) == 0
    after = read_signing_secret(keyring.keys_dir, "mnist")
    captured = capsys.readouterr()
    assert after != before
    assert (captured.out, after.hex() in captured.err) == ("", False)
    assert "all its tokens are invalid" in captured.err
    with pytest.raises(InvalidSettings, match="always 256 random bits"):
        run(keys_command, "regenerate", "signing", "--key", "x" * 20, "--workspace", str(tmp_path))
    assert read_signing_secret(keyring.keys_dir, "mnist") == after
