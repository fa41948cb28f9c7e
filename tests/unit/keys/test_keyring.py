"""Keys of a service: creation, rotation, and the frontend's check of them."""

import json
import logging
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PROGRAM_S

from stoker.errors import InvalidSettings, NotReady, Unauthorized
from stoker.keys.access import Access
from stoker.keys.keyring import Keyring, Keys, read_signing_secret, services_with_keys
from stoker.keys.verifier import KeyVerifier


def bearer(key: str) -> bytes:
    return b"Bearer " + key.encode()


def python(code: str, *args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_keys_are_created_once(tmp_path: Path) -> None:
    """The first `ensure` makes two different keys of 256 bits, every later one returns the same."""
    keys = Keyring(tmp_path / "keys", "mnist").ensure()
    assert keys.primary != keys.secondary
    assert len(keys.primary) == len(keys.secondary) == 43
    assert Keyring(tmp_path / "keys", "mnist").ensure() == keys
    assert Keyring(tmp_path / "keys", "mnist").show() == keys


def test_services_have_keys_of_their_own(tmp_path: Path) -> None:
    """A key of one service opens no other one, also where a name looks like a file of the other's."""
    first, second = Keyring(tmp_path, "a").ensure(), Keyring(tmp_path, "a.keys").ensure()
    assert services_with_keys(tmp_path) == ["a", "a.keys"]
    assert not KeyVerifier(tmp_path, "a").verify(bearer(second.primary))
    assert KeyVerifier(tmp_path, "a").verify(bearer(first.primary))


def test_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    """The folder has mode 0700 and each file 0600; `ensure` takes back what others were given."""
    folder = tmp_path / "keys"
    keyring = Keyring(folder, "mnist")
    keyring.ensure()
    keyring.path.chmod(0o644)
    keyring.ensure()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        ".lock": 0o600,
        "generation": 0o600,
        "mnist.keys": 0o600,
        "mnist.verify": 0o600,
    }


def test_the_verify_file_has_hashes_only(tmp_path: Path) -> None:
    """The file that a frontend reads holds no key."""
    keys = Keyring(tmp_path, "mnist").ensure()
    content = (tmp_path / "mnist.verify").read_text()
    assert keys.primary not in content
    assert keys.secondary not in content
    assert len(json.loads(content)["primary_sha256"]) == 64


def test_keys_stay_out_of_logs() -> None:
    """The representation of keys does not show them."""
    keys = Keys("p" * 20, "s" * 20)
    assert "ppp" not in repr(keys)
    assert "sss" not in repr(keys)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_both_keys_are_valid_with_the_scheme_in_any_case(tmp_path: Path, scheme: str) -> None:
    """Primary and secondary key are accepted, at first sight and when remembered."""
    keys = Keyring(tmp_path, "mnist").ensure()
    verifier = KeyVerifier(tmp_path, "mnist")
    for _ in range(2):
        for key in (keys.primary, keys.secondary):
            assert verifier.verify(f"{scheme} {key}".encode())


PRIMARY, SECONDARY = "primary-primary-primary", "secondary-secondary"
HEADER_PARTS = [
    b"Bearer",
    b"bearer",
    b"Basic",
    b" ",
    b"\t",
    b"x",
    PRIMARY.encode(),
    SECONDARY.encode(),
    b"primary",
]


@given(headers=st.lists(st.lists(st.sampled_from(HEADER_PARTS), max_size=5).map(b"".join), min_size=1))
def test_only_the_scheme_and_a_key_are_valid(headers: list[bytes]) -> None:
    """A header is valid exactly when the grammar says so, after any sequence of other headers."""
    verifier = KeyVerifier(Path("/nonexistent"), "mnist", override=Keys(PRIMARY, SECONDARY))
    grammar = re.compile(rf"(?i:bearer) [ \t]*({PRIMARY}|{SECONDARY})[ \t]*".encode())
    for header in (*headers, f"Bearer {PRIMARY}".encode(), *headers):
        assert verifier.verify(header) is (grammar.fullmatch(header) is not None)


@pytest.mark.parametrize(
    "template",
    [
        "",
        "Bearer",
        "Bearer ",
        "{0}",
        "Basic {0}",
        "Bearer{0}",
        "Bearer {0}x",
        "Bearer x{0}",
        "Bearer {0} {0}",
        " Bearer {0}",
    ],
)
def test_headers_near_a_valid_one_are_refused(tmp_path: Path, template: str) -> None:
    """Absent key, wrong scheme and a key with something added are refused after the right one was seen."""
    key = Keyring(tmp_path, "mnist").ensure().primary
    verifier = KeyVerifier(tmp_path, "mnist")
    assert verifier.verify(bearer(key))
    assert not verifier.verify(template.format(key).encode())


