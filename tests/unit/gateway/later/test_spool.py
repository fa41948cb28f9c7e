"""The spool: restarts, counts, locks and limits."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from stoker.control.frontend_messages import LaterRules
from stoker.errors import AnswerExpired, IdempotencyKeyReused, NotFound, SpoolFull
from stoker.gateway.later import spool as spool_module
from stoker.gateway.later.spool import DamagedFile, Spool, Usage

NOW_S = 1_000_000.0


class Clock:
    """A clock that is set."""

    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spool(tmp_path: Path, clock: Clock) -> Spool:
    return open_spool(tmp_path, clock)


def open_spool(folder: Path, clock: Clock, **changes: Any) -> Spool:
    """A spool of this folder, as a process opens it."""
    rules = {"budget_bytes": 10_000, "most_requests": 10, "keep_s": 60.0, **changes}
    return Spool(LaterRules(folder / "later", **rules), clock)


def head_of(fingerprint: str = "f", expires_s: float = NOW_S + 60) -> dict[str, Any]:
    """The header stored before a body."""
    return {"expires_s": expires_s, "fingerprint": fingerprint, "location": "/later/x"}


def test_a_request_waits_is_run_and_answered(spool: Spool) -> None:
    """Its body comes back whole, its answer too, and the counters say where it is."""
    name = spool.new_id("me")
    assert spool.add(name, head_of(), b"\0body\n") is None
    assert spool.waiting_ids() == [name]
    claim = spool.claim(name)
    assert claim is not None
    assert spool.read(claim).body == b"\0body\n"
    spool.finish(claim, head_of() | {"status": 200}, b"answer")
    stored, is_answer = spool.find(name, with_body=True)
    assert (stored.attempt, stored.body, is_answer) == (1, b"answer", True)
    usage = spool.usage()
    assert (usage.waiting, usage.answers, usage.accepted, usage.answered) == (0, 1, 1, 1)
    assert spool.claim(name) is None
    spool.remove(name)
    assert (spool.usage().answers, spool.usage().size_bytes) == (0, 0)


def test_one_process_runs_a_request(spool: Spool, tmp_path: Path, clock: Clock) -> None:
    """Another gets it when the first has given it back, as a second attempt, unless it did not run."""
    other, name = open_spool(tmp_path, clock), spool.new_id("me")
    spool.add(name, head_of(), b"")
    claim = spool.claim(name)
    assert claim is not None
    assert other.claim(name) is None
    spool.release(claim, ran=False)
    second = other.claim(name)
    assert second is not None
    assert second.attempt == 1
    other.release(second, ran=True)
    third = spool.claim(name)
    assert third is not None
    assert third.attempt == 2
    spool.release(third, ran=True)


def test_the_same_idempotency_key_is_the_same_request(spool: Spool) -> None:
    """Sent again it is known, another body is refused, and another sender has other ids."""
    name = spool.new_id("me", b"key")
    assert (spool.new_id("me", b"key"), spool.new_id("you", b"key") == name) == (name, False)
    assert spool.add(name, head_of("f"), b"1") is None
    known = spool.add(name, head_of("f"), b"1")
    assert known is not None
    assert known.head["location"] == "/later/x"
    with pytest.raises(IdempotencyKeyReused):
        spool.add(name, head_of("g"), b"2")
    assert spool.usage().accepted == 1


def test_a_known_request_would_survive_a_power_cut_too(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is on the disk before its second sender hears of it, whether or not the first one has heard."""
    flushed: list[Path] = []
    monkeypatch.setattr(spool_module, "sync_folder", flushed.append)
    name = spool.new_id("me", b"key")
    known = [spool.add(name, head_of(), b"1") is not None for _ in range(2)]
    assert (known, flushed) == ([False, True], 2 * [spool.rules.folder / "requests"])


