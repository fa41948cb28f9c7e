"""Mirrors of addresses: fetching, breaks and refusals, with a puppet of a store and fsspec's own files."""

import contextlib
import dataclasses
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.interleaving import moments

from stoker.errors import OperatorError
from stoker.models import mirrors, remote_stores, remote_writing
from stoker.models.fetching import fetch_models, fetch_path
from stoker.models.mirrors import CACHE_VARIABLE, Mirror
from stoker.models.remote_stores import shown_address
from stoker.models.remote_writing import send
from stoker.settings.loading import load_settings
from stoker.settings.model import ModelSettings
from stoker.settings.names import SCHEMES, read_address
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace

pytest.importorskip("fsspec", reason="needs fsspec")


class Puppet:
    """A store in memory that can break off, change while it is read, and have any facts of its files."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.reads: list[tuple[str, int, int]] = []
        self.listings = 0
        self.breaks_after: int | None = None
        self.knows_no_ranges = False
        self.on_read: Callable[[], None] = lambda: None

    def put(self, key: str, content: bytes, **facts: Any) -> None:
        self.files[key] = content
        self.facts[key] = {"ETag": f"{len(self.facts)}-{hash(content)}", "size": len(content), **facts}

    def invalidate_cache(self) -> None:
        pass

    def info(self, root: str) -> dict[str, Any]:
        if root in self.files:
            return {"type": "file", **self.facts[root]}
        if any(key.startswith(f"{root}/") for key in self.files):
            return {"type": "directory"}
        raise FileNotFoundError(root)

    def find(self, root: str, detail: bool) -> dict[str, dict[str, Any]]:
        assert detail
        self.listings += 1
        found = {key: {"type": "file", **self.facts[key]} for key in self.files if key.startswith(f"{root}/")}
        return {**found, f"{root}/marker/": {"type": "directory", "size": 0}}

    def get_file(self, key: str, place: str) -> None:
        Path(place).write_bytes(self.cat_file(key))

    def cat_file(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        if self.breaks_after is not None:
            self.breaks_after -= 1
            if self.breaks_after < 0:
                raise ConnectionError("the cable was pulled")
        content = self.files[key] if self.knows_no_ranges else self.files[key][start:end]
        self.reads.append((key, start or 0, len(content)))
        self.on_read()
        return content


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Puppet:
    puppet = Puppet()
    for module in (mirrors, remote_stores, remote_writing):
        monkeypatch.setattr(
            module, "open_store", lambda address, options=None: (puppet, address.partition("://")[2])
        )
    monkeypatch.setattr(remote_stores, "is_installed", lambda _: True)
    monkeypatch.setattr(mirrors, "_CHUNK_BYTES", 4)
    return puppet


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        (Path("s3://bucket/a/b"), "s3://bucket/a/b"),
        (Path("GS://bucket"), "gs://bucket"),
        (Path("file:///mnt/models/x.onnx"), "file:///mnt/models/x.onnx"),
        (Path("https://host/x.onnx?version=1#sha256=aa"), "https://host/x.onnx?version=1#sha256=aa"),
        ("models/s3/x", None),
        ("s3:", None),
        ("s4://bucket/x", None),
        (Path("/abs/path"), None),
    ],
)
def test_addresses_and_paths_are_distinguished(text: str | Path, address: str | None) -> None:
    """An address may be a `Path`, which has lost a slash."""
    assert read_address(text) == address


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_has_a_store(store: Puppet, tmp_path: Path, scheme: str) -> None:
    """Every address can be read."""
    store.put("bucket/m.onnx", b"x")
    assert Mirror(f"{scheme}://bucket/m.onnx", tmp_path).update()


def test_a_listing_with_a_bad_name_is_refused(store: Puppet) -> None:
    """An empty address has no names; a name that leads out is refused, else a file would seem missing."""
    assert remote_stores.list_sizes("s3://bucket/none") == {}
    store.put("bucket/m/a", b"x")
    assert remote_stores.list_sizes("s3://bucket/m") == {"a": 1}
    store.put("bucket/m/../b", b"x")
    with pytest.raises(OperatorError, match="whose name leads out of the folder"):
        remote_stores.list_sizes("s3://bucket/m")


def test_no_message_has_secrets() -> None:
    """Messages have no passwords and no signed queries."""
    assert shown_address("https://user:pass@host/x.onnx?sig=secret") == "https://host/x.onnx"
    assert shown_address("sftp://user:pass@host/x") == "sftp://host/x"
    assert shown_address("s3://bucket/x") == "s3://bucket/x"


def test_update_fetches_new_files_and_removes_deleted_ones(store: Puppet, tmp_path: Path) -> None:
    """Unchanged files are not fetched again, and empty folders, which would be versions, are removed."""
    store.put("bucket/repo/net/1/model.onnx", b"one")
    store.put("bucket/repo/net/config.pbtxt", b"configuration")
    mirror, lines = Mirror("s3://bucket/repo", tmp_path), list[str]()
    reports: list[tuple[int, int]] = []
    assert mirror.update(lines.append, lambda *of: reports.append(of))
    assert (mirror.path.name, lines) == ("repo", ["fetching 2 files (0.0 MB) of s3://bucket/repo"])
    assert reports[-1] == (16, 16)
    store.listings = 0
    assert not mirror.update(lines.append)
    assert store.listings == 1
    store.put("bucket/repo/net/2/model.onnx", b"two")
    del store.files["bucket/repo/net/1/model.onnx"]
    store.reads.clear()
    assert mirror.update()
    assert [key for key, *_ in store.reads] == ["bucket/repo/net/2/model.onnx"]
    assert sorted(path.relative_to(mirror.path).as_posix() for path in mirror.path.rglob("*")) == [
        *("net", "net/2", "net/2/model.onnx", "net/config.pbtxt"),
    ]
    # A file in the place of a folder, and the other way round.
    del store.files["bucket/repo/net/2/model.onnx"]
    store.put("bucket/repo/net/2", b"a file")
    del store.files["bucket/repo/net/config.pbtxt"]
    store.put("bucket/repo/net/config.pbtxt/x", b"below")
    assert mirror.update()
    assert (mirror.path / "net" / "2").read_bytes() == b"a file"
    assert (mirror.path / "net" / "config.pbtxt" / "x").read_bytes() == b"below"


def test_a_single_file_lies_in_a_folder_called_as_in_the_store(store: Puppet, tmp_path: Path) -> None:
    """So `digits/model.onnx` is served as digits; a digest in the address is compared."""
    store.put("bucket/digits/model.onnx", b"content")
    mirror = Mirror("s3://bucket/digits/model.onnx", tmp_path)
    mirror.update()
    assert mirror.path.parts[-2:] == ("digits", "model.onnx")
    digest = mirror.digests["model.onnx"]
    Mirror(f"s3://bucket/digits/model.onnx#sha256={digest}", tmp_path / "other").update()
    with pytest.raises(OperatorError, match=f"has the SHA-256 {digest}, and should have 0000"):
        Mirror(f"s3://bucket/digits/model.onnx#sha256={'0' * 64}", tmp_path / "third").update()
    with pytest.raises(OperatorError, match="is no digest"):
        Mirror("s3://bucket/digits/model.onnx#sha256=12", tmp_path)


def test_accounts_do_not_share_files(store: Puppet, tmp_path: Path) -> None:
    """Two accounts may have containers of one name, and one store may be away."""
    store.put("box/x", b"of the first")
    first = Mirror("az://box", tmp_path, {"account_name": "first"})
    first.update()
    store.files.clear()
    second = Mirror("az://box", tmp_path, {"account_name": "second"})
    with pytest.raises(OperatorError, match="there is nothing at az://box"):
        second.update()
    assert second.digests == {}
    assert (
        Mirror("az://box", tmp_path, {"account_name": "first"}).path / "x"
    ).read_bytes() == b"of the first"


def test_a_break_loses_no_fetched_byte(store: Puppet, tmp_path: Path) -> None:
    """The next call goes on within the file; until then the earlier files stay."""
    store.put("bucket/m/model.onnx", b"the first content")
    mirror = Mirror("s3://bucket/m", tmp_path)
    mirror.update()
    store.put("bucket/m/model.onnx", b"another, longer content")
    store.reads.clear()
    store.breaks_after = 3
    with pytest.raises(
        OperatorError, match=r"s3://bucket/m cannot be reached: the cable was pulled \(credentials: AWS"
    ):
        mirror.update()
    assert (mirror.path / "model.onnx").read_bytes() == b"the first content"
    store.breaks_after = None
    assert Mirror("s3://bucket/m", tmp_path).update()
    assert (mirror.path / "model.onnx").read_bytes() == b"another, longer content"
    assert sum(length for *_, length in store.reads) == len(b"another, longer content")


def test_files_that_change_while_they_are_fetched_are_fetched_again(store: Puppet, tmp_path: Path) -> None:
    """A mixture of two states is not used; a store that changes all the time is refused."""
    store.put("bucket/m/a", b"first first")
    writes = [b"second second", b"third third"]

    def write() -> None:
        if writes:
            store.put("bucket/m/a", writes.pop())

    store.on_read = write
    mirror = Mirror("s3://bucket/m", tmp_path)
    mirror.update()
    assert (mirror.path / "a").read_bytes() == b"second second"
    store.on_read = lambda: store.put("bucket/m/a", os.urandom(8))
    store.put("bucket/m/a", b"x")
    with pytest.raises(OperatorError, match="changes while it is fetched"):
        mirror.update()


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "a//b", "nul\0byte"])
def test_a_name_that_leads_out_is_refused(store: Puppet, tmp_path: Path, name: str) -> None:
    """It is refused before a file is fetched."""
    store.put("bucket/m/good", b"x")
    store.put(f"bucket/m/{name}", b"x")
    with pytest.raises(OperatorError, match="whose name leads out of the folder"):
        Mirror("s3://bucket/m", tmp_path).update()
    assert store.reads == []


def test_missing_remote_folder_is_refused(store: Puppet, tmp_path: Path) -> None:
    """An empty remote folder is an error, and a mirror that was never fetched has no path."""
    with pytest.raises(OperatorError, match="there is nothing at s3://bucket/none"):
        Mirror("s3://bucket/none", tmp_path).update()
    with pytest.raises(OperatorError, match="has not been fetched"):
        _ = Mirror("s3://bucket/none", tmp_path).path


def test_a_file_without_size_or_mark_is_fetched_whole_each_time(store: Puppet, tmp_path: Path) -> None:
    """Some web servers have neither; the file is replaced only by another content."""
    store.put("host/m.onnx", b"content", size=None, ETag=None)
    mirror = Mirror("https://host/m.onnx", tmp_path)
    assert mirror.update()
    before = mirror.path.stat()
    assert not mirror.update()
    assert mirror.path.stat() == before
    store.put("host/m.onnx", b"another", size=None, ETag=None)
    assert mirror.update()
    assert mirror.path.read_bytes() == b"another"
    mirror.path.unlink()
    assert mirror.update()
    assert mirror.path.read_bytes() == b"another"


def test_a_server_that_knows_no_ranges_sends_the_file_anew(store: Puppet, tmp_path: Path) -> None:
    """The fetched beginning is not kept; a length that differs from that of the store is an error."""
    store.put("host/m.onnx", b"0123456789")
    store.breaks_after = 1
    mirror = Mirror("https://host/m.onnx", tmp_path)
    with pytest.raises(OperatorError, match="the cable was pulled"):
        mirror.update()
    store.breaks_after, store.knows_no_ranges = None, True
    mirror.update()
    assert mirror.path.read_bytes() == b"0123456789"
    store.put("host/m.onnx", b"another content", size=14)
    with pytest.raises(OperatorError, match="has 15 bytes, and its store says 14"):
        mirror.update()
    assert mirror.path.read_bytes() == b"0123456789"


def test_a_file_that_was_only_touched_is_fetched_once(store: Puppet, tmp_path: Path) -> None:
    """Its new mark is recorded, and the file stays in its place."""
    store.put("bucket/m/x", b"content")
    mirror = Mirror("s3://bucket/m", tmp_path)
    mirror.update()
    before = (mirror.path / "x").stat()
    store.put("bucket/m/x", b"content", ETag="another")
    assert not mirror.update()
    reads = len(store.reads)
    assert not mirror.update()
    assert ((mirror.path / "x").stat(), len(store.reads)) == (before, reads)


def test_errors_of_a_store_have_no_secrets(
    store: Puppet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages for the web name the whole address."""
    url = "https://me:pass@word@host/m.onnx?sig=se/cret&se=1"

    def refuse() -> None:
        raise ConnectionError(f"403, message='Forbidden', url='{url}'")

    def hide(_: str) -> dict[str, Any]:
        try:
            refuse()
        except ConnectionError as error:
            raise FileNotFoundError(url) from error
        raise AssertionError("it was refused")

    store.put(url.partition("://")[2], b"content")
    store.on_read = refuse
    with pytest.raises(OperatorError, match=r"403, message='Forbidden', url='https://host/m.onnx'") as caught:
        Mirror(url, tmp_path).update()
    shown = str(caught.value)
    monkeypatch.setattr(store, "info", hide)
    with pytest.raises(
        OperatorError, match=r"nothing at https://host/m.onnx: 403, message='Forbidden'"
    ) as caught:
        Mirror(url, tmp_path).update()
    shown += str(caught.value)
    assert not any(secret in shown for secret in ("me:", "word", "cret", "sig="))


