"""Work without which a process cannot serve: where it fails, the process ends, and the supervisor starts another one.

If a thread dies in silence, its callers wait forever; if its process ends, they get an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stoker.system.processes import ExitCode, end_process

logger = logging.getLogger(__name__)


@contextmanager
def vital(work: str, end_process: Callable[[ExitCode], None] = end_process) -> Iterator[None]:
    """End this process if the context is left by an exception.

    Args:
        work: The work in the context, as the subject of a sentence in the log.
        end_process: Ends this process.
    """
    try:
        yield
    except BaseException as error:  # noqa: BLE001  # the process ends of it
        try:
            logger.exception("%s failed; the process exits", work)
        finally:
            end_process(ExitCode.NO_MEMORY if isinstance(error, MemoryError) else ExitCode.CRASHED)
