"""Keys that are replaced while callers use them."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.live_server import LiveServer, run_stoker, wait_until
from tests.process.callers import Callers, Question, scored
from tests.process.conftest import Serve

from stoker.keys.callers import CallerBook
from stoker.keys.keyring import Keyring


class _Rotating:
    """Questions that carry the key that their caller has at this moment."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._lock = threading.Lock()

    def __call__(self, number: int) -> Question:
        with self._lock:
            return scored(self.key)(number)


def _regenerate(server: LiveServer, slot: str) -> str:
    done = run_stoker("keys", "regenerate", slot, "--workspace", server.workspace)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _refused_by_all(server: LiveServer, key: str) -> bool:
    """Whether every frontend refuses a key: of many connections, the kernel gives some to each."""
    return {server.score([1, 2, 3, 4], key=key).status for _ in range(24)} == {401}


def test_rotation_under_load_loses_no_request(serve: Serve, doubler: Path) -> None:
    """Callers use the secondary key while the primary is replaced, and then the new one: no request fails."""
    server = serve(doubler, "--frontends", "2", given_keys=False)
    old = Keyring(server.workspace / "keys", "doubler").show()
    ask = _Rotating(old.primary)
    with Callers(server.port, ask, kept_alive=12, fresh=4) as callers:
        wait_until(lambda: callers.answered(200), "callers use the primary key")
        ask.key = old.secondary
        wait_until(lambda: _asks_with(callers, old.secondary), "all callers use the secondary key")
        new_primary = _regenerate(server, "primary")
        # At once: the command has ended, so no frontend may take the old key any more.
        assert _refused_by_all(server, old.primary)
        ask.key = new_primary
        wait_until(lambda: _asks_with(callers, new_primary), "all callers use the new primary key")
        new_secondary = _regenerate(server, "secondary")
        assert _refused_by_all(server, old.secondary)
        outcomes = callers.stop()

    assert [outcome for outcome in outcomes if not outcome.right] == []
    assert len({old.primary, old.secondary, new_primary, new_secondary}) == 4
    for key in (new_primary, new_secondary):
        assert server.score([1, 2, 3, 4], key=key).status == 200


def test_named_keys_come_and_go_while_callers_ask(serve: Serve, doubler: Path) -> None:
    """A new key is taken as soon as the command has ended, and refused when it is removed; others lose nothing."""
    server = serve(doubler, "--frontends", "2", given_keys=False)
    book = CallerBook(server.workspace / "keys")
    primary = Keyring(server.workspace / "keys", "doubler").show().primary
    with Callers(server.port, scored(primary), kept_alive=4, fresh=2) as callers:
        wait_until(lambda: callers.answered(200), "callers use the primary key")
        key = book.add("ads")
        assert {server.score([1, 2, 3, 4], key=key).status for _ in range(24)} == {200}
        book.change("ads", {"models": frozenset({"other"})})
        answer = server.score([1, 2, 3, 4], key=key)
        assert (answer.status, answer.error_code()) == (403, "out_of_scope")
        book.remove("ads")
        assert _refused_by_all(server, key)
        outcomes = callers.stop()

    assert [outcome for outcome in outcomes if not outcome.right] == []


def _asks_with(callers: Callers, key: str) -> bool:
    """Whether the latest requests, more than there are callers, all carried this key."""
    latest = list(callers.outcomes)[-200:]
    return all(key.encode() in outcome.question.message for outcome in latest)


def test_shown_keys_are_the_valid_ones(serve: Serve, doubler: Path) -> None:
    """`stoker keys show` prints the keys that the server takes, and they stay over a restart."""
    first = serve(doubler, "--frontends", "1", given_keys=False)
    shown = run_stoker("keys", "show", "primary", "--workspace", first.workspace).stdout.strip()
    assert first.score([1, 2, 3, 4], key=shown).status == 200
    assert len(shown) >= 43, "256 bits in base64 have 43 characters"
    first.kill()

    second = serve(doubler, "--frontends", "1", workspace=first.workspace, given_keys=False)
    assert second.score([1, 2, 3, 4], key=shown).status == 200
    keys_folder = first.workspace / "keys"
    assert [path for path in keys_folder.rglob("*") if path.stat().st_mode & 0o077] == []
    assert shown not in first.output() + second.output()
