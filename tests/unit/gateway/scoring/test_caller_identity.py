"""The identity of a caller: its key, its kind of token, its address."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from stoker.gateway.http.body_budget import Caller
from stoker.gateway.scoring.caller_identity import identify_caller
from stoker.gateway.scoring.service import Service
from stoker.keys.access import Access
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.keys.keyring import Keys
from stoker.keys.verifier import KeyVerifier

KEY = "a-key-of-this-test-0001"
ADDRESS = "10.0.0.1"


class PuppetTokens:
    """Takes everything with two dots for a token."""

    def verify(self, authorization: bytes) -> bool:
        return self.holder(authorization) is not None

    def holder(self, authorization: bytes) -> CallerTerms | None:
        return DEFAULT if authorization.count(b".") == 2 else None


def service(*, auth: bool = True, tokens: Any = None) -> Service:
    """A service that takes the key, perhaps tokens too, or needs neither."""
    keys = KeyVerifier(Path("no-keys-here"), "a", Keys(KEY, KEY + "-other")) if auth else None
    return cast("Service", SimpleNamespace(name="a", access=Access(keys, tokens)))


def test_key_has_one_identity_in_each_form() -> None:
    """The scheme has no case, and spaces before the key say nothing; the other key is another caller's."""
    made = service()
    spelled = [b"Bearer %b", b"bearer %b", b"BEARER  %b", b"Bearer \t%b "]
    assert len({identify_caller(made, spelling % KEY.encode(), ADDRESS) for spelling in spelled}) == 1
    assert identify_caller(made, b"Bearer %b-other" % KEY.encode(), ADDRESS).key != KEY.encode()


def test_tokens_are_no_callers() -> None:
    """A key's holder can make any number of tokens, so all callers with tokens of a service share one part."""
    made = service(tokens=PuppetTokens())
    first, second = (identify_caller(made, b"Bearer a.b.%d" % number, ADDRESS) for number in range(2))
    assert first == second
    assert first != identify_caller(made, b"Bearer " + KEY.encode(), ADDRESS)
    assert first != identify_caller(made, b"Bearer a.b.0", "10.0.0.2")


def test_where_no_key_is_needed_none_makes_a_caller() -> None:
    """An invented key is worth nothing there."""
    made = service(auth=False)
    assert (
        identify_caller(made, b"Bearer whatever", ADDRESS)
        == identify_caller(made, b"", ADDRESS)
        == Caller.at(ADDRESS)
    )
