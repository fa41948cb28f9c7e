"""The porter's work for an engine on another machine: files that come and go, looks, locks."""

import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interleaving import moments
from tests.patience import PATIENCE_S

from stoker_run.porter import ContentStore, Porter

ATTEMPT: dict[str, Any] = {"run": "e_1_0000000a", "attempt": 1}


def content_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def porter(tmp_path: Path) -> Porter:
    return Porter(tmp_path)


class Served:
    """A porter in a process of its own, as an engine talks to one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        code = "import sys; from stoker_run.porter import serve; serve(sys.argv[1])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, folder], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def send(self, sent: bytes) -> None:
        """Write some bytes, which need not be a frame."""
        assert self.process.stdin is not None
        self.process.stdin.write(sent)

    def ask(self, data: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        """Have one thing done."""
        self.send(framed(data, **fields))
        return self.answer()

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """The next answer."""
        assert self.process.stdout is not None
        length, size = map(int, self.process.stdout.readline().split())
        content = b""
        while len(content) < length + size:
            content += self.process.stdout.read(length + size - len(content))
        return json.loads(content[:length]), content[length:]

    def hang_up(self) -> int:
        """Be gone; returns the exit status of the porter."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)


def framed(data: bytes = b"", **fields: Any) -> bytes:
    """A request as it travels."""
    content = json.dumps(fields).encode("ascii")
    return b"%d %d\n" % (len(content), len(data)) + content + data


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """One that nobody asks at the end."""
    served = Served(tmp_path)
    with served.process as process:
        yield served
        process.kill()


def test_a_folder_is_made_of_contents_that_are_kept(porter: Porter, tmp_path: Path) -> None:
    """Only missing contents are sent; names, links, empty folders and execute bits are kept."""
    name = "größe\udcff"
    content = content_of(b"one") + ".x"
    entries = [["d", "empty"], ["f", f"deep/{name}", content], ["l", "link", "/etc"]]
    listing = json.dumps(entries).encode("ascii")
    assert porter.do({"op": "restore", "tree": "t", "name": "work", **ATTEMPT}, b"") == ({"done": False}, b"")
    assert porter.do({"op": "tree", "tree": "t"}, listing)[0] == {
        "missing": [[content, 0]],
        "has_room": True,
    }
    porter.do({"op": "keep", "content": content, "offset": 0, "size": 3}, b"on")
    assert porter.do({"op": "tree", "tree": "t"}, listing)[0]["missing"] == [[content, 2]]
    porter.do({"op": "keep", "content": content, "offset": 2, "size": 3}, b"e")
    assert porter.do({"op": "tree", "tree": "t"}, listing)[0]["missing"] == []
    assert porter.do({"op": "restore", "tree": "t", "name": "work", **ATTEMPT}, b"")[0] == {"done": True}
    work = tmp_path / "runs" / ATTEMPT["run"] / "1" / "work"
    assert sorted(ContentStore.entries(work)) == [
        ["d", "deep"],
        ["d", "empty"],
        ["f", f"deep/{name}", 3, True],
        ["l", "link", "/etc"],
    ]


def keep(porter: Porter, tree: str, data: bytes, **limits: float) -> bool:
    """Have a content kept as the only file `deep/a` of a tree; return whether there was room."""
    listing = json.dumps([["f", "deep/a", content_of(data)]]).encode("ascii")
    reply, _ = porter.do({"op": "tree", "tree": tree, **limits}, listing)
    if reply["has_room"] and reply["missing"]:
        porter.do({"op": "keep", "content": content_of(data), "offset": 0, "size": len(data)}, data)
    return bool(reply["has_room"])