def test_a_failure_ends_the_fetching_of_other_files(
    store: Puppet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have gigabytes left; their fetched parts are kept."""
    store.put("bucket/m/poor", b"y" * 4)
    store.put("bucket/m/good", b"x" * 400)
    begun, ended = threading.Event(), threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            ended.set()
            super().shutdown(wait, cancel_futures=cancel_futures)

    def read(key: str, start: int, end: int) -> bytes:
        store.reads.append((key, start, end))
        if key.endswith("good"):
            begun.set()
            assert ended.wait(10)
            return store.files[key][start:end]
        assert begun.wait(10)
        raise ConnectionError("the cable was pulled")

    monkeypatch.setattr(mirrors, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(store, "cat_file", read)
    with pytest.raises(OperatorError, match="the cable was pulled"):
        Mirror("s3://bucket/m", tmp_path).update()
    assert len([key for key, _, _ in store.reads if key.endswith("good")]) == 1


def test_unchanged_remote_files_need_no_room(
    store: Puppet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only new files need room on the disk."""
    store.put("bucket/m/large", b"x" * 100)
    mirror = Mirror("s3://bucket/m", tmp_path)
    mirror.update()
    store.put("bucket/m/small", b"x")
    monkeypatch.setattr(mirrors.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    assert mirror.update()
    store.put("bucket/m/more", b"x" * 11)
    with pytest.raises(OperatorError, match="make room"):
        mirror.update()


def test_a_mirror_that_is_removed_before_it_is_held_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Puppet
) -> None:
    """The lock of a removed file protects no mirror."""
    del store
    mirror = Mirror("s3://bucket/m", tmp_path)
    lock_file, calls = mirrors.lock_file, []

    def lock_late(path: Path, **how: Any) -> int:
        calls.append(path)
        descriptor = lock_file(path, **how)
        if len(calls) == 1:
            shutil.rmtree(path.parent)
        return descriptor

    monkeypatch.setattr(mirrors, "lock_file", lock_late)
    held = mirror.hold()
    with pytest.raises(BlockingIOError):
        lock_file(calls[-1], wait=False)
    os.close(held)
    assert len(calls) == 2


def test_the_models_of_one_server_do_not_displace_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the cache is too small for all, that is an error; the first is not removed."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(bytes(1000))
    config = tmp_path / "deployment.yaml"
    config.write_text(
        "models:\n" + "".join(f"  - {{path: file://{tmp_path}/{name}, name: {name}}}\n" for name in "ab")
    )
    monkeypatch.setenv(CACHE_VARIABLE, str(1500 / 1e9))
    settings = load_settings({}, {}, config, ())
    with ExitStack() as leases, pytest.raises(OperatorError, match=r"/b takes .* make room"):
        fetch_models(settings, Workspace(tmp_path / "workspace"), lambda _: None, leases)


@pytest.mark.parametrize(("limit_bytes", "left"), [(14_000, "acd"), (9_500, "ad")])
def test_the_cache_removes_the_least_recently_used_mirror(
    store: Puppet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_bytes: int, left: str
) -> None:
    """Mirrors in use, such as the oldest one here, stay; files that never fit are refused with both numbers."""
    monkeypatch.setattr(mirrors, "_CHUNK_BYTES", 4000)
    for name in "abcd":
        store.put(f"bucket/{name}/x", name.encode() * 4000)
    made = {name: Mirror(f"s3://bucket/{name}", tmp_path) for name in "abcd"}
    leases = []
    for age_s, name in ((300, "a"), (200, "b"), (100, "c")):
        made[name].update()
        leases.append(made[name].hold())
        os.utime(leases[-1], (1e9 - age_s, 1e9 - age_s))
    os.close(leases.pop())
    os.close(leases.pop())
    monkeypatch.setenv(CACHE_VARIABLE, str(limit_bytes / 1e9))
    made["d"].update()
    assert [name for name in "abcd" if made[name].digests] == list(left)
    store.put("bucket/e/x", bytes(40_000))
    with pytest.raises(OperatorError, match=rf"s3://bucket/e takes 0.0 GB.*allow more by {CACHE_VARIABLE}"):
        Mirror("s3://bucket/e", tmp_path).update()
    os.close(leases.pop())
    monkeypatch.setenv(CACHE_VARIABLE, "much")
    with pytest.raises(OperatorError, match="has to be a number of GB"):
        Mirror("s3://bucket/e", tmp_path).update()


def test_another_process_may_make_room_at_any_moment(
    store: Puppet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror that has to go is gone, whoever removes it."""
    store.put("bucket/old/x", bytes(4000))
    monkeypatch.setenv(CACHE_VARIABLE, str(7000 / 1e9))

    def make_room(name: str, cache: Path) -> None:
        Mirror(f"s3://bucket/{name}", cache)._make_room(4000, 4000)

    def make_room_too(cache: Path) -> None:
        # While it is being removed the other one finds no room.
        with contextlib.suppress(OperatorError):
            make_room("other", cache)

    for moment, interrupted in enumerate(moments()):
        old = Mirror("s3://bucket/old", tmp_path / str(moment))
        old.update()
        with interrupted(partial(make_room_too, tmp_path / str(moment))):
            make_room("own", tmp_path / str(moment))
        assert not old.digests
    assert moment > 10


def test_packages_that_are_not_installed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs them."""
    monkeypatch.setattr(remote_stores, "is_installed", lambda package: package != "s3fs")
    with pytest.raises(OperatorError, match=r"is read by the extra s3, which is not installed; .*s3fs"):
        Mirror("s3://bucket/x", tmp_path)


def test_sent_files_can_be_fetched(tmp_path: Path) -> None:
    """Files are sent in their order, here to fsspec's own local files."""
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a").write_bytes(b"a")
    (source / "b").write_bytes(b"bb")
    reports: list[tuple[int, int]] = []
    target = f"file://{tmp_path}/target/m"
    send(
        {"deep/a": source / "deep" / "a", "b": source / "b"}, target, progress=lambda *of: reports.append(of)
    )
    assert reports == [(1, 3), (3, 3)]
    mirror = Mirror(target, tmp_path / "cache")
    assert mirror.update()
    assert (mirror.path / "deep" / "a").read_bytes() == b"a"
    with pytest.raises(FileNotFoundError):
        send({"b": tmp_path / "none"}, target)


def test_settings_with_addresses_become_paths(tmp_path: Path) -> None:
    """Addresses of the command line and of a file become paths; relative paths of the file stay relative to it."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "model.onnx").write_bytes(b"x")
    workspace = Workspace(tmp_path / "workspace")
    config = tmp_path / "deployment.yaml"
    address = f"file://{tmp_path}/there/model.onnx"
    config.write_text(f"models:\n  - path: {address}\n  - path: there/model.onnx\n    name: near\n")
    settings = load_settings({}, {}, config, ())
    lines: list[str] = []
    with ExitStack() as leases:
        found, fetched = fetch_models(settings, workspace, lines.append, leases)
    assert [model.path for model in found.models] == [fetched[0].path, tmp_path / "there" / "model.onnx"]
    assert fetched[0].path.parts[-2:] == ("there", "model.onnx")
    assert len(lines) == 1
    alone = dataclasses.replace(settings, models=settings.models[1:])
    with ExitStack() as leases:
        assert fetch_models(alone, workspace, lines.append, leases) == (alone, [])


def test_a_script_comes_with_the_files_beside_it(tmp_path: Path) -> None:
    """A model comes alone."""
    (tmp_path / "there").mkdir()
    for name in ("score.py", "helper.py", "model.onnx"):
        (tmp_path / "there" / name).write_text("")
    for name, files in (("score.py", 3), ("model.onnx", 1)):
        settings = ServerSettings(models=(ModelSettings(path=Path(f"file://{tmp_path}/there/{name}")),))
        with ExitStack() as leases:
            found, (mirror,) = fetch_models(settings, Workspace(tmp_path / "home"), lambda _: None, leases)
        assert found.models[0].path is not None
        assert (found.models[0].path.name, len(mirror.digests)) == (name, files)


def test_a_store_that_is_away_leaves_the_files_of_the_last_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A restart does not depend on the store; other commands, and new addresses, get the error."""
    (tmp_path / "m.onnx").write_bytes(b"x")
    workspace = Workspace(tmp_path / "workspace")
    address = Path(f"file://{tmp_path}/m.onnx")
    path, _ = fetch_path(address, workspace)
    (tmp_path / "m.onnx").unlink()
    settings = ServerSettings(models=(ModelSettings(path=address),))
    with ExitStack() as leases:
        found, _ = fetch_models(settings, workspace, lambda _: None, leases)
    assert found.models[0].path == path
    assert "the files of the last time are used" in caplog.text
    with pytest.raises(OperatorError, match="there is nothing at"):
        fetch_path(address, workspace)
    with pytest.raises(OperatorError, match="there is nothing at"):
        fetch_path(Path(f"file://{tmp_path}/other.onnx"), workspace, earlier_too=True)


@pytest.mark.parametrize("silent", ["info", "open"])
@pytest.mark.parametrize("action", ["update", "list", "send"])
def test_store_that_does_not_answer_is_an_error_after_a_limit(
    store: Puppet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, silent: str
) -> None:
    """Fetching, listing and sending do not wait for the retries of a package."""
    ended = threading.Event()

    def wait(*_: object) -> Any:
        ended.wait()
        raise ConnectionError("the package has given up")

    monkeypatch.setattr(remote_stores, "_CONTACT_S", 0.01)
    if silent == "info":
        monkeypatch.setattr(store, "info", wait)
    else:
        for module in (mirrors, remote_stores, remote_writing):
            monkeypatch.setattr(module, "open_store", wait)
    (tmp_path / "file").write_bytes(b"x")
    address = "s3://bucket/m"
    actions: dict[str, Callable[[], object]] = {
        "update": Mirror(address, tmp_path / "cache").update,
        "list": lambda: remote_stores.list_sizes(address),
        "send": lambda: send({"file": tmp_path / "file"}, address),
    }
    with pytest.raises(
        OperatorError, match=r"s3://bucket/m cannot be reached: it does not answer within 0\.01 s"
    ):
        actions[action]()
    ended.set()


@pytest.mark.parametrize(
    ("refusal", "is_sent"),
    [
        (FileNotFoundError("x"), True),
        (PermissionError("x"), True),
        (OSError("Forbidden: bucket"), True),
        (ConnectionError("refused"), False),
    ],
)
def test_account_that_may_only_write_sends_its_files(
    store: Puppet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: OSError, is_sent: bool
) -> None:
    """A store that refuses the first request is reached; one that does not answer is an error."""

    def refuse(_: str) -> None:
        raise refusal

    monkeypatch.setattr(store, "info", refuse)
    sent: list[str] = []
    monkeypatch.setattr(store, "put_file", lambda _, key: sent.append(key), raising=False)
    monkeypatch.setattr(store, "makedirs", lambda *_, **__: None, raising=False)
    (tmp_path / "x.onnx").write_bytes(b"x")
    with contextlib.nullcontext() if is_sent else pytest.raises(OperatorError, match="refused"):
        remote_writing.open_for_writing("gs://bucket")("x.onnx", tmp_path / "x.onnx")
    assert sent == (["bucket/x.onnx"] if is_sent else [])
