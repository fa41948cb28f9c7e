"""What an engine on another machine has done here: files that come and go, looks, locks."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from stoker_run.luggage import Luggage
from stoker_run.porter import Porter

ATTEMPT = {"run": "e_1_0000000a", "attempt": 1}


def content_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def porter(tmp_path: Path) -> Porter:
    return Porter(tmp_path)


def test_a_folder_is_made_of_contents_that_are_kept(porter: Porter, tmp_path: Path) -> None:
    """Only what is missing is asked for; names, links, empty folders and what may be executed are as they were."""
    name = "größe\udcff"
    content = content_of(b"one") + ".x"
    entries = [["d", "empty"], ["f", f"deep/{name}", content], ["l", "link", "/etc"]]
    listing = json.dumps(entries).encode("ascii")
    assert porter.do({"op": "restore", "tree": "t", "name": "work", **ATTEMPT}, b"") == ({"done": False}, b"")
    assert porter.do({"op": "tree", "tree": "t"}, listing)[0] == {"missing": [[content, 0]]}
    porter.do({"op": "keep", "content": content, "offset": 0, "size": 3}, b"on")
    assert porter.do({"op": "tree", "tree": "t"}, listing)[0] == {"missing": [[content, 2]]}
    porter.do({"op": "keep", "content": content, "offset": 2, "size": 3}, b"e")
    assert porter.do({"op": "tree", "tree": "t"}, listing)[0] == {"missing": []}
    assert porter.do({"op": "restore", "tree": "t", "name": "work", **ATTEMPT}, b"")[0] == {"done": True}
    work = tmp_path / "runs" / ATTEMPT["run"] / "1" / "work"  # type: ignore[operator]
    assert sorted(Luggage.entries(work)) == [
        ["d", "deep"],
        ["d", "empty"],
        ["f", f"deep/{name}", 3, True],
        ["l", "link", "/etc"],
    ]


def test_a_content_that_has_come_damaged_is_not_kept(porter: Porter, tmp_path: Path) -> None:
    """Its digest is looked at when the last piece is there."""
    with pytest.raises(ValueError, match="damaged"):
        porter.do({"op": "keep", "content": content_of(b"one"), "offset": 0, "size": 3}, b"two")
    assert [path for path in (tmp_path / "files").rglob("*") if path.is_file()] == []


def test_what_nobody_has_used_for_a_month_goes(porter: Porter, tmp_path: Path) -> None:
    """What a folder of today is made of stays, however old it is."""
    contents = [content_of(data) for data in (b"old", b"used")]
    for content, data in zip(contents, (b"old", b"used"), strict=True):
        porter.do({"op": "keep", "content": content, "offset": 0, "size": len(data)}, data)
    used = tmp_path / "files" / contents[1][:2] / contents[1]
    os.utime(tmp_path / "files" / contents[0][:2] / contents[0], (0, 0))
    listing = json.dumps([["f", "a", contents[1]]]).encode("ascii")
    porter.do({"op": "tree", "tree": "t"}, listing)
    assert [path for path in (tmp_path / "files").rglob("*") if path.is_file()] == [used]


def test_a_look_brings_what_is_new(porter: Porter, tmp_path: Path) -> None:
    """From each offset on; the lease is renewed on the way."""
    place = tmp_path / "runs" / "e_1_0000000a" / "1"
    place.mkdir(parents=True)
    (place / "log_0.txt").write_bytes(b"one\ntwo\n")
    asked: dict[str, Any] = {"op": "look", "offsets": {"log_0.txt": 4}, "renewal": 7, **ATTEMPT}
    said, data = porter.do(asked, b"")
    assert (said["chunks"], data) == ([["log_0.txt", 4, 4]], b"two\n")
    assert (said["seen"]["alive"], said["seen"]["exit"]) == (False, None)
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


def test_nothing_of_an_attempt_is_left(porter: Porter, tmp_path: Path) -> None:
    """Its folder goes, and that of its run with the last one."""
    for number in (1, 2):
        (tmp_path / "runs" / "e_1_0000000a" / str(number) / "work").mkdir(parents=True)
    porter.do({"op": "clean", "run": "e_1_0000000a", "attempt": 1}, b"")
    assert (tmp_path / "runs" / "e_1_0000000a" / "2").is_dir()
    porter.do({"op": "clean", "run": "e_1_0000000a", "attempt": 2}, b"")
    assert not (tmp_path / "runs" / "e_1_0000000a").exists()
