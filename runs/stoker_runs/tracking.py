"""Training runs from Python: `stoker_runs.submit`, `stoker_runs.start_run`, and the runs that they return.

run = stoker_runs.submit("train.py", args=["--lr", 0.1])
run.wait(show_output=True)
run.metrics["accuracy"]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from stoker.settings.workspace import Workspace
from stoker_run import records
from stoker_runs.errors import RunFailed
from stoker_runs.launch.configuration import read_duration_s
from stoker_runs.launch.following import follow
from stoker_runs.launch.inputs import find_input
from stoker_runs.launch.interactive import InteractiveRun
from stoker_runs.launch.runners import Clock, adopt
from stoker_runs.launch.submission import Request
from stoker_runs.launch.submission import resume as resume_run
from stoker_runs.launch.submission import submit as submit_request
from stoker_runs.records.folder import RunFolder, copy_files, run_files
from stoker_runs.records.record import Definition
from stoker_runs.records.states import RunState, Status
from stoker_runs.records.store import RunStore
from stoker_runs.records.summary import RunSummary

if TYPE_CHECKING:
    from stoker.models.registered import Registered


class SubmitOptions(TypedDict, total=False):
    """Options of what is sent, and where and how it runs.

    Attributes:
        source: The source folder, which is copied; the current one by default.
        experiment: The experiment; by default the name of the folder.
        environment: A conda or requirements file; by default this Python as it is.
        as_of: Use only packages uploaded up to this date, for example `2021-05-01`.
        tags: Tags of the run.
        target: Name of the compute target; `local` by default.
        nodes: Number of machines.
        processes_per_node: Number of processes on each machine.
        gpus: Number of GPUs of each node; by default one if there are any.
        cores: Number of cores of each node.
        max_duration: Time limit in seconds, or a text such as `2h`.
        attempts: Number of attempts if its node is lost.
        grace_s: Seconds between asking the script to end and killing it.
        resume_from: Id of a run whose outputs are passed by `--resume-from PATH`.
        inputs: Data by name: a file, a folder, a data set `NAME:VERSION`, `STORE/PATH` or a URL. The
            script finds the path in the variable of that name, or in `stoker_run.current().input_datasets`.
    """

    source: str | os.PathLike[str]
    experiment: str
    environment: str
    as_of: str
    tags: Mapping[str, str]
    target: str
    nodes: int
    processes_per_node: int
    gpus: int
    cores: int
    max_duration: float | str
    attempts: int
    grace_s: float
    resume_from: str
    variables: Mapping[str, str]
    inputs: Mapping[str, str | os.PathLike[str]]


class Run:
    """One training run."""

    def __init__(self, folder: RunFolder, workspace: Workspace) -> None:
        self._folder = folder
        self._workspace = workspace

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    @property
    def id(self) -> str:
        """Its id, `EXPERIMENT_UNIXTIME_8HEX`."""
        return self._folder.id

    @property
    def folder(self) -> Path:
        """The run's folder, whose files the documentation describes."""
        return self._folder.path

    @property
    def status(self) -> str:
        """The run's status: `Queued`, `Running`, `Completed` or another of Azure's names."""
        return self._folder.state().status.value

    @property
    def error(self) -> dict[str, Any] | None:
        """The reason of its failure: `code`, `message`, `hint`, `details`; None if it has not failed."""
        error = self._folder.state().error
        return None if error is None else error.to_json()

    @property
    def tags(self) -> dict[str, str]:
        """Its labels."""
        return self._folder.tags()

    @property
    def metrics(self) -> dict[str, Any]:
        """Its metrics: a value for a name that was logged once, else a list."""
        found: dict[str, Any] = records.read_metrics(self._folder.metric_lines())
        return found

    @property
    def files(self) -> list[str]:
        """The names of its files."""
        return list(run_files(self._folder))

    def wait(self, *, show_output: bool = False, raise_on_error: bool = True) -> str:
        """Wait until the run has ended.

        Args:
            show_output: Print its output.
            raise_on_error: Raise an error if it failed or was cancelled.

        Returns:
            Its status.

        Raises:
            RunFailed: It failed or was cancelled; the message includes its error.
        """
        write, notes = (_print, _print_note) if show_output else (_pass, _pass)
        state = follow(self._folder, self._workspace, write, notes=notes)
        if raise_on_error and state.status is not Status.COMPLETED:
            raise RunFailed(f"{self.id} is {state.status.value}{_reason_text(state)}")
        return state.status.value

    def cancel(self, *, grace_s: float | None = None) -> None:
        """Request the run to end; `wait` returns when it has."""
        self._folder.request_cancel("by its user", Clock().now_ms(), grace_s)
        adopt(self._folder, self._workspace)

    def resume(self) -> None:
        """Start another attempt of a run that failed or was cancelled.

        Raises:
            SubmissionRefused: It has not ended, or is completed.
        """
        resume_run(self._folder, self._workspace)

    def tag(self, **labels: str | None) -> None:
        """Set tags; a tag that is None is removed."""
        self._folder.change_tags(labels, Clock().now_ms())

    def download(self, prefix: str = "", to: str | os.PathLike[str] | None = None) -> list[str]:
        """Copy its files whose names begin with the prefix; returns these names.

        Args:
            prefix: For example `outputs`.
            to: The folder; by default one named like the run.
        """
        return copy_files(self._folder, prefix, Path(to) if to is not None else Path(self.id))

    def register_model(
        self,
        name: str,
        path: str | None = None,
        *,
        description: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> Registered:
        """Register a file or folder of the run as the next version of a model, and record the run as its origin.

        Args:
            name: Name of the model.
            path: Name among the run's files; by default that of the model.
            description: Free text.
            tags: Labels of the version.

        Raises:
            SubmissionRefused: The run has no such file.
            OperatorError: The file is no model, or cannot be copied.
        """
        from stoker_runs.launch.registration import register_model

        return register_model(self._workspace, self._folder, name, path, description=description, tags=tags)


class ActiveRun(Run):
    """A run of this program itself, which ends with the `with` block."""

    def __init__(self, folder: RunFolder, workspace: Workspace, recorder: records.Recorder) -> None:
        super().__init__(folder, workspace)
        self._recorder = recorder

    @property
    def outputs(self) -> Path:
        """The folder for the run's outputs."""
        return self._folder.outputs

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics logged so far."""
        self._recorder.flush()
        return super().metrics

    def log(self, name: str, value: Any, step: int | None = None) -> None:
        """Log one value: a number, a boolean or a text."""
        self._recorder.number(name, value, step)

    def log_list(self, name: str, values: Sequence[Any]) -> None:
        """Log a list of numbers or texts."""
        self._recorder.structure(name, "list", list(values))

    def log_row(self, name: str, **columns: Any) -> None:
        """Log one row of a table."""
        self._recorder.structure(name, "row", columns)


def submit(
    script: str,
    args: Sequence[Any] = (),
    *,
    workspace: str | os.PathLike[str] | None = None,
    **options: Unpack[SubmitOptions],
) -> Run:
    """Run a script on a compute target.

    Args:
        script: The script, relative to the source folder.
        args: Its command-line arguments; numbers are converted to text.
        workspace: The workspace directory.
        options: What is sent, and where and how it runs; see `SubmitOptions`.

    Returns:
        The run, which continues when this process ends.

    Raises:
        OperatorError: The submission is refused.
    """
    found = Workspace.find(None if workspace is None else Path(workspace))
    folder, _ = submit_request(request_of(script, args, found, options), found)
    return Run(folder, found)


def request_of(script: str, args: Sequence[Any], workspace: Workspace, options: SubmitOptions) -> Request:
    """Return what the arguments of `submit` ask for.

    Raises:
        OperatorError: An input is none.
        ValueError: A duration is none.
    """
    given: dict[str, Any] = dict(options)
    source = Path(given.pop("source", "."))
    of_request = {
        name: given.pop(name) for name in ("experiment", "environment", "as_of", "tags") if name in given
    }
    if "max_duration" in given:
        given["max_duration_s"] = read_duration_s(given.pop("max_duration"))
    if "inputs" in given:
        named = given["inputs"].items()
        given["inputs"] = {name: find_input(name, os.fspath(where), workspace) for name, where in named}
    return Request(Definition(script, tuple(map(str, args)), **given), source, **of_request)


@contextmanager
def start_run(
    experiment: str, *, tags: Mapping[str, str] | None = None, workspace: str | os.PathLike[str] | None = None
) -> Iterator[ActiveRun]:
    """Start a run of this program itself, for example of a notebook, and complete it at the end of the block.

    Its status is Failed if the block raises, and its failure Interrupted if the program ends within the block.

    Args:
        workspace: The workspace directory.
    """
    found = Workspace.find(None if workspace is None else Path(workspace))
    begun = InteractiveRun(found, experiment, tags, script=Path(sys.argv[0]).name or "interactive")
    try:
        yield ActiveRun(begun.folder, found, begun.recorder)
    except BaseException as error:
        begun.end(f"{type(error).__name__}: {error}")
        raise
    else:
        begun.end()


def get_run(reference: str, workspace: str | os.PathLike[str] | None = None) -> Run:
    """Return the run with an id, a unique prefix of one, `@latest`, or `@-2`.

    Raises:
        UnknownRun: There is no such run, or there are several.
    """
    found = Workspace.find(None if workspace is None else Path(workspace))
    return Run(RunStore(found.runs_dir).find(reference), found)


def list_runs(
    experiment: str | None = None,
    metrics: Sequence[str] = (),
    workspace: str | os.PathLike[str] | None = None,
) -> list[RunSummary]:
    """List runs, the newest first, with the named metrics."""
    from stoker_runs.records.index import RunIndex

    found = Workspace.find(None if workspace is None else Path(workspace))
    return RunIndex(RunStore(found.runs_dir)).runs(experiment, metrics)


def _reason_text(state: RunState) -> str:
    if state.error is None:
        return f": {state.reason}" if state.reason else ""
    traceback = state.error.details.get("traceback")
    return f": {state.error.code}: {state.error.message}" + (
        f"\n{str(traceback).strip()}" if traceback else ""
    )


def _pass(_: bytes | str) -> None:
    return


def _print_note(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _print(chunk: bytes) -> None:
    sys.stdout.write(chunk.decode("utf-8", "replace"))
    sys.stdout.flush()
