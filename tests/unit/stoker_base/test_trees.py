"""Folders that are filled by names which others chose."""

import os
import resource
from pathlib import Path

import pytest

from stoker_base.trees import Tree, remove_tree

CREATE = os.O_WRONLY | os.O_CREAT


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A folder that has a folder `in`, and a link `out` to one beside it."""
    (tmp_path / "root" / "in").mkdir(parents=True)
    (tmp_path / "beside").mkdir()
    (tmp_path / "root" / "out").symlink_to(tmp_path / "beside")
    return Tree(tmp_path / "root")


@pytest.mark.parametrize("name", ["", "/", ".", "/etc/x", "..", "in/../../x", "in/\0"])
def test_names_that_lead_out_are_refused(tree: Tree, name: str) -> None:
    """Absolute ones, those with two dots, and those that name nothing."""
    with pytest.raises(ValueError, match="leads out of its folder"):
        tree.make_folder(name)


def test_no_action_goes_through_a_link(tree: Tree) -> None:
    """Each action below a link fails with the whole path, and nothing is written where the link leads."""
    Tree(tree.root).make_link("in/source", "anything")
    for action in (
        lambda: tree.make_folder("out/new"),
        lambda: tree.make_parents("out/new/deep/x"),
        lambda: tree.make_link("out/new", "target"),
        lambda: tree.open("out/new", CREATE),
        lambda: tree.remove("out/new"),
        lambda: tree.move("in/source", tree, "out/new"),
    ):
        with pytest.raises(NotADirectoryError) as caught:
            action()
        assert str(caught.value.filename).startswith(str(tree.root / "out"))
    assert list((tree.root.parent / "beside").iterdir()) == []
    assert (tree.size_bytes("out/new"), tree.is_folder("out"), tree.exists("out")) == (None, False, True)


def test_only_regular_files_are_opened(tree: Tree) -> None:
    """A link is not followed, and a FIFO is not waited for."""
    os.mkfifo(tree.root / "fifo")
    for name in ("out", "fifo", "in"):
        with pytest.raises(OSError, match=r"symbolic links|no regular file|directory|No such device"):
            tree.open(name, os.O_WRONLY)
    os.close(tree.open("in/file", CREATE | os.O_EXCL))
    assert tree.size_bytes("in/file") == 0


def test_taken_name_is_refused_for_a_new_entry(tree: Tree) -> None:
    """A folder or link is refused if its name is taken."""
    for name in ("in", "out"):
        with pytest.raises(FileExistsError):
            tree.make_folder(name)
        with pytest.raises(FileExistsError):
            tree.make_link(name, "elsewhere")


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    """Neither the stack, nor the descriptors of the process, nor the longest path bounds its depth."""
    depth = 3000
    assert depth > resource.getrlimit(resource.RLIMIT_NOFILE)[0] or depth * 2 > os.pathconf(
        "/", "PC_PATH_MAX"
    )
    top = tmp_path / "top"
    top.mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    folder = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=folder)
        os.symlink(tmp_path / "kept", "link", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    remove_tree(top)
    remove_tree(top)
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


def test_a_link_to_a_tree_is_removed_alone(tree: Tree) -> None:
    """The tree that it leads to stays."""
    (tree.root.parent / "beside" / "file").touch()
    remove_tree(tree.root / "out")
    assert (tree.root.parent / "beside" / "file").exists()
    assert not tree.exists("out")


def test_failed_removal_is_reported_after_the_rest_is_removed(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the folder; with `ignore_errors` there is none."""
    (tree.root / "in" / "stays").touch()
    (tree.root / "in" / "goes").touch()
    unlink = os.unlink

    def refusing(name: str, **rest: int) -> None:
        if name == "stays":
            raise PermissionError(13, "Permission denied")
        unlink(name, **rest)

    monkeypatch.setattr(os, "unlink", refusing)
    with pytest.raises(PermissionError) as caught:
        remove_tree(tree.root)
    assert caught.value.filename == str(tree.root)
    assert [path.name for path in tree.root.rglob("*")] == ["in", "stays"]
    remove_tree(tree.root, ignore_errors=True)
