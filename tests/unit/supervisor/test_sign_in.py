"""The link in the banner that opens the console once."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from stoker.control.frontend_messages import AskKeys, Refusal, Reply
from stoker.errors import Unauthorized
from stoker.supervisor.frontend_requests import FrontendRequests
from stoker.supervisor.sign_in import LASTS_S, SignInLink


class Clock:
    """Seconds that stand until they are moved."""

    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def test_a_token_is_used_once() -> None:
    """Another text, of whatever letters, does not use it up."""
    link = SignInLink(Clock())
    token = link.make_token()
    for other in ("", "x", token[:-1], "\u00fc"):
        with pytest.raises(Unauthorized):
            link.use(other)
    link.use(token)
    with pytest.raises(Unauthorized, match="stoker keys show primary"):
        link.use(token)


def test_a_token_expires() -> None:
    """A late token and the token of an earlier banner are refused."""
    clock = Clock()
    link = SignInLink(clock)
    earlier, token = link.make_token(), link.make_token()
    clock.now_s += LASTS_S
    for late in (earlier, token):
        with pytest.raises(Unauthorized):
            link.use(late)


def test_before_there_is_a_token_none_is_taken() -> None:
    """Not even an empty one."""
    with pytest.raises(Unauthorized):
        SignInLink(Clock()).use("")


def ask(find_keys: object) -> Reply | Refusal:
    frontends, background = Mock(), Mock()
    requests = FrontendRequests(Mock(), frontends, background, Mock(), Mock(), find_keys=find_keys)  # type: ignore[arg-type]
    requests.answer(Mock(), AskKeys(1, "once"))
    asyncio.run(background.spawn.call_args.args[0])
    answer: Reply | Refusal = frontends.reply.call_args.args[1]
    return answer


def test_frontends_get_the_keys_of_all_services() -> None:
    """They are in no log: neither the question nor its answer shows them."""
    reply = ask({"once": {"digits": "a-key-of-the-tests-0001"}}.__getitem__)
    assert reply == Reply(1, ({"name": "digits", "key": "a-key-of-the-tests-0001"},))
    assert "a-key" not in repr(reply)


def test_a_server_that_printed_no_link_gives_no_keys() -> None:
    """One whose output is no terminal, or that needs none."""
    refusal = ask(None)
    assert isinstance(refusal, Refusal)
    assert refusal.status == 501