def test_spaces_around_the_key_are_allowed(tmp_path: Path) -> None:
    """RFC 9110 allows several spaces between scheme and key."""
    key = Keyring(tmp_path, "mnist").ensure().primary
    assert KeyVerifier(tmp_path, "mnist").verify(f"Bearer   {key}".encode())


def test_a_huge_header_is_refused_unhashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header far longer than a key is refused without spending time on its hash."""
    Keyring(tmp_path, "mnist").ensure()
    verifier = KeyVerifier(tmp_path, "mnist")
    monkeypatch.setattr("stoker.keys.verifier.digest", lambda _: pytest.fail("hashed"))
    assert not verifier.verify(b"Bearer " + b"x" * 1_000_000)


@pytest.mark.parametrize("slot", ["primary", "secondary"])
def test_a_rotation_is_effective_at_once_and_leaves_the_other_key(tmp_path: Path, slot: str) -> None:
    """After `regenerate` a living verifier refuses the old key, takes the new one and keeps the other."""
    keyring = Keyring(tmp_path, "mnist")
    old = keyring.ensure()
    verifier = KeyVerifier(tmp_path, "mnist")
    assert verifier.verify(bearer(old.primary))
    assert verifier.verify(bearer(old.secondary))
    new = keyring.regenerate(slot)  # type: ignore[arg-type]
    other = "secondary" if slot == "primary" else "primary"
    assert getattr(new, other) == getattr(old, other)
    assert not verifier.verify(bearer(getattr(old, slot)))
    assert verifier.verify(bearer(getattr(new, slot)))
    assert verifier.verify(bearer(getattr(new, other)))
    assert keyring.show() == new


def test_a_given_key_is_taken(tmp_path: Path) -> None:
    """`regenerate` with a value stores exactly that value."""
    keyring = Keyring(tmp_path, "mnist")
    keyring.ensure()
    assert keyring.regenerate("secondary", "my-own-secret-key").secondary == "my-own-secret-key"
    assert KeyVerifier(tmp_path, "mnist").verify(bearer("my-own-secret-key"))


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", "has 0 characters"),
        ("fifteen-chars-x", "has 15 characters"),
        ("x" * 513, "has 513 characters"),
        ("a key with spaces in it", "no space"),
        ("a-key-with-a-line\n", "no space"),
        ("ключ-ключ-ключ-ключ", "ASCII"),
    ],
)
def test_unfit_keys_are_refused(tmp_path: Path, key: str, problem: str) -> None:
    """A key that is too short, too long or unfit for a header is refused and changes nothing."""
    keyring = Keyring(tmp_path, "mnist")
    keys = keyring.ensure()
    with pytest.raises(InvalidSettings, match=problem):
        keyring.regenerate("primary", key)
    with pytest.raises(InvalidSettings, match=problem):
        Keys.from_operator(key, None)
    assert keyring.show() == keys


def test_given_keys_replace_those_of_the_files(tmp_path: Path) -> None:
    """With one key given by the operator only that one is valid, and no file is needed."""
    assert Keys.from_operator(None, None) is None
    both = Keys.from_operator("primary-0123456789", "secondary-0123456789")
    assert both == Keys("primary-0123456789", "secondary-0123456789")
    for only in (
        Keys.from_operator("operators-own-key", None),
        Keys.from_operator(None, "operators-own-key"),
    ):
        verifier = KeyVerifier(tmp_path / "absent", "mnist", override=only)
        assert verifier.verify(b"Bearer operators-own-key")
        assert not verifier.verify(b"Bearer operators-other-key")
        assert not verifier.verify(b"")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'"text"', b'{"primary_sha256": "00", "secondary_sha256": "00"}', b"\xff", None],
)
def test_malformed_verify_file_refuses_all_until_mended(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken hashes close the door, are logged once, and open it again without a restart when mended."""
    keyring = Keyring(tmp_path, "mnist")
    keys = keyring.ensure()
    verifier = KeyVerifier(tmp_path, "mnist")
    assert verifier.verify(bearer(keys.primary))
    path = tmp_path / "mnist.verify"
    intact = path.read_bytes()
    Keyring(tmp_path, "other").ensure()  # raises the generation that all services share
    path.unlink() if content is None else path.write_bytes(content)
    with caplog.at_level(logging.ERROR, logger="stoker.keys.verifier"):
        assert [verifier.verify(bearer(keys.primary)) for _ in range(3)] == [False] * 3
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    path.write_bytes(intact)
    assert verifier.verify(bearer(keys.primary))


