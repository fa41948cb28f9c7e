"""How running servers learn that keys have changed."""

import logging
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PROGRAM_S
from tests.unit.keys.test_keyring import bearer

from stoker.keys import generation
from stoker.keys.generation import FileGeneration, Follower, raise_generation
from stoker.keys.keyring import Keyring
from stoker.keys.verifier import KeyVerifier


@pytest.fixture
def number() -> memoryview:
    return memoryview(bytearray(8)).cast("q")


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    ring = Keyring(tmp_path / "keys", "mnist")
    ring.ensure()
    return ring


@pytest.fixture
def follower(keyring: Keyring, number: memoryview) -> Iterator[Follower]:
    """A follower that looks by itself only when a test lets it."""
    running = Follower(keyring.keys_dir, number, check_s=3600)
    running.start()
    yield running
    running.close()


@pytest.mark.usefixtures("follower")
def test_a_replaced_key_holds_when_the_command_returns(keyring: Keyring, number: memoryview) -> None:
    """Frontends that read memory alone see each change of another process with their next request."""
    verifier = KeyVerifier(keyring.keys_dir, "mnist", generation=number)
    old = keyring.show()
    code = (
        "import sys; from pathlib import Path; from stoker.keys.keyring import Keyring;"
        "print(Keyring(Path(sys.argv[1]), 'mnist').regenerate('primary').primary)"
    )
    for _ in range(2):
        assert verifier.verify(bearer(old.primary))
        new = subprocess.run(
            [sys.executable, "-c", code, keyring.keys_dir], check=True, capture_output=True, text=True
        ).stdout.strip()
        assert not verifier.verify(bearer(old.primary))
        assert verifier.verify(bearer(new))
        old = keyring.show()


@pytest.mark.parametrize("harm", ["truncated", "replaced", "removed", "a folder", "a FIFO"])
def test_keys_are_checked_and_followed_with_a_damaged_counter(
    keyring: Keyring, follower: Follower, number: memoryview, harm: str
) -> None:
    """A restore, a full disk or a slip of the shell ends no frontend; the keys of before and new ones hold."""
    verifier = KeyVerifier(keyring.keys_dir, "mnist", generation=number)
    keys, path = keyring.show(), keyring.keys_dir / "generation"
    if harm == "truncated":
        os.truncate(path, 0)
    elif harm == "replaced":
        (keyring.keys_dir / "new").write_bytes(bytes(8))
        (keyring.keys_dir / "new").rename(path)
    else:
        path.unlink()
        if harm == "a folder":
            path.mkdir()
        elif harm == "a FIFO":
            os.mkfifo(path)
    follower.check()
    assert verifier.verify(bearer(keys.primary))
    assert KeyVerifier(keyring.keys_dir, "mnist", generation=number).verify(bearer(keys.primary))
    if harm in ("a folder", "a FIFO"):
        with pytest.raises(OSError, match="generation"):
            keyring.regenerate("primary")
    else:
        keyring.regenerate("primary")
    assert not verifier.verify(bearer(keys.primary))
    assert verifier.verify(bearer(keyring.show().primary))


def test_a_restored_backup_is_followed(keyring: Keyring, follower: Follower, number: memoryview) -> None:
    """A look finds files written without a notice, and a replaced folder; then notices work."""
    verifier = KeyVerifier(keyring.keys_dir, "mnist", generation=number)
    old = keyring.show()
    shutil.copytree(
        keyring.keys_dir, keyring.keys_dir.with_name("backup"), ignore=shutil.ignore_patterns(".*")
    )
    keyring.regenerate("primary")
    shutil.copyfile(keyring.keys_dir.with_name("backup") / "mnist.verify", keyring.keys_dir / "mnist.verify")
    follower.check()
    assert verifier.verify(bearer(old.primary))
    shutil.rmtree(keyring.keys_dir)
    keyring.keys_dir.with_name("backup").rename(keyring.keys_dir)
    follower.check()
    keyring.regenerate("secondary")
    assert verifier.verify(bearer(old.primary))
    assert not verifier.verify(bearer(old.secondary))


def test_nothing_is_raised_without_a_change(follower: Follower, number: memoryview) -> None:
    """Looks alone make no frontend read files."""
    before = number[0]
    follower.check()
    follower.check()
    assert number[0] == before


def test_sockets_of_dead_servers_are_removed_by_the_next(keyring: Keyring, number: memoryview) -> None:
    """A server that was killed leaves its socket: changes are not held up by it."""
    follow_and_die = (
        "import os, pathlib, sys\nfrom stoker.keys.generation import Follower\n"
        "Follower(pathlib.Path(sys.argv[1]), memoryview(bytearray(8)).cast('Q'))\nos._exit(0)"
    )
    subprocess.run([sys.executable, "-c", follow_and_die, keyring.keys_dir], check=True, timeout=PROGRAM_S)
    (left,) = (keyring.keys_dir / ".followers").iterdir()
    keyring.regenerate("primary")
    alive = Follower(keyring.keys_dir, number)
    (followed,) = (keyring.keys_dir / ".followers").iterdir()
    assert followed != left
    alive.start()
    alive.close()
    assert list((keyring.keys_dir / ".followers").iterdir()) == []


def test_a_server_that_hangs_is_not_waited_for_long(
    keyring: Keyring, number: memoryview, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The key is replaced, and the log says that a server follows later."""
    monkeypatch.setattr(generation, "_WORD_S", 0.01)
    hanging = Follower(keyring.keys_dir, number)
    with caplog.at_level(logging.WARNING):
        keyring.regenerate("primary")
    assert "a running server does not answer" in caplog.text
    hanging.start()
    hanging.close()


def test_a_folder_with_a_long_path_is_followed(tmp_path: Path, number: memoryview) -> None:
    """Addresses of sockets are short; paths need not be."""
    keys_dir = tmp_path / ("long" * 40) / "keys"
    keys_dir.mkdir(parents=True)
    follower = Follower(keys_dir, number, check_s=3600)
    follower.start()
    raise_generation(keys_dir)
    assert number[0] == 1
    follower.close()


def test_a_server_with_many_descriptors_follows_on(keyring: Keyring, number: memoryview) -> None:
    """Its socket may have any number, also one above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while taken[-1] < 1024:
            taken.append(os.dup(taken[0]))
        follower = Follower(keyring.keys_dir, number, check_s=3600)
        follower.start()
        raise_generation(keyring.keys_dir)
        assert number[0] == 1
        follower.close()
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_folder_that_comes_later_is_followed(tmp_path: Path, number: memoryview) -> None:
    """A server without keys may be given some."""
    follower = Follower(tmp_path / "keys", number, check_s=3600)
    Keyring(tmp_path / "keys", "a").ensure()
    follower.check()
    assert number[0] == 1
    follower.start()
    raise_generation(tmp_path / "keys")
    assert number[0] == 2
    follower.close()


def test_the_file_counts_on_after_it_was_harmed(tmp_path: Path) -> None:
    """A file that is missing, or too short, counts as 0."""
    counter = FileGeneration(tmp_path)
    assert counter[0] == 0
    raise_generation(tmp_path)
    raise_generation(tmp_path)
    assert counter[0] == 2
    os.truncate(tmp_path / "generation", 0)
    assert counter[0] == 0
    raise_generation(tmp_path)
    assert counter[0] == 1


def test_many_changes_at_once_are_all_heard(keyring: Keyring, follower: Follower, number: memoryview) -> None:
    """More than one command may change keys."""
    del follower
    before = number[0]
    threads = [threading.Thread(target=keyring.regenerate, args=("primary",)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert number[0] >= before + 5
