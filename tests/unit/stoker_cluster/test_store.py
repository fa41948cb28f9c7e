"""A store of models, over loopback."""

import hashlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import cli
from stoker.errors import CorruptModel, InvalidSettings, OperatorError
from stoker_cluster import store_client
from stoker_cluster.store import (
    LENGTH_HEADER,
    OFFSET_HEADER,
    StoredFile,
    digest_of,
    read_tree,
    split_address,
    store_app,
    tree_text,
)
from stoker_cluster.store_client import fetch, follow, push
from stoker_run.trees import Tree

MOST_BYTES = 3_000_000


class Store:
    """A store that runs in a thread.

    Attributes:
        root: Its folder.
        url: Where it is.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(store_app(root, MOST_BYTES), log_level="error", lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [sock]})
        self._thread.start()
        while not self._server.started:
            time.sleep(0.001)

    def stop(self) -> None:
        """End it."""
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store."""
    running = Store(tmp_path_factory.mktemp("store"))
    yield running
    running.stop()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a model of two files, one of them empty."""
    folder = tmp_path / "models"
    (folder / "digits").mkdir(parents=True)
    (folder / "digits" / "model.onnx").write_bytes(bytes(range(256)) * 4000)
    (folder / "digits" / "empty").touch()
    return folder


def quiet(_: str) -> None:
    """Say nothing."""


def test_what_is_pushed_is_fetched(
    store: Store,
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same files, byte for byte, by the commands; a second time nothing is sent and nothing got."""
    monkeypatch.chdir(models)
    assert cli.main(["store", "push", "digits", "--to", f"{store.url}/"]) == 0
    printed = capsys.readouterr()
    address = printed.out.strip()
    assert printed.err.splitlines() == ["sent digits/empty", "sent digits/model.onnx"]
    target = tmp_path / "pod"
    assert cli.main(["store", "fetch", address, str(target)]) == 0
    assert capsys.readouterr().err.splitlines() == ["got digits/empty", "got digits/model.onnx"]
    files = {
        path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()
    }
    assert files == {f"digits/{path.name}": path.read_bytes() for path in (models / "digits").iterdir()}
    assert (
        cli.main(["store", "push", "digits", "--to", store.url, "--as", "http://stoker-store.ml:8090"]) == 0
    )
    assert capsys.readouterr().out == address.replace(store.url, "http://stoker-store.ml:8090") + "\n"
    said: list[str] = []
    assert push(["digits/empty", "digits/model.onnx"], models, store.url, said.append) == address
    fetch(address, target, said.append)
    assert said == []


def test_an_upload_goes_on_where_it_was_broken_off(store: Store, models: Path) -> None:
    """The store says how much has arrived, takes the rest alone, and nothing at a wrong place."""
    content = b"half" * 1000
    digest = "sha256:" + hashlib.sha256(content).hexdigest()

    def send(offset: int, body: bytes) -> int:
        headers = {OFFSET_HEADER: str(offset), LENGTH_HEADER: str(len(content))}
        request = urllib.request.Request(f"{store.url}/{digest}", body, headers, method="PATCH")
        try:
            with urllib.request.urlopen(request) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert send(0, content[:1500]) == 202
    assert send(1000, content[1000:]) == 409
    (models / "rest").write_bytes(content)
    address = push(["rest"], models, store.url, quiet)
    assert (store.root / digest).read_bytes() == content
    assert not list((store.root / "incoming").iterdir())
    assert address.startswith(f"{store.url}/sha256:")
    assert send(0, b"") == 200


def test_a_download_goes_on_where_it_was_broken_off(store: Store, models: Path, tmp_path: Path) -> None:
    """What has arrived is kept, and only the rest asked for; also where all had arrived."""
    address = push(["digits"], models, store.url, quiet)
    whole = (models / "digits" / "model.onnx").read_bytes()
    for there in (whole[:1000], whole, whole + b"more"):
        target = tmp_path / f"pod{len(there)}"
        (target / ".incoming").mkdir(parents=True)
        (target / ".incoming" / f".{digest_of(models / 'digits' / 'model.onnx')}.part").write_bytes(there)
        fetch(address, target, quiet)
        assert (target / "digits" / "model.onnx").read_bytes() == whole
        assert sorted(path.name for path in target.rglob("*")) == ["digits", "empty", "model.onnx"]


def test_what_is_not_what_its_name_says_is_not_taken(store: Store, models: Path, tmp_path: Path) -> None:
    """Neither by the store nor from it."""
    (models / "odd").write_bytes(b"odd")
    digest = digest_of(models / "odd")
    headers = {OFFSET_HEADER: "0", LENGTH_HEADER: "4"}
    request = urllib.request.Request(f"{store.url}/{digest}", b"even", headers, method="PATCH")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as error:
        assert error.code == 422
    address = push(["odd"], models, store.url, quiet)
    (store.root / digest).write_bytes(b"bad")
    with pytest.raises(CorruptModel, match="not what its name says"):
        fetch(address, tmp_path / "pod", quiet)
    (store.root / digest).write_bytes(b"very bad")
    with pytest.raises(CorruptModel, match="larger than it should be"):
        fetch(address, tmp_path / "pod2", quiet)
    assert not (tmp_path / "pod" / "odd").exists()
    (store.root / digest).unlink()


