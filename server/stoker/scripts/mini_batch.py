"""Scripts made for Azure's parallel run step and batch endpoints: `run(mini_batch)` gets files or rows, offline.

`init()` is called once, `run` with each mini-batch, `shutdown()`, if the script has it, at the end. `run` returns a
list or data frame with an entry for each item that it could score; the entries become lines, as by `append_row`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any

from msgspec import Struct

from stoker.errors import LoadFailed
from stoker.scripts.coroutines import finish
from stoker.scripts.entry_script import EntryScript
from stoker.scripts.forms import parameters_of
from stoker.scripts.schemas import is_decorated
from stoker.system.forks import call_in_this_process
from stoker.system.logs import frames_of_script

logger = logging.getLogger(__name__)


class Tally(Struct):
    """How many items have been scored."""

    items: int = 0
    failed: int = 0
    lines: int = 0


def enter_folder(script: Path, model_dir: Path, arguments: Sequence[str]) -> None:
    """Make this process that of a script: set its variables and arguments, and enter its folder.

    Args:
        arguments: Follow the script's path in `sys.argv`.
    """
    folder = script.parent
    os.environ.update(
        AZUREML_MODEL_DIR=str(model_dir), AZUREML_ENTRY_SCRIPT=str(script), AML_APP_ROOT=str(folder)
    )
    os.chdir(folder)
    sys.path.append(str(folder))
    sys.argv = [str(script), *arguments]


class MiniBatchScript:
    """A script whose `run` takes mini-batches."""

    def __init__(self, path: Path, model_dir: Path) -> None:
        script = EntryScript(path, model_dir)
        _check(script)
        self._run = script.run
        self._shutdown = script.shutdown
        self.tally = Tally()
        script.initialise(finish)

    def score(self, mini_batch: Sized, write: Callable[[str], object]) -> None:
        """Call `run` with a mini-batch, and write its results; errors are logged and counted."""
        self.tally.items += len(mini_batch)
        try:
            lines = lines_of(call_in_this_process(lambda: finish(self._run(mini_batch))))
        except (Exception, SystemExit) as error:
            # SystemExit too: the command must not end as if it had scored all items.
            raised = (type(error), error, frames_of_script(error) or error.__traceback__)
            logger.error("run() raised: %d items have no result", len(mini_batch), exc_info=raised)  # noqa: TRY400
            self.tally.failed += len(mini_batch)
            return
        if len(lines) < len(mini_batch):
            # A file may have many results, so the items without one are unknown.
            self.tally.failed += len(mini_batch) - len(lines)
            logger.warning("run() returned %d results for %d items", len(lines), len(mini_batch))
        self.tally.lines += len(lines)
        for line in lines:
            write(line)

    def shut_down(self) -> None:
        """Call the script's `shutdown`, if it has one."""
        if (shutdown := self._shutdown) is not None and callable(shutdown):
            call_in_this_process(lambda: finish(shutdown()))


def lines_of(result: Any) -> list[str]:
    """Return the lines of a result of `run`: columns of a data frame with blanks between, other entries as texts.

    Raises:
        TypeError: The result is neither a list, a tuple, an array nor a data frame.
    """
    if hasattr(result, "to_csv") and hasattr(result, "columns"):
        text: str = result.to_csv(sep=" ", header=False, index=False, lineterminator="\n")
        return text.splitlines()
    entries = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(entries, list | tuple):
        raise TypeError(
            f"run() has to return a list or a data frame with an entry for each item, not {type(result).__name__}"
        )
    return [str(_plain(entry)) for entry in entries]


def _plain(entry: Any) -> Any:
    """Return Python's numbers and lists: numpy's texts have types in them, or line breaks."""
    return entry.tolist() if hasattr(entry, "tolist") else entry


def _check(script: EntryScript) -> None:
    if script.batched is not None or is_decorated(script.run) or script.raw:
        raise LoadFailed(
            "run() is decorated for requests, not for mini-batches: serve the script with 'stoker serve', and send "
            "it rows with 'stoker score --data FILE'"
        )
    parameters = parameters_of(script.run).values()
    required = [
        each.name for each in parameters if each.default is each.empty and each.kind < each.VAR_POSITIONAL
    ]
    if len(required) != 1:
        raise LoadFailed(f"run() has to take one argument, the mini-batch; it takes {required or 'none'}")