def test_an_expired_request_is_gone_and_its_key_is_free(spool: Spool, clock: Clock) -> None:
    """Each lookup says so until the request is sent again."""
    name = spool.new_id("me", b"key")
    spool.add(name, head_of(), b"1")
    clock.now_s += 61
    with pytest.raises(AnswerExpired):
        spool.find(name)
    assert spool.add(name, head_of("g", clock.now_s + 60), b"2") is None
    assert (spool.usage().waiting, spool.usage().expired) == (1, 1)


def test_a_sweep_removes_expired_answers(spool: Spool, clock: Clock) -> None:
    """It counts the remaining ones."""
    names = [spool.new_id("me") for _ in range(2)]
    for name, later_s in zip(names, (0, 100), strict=True):
        spool.add(name, head_of(expires_s=NOW_S + 60 + later_s), b"")
        claim = spool.claim(name)
        assert claim is not None
        spool.finish(claim, head_of(expires_s=NOW_S + 60 + later_s), b"answer")
    clock.now_s += 61
    spool.sweep()
    with pytest.raises(NotFound):
        spool.find(names[0])
    assert spool.find(names[1])[1]
    assert (spool.usage().answers, spool.usage().expired) == (1, 1)


def test_one_owner_leaves_room_for_others(tmp_path: Path, clock: Clock) -> None:
    """Two thirds at most; then another one may have half of the rest, and so on."""
    spool = open_spool(tmp_path, clock, most_requests=9)

    def fill(owner: str) -> int:
        for count in range(9):
            try:
                spool.add(spool.new_id(owner), head_of(), b"")
            except SpoolFull:
                return count
        return 9

    assert (fill("flood"), fill("other")) == (6, 2)


@pytest.mark.parametrize("limit", [{"budget_bytes": 750}, {"most_requests": 3}])
def test_a_full_spool_refuses(tmp_path: Path, clock: Clock, limit: dict[str, int]) -> None:
    """The error has a retry time while there is no room; a refused request leaves no file behind."""
    spool = open_spool(tmp_path, clock, **limit)
    names = [spool.new_id("me") for _ in range(3)]
    spool.add(names[0], head_of(), bytes(100))
    spool.add(names[1], head_of(), bytes(100))
    with pytest.raises(SpoolFull) as refused:
        spool.add(names[2], head_of(), bytes(100))
    assert refused.value.retry_after_s
    spool.remove(names[0])
    spool.add(names[2], head_of(), bytes(100))
    assert sorted(spool.waiting_ids()) == sorted(names[1:])


def test_the_answer_to_a_cancelled_request_is_dropped(spool: Spool) -> None:
    """It was cancelled while it ran."""
    name = spool.new_id("me")
    spool.add(name, head_of(), b"")
    claim = spool.claim(name)
    assert claim is not None
    spool.remove(name)
    spool.finish(claim, head_of(), b"answer")
    with pytest.raises(NotFound):
        spool.find(name)
    assert (spool.usage().answers, spool.usage().size_bytes, spool.usage().cancelled) == (0, 0, 1)


def test_damage_is_found(spool: Spool) -> None:
    """A changed byte of a body is neither run nor sent."""
    name = spool.new_id("me")
    spool.add(name, head_of(), b"body")
    file = spool.rules.folder / "requests" / name
    file.write_bytes(file.read_bytes().replace(b"body", b"bodi"))
    claim = spool.claim(name)
    assert claim is not None
    with pytest.raises(DamagedFile):
        spool.read(claim)
    spool.release(claim, ran=True)
    with pytest.raises(AnswerExpired):
        spool.find(name, with_body=True)


def test_sweep_removes_the_remains_of_a_killed_process(spool: Spool) -> None:
    """A sweep removes temporary files and answered requests, and corrects the counters."""
    name = spool.new_id("me")
    spool.add(name, head_of(), b"")
    request = (spool.rules.folder / "requests" / name).read_bytes()
    claim = spool.claim(name)
    assert claim is not None
    spool.finish(claim, head_of(), b"answer")
    (spool.rules.folder / "requests" / name).write_bytes(request)
    (spool.rules.folder / "requests" / ".half").write_bytes(b"half")
    spool.sweep()
    assert spool.usage().waiting == 1
    assert spool.claim(name) is None
    spool.sweep()
    assert (spool.usage().waiting, spool.waiting_ids()) == (0, [])
    assert not (spool.rules.folder / "requests" / ".half").exists()


