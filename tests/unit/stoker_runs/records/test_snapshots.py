"""Snapshots: the choice of files, stored once by content, and the size limit."""

import os
from pathlib import Path

import pytest

from stoker.system.durable import Copied
from stoker_base.trees import remove_tree
from stoker_runs.errors import SubmissionRefused
from stoker_runs.records import snapshots
from stoker_runs.records.snapshots import Snapshot, SnapshotStore, source_files


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def settle(folder: Path) -> None:
    """Make files as old as those that nobody has just written."""
    for path in folder.rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))


def names(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write(folder, **{"train.py": "print(1)", "lib__tool.py": "x = 1", "data__big.bin": "0" * 1000})
    return folder


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "workspace" / "snapshots")


def test_amlignore_wins_over_gitignore(source: Path, store: SnapshotStore) -> None:
    """Git's patterns say what stays away; with an .amlignore the .gitignore says nothing."""
    (source / ".gitignore").write_text("data/\n*.py\n!train.py\n")
    with_git = store.path(store.take(source).digest)
    assert names(with_git) == {".gitignore", "train.py"}
    (source / ".amlignore").write_text("/lib\n")
    with_aml = store.path(store.take(source).digest)
    assert names(with_aml) == {".gitignore", ".amlignore", "train.py", "data/big.bin"}


def test_snapshot_leaves_out_files_of_runs_and_tools(source: Path, store: SnapshotStore) -> None:
    """Outputs, logs, git's folder, caches and the workspace are left out."""
    write(
        source, **{"outputs__m.pkl": "m", "logs__a": "a", ".git__HEAD": "x", "lib____pycache____x.pyc": "x"}
    )
    (source / "lib" / "__pycache__").mkdir()
    (source / "lib" / "__pycache__" / "tool.pyc").write_text("x")
    inside = SnapshotStore(source / "my-workspace" / "snapshots")
    digest = inside.take(source).digest
    assert inside.take(source).digest == digest
    assert {"train.py", "lib/tool.py", "data/big.bin"} <= names(inside.path(digest))
    assert not any(
        name.startswith(("outputs", "logs", ".git", "my-workspace")) for name in names(inside.path(digest))
    )
    assert not any("__pycache__" in name for name in names(inside.path(digest)))


def test_unchanged_files_add_nothing_to_a_snapshot(source: Path, store: SnapshotStore) -> None:
    """A snapshot stores only the files that have changed since an earlier one."""
    first = store.take(source)
    assert (first.files, first.added_bytes) == (3, first.size_bytes)
    again = store.take(source)
    assert (again.digest, again.added_bytes) == (first.digest, 0)
    write(source, **{"train.py": "print(22)"})
    changed = store.take(source)
    assert changed.digest != first.digest
    assert changed.added_bytes == len("print(22)")
    assert (store.path(first.digest) / "train.py").read_text() == "print(1)"
    both = [store.path(one.digest) / "data" / "big.bin" for one in (first, changed)]
    assert both[0].samefile(both[1])


