"""Calls code of scripts so that its exits are errors: `sys.exit()` does not end the device process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stoker.system.forks import call_in_this_process

_Result = TypeVar("_Result")


def contain(function: Callable[[], _Result], name: str = "run()") -> _Result:
    """Call code of a script. A process that it forks does not return from this call.

    Args:
        name: Names the code in errors.

    Raises:
        Exception: The code raised it.
        RuntimeError: The code called `sys.exit()`, or raised another BaseException, such as KeyboardInterrupt or
            asyncio's CancelledError, which handlers of Exception would not catch.
    """
    try:
        return call_in_this_process(function)
    except Exception:
        raise
    except SystemExit as error:
        raise RuntimeError(f"{name} called sys.exit({error.code!r})") from error
    except BaseException as error:
        raise RuntimeError(f"{name} raised {type(error).__name__}") from error
