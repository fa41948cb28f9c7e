"""Answers that are sent to an object store."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stoker.models.mirrors import Mirror
from stoker.models.remote_stores import list_sizes, shown_address
from stoker.models.remote_writing import open_for_writing

DONE_FOLDER: Final = "_done"


class SentAnswers:
    """Answers at an address: a piece is sent when it is whole, its record last, and then removed here.

    Args:
        cache: The folder of mirrors, to which the records of earlier calls are fetched.
        folder: The folder in which the answers are written.

    Attributes:
        names: The files at the address when this began.
        shown: The address without secrets.

    Raises:
        OperatorError: The store cannot be read.
    """

    def __init__(self, address: str, cache: Path, folder: Path) -> None:
        self.names = frozenset(list_sizes(address))
        self.shown = shown_address(address)
        self._write = open_for_writing(address)
        if any(name.startswith(f"{DONE_FOLDER}/") for name in self.names):
            records = Mirror(f"{address}/{DONE_FOLDER}", cache)
            records.update()
            shutil.copytree(records.path, folder / DONE_FOLDER)

    def send(self, folder: Path, answers: Sequence[str], record: str) -> None:
        """Send files of answers, and then their record.

        Raises:
            OperatorError: The store cannot be written.
        """
        for name in (*answers, record):
            self._write(name, folder / name)
        for name in answers:
            (folder / name).unlink()