def test_data_is_linked_for_reading(porter: Porter, tmp_path: Path) -> None:
    """No byte is copied, folders and files are read-only, and an attempt is removed without its contents."""
    keep(porter, "t", b"data")
    request: dict[str, Any] = {"op": "restore", "tree": "t", "name": "inputs/x", "shared": True, **ATTEMPT}
    assert porter.do(request, b"")[0] == {"done": True}
    place = tmp_path / "runs" / ATTEMPT["run"] / "1"
    file = place / "inputs" / "x" / "deep" / "a"
    (kept,) = (path for path in (tmp_path / "files").rglob("*") if path.is_file())
    assert (file.read_bytes(), file.stat().st_ino) == (b"data", kept.stat().st_ino)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, file.parent.parent)] == [
        0o400,
        0o500,
        0o500,
    ]
    porter.do({"op": "clean", **ATTEMPT}, b"")
    assert (place.exists(), kept.read_bytes()) == (False, b"data")


def test_data_stays_within_its_limit(porter: Porter, tmp_path: Path) -> None:
    """The least recently used data goes first, never that of an attempt; without room nothing is sent."""
    files = tmp_path / "files"

    def age(data: bytes, age_s: int) -> None:
        used_s = time.time() - age_s
        os.utime(files / content_of(data)[:2] / content_of(data), (used_s, used_s))

    for number, data in enumerate((b"newer", b"older", b"in use")):
        keep(porter, str(number), data)
        age(data, 100 * number)
    request: dict[str, Any] = {"op": "restore", "tree": "2", "name": "inputs/x", "shared": True, **ATTEMPT}
    porter.do(request, b"")
    age(b"in use", 1000)
    assert keep(porter, "t", b"more", size_bytes=4, limit_bytes=15)
    kept = {path.read_bytes() for path in files.rglob("*") if path.is_file()}
    assert kept == {b"newer", b"in use", b"more"}
    assert not keep(porter, "u", b"much more", size_bytes=10, limit_bytes=15)
    assert {path.read_bytes() for path in files.rglob("*") if path.is_file()} == {b"in use"}


def test_another_porter_may_do_the_same_at_any_moment(tmp_path: Path) -> None:
    """Two runs send the same data at once, half of which is there already, and both make room: neither fails."""
    limits = {"size_bytes": 4, "limit_bytes": 5}
    for moment, interrupted in enumerate(moments()):
        folder = tmp_path / str(moment)
        earlier, porter, other = Porter(folder), Porter(folder), Porter(folder)
        keep(earlier, "old", b"old")
        earlier.do({"op": "keep", "content": content_of(b"data"), "offset": 0, "size": 4}, b"da")
        with interrupted(lambda other=other: keep(other, "t", b"data", **limits)):
            assert keep(porter, "t", b"data", **limits)
        assert [path.read_bytes() for path in (folder / "files").rglob("*") if path.is_file()] == [b"data"]
    assert moment > 20


def test_a_content_that_has_come_damaged_is_not_kept(porter: Porter, tmp_path: Path) -> None:
    """Its digest is checked when the last piece is there."""
    with pytest.raises(ValueError, match="damaged"):
        porter.do({"op": "keep", "content": content_of(b"one"), "offset": 0, "size": 3}, b"two")
    assert [path for path in (tmp_path / "files").rglob("*") if path.is_file()] == []


def test_content_unused_for_a_month_is_removed(porter: Porter, tmp_path: Path) -> None:
    """Old content is removed, except the content of a folder that was made today."""
    contents = [content_of(data) for data in (b"old", b"used")]
    for content, data in zip(contents, (b"old", b"used"), strict=True):
        porter.do({"op": "keep", "content": content, "offset": 0, "size": len(data)}, data)
    used = tmp_path / "files" / contents[1][:2] / contents[1]
    os.utime(tmp_path / "files" / contents[0][:2] / contents[0], (0, 0))
    listing = json.dumps([["f", "a", contents[1]]]).encode("ascii")
    porter.do({"op": "tree", "tree": "t"}, listing)
    assert [path for path in (tmp_path / "files").rglob("*") if path.is_file()] == [used]


