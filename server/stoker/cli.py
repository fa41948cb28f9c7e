"""The entry of the `stoker` command; `stoker.commands.command_line` does the work.

To import that takes longer than people take to press Ctrl-C. So this module imports nothing that is not loaded
anyway, and neither does the package around it: Ctrl-C before there is anything to end ends the process, without a
traceback. What comes even earlier, while Python itself starts, is out of reach.
"""

import os
import time

TYPE_CHECKING = False  # that of `typing` takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_INTERRUPTED = 130


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run the command line; returns the exit code.

    Errors that the operator can mend are printed without a traceback.
    """
    begun_s = time.monotonic()
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            try:  # noqa: SIM105  # a module more
                signal.signal(signal.SIGINT, _end)
            except ValueError:
                pass  # in a thread that gets no signals
        try:
            from stoker.commands.command_line import run

            return run(arguments, _be_interrupted, begun_s)
        finally:
            _be_interrupted()
    except KeyboardInterrupt:
        _break_line()
        return _INTERRUPTED


def _be_interrupted() -> None:
    """Let Ctrl-C be a KeyboardInterrupt again: from now on the process has work to end in order."""
    import signal

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: "FrameType | None") -> None:
    """End at once: an exception could be lost, or become another one, in the midst of an import."""
    _break_line()
    os._exit(_INTERRUPTED)


def _break_line() -> None:
    """Start a new line after the ^C of the terminal."""
    try:  # noqa: SIM105  # a module more
        os.write(2, b"\n")
    except OSError:
        pass


if __name__ == "__main__":
    raise SystemExit(main())