def test_request_is_not_unauthorized_if_the_workspace_is_moved_away(tmp_path: Path) -> None:
    """Nobody can say then whether its key is valid: it gets 503. A request without a key still gets 401."""
    keys_dir = tmp_path / "keys"
    key = bearer(Keyring(keys_dir, "mnist").ensure().primary)
    access = Access(KeyVerifier(keys_dir, "mnist"))
    assert access.check(key)
    keys_dir.rename(tmp_path / "moved")
    with pytest.raises(NotReady, match="cannot read its keys; its log says why"):
        access.check(key)
    with pytest.raises(Unauthorized):
        access.check(b"")
    (tmp_path / "moved").rename(keys_dir)
    assert access.check(key)


def test_malformed_file_of_keys_is_reported_with_its_path(tmp_path: Path) -> None:
    """Keys that cannot be read are not replaced silently."""
    keyring = Keyring(tmp_path, "mnist")
    keyring.ensure()
    keyring.path.write_text('{"primary": 7}')
    for use in (keyring.show, keyring.ensure, lambda: keyring.regenerate("primary")):
        with pytest.raises(InvalidSettings, match=r"mnist\.keys are malformed"):
            use()


def test_an_interrupted_rotation_is_finished_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off after the readable file, a rotation leaves the old keys valid until `ensure` finishes it."""
    keyring = Keyring(tmp_path, "mnist")
    old = keyring.ensure()
    verifier = KeyVerifier(tmp_path, "mnist")

    def cut_off(_: Keys) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(keyring, "_publish", cut_off)
        with pytest.raises(KeyboardInterrupt):
            keyring.regenerate("primary")
    assert verifier.verify(bearer(old.primary))
    new = keyring.ensure()
    assert new.primary != old.primary
    assert verifier.verify(bearer(new.primary))
    assert not verifier.verify(bearer(old.primary))


def test_a_failed_write_leaves_the_old_keys_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk refuses the new file, the old one stays and no temporary file is left."""
    keyring = Keyring(tmp_path, "mnist")
    old = keyring.ensure()
    before = sorted(tmp_path.iterdir())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("stoker.system.durable.os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            keyring.regenerate("primary")
    assert keyring.show() == old
    assert sorted(tmp_path.iterdir()) == before


def test_regenerate_needs_keys(tmp_path: Path) -> None:
    """A service that was never started has nothing to replace."""
    with pytest.raises(FileNotFoundError):
        Keyring(tmp_path, "mnist").regenerate("primary")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", ".hidden", "a\n", "a:b", "x" * 101, "ä" * 101]
)
def test_names_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    """A service name that is no plain file name is refused."""
    with pytest.raises(InvalidSettings, match="cannot be a service name"):
        Keyring(tmp_path, name)


FRONTEND = """
import sys
from pathlib import Path
from stoker.keys.verifier import KeyVerifier
verifier = KeyVerifier(Path(sys.argv[1]), "mnist")
for line in sys.stdin:
    print(verifier.verify(line.rstrip("\\n").encode()), flush=True)
"""

LOAD = """
import select, sys
from pathlib import Path
from stoker.keys.verifier import KeyVerifier
verifier, header = KeyVerifier(Path(sys.argv[1]), "mnist"), sys.argv[2].encode()
print("loaded", flush=True)
refused, generations = 0, set()
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(50):
        refused += not verifier.verify(header)
        generations.add(verifier._loaded_generation)
refused += not verifier.verify(header)
generations.add(verifier._loaded_generation)
print(refused, len(generations))
"""

START = """
import sys
from pathlib import Path
from stoker.keys.keyring import Keyring
print("ready", flush=True)
sys.stdin.readline()
keys = Keyring(Path(sys.argv[1]), "mnist").ensure()
print(keys.primary, keys.secondary)
"""

ROTATE = """
import sys
from pathlib import Path
from stoker.keys.keyring import Keyring
for _ in range(20):
    Keyring(Path(sys.argv[1]), sys.argv[2]).regenerate(sys.argv[3])
"""