def test_a_look_brings_the_bytes_behind_each_offset(porter: Porter, tmp_path: Path) -> None:
    """From each offset on; the lease is renewed on the way."""
    place = tmp_path / "runs" / "e_1_0000000a" / "1"
    place.mkdir(parents=True)
    (place / "log_0.txt").write_bytes(b"one\ntwo\n")
    request: dict[str, Any] = {"op": "poll", "offsets": {"log_0.txt": 4}, "renewal": 7, **ATTEMPT}
    reply, data = porter.do(request, b"")
    assert (reply["chunks"], data) == ([["log_0.txt", 4, 4]], b"two\n")
    assert (reply["seen"]["alive"], reply["seen"]["exit"]) == (False, None)
    assert json.loads((place / "lease.json").read_text()) == {"renewal": 7}


def test_a_lock_is_one_porters(porter: Porter, tmp_path: Path) -> None:
    """Until it is given back."""
    other = Porter(tmp_path)
    assert porter.do({"op": "lock", "name": "e"}, b"")[0] == {"taken": True}
    assert other.do({"op": "lock", "name": "e"}, b"")[0] == {"taken": False}
    porter.do({"op": "unlock"}, b"")
    assert other.do({"op": "lock", "name": "e"}, b"")[0] == {"taken": True}
    other.do({"op": "unlock"}, b"")


def test_no_link_is_read_through(porter: Porter, tmp_path: Path) -> None:
    """A file that became one is refused by the system."""
    place = tmp_path / "runs" / "e_1_0000000a" / "1"
    place.mkdir(parents=True)
    (place / "out").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        porter.do({"op": "read", "name": "out", "offset": 0, "size": 10, **ATTEMPT}, b"")


def test_removed_attempt_leaves_nothing(porter: Porter, tmp_path: Path) -> None:
    """Its folder goes, and that of its run with the last one."""
    for number in (1, 2):
        (tmp_path / "runs" / "e_1_0000000a" / str(number) / "work").mkdir(parents=True)
    porter.do({"op": "clean", "run": "e_1_0000000a", "attempt": 1}, b"")
    assert (tmp_path / "runs" / "e_1_0000000a" / "2").is_dir()
    porter.do({"op": "clean", "run": "e_1_0000000a", "attempt": 2}, b"")
    assert not (tmp_path / "runs" / "e_1_0000000a").exists()


