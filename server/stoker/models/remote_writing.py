"""Sends files of this machine to a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker.models.remote_stores import (
    FILE,
    SFTP,
    first_answer,
    open_store,
    shown_address,
    store_errors,
    store_of,
)


def open_for_writing(address: str, options: Mapping[str, Any] | None = None) -> Callable[[str, Path], None]:
    """Open a store; return a function that copies a file of this machine to a name below the address.

    An existing file is replaced.

    Raises:
        OperatorError: The store cannot be reached. The returned function raises it if the file cannot be written.
    """

    def look() -> tuple[Any, str]:
        opened = open_store(address, options)
        try:
            opened[0].info(opened[1])
        except (FileNotFoundError, PermissionError):
            pass
        except OSError as error:
            # Google answers an account that may only write with a plain OSError.
            if not str(error).startswith("Forbidden"):
                raise
        return opened

    with store_errors(address):
        system, root = first_answer(shown_address(address), look)

    def write(name: str, path: Path) -> None:
        with store_errors(address):
            if "/" in name or store_of(address) in (SFTP, FILE):
                system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
            system.put_file(str(path), f"{root}/{name}")

    return write


def send(
    files: Mapping[str, Path],
    address: str,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Copy files of this machine to a store, in their order; existing files are replaced.

    Args:
        files: The files by their names below the address.
        progress: Called with the bytes sent so far, and the bytes of all.

    Raises:
        OperatorError: The store cannot be written.
    """
    total_bytes, sent_bytes = sum(path.stat().st_size for path in files.values()), 0
    write = open_for_writing(address, options)
    for name, path in files.items():
        write(name, path)
        sent_bytes += path.stat().st_size
        if progress is not None:
            progress(sent_bytes, total_bytes)
