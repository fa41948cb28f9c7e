"""Sending files to a store, and fetching them: existing files are skipped, and all files are verified."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from stoker.errors import CorruptModel, OperatorError
from stoker_cluster.store import (
    LENGTH_HEADER,
    OFFSET_HEADER,
    PREFIX,
    StoredFile,
    digest_of,
    digest_of_content,
    listed,
    read_tree,
    split_address,
    tree_text,
)
from stoker_run.trees import Tree, remove_tree

_ANSWER_S: Final = 60.0
_PAUSE_S: Final = 1.0
_BLOCK_BYTES: Final = 1 << 20
_INCOMING: Final = ".incoming"
_STAGED: Final = "staged"
_COPY: Final = "copy"
_SHARED_MODE: Final = 0o777
"""Of folders, less what the umask takes: a server of another user may read them."""
_TREE_BYTES: Final = 16 << 20


def push(paths: Sequence[str], base: Path, store: str, say: Callable[[str], object]) -> str:
    """Bring files to a store, as a tree; returns the address of the tree.

    Args:
        paths: Files and folders, relative to `base`.
        base: The folder that becomes the root of the tree.
        store: The store, `http://HOST:PORT`.
        say: Called with a line for each sent file.
    """
    files = listed(paths, base)
    store = store.rstrip("/")
    for path, file in files:
        if _send(f"{store}/{file.digest}", partial(_opened, path), file.size_bytes):
            say(f"sent {file.path}")
    text = tree_text(file for _, file in files)
    digest = PREFIX + hashlib.sha256(text).hexdigest()
    _send(f"{store}/{digest}", partial(io.BytesIO, text), len(text))
    return f"{store}/{digest}"


def _opened(path: Path) -> IO[bytes]:
    return path.open("rb")


def _send(address: str, open_file: Callable[[], IO[bytes]], size_bytes: int) -> bool:
    """Send the missing part of a file to a store; returns whether anything was missing."""
    headers = {LENGTH_HEADER: str(size_bytes)}
    status, answer, _ = _ask(address, "HEAD", headers=headers)
    if status == HTTPStatus.OK:
        return False
    if status == HTTPStatus.INSUFFICIENT_STORAGE:
        # Said now: who refuses a body that is being sent has to break the connection.
        raise OperatorError(
            "the store is full; delete files that no service needs, or give it more by --max-gb"
        )
    with open_file() as file:
        offset = int(answer.get(OFFSET_HEADER, 0))
        file.seek(offset)
        headers |= {OFFSET_HEADER: str(offset), "Content-Length": str(size_bytes - offset)}
        status, _, answer = _ask(address, "PATCH", file, headers)
    if status not in (HTTPStatus.OK, HTTPStatus.CREATED):
        raise OperatorError(f"the store refuses {address}: {answer}")
    return True


def _ask(
    address: str, method: str, body: IO[bytes] | None = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, str]:
    request = urllib.request.Request(address, body, headers or {}, method=method)  # noqa: S310  # http or https
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310  # the same
            return answer.status, answer.headers, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read(1000).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        raise OperatorError(
            f"the store does not answer: {address}: {error}; push again, the rest is sent then"
        ) from None


def fetch(
    address: str, folder: Path, say: Callable[[str], object], patience_s: float = 120.0
) -> list[StoredFile]:
    """Fetch a tree of files into a folder; returns the files. Files that are present and correct are skipped.

    Args:
        address: Where the tree is, as `push` returns it.
        folder: The folder; other files in it stay.
        say: Called with a line for each fetched file.
        patience_s: How long to retry if the store does not answer.

    Raises:
        CorruptModel: What the store has is not what its name says.
        OperatorError: It has no such tree, or does not answer.
    """
    base, digest = split_address(address)
    incoming = folder / _INCOMING
    incoming.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + patience_s
    tree = incoming / digest
    try:
        _get(f"{base}/{digest}", tree, StoredFile(digest, digest, _TREE_BYTES), deadline_s)
        files = read_tree(tree.read_bytes())
    finally:
        tree.unlink(missing_ok=True)
    if any(PurePosixPath(file.path).parts[0] == _INCOMING for file in files):
        raise CorruptModel(f"{address} names files in {_INCOMING}, where files are on their way")
    there = Tree(folder)
    missing = [file for file in files if not _is_right(there, file)]
    for file in missing:
        # By their digests, so that what has come before a break is found whatever another tree calls it.
        kept = incoming / file.digest
        if not kept.is_file() or digest_of(kept) != file.digest:
            _get(f"{base}/{file.digest}", kept, file, deadline_s)
            say(f"got {file.path}")
    try:
        _bring_in(missing, incoming, there)
    except OSError as error:
        raise OperatorError(
            f"the files of {address} cannot be put into {folder}: {error.filename}: {error.strerror}; "
            "remove what is in their way"
        ) from error
    remove_tree(incoming)
    return files


def _is_right(tree: Tree, file: StoredFile) -> bool:
    if tree.size_bytes(file.path) != file.size_bytes:
        return False
    with os.fdopen(tree.open(file.path, os.O_RDONLY), "rb") as content:
        return digest_of_content(content) == file.digest


def _bring_in(files: Sequence[StoredFile], incoming: Path, there: Tree) -> None:
    """Move files to their places, each with all of the outermost folder that is new: nobody sees a part of that."""
    staged = incoming / _STAGED
    remove_tree(staged)
    staged.mkdir()
    made = Tree(staged)
    left = Counter(file.digest for file in files)
    for file in files:
        made.make_parents(file.path, _SHARED_MODE)
        left[file.digest] -= 1
        if left[file.digest]:
            shutil.copyfile(incoming / file.digest, incoming / _COPY)
        made_of = _COPY if left[file.digest] else file.digest
        Tree(incoming).move(made_of, made, file.path)
    for file in files:
        parts = PurePosixPath(file.path).parts
        outer = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        moved = next((name for name in outer if not there.exists(name)), file.path)
        if made.exists(moved):
            made.move(moved, there, moved)


def follow(
    file: Path, folder: Path, say: Callable[[str], object], stop: threading.Event, look_s: float = 2.0
) -> None:
    """Fetch whatever tree a file names, each time that it names another one, until `stop` is set.

    What was there stays, so that a server may serve an old version while it loads the new one.

    Args:
        file: Has the address of a tree, as `push` returns it.
        say: Called with a line for each fetched file and each problem.
        stop: Ends it.
        look_s: The interval at which the file is read.
    """
    there, trouble = "", ""
    while True:
        try:
            address = file.read_text(encoding="utf-8").strip()
            if address != there:
                fetch(address, folder, say, patience_s=0.0)
                there, trouble = address, ""
        except (OperatorError, OSError) as error:
            if trouble != str(error):
                say(f"{error}; the files of before stay")
            trouble = str(error)
        if stop.wait(look_s):
            return


def _get(address: str, target: Path, file: StoredFile, deadline_s: float) -> None:
    """Fetch one file, continuing a partial one; it appears once it is complete."""
    part = target.with_name(f".{target.name}.part")
    while True:
        try:
            _receive(address, part, file.size_bytes)
            break
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < HTTPStatus.INTERNAL_SERVER_ERROR or time.monotonic() > deadline_s:
                raise OperatorError(f"the store has no {address}: it answers {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > deadline_s:
                raise OperatorError(f"the store does not answer: {address}: {error}") from None
        time.sleep(_PAUSE_S)
    if digest_of(part) != file.digest:
        part.unlink()
        raise CorruptModel(f"{address} is not what its name says; somebody has changed it")
    part.replace(target)


def _receive(address: str, part: Path, most_bytes: int) -> None:
    there = part.stat().st_size if part.exists() else 0
    if there:
        with part.open("ab") as file:
            file.truncate(min(there, most_bytes))
        there = min(there, most_bytes)
    headers = {"Range": f"bytes={there}-"} if there else {}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310  # http or https
    try:
        answer = urllib.request.urlopen(request, timeout=_ANSWER_S)  # noqa: S310  # the same
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # The file has arrived completely.
            error.close()
            return
        raise
    goes_on = answer.status == HTTPStatus.PARTIAL_CONTENT
    with answer, part.open("ab" if goes_on else "wb") as file:
        size_bytes, first = (there, there) if goes_on else (0, 0)
        while block := answer.read(_BLOCK_BYTES):
            size_bytes += len(block)
            if size_bytes > most_bytes:
                raise CorruptModel(f"{address} is larger than it should be")
            file.write(block)
    expected = answer.headers.get("Content-Length")
    if expected is not None and size_bytes - first < int(expected):
        raise OSError("the connection ended before the file")
