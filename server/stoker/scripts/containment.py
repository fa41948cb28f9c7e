"""Keeping what a script raises from ending the thread, and so the process, that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stoker.system.forks import call_in_this_process

__all__ = ["contain"]

_Result = TypeVar("_Result")


def contain(function: Callable[[], _Result], what: str = "run()") -> _Result:
    """Call code of a script; of processes that it forks this one alone comes back.

    Args:
        function: Calls it.
        what: Its name in messages.

    Raises:
        Exception: Whatever it raised.
        RuntimeError: It raised what is no Exception, and passes the handlers that are made for those: `sys.exit()`,
            KeyboardInterrupt, asyncio's CancelledError.
    """
    try:
        return call_in_this_process(function)
    except Exception:
        raise
    except SystemExit as error:
        raise RuntimeError(f"{what} called sys.exit({error.code!r})") from error
    except BaseException as error:
        raise RuntimeError(f"{what} raised {type(error).__name__}") from error