def test_only_unused_environments_are_removed(porter: Porter, tmp_path: Path) -> None:
    """Recently used environments, those of a process, in build, or locked stay."""
    homes = {name: tmp_path / "environments" / name for name in ("building", "busy", "locked", "old", "used")}
    for name, home in homes.items():
        (home / "venv").mkdir(parents=True)
        if name != "building":
            (home / "manifest.json").write_text("{}")
            os.utime(home / "manifest.json", (1, 1))
    porter.do({"op": "get", "name": "environments/used/manifest.json"}, b"")
    assert Porter(tmp_path).do({"op": "lock", "name": "locked"}, b"")[0] == {"taken": True}
    variables = {"VIRTUAL_ENV": str(homes["busy"] / "venv")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["/bin/cat"], env=variables, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # When the program has begun, its variables can be read; not yet when its process has.
        os.write(process.stdin.fileno(), b"begun\n")
        process.stdout.readline()
        porter.do({"op": "tree", "tree": "a"}, b"[]")
        process.communicate(b"")
    assert sorted(path.name for path in (tmp_path / "environments").iterdir()) == sorted(
        homes.keys() - {"old"}
    )


def test_requests_of_an_engine_are_answered_in_order(served: Served) -> None:
    """Requests in any pieces are answered in order; a failed one is reported and the next one is done."""
    whole = framed(b"content", op="put", name="environments/e/manifest.json") + framed(op="ping")
    served.send(whole[:1])
    served.send(whole[1:-1])
    served.send(whole[-1:])
    assert (served.answer(), served.answer()) == (({}, b""), ({}, b""))
    assert served.ask(op="get", name="environments/e/manifest.json") == ({"there": True}, b"content")
    assert served.ask(op="get", name="environments/f/manifest.json") == ({"there": False}, b"")
    reply, _ = served.ask(op="read", name="log", offset=0, size=9, **ATTEMPT)
    place = served.folder / "runs" / "e_1_0000000a" / "1"
    assert (reply["errno"], reply["path"]) == (errno.ENOENT, str(place / "log"))
    reply, _ = served.ask(b"damaged", op="keep", content=content_of(b"whole"), offset=0, size=7)
    assert reply["errno"] is None
    assert "has come damaged" in reply["error"]
    reply, _ = served.ask(op="start", **ATTEMPT)
    assert reply["status"] == 2
    assert "start.json" in reply["said"]
    command = ["/bin/sh", "-c", "pwd; echo no >&2; exit 3"]
    request: dict[str, Any] = {"op": "ask_command", "command": command}
    assert served.ask(**request) == ({"status": 3, "complaints": "no\n"}, f"{served.folder}\n".encode())
    assert served.ask(op="run_command", command=command, without=[])[1].endswith(b"\nno\n")
    assert served.ask(op="check")[0]["free_bytes"] > 0
    served.send(whole[:-1])
    assert served.hang_up() == 0


def test_a_command_ends_with_the_connection_of_its_engine(served: Served, tmp_path: Path) -> None:
    """Nothing that an engine began goes on when its connection is cut."""
    os.mkfifo(tmp_path / "begun")
    command = ["/bin/sh", "-c", "echo $$ > begun; exec sleep 600"]
    served.send(framed(op="run_command", command=command, without=["HOME"]))
    number = int((tmp_path / "begun").read_text())
    assert served.hang_up() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_files_of_an_attempt_and_of_the_machine_come_and_go(
    porter: Porter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written files are listed and read in parts; homes are named from the folder, from `/` or from `~`."""
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    porter.do({"op": "write", "name": "out", **ATTEMPT}, b"one two")
    assert porter.do({"op": "read", "name": "out", "offset": 4, "size": 9, **ATTEMPT}, b"") == ({}, b"two")
    place = tmp_path / "runs" / "e_1_0000000a" / "1"
    (place / "work").mkdir()
    (place / "work" / "a").write_bytes(b"12")
    listed = porter.do({"op": "list", "names": ["work", "absent"], **ATTEMPT}, b"")[1]
    assert json.loads(listed) == {"work": [["f", "a", 2, False]], "absent": []}
    for name, path in (("environments/e", tmp_path / "environments" / "e"), ("~/e", tmp_path / "me" / "e")):
        assert porter.do({"op": "home", "name": name}, b"")[0] == {"path": str(path)}
        assert path.is_dir()
    porter.do({"op": "remove", "name": "environments/e"}, b"")
    assert not (tmp_path / "environments" / "e").exists()


def test_an_attempt_that_is_not_there_has_ended(porter: Porter) -> None:
    """It is stopped, swept and removed without a word: an engine asks again when a connection was cut."""
    assert porter.do({"op": "stop", "grace_s": 0.0, "reason": "canceled", **ATTEMPT}, b"") == ({}, b"")
    assert porter.do({"op": "sweep", **ATTEMPT}, b"")[0] == {"killed": 0}
    assert porter.do({"op": "clean", **ATTEMPT}, b"") == ({}, b"")


def test_a_lease_is_renewed_where_nothing_new_fits(porter: Porter, tmp_path: Path) -> None:
    """It is written over, so a run does not end because its machine's disk is full."""
    place = tmp_path / "runs" / "e_1_0000000a" / "1"
    place.mkdir(parents=True)
    (place / "lease.json").write_text('{"renewal": 6}\n')
    # No file can be made beside it.
    (place / f"lease.json.{os.getpid()}.tmp").mkdir()
    porter.do({"op": "poll", "offsets": {}, "renewal": 7, **ATTEMPT}, b"")
    assert (place / "lease.json").read_text() == '{"renewal": 7}\n'
