"""Output about runs: tables, times, one line while a run waits, and its end."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from stoker.commands.terminal import add_json_argument, add_workspace_argument, note, option_of, sentence

if TYPE_CHECKING:
    from stoker.settings.workspace import Workspace
    from stoker_runs.records.folder import RunFolder
    from stoker_runs.records.states import RunState
    from stoker_runs.records.store import RunStore

DETACHED: Final = 130
"""Exit status of a command that left a run to itself."""


def common_arguments() -> argparse.ArgumentParser:
    """The options that every command about runs has."""
    common = argparse.ArgumentParser(add_help=False)
    add_workspace_argument(common)
    return common


def add_actions(parser: argparse.ArgumentParser) -> Callable[..., argparse.ArgumentParser]:
    """Return what declares a subcommand: its name, what runs it, its help, and parsers whose arguments it has too."""
    common = common_arguments()
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(
        name: str,
        run: Callable[[argparse.Namespace], int] | None,
        text: str,
        *parents: argparse.ArgumentParser,
        json: bool = False,
        aliases: Sequence[str] = (),
    ) -> argparse.ArgumentParser:
        """Declare one; `run` is None where it has subcommands itself."""
        parents = () if run is None else (common, *parents)
        added = actions.add_parser(
            name, parents=parents, aliases=aliases, help=text, description=sentence(text)
        )
        added.set_defaults(run_action=run)
        if json:
            add_json_argument(added)
        return added

    return add


def run_action(args: argparse.Namespace) -> int:
    """Run the chosen subcommand.

    Raises:
        OperatorError: It was refused; the message says why.
    """
    exit_code: int = args.run_action(args)
    return exit_code


def duration_option(text: str) -> float:
    """Read `30m` for argparse."""
    from stoker_runs.launch.configuration import read_duration_s

    seconds: float = option_of(read_duration_s)(text)
    return seconds


def found_workspace(args: argparse.Namespace) -> Workspace:
    """The workspace that the options mean."""
    from stoker.settings.workspace import Workspace

    return Workspace.find(args.workspace)


def found_store(args: argparse.Namespace) -> RunStore:
    """The runs of that workspace."""
    from stoker_runs.records.store import RunStore

    return RunStore(found_workspace(args).runs_dir)


def time_text(time_ms: int | None) -> str:
    """A time as people read it, in the machine's own zone; `-` for none."""
    if time_ms is None:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(" ", "seconds")[:19]


def duration_text(begin_ms: int | None, end_ms: int | None) -> str:
    """How long something took; `-` where it has not begun."""
    if begin_ms is None:
        return "-"
    seconds = max(0, (end_ms if end_ms is not None else time.time_ns() // 1_000_000) - begin_ms) / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"


def stream(folder: RunFolder, workspace: Workspace, rank: int = 0, attempt: int = 1) -> int:
    """Print what a run prints until it has ended; Ctrl-C leaves it to itself.

    Returns:
        The exit status: 0 for Completed, 1 for Failed and Canceled, 130 where the run goes on.
    """
    from stoker_runs.launch.following import follow

    try:
        with _waiting_line() as waits:
            state = follow(folder, workspace, write_bytes, waits, rank=rank, attempt=attempt, notes=note)
    except KeyboardInterrupt:
        return _detached(folder)
    _say_end(folder, state)
    return exit_code_of(state)


def exit_code_of(state: RunState) -> int:
    """0 for a run that is completed, else 1."""
    return 0 if state.status.value == "Completed" else 1


def write_bytes(chunk: bytes) -> None:
    """Print bytes as they are: bars that redraw themselves, and whatever else a script writes."""
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(chunk.decode("utf-8", "replace"))
    else:
        buffer.write(chunk)
    sys.stdout.flush()


@contextlib.contextmanager
def _waiting_line() -> Iterator[Callable[[RunState | None, float], None]]:
    """One line on a terminal with state, seconds, and what is waited for; elsewhere a line for each new one."""
    terminal = sys.stderr.isatty()
    shown = ""

    def waits(state: RunState | None, seconds: float) -> None:
        nonlocal shown
        if terminal:
            text = "" if state is None else f"{state.status.value} {seconds:.0f} s  {state.reason}"
            if text != shown:
                # The line is erased first. Where none is shown it may be the script's own.
                sys.stderr.write(f"\r\033[K{text}")
                sys.stderr.flush()
            shown = text
        elif state is not None and state.reason not in ("", shown):
            shown = state.reason
            note(f"{state.status.value}: {state.reason}")

    try:
        yield waits
    finally:
        waits(None, 0)


def _detached(folder: RunFolder) -> int:
    note(f"\n{folder.id} goes on; follow it with: stoker runs logs {folder.id} -f")
    note(f"or end it with: stoker runs cancel {folder.id}")
    return DETACHED


def _say_end(folder: RunFolder, state: RunState) -> None:
    took = duration_text(state.started_ms, state.ended_ms)
    note(f"{folder.id}: {state.status.value} after {took}")
    if state.error is not None:
        note(f"{state.error.code}: {state.error.message}")
        if state.error.hint:
            note(state.error.hint.replace("RUN", folder.id))
    elif state.reason:
        note(state.reason)