def test_frontends_in_other_processes_follow_a_rotation(tmp_path: Path) -> None:
    """Two running processes see each of several rotations with their next request."""
    keyring = Keyring(tmp_path, "mnist")
    keys = keyring.ensure()
    frontends = [python(FRONTEND, str(tmp_path)) for _ in range(2)]

    def answers(key: str) -> list[str]:
        for frontend in frontends:
            assert frontend.stdin is not None
            frontend.stdin.write(f"Bearer {key}\n")
            frontend.stdin.flush()
        return [frontend.stdout.readline().strip() for frontend in frontends if frontend.stdout]

    for slot in ("primary", "secondary", "primary"):
        old = getattr(keys, slot)
        assert answers(old) == ["True", "True"]
        keys = keyring.regenerate(slot)  # type: ignore[arg-type]
        assert answers(old) == ["False", "False"]
        assert answers(getattr(keys, slot)) == ["True", "True"]
        assert answers(keys.primary) == answers(keys.secondary) == ["True", "True"]
    for frontend in frontends:
        frontend.communicate(timeout=PROGRAM_S)
        assert frontend.returncode == 0


def test_the_other_key_is_valid_all_through_a_rotation(tmp_path: Path) -> None:
    """A caller with the secondary key is never refused while the primary one is replaced many times."""
    keyring = Keyring(tmp_path, "mnist")
    header = bearer(keyring.ensure().secondary)
    frontend = python(LOAD, str(tmp_path), header.decode())
    assert frontend.stdout is not None
    assert frontend.stdout.readline() == "loaded\n"
    for _ in range(30):
        keyring.regenerate("primary")
    output, _ = frontend.communicate("stop\n", timeout=PROGRAM_S)
    refused, generations = map(int, output.split())
    assert refused == 0
    assert generations > 1


def test_servers_that_start_at_once_agree_on_the_keys(tmp_path: Path) -> None:
    """Four processes that create the keys at the same time all get the same two."""
    servers = [python(START, str(tmp_path / "new" / "keys")) for _ in range(4)]
    assert [server.stdout.readline() for server in servers if server.stdout] == ["ready\n"] * 4
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda server: server.communicate("go\n", timeout=PROGRAM_S)[0], servers))
    stored = Keyring(tmp_path / "new" / "keys", "mnist").show()
    assert outputs == [f"{stored.primary} {stored.secondary}\n"] * 4


def test_rotations_at_once_lose_nothing(tmp_path: Path) -> None:
    """Four processes rotate both slots of two services; then the stored keys are the valid ones."""
    for service in ("one", "two"):
        Keyring(tmp_path, service).ensure()
    verifiers = {service: KeyVerifier(tmp_path, service) for service in ("one", "two")}
    rotations = [
        python(ROTATE, str(tmp_path), service, slot)
        for service in ("one", "two")
        for slot in ("primary", "secondary")
    ]
    for rotation in rotations:
        rotation.communicate(timeout=PROGRAM_S)
        assert rotation.returncode == 0
    for service, verifier in verifiers.items():
        keys = Keyring(tmp_path, service).show()
        assert verifier.verify(bearer(keys.primary))
        assert verifier.verify(bearer(keys.secondary))
    generation = int.from_bytes((tmp_path / "generation").read_bytes(), sys.byteorder)
    assert generation == 2 + 4 * 20


def test_the_module_is_light() -> None:
    """A frontend that imports the verifier imports no module beyond those of its messages."""
    code = (
        "import sys; before = set(sys.modules); import stoker.keys.verifier; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'stoker', 'msgspec', 'typing_extensions'}))"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output == "[]\n"


@pytest.mark.parametrize("suffix", ["keys", "signing", "verify"])
@pytest.mark.parametrize("harm", ["FIFO", "folder", "device", "huge"])
def test_files_of_keys_are_read_with_a_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, harm: str
) -> None:
    """Pipes and devices in their place are named, without waiting or reading without end."""
    keyring = Keyring(tmp_path, "mnist")
    keys = keyring.ensure()
    keyring.ensure_signing_secret()
    path = tmp_path / f"mnist.{suffix}"
    path.unlink()
    match harm:
        case "FIFO":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "huge":
            path.touch()
            os.truncate(path, 1 << 40)
    if suffix == "verify":
        assert not KeyVerifier(tmp_path, "mnist").verify(bearer(keys.primary))
        assert "requests to service mnist get 503" in caplog.text
        return
    with pytest.raises(InvalidSettings, match=f"mnist.{suffix} cannot be read"):
        keyring.show() if suffix == "keys" else read_signing_secret(tmp_path, "mnist")


def test_a_deep_file_is_malformed(tmp_path: Path) -> None:
    """JSON that is nested without end is no set of keys."""
    keyring = Keyring(tmp_path, "mnist")
    keyring.ensure()
    keyring.path.write_text("[" * 50_000)
    with pytest.raises(InvalidSettings, match="malformed"):
        keyring.show()
