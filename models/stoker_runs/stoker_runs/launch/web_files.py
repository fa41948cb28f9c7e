"""Files of the web as data of runs: fetched once, asked about each time, and told apart when they have changed.

WORKSPACE/stores/.web/DIGEST/NAME    the file
WORKSPACE/stores/.web/DIGEST.json    what its server has said of it
WORKSPACE/stores/.web/together/DIGEST/HOST/PATH    several files that are one input
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from stoker.environments.installers import masked
from stoker.errors import SubmissionRefused
from stoker.names import name_from_file
from stoker.system.durable import locked, private_folder, replace_file
from stoker.workspace import Workspace
from stoker_runs.launch.stores import stores_dir

__all__ = ["fetched", "fetched_together"]

_TIMEOUT_S: Final = 60.0
_UNCHANGED: Final = 304
_KEPT_HEADERS: Final = {"ETag": "If-None-Match", "Last-Modified": "If-Modified-Since"}


def fetched_together(addresses: Sequence[str], workspace: Workspace, say: Callable[[str], None]) -> Path:
    """Return the file of the only address, or a folder with the files of all, each below its host and path.

    Args:
        addresses: `http://…` or `https://…` each.
        workspace: Where they are kept.
        say: As of `fetched`.

    Raises:
        SubmissionRefused: One cannot be had, and was not before; or two would be one file.
    """
    files = {address: fetched(address, workspace, say) for address in addresses}
    if len(files) == 1:
        return next(iter(files.values()))
    names: dict[Path, str] = {}
    for address, file in files.items():
        parts = urlsplit(address)
        place = Path(
            name_from_file(parts.netloc), *map(name_from_file, PurePosixPath(parts.path).parts[1:-1])
        )
        if (other := names.setdefault(place / file.name, address)) != address:
            raise SubmissionRefused(
                f"{other} and {address} would be one file of a folder; make a data set of each"
            )
    key = hashlib.sha256("\n".join(sorted(addresses)).encode()).hexdigest()[:16]
    together = private_folder(stores_dir(workspace) / ".web" / "together")
    folder = together / key
    with locked(together / f".{key}.lock"):
        for name, address in names.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            staged = (folder / name).with_name(f".{name.name}.part")
            staged.unlink(missing_ok=True)
            os.link(files[address], staged)
            # Of two names of one file rename takes none away.
            staged.replace(folder / name)
            staged.unlink(missing_ok=True)
    return folder


def fetched(address: str, workspace: Workspace, say: Callable[[str], None]) -> Path:
    """Return the file of an address, fetched unless what is there is still the same.

    Args:
        address: `http://…` or `https://…`.
        workspace: Where it is kept.
        say: Is told when it is fetched, when it has changed since the last time, and when its server does not answer.

    Raises:
        SubmissionRefused: It cannot be had, and was not before.
    """
    folder = private_folder(stores_dir(workspace.create()) / ".web")
    key = hashlib.sha256(address.encode()).hexdigest()[:16]
    shown = masked(address)
    name = name_from_file(unquote(PurePosixPath(urlsplit(address).path).name) or "file")
    file, facts_file = folder / key / name, folder / f"{key}.json"
    with locked(folder / f".{key}.lock"):
        known = json.loads(facts_file.read_bytes()) if facts_file.is_file() and file.is_file() else {}
        try:
            headers = _fetch(address, file, known, say)
        except OSError as error:
            if not known:
                raise SubmissionRefused(f"{shown} cannot be fetched: {error}") from error
            say(f"{shown} cannot be asked ({error}); the file of the last time is taken")
            return file
        if headers is None:
            return file
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if known and known["sha256"] != digest:
            say(
                f"{shown} has changed since the last time: sha256 {digest[:12]}, before {known['sha256'][:12]}"
            )
        replace_file(facts_file, json.dumps({"sha256": digest, "headers": headers}).encode())
    return file


def _fetch(
    address: str, file: Path, known: Mapping[str, Mapping[str, str]], say: Callable[[str], None]
) -> dict[str, str] | None:
    """Put the file in its place; returns what to ask with the next time, or None where it is as it was."""
    request = urllib.request.Request(address, headers=dict(known.get("headers", {})))  # noqa: S310  # http alone
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # the same
            say(f"fetching {masked(address)}")
            private_folder(file.parent)
            staged = file.with_name(f".{file.name}.part")
            with staged.open("wb") as copy:
                shutil.copyfileobj(answer, copy, 1 << 20)
            staged.replace(file)
            return {
                asked: answer.headers[said] for said, asked in _KEPT_HEADERS.items() if answer.headers[said]
            }
    except urllib.error.HTTPError as error:
        if error.code == _UNCHANGED:
            return None
        raise