def test_file_size_limit_refuses_requests_and_keeps_no_lock(spool: Spool) -> None:
    """If no file can grow (EFBIG), a new request gets `spool_full`, and stored ones run afterwards."""
    name, callback = spool.new_id("me"), spool.new_id("me")
    for one in (name, callback):
        spool.add(one, head_of(), b"")
    claim, answered = spool.claim(name), spool.claim(callback)
    assert claim is not None
    assert answered is not None
    spool.finish(answered, head_of(), b"answer", "https://example.com/")
    claimed = spool.claim_callback(callback)
    assert claimed is not None
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(SpoolFull):
            spool.add(spool.new_id("me"), head_of(), b"")
        with pytest.raises(OSError, match="File too large"):
            spool.release(claim, ran=False)
        spool.release_callback(callback, claimed[0], delivered=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    again = spool.claim(name)
    assert again is not None
    spool.release(again, ran=True)
    retold = spool.claim_callback(callback)
    assert retold is not None
    spool.release_callback(callback, retold[0], delivered=True)


@pytest.mark.parametrize("fails", ["fsync", "sync_folder"])
def test_a_request_that_could_not_be_stored_is_not_run(
    spool: Spool, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender is refused, nothing of it stays on the disk or in the counters, and its key is free."""

    def fail(_: Any) -> None:
        raise OSError(errno.EIO, "the disk fails")

    name = spool.new_id("me", b"key")
    with monkeypatch.context() as patched:
        patched.setattr(os if fails == "fsync" else spool_module, fails, fail)
        with pytest.raises(OSError, match="the disk fails"):
            spool.add(name, head_of(), b"1")
    assert spool.waiting_ids() == []
    assert spool.usage() == Usage()
    assert not [*(spool.rules.folder / "requests").iterdir()]
    assert spool.add(name, head_of(), b"1") is None


def test_a_request_that_a_second_sender_was_promised_is_kept(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one could flush the folder, the first one could not: the first is refused, the request waits."""
    name = spool.new_id("me", b"key")

    def fail(_: Path) -> None:
        monkeypatch.undo()
        assert spool.add(name, head_of(), b"1", keyed=True) is not None
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(spool_module, "sync_folder", fail)
    with pytest.raises(OSError, match="the disk fails"):
        spool.add(name, head_of(), b"1", keyed=True)
    counted = spool.usage()
    spool.sweep()
    assert (spool.waiting_ids(), counted, counted.accepted) == ([name], spool.usage(), 1)
    assert spool.add(name, head_of(), b"1", keyed=True) is not None
    assert spool.claim(name) is not None


def test_a_callback_waits_until_it_is_delivered(spool: Spool) -> None:
    """It is there with the answer, and one process at a time delivers it."""
    name = spool.new_id("me")
    spool.add(name, head_of(), b"")
    claim = spool.claim(name)
    assert claim is not None
    spool.finish(claim, head_of(), b"answer", "https://example.com/")
    for delivered in (False, True):
        claimed = spool.claim_callback(name)
        assert claimed is not None
        assert spool.claim_callback(name) is None
        assert claimed[1] == "https://example.com/"
        spool.release_callback(name, claimed[0], delivered=delivered)
    assert spool.claim_callback(name) is None
    assert (spool.usage().callbacks, spool.usage().callbacks_failed) == (1, 1)


def test_the_folder_is_for_its_owner_alone(spool: Spool) -> None:
    """Requests, answers and the secret."""
    name = spool.new_id("me")
    spool.add(name, head_of(), b"")
    assert {path.stat().st_mode & 0o077 for path in spool.rules.folder.rglob("*")} == {0}