def test_unchanged_files_are_not_read_again(
    source: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Size, time and inode show that a file is the same; one that was just written is read all the same."""
    monkeypatch.setattr("stoker_runs.records.snapshots._SETTLED_NS", -(10**18))
    first = store.take(source)
    monkeypatch.setattr(SnapshotStore, "_keep", lambda *_: pytest.fail("a file was read"))
    assert store.take(source).digest == first.digest


def test_a_file_that_was_just_written_is_read_again(source: Path, store: SnapshotStore) -> None:
    """Its time could be the same after another change, so that its digest is not remembered."""
    store.take(source)
    train = source / "train.py"
    facts = train.stat()
    train.write_text("print(2)")
    os.utime(train, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert (store.path(store.take(source).digest) / "train.py").read_text() == "print(2)"


def test_an_emptied_content_is_kept_anew(source: Path, store: SnapshotStore) -> None:
    """A power cut may leave an empty file under a digest: it is replaced, not linked."""
    settle(source)
    digest = store.take(source).digest
    kept = store.path(digest) / "train.py"
    (content,) = (
        path for path in (store.folder / ".files").rglob("*") if path.is_file() and path.samefile(kept)
    )
    content.unlink()
    content.touch()
    write(source, **{"more.py": "2"})
    assert (store.path(store.take(source).digest) / "train.py").read_text() == "print(1)"


def test_a_copy_to_work_in_is_the_scripts_own(source: Path, store: SnapshotStore, tmp_path: Path) -> None:
    """It may be written to, keeps what may be executed, and changes nothing of the snapshot."""
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    digest = store.take(source).digest
    work = tmp_path / "work"
    store.restore(digest, work)
    assert os.access(work / "run.sh", os.X_OK)
    assert not (work / "train.py").stat().st_mode & 0o111
    (work / "train.py").write_text("changed")
    assert (store.path(digest) / "train.py").read_text() == "print(1)"
    with pytest.raises(SubmissionRefused, match="submit the script again"):
        store.restore("0" * 32, tmp_path / "elsewhere")


def test_oversized_source_is_refused_with_its_largest_files(source: Path, store: SnapshotStore) -> None:
    """The error names the ten largest files and what to exclude, and nothing is stored."""
    for number in range(12):
        write(source, **{f"data__{number}.bin": "x" * (2000 + number)})
    with pytest.raises(SubmissionRefused) as refused:
        store.take(source, limit_bytes=5000)
    lines = str(refused.value).splitlines()
    assert [line.split()[-1] for line in lines[1:11]] == [f"data/{number}.bin" for number in range(11, 1, -1)]
    assert "/data/11.bin" in lines[11]
    assert ".amlignore" in lines[11]
    assert not store.folder.exists()


def test_snapshot_has_linked_files_but_no_linked_folders_or_pipes(
    source: Path, store: SnapshotStore, tmp_path: Path
) -> None:
    """A link to a file is its content; one to a folder, and a pipe, are passed over and named."""
    write(tmp_path, **{"elsewhere__secret.txt": "s", "one.txt": "one"})
    (source / "one.txt").symlink_to(tmp_path / "one.txt")
    (source / "away").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(source / "pipe")
    snapshot = store.take(source)
    assert set(snapshot.skipped) == {"away", "pipe"}
    assert (store.path(snapshot.digest) / "one.txt").read_text() == "one"
    assert not (store.path(snapshot.digest) / "one.txt").is_symlink()


@pytest.mark.parametrize("name", [".amlignore", ".gitignore"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "huge"])
def test_patterns_are_read_from_a_file_of_their_size_alone(
    source: Path, store: SnapshotStore, name: str, kind: str
) -> None:
    """Nothing is waited for, or read without end; the file is named."""
    match kind:
        case "pipe":
            os.mkfifo(source / name)
        case "folder":
            (source / name).mkdir()
        case "device":
            (source / name).symlink_to("/dev/zero")
        case "huge":
            (source / name).touch()
            os.truncate(source / name, 1 << 40)
    with pytest.raises(SubmissionRefused, match=rf"\{name} cannot be read: "):
        store.take(source)


@pytest.mark.parametrize("change", ["grows", "becomes a pipe"])
def test_a_file_that_changes_during_the_snapshot_is_reported(
    source: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The content that was read is kept, but read again the next time; a file that becomes a pipe is refused."""
    (source / "grows.log").write_text("one line\n")
    settle(source)
    copy = snapshots.copy_regular

    def changing(path: Path, staged: Path, **rest: bool) -> Copied:
        if path.name == "grows.log":
            if change == "grows":
                path.write_text("one line\nand one more\n")
                os.utime(path, (1_700_000_000, 1_700_000_000))
            else:
                path.unlink()
                os.mkfifo(path)
        return copy(path, staged, **rest)

    monkeypatch.setattr(snapshots, "copy_regular", changing)
    if change == "becomes a pipe":
        with pytest.raises(SubmissionRefused, match=r"grows.log cannot be kept: it is no regular file"):
            store.take(source)
        return
    first = store.take(source)
    assert first.changed == ("grows.log",)
    assert "and one more" in (store.path(first.digest) / "grows.log").read_text()
    monkeypatch.setattr(snapshots, "copy_regular", copy)
    assert store.take(source).changed == ()
    assert [path.name for path in (store.folder / ".staging").iterdir()] == [".lock"]


def test_another_process_may_take_the_same_snapshot_meanwhile(
    source: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is there first is kept."""
    taken: list[Snapshot] = []
    link = Path.hardlink_to

    def link_later(path: Path, content: Path) -> None:
        monkeypatch.undo()
        taken.append(store.take(source))
        link(path, content)

    monkeypatch.setattr(Path, "hardlink_to", link_later)
    assert store.take(source).digest == taken[0].digest
    assert names(store.path(taken[0].digest)) == {"train.py", "lib/tool.py", "data/big.bin"}
    assert [path.name for path in (store.folder / ".staging").iterdir()] == [".lock"]


def test_folders_without_end_are_refused(source: Path, store: SnapshotStore) -> None:
    """In one sentence that says what to do."""
    folder = os.open(source, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    with pytest.raises(SubmissionRefused, match=r"more than 200 folders deep; name it in \.amlignore"):
        store.take(source)
    (source / ".amlignore").write_text("/d\n")
    assert store.take(source).files == 4
    remove_tree(source)


def test_odd_names_are_kept(source: Path, store: SnapshotStore) -> None:
    """Newlines and bytes that are no UTF-8 are names like others."""
    (source / "a\nb").write_text("1")
    (source / os.fsdecode(b"\xff.bin")).write_text("2")
    tree = store.path(store.take(source).digest)
    assert (tree / "a\nb").read_text() == "1"
    assert (tree / os.fsdecode(b"\xff.bin")).read_text() == "2"


def test_virtual_environments_are_left_out(tmp_path: Path) -> None:
    """One often lies beside the script, has hundreds of MB, and works on this machine alone."""
    (tmp_path / "my-venv" / "lib").mkdir(parents=True)
    (tmp_path / "my-venv" / "pyvenv.cfg").touch()
    (tmp_path / "my-venv" / "lib" / "module.py").touch()
    (tmp_path / "train.py").touch()
    assert [file.name for file in source_files(tmp_path)] == ["train.py"]