def test_a_full_store_and_a_missing_tree_are_said(store: Store, models: Path, tmp_path: Path) -> None:
    """In one sentence that says what to do."""
    (models / "large").write_bytes(b"0" * (MOST_BYTES + 1))
    with pytest.raises(OperatorError, match="the store is full"):
        push(["large"], models, store.url, quiet)
    with pytest.raises(OperatorError, match="answers 404"):
        fetch(f"{store.url}/sha256:{'0' * 64}", tmp_path, quiet)


def test_a_store_that_is_away_is_asked_again_for_a_while(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod may start before its store; for how long is the caller's choice."""
    slept: list[float] = []
    monkeypatch.setattr(store_client.time, "sleep", slept.append)
    clock = iter(range(100))
    monkeypatch.setattr(store_client.time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(OperatorError, match="does not answer"):
        fetch(f"http://127.0.0.1:1/sha256:{'0' * 64}", tmp_path, quiet, patience_s=3)
    assert len(slept) == 3
    with pytest.raises(OperatorError, match="push again"):
        push(["digits"], models, "http://127.0.0.1:1", quiet)


@pytest.mark.parametrize("paths", [["../other"], ["/etc/passwd"], ["nothing"], ["hollow"]])
def test_only_files_of_the_folder_are_pushed(models: Path, paths: list[str]) -> None:
    """Nothing is sent of what is outside, and nothing is not a tree."""
    (models / "hollow").mkdir()
    with pytest.raises(InvalidSettings):
        push(paths, models, "http://127.0.0.1:1", quiet)


@pytest.mark.parametrize(
    "address", ["", "http://h/sha256:00", "ftp://h/sha256:" + "0" * 64, "sha256:" + "0" * 64]
)
def test_an_address_names_a_store_and_a_digest(address: str) -> None:
    """Anything else is refused before a connection is made."""
    with pytest.raises(InvalidSettings, match="as stoker store push prints it"):
        split_address(address)


@given(st.lists(st.text("ab./\0é", max_size=6), max_size=4))
@settings(max_examples=30)
def test_no_tree_leads_out_of_its_folder(paths: list[str]) -> None:
    """A list is read as it was written, or refused where a path is not one within the folder."""
    files = [StoredFile(path, "sha256:" + "0" * 64, 1) for path in paths]
    inside = all(
        path and "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))
        for path in paths
    )
    if inside:
        assert sorted(read_tree(tree_text(files)), key=lambda file: file.path) == sorted(
            files, key=lambda file: file.path
        )
    else:
        with pytest.raises(CorruptModel):
            read_tree(tree_text(files))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"files":[{}]}', b'{"files":[{"path":"a","sha256":"x","bytes":1}]}']
)
def test_what_is_no_list_is_refused(text: bytes) -> None:
    """Whatever a server of files may answer."""
    with pytest.raises(CorruptModel):
        read_tree(text)


def test_another_address_brings_another_version_beside_the_old(
    store: Store, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is new appears whole; what was there stays, also where an address is bad."""
    for version in "12":
        (models / "tree" / "m" / version).mkdir(parents=True)
        for name in ("model.onnx", "weights"):
            (models / "tree" / "m" / version / name).write_text(version + name)
    first, second = (push([f"m/{version}"], models / "tree", store.url, quiet) for version in "12")
    target, file = tmp_path / "pod", tmp_path / "address"
    moved: list[str] = []
    move = Tree.move

    def seen(source: Tree, name: str, to: Tree, new_name: str) -> None:
        if to.root == target:
            moved.append(new_name)
        move(source, name, to, new_name)

    monkeypatch.setattr(Tree, "move", seen)
    file.write_text(f"{first}\n")
    assert cli.main(["store", "fetch", str(file), str(target)]) == 0
    said: list[str] = []

    class Looks(threading.Event):
        """Changes the file between the looks, and ends after the last."""

        addresses: ClassVar = [f"{store.url}/sha256:{'0' * 64}", second]

        def wait(self, timeout: float | None = None) -> bool:
            """The next address; whether that was all."""
            if not self.addresses:
                return True
            file.write_text(self.addresses.pop(0))
            return False

    follow(file, target, said.append, Looks())
    assert moved == ["m", "m/2"]
    assert [line.partition(";")[2] or line for line in said] == [
        " the files of before stay",
        "got m/2/model.onnx",
        "got m/2/weights",
    ]
    assert sorted(path.name for path in (target / "m").iterdir()) == ["1", "2"]


def test_a_fetch_writes_through_no_link(store: Store, models: Path, tmp_path: Path) -> None:
    """A folder of the tree that is a link in the target stays one, and nothing comes into where it leads."""
    address = push(["digits"], models, store.url, quiet)
    target, elsewhere = tmp_path / "pod", tmp_path / "elsewhere"
    target.mkdir()
    elsewhere.mkdir()
    (target / "digits").symlink_to(elsewhere)
    with pytest.raises(OperatorError, match="remove what is in their way"):
        fetch(address, target, quiet)
    assert list(elsewhere.iterdir()) == []


def test_files_of_one_content_come_once(store: Store, models: Path, tmp_path: Path) -> None:
    """Each has its own copy in the target."""
    for name in ("one", "two"):
        (models / "digits" / name).write_bytes(b"the same")
    fetch(push(["digits"], models, store.url, quiet), tmp_path / "pod", quiet)
    files = [tmp_path / "pod" / "digits" / name for name in ("one", "two")]
    assert [file.read_bytes() for file in files] == [b"the same"] * 2
    assert files[0].stat().st_ino != files[1].stat().st_ino
