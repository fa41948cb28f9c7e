"""The record of a run, `run.json`: its definition, time and files. It is written once and never changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from stoker.errors import InvalidSettings
from stoker.settings.names import checked_name
from stoker_runs.records.serialization import Record

TARGET_VARIABLE: Final = "AZUREML_COMPUTE_TARGET"
"""The variable with the name of the cluster for which this machine stands."""

_DEFAULT_GRACE_S: Final = 30.0
"""Time between asking a script to end and killing it."""
_DEFAULT_LOST_AFTER_S: Final = 300.0
"""A node counts as lost after this time without a message."""
_LONGEST_RUN_S: Final = 30 * 86_400.0
"""Default time limit of a run: the SDK's own default."""


class Output(Record, frozen=True):
    """A folder of a data store that a script writes to.

    Attributes:
        path: The folder; `{run-id}` and `{output-name}` in it are replaced, as in Azure.
        place: The folder that the script writes to. An absolute one is the store's own; a relative one is in the
            working directory, and its files are copied into the store when the run has completed. Empty until the
            run is planned.
        overwrite: Whether copied files replace those that are there.
    """

    store: str
    path: str = ""
    place: str = ""
    overwrite: bool = True

    def path_of(self, name: str, run_id: str = "{run-id}") -> str:
        """Return the path of an output of this name in the store."""
        return self.path.replace("{output-name}", name).replace("{run-id}", run_id)


class Definition(Record, frozen=True):
    """A script and how to run it.

    Attributes:
        script: The script, relative to its source folder, with `/`.
        environment: As returned by `stoker_runs.environments.requested.RequestedEnvironment.to_json`.
        nodes: Number of machines; where one machine stands for all, number of process groups.
        gpus: GPUs allocated on each node; None is one if there are any.
        cores: Cores allocated on each node.
        attempts: Number of attempts if its node is lost.
        grace_s: Time between asking it to end and killing it.
        lost_after_s: A node counts as lost after this time without a message.
        communicator: How its processes meet: `tensorflow`, `pytorch`, `mpi`, or `none` for the variables of
            TensorFlow and of PyTorch.
        parameter_servers: How many of its processes, the last ones, are parameter servers of TensorFlow.
        inputs: Paths of its data by name, on the submitting machine; `$AZUREML_DATAREFERENCE_NAME` in an argument is
            replaced by the path on the machine that runs it.
        outputs: The folders of data stores that it writes to, by name, which arguments have as those of inputs.
        framework: On a Spark cluster `python` has the head node's Python run the script, not spark-submit.
        resume_from: Id of the run whose outputs are passed as `--resume-from PATH`; empty for none.
        container: Its container settings: `image`, `dockerfile` (a file in `environment/`), `shm_size`, `arguments`;
            missing ones are taken from the target. With any, it is in a container wherever it runs; with `optional`,
            which Azure's code and files imply, without one where there is no container program.
    """

    ADDED_LATER: ClassVar = frozenset({"parameter_servers", "framework", "outputs"})

    script: str
    arguments: tuple[str, ...] = ()
    target: str = "local"
    environment: Mapping[str, Any] = {}
    nodes: int = 1
    processes_per_node: int = 1
    gpus: int | None = None
    cores: int = 1
    max_duration_s: float = _LONGEST_RUN_S
    attempts: int = 1
    grace_s: float = _DEFAULT_GRACE_S
    lost_after_s: float = _DEFAULT_LOST_AFTER_S
    communicator: str = "none"
    parameter_servers: int = 0
    variables: Mapping[str, Any] = {}
    inputs: Mapping[str, str] = {}
    outputs: Mapping[str, Output] = {}
    resume_from: str = ""
    container: Mapping[str, Any] = {}
    framework: str = ""

    @property
    def processes(self) -> int:
        """Total number of the script's processes."""
        return self.nodes * self.processes_per_node

    @property
    def gpu_nodes(self) -> int:
        """Number of machines that hold GPUs: those of parameter servers alone need none."""
        return -(-(self.processes - self.parameter_servers) // self.processes_per_node)

    @property
    def target_name(self) -> str:
        """The target that its user has named: a cluster, where this machine stands for it."""
        return str(self.variables.get(TARGET_VARIABLE, self.target))


SCRIPT: Final = "script"
"""The kind of a run whose script an agent starts."""
INTERACTIVE: Final = "interactive"
"""The kind of a run that a program or notebook has begun for itself: its state is its owner's to say."""
SWEEP: Final = "sweep"
"""The kind of a run whose parts are runs of one script, with other parameters each."""
CHILD: Final = "child"
"""The kind of a run that the script of another one has begun."""

_ID: Final = re.compile(
    r"(?P<experiment>[A-Za-z0-9][A-Za-z0-9._-]{0,99})_[0-9]+_[0-9a-f]{8}(?P<part>(_[0-9]+)*)", re.ASCII
)
_RESERVED: Final = frozenset({"aux", "con", "nul", "prn", "latest", "all"})


class RunRecord(Record, frozen=True, rename={"created_ms": "created"}):
    """The immutable facts about a run: the content of `run.json`.

    Attributes:
        id: `EXPERIMENT_UNIXTIME_8HEX`; a child of a sweep has `_N` behind that of its parent.
        kind: `script`, `interactive`, `sweep` or, in no file, `child`.
        snapshot: Digest of its files; empty where there are none.
        data: Digest of each data set, by the name of the input.
        parent: Id of the run that it is a part of; empty where it is none.
        properties: What is known of its origin, such as the commit; for good.
        sweep: The `SweepDefinition` as JSON; empty if the run is no sweep.
        parameters: Of a child of a Bayesian sweep, the parameters that were chosen for it, by name.
    """

    ADDED_LATER: ClassVar = frozenset({"sweep", "parameters"})

    id: str
    experiment: str
    created_ms: int
    definition: Definition
    kind: str = SCRIPT
    snapshot: str = ""
    data: Mapping[str, str] = {}
    parent: str = ""
    properties: Mapping[str, Any] = {}
    tags: Mapping[str, Any] = {}
    sweep: Mapping[str, Any] = {}
    parameters: Mapping[str, Any] = {}


def checked_experiment(name: str) -> str:
    """Return the name if it is valid for an experiment: it is used as a folder name and as a prefix of ids.

    Raises:
        InvalidSettings: It is not; the message suggests a valid one.
    """
    if name.lower() in _RESERVED:
        raise InvalidSettings(f"{name!r} cannot be an experiment name: it is reserved; {name}-1 would do")
    return checked_name(name, "experiment")


def new_run_id(experiment: str, now_ms: int, token: str) -> str:
    """Return the id of a new run.

    Args:
        token: Eight random hexadecimal digits.
    """
    return f"{experiment}_{now_ms // 1000}_{token}"


def is_part(run_id: str) -> bool:
    """Whether an id is that of a part of another run, as of a sweep."""
    found = _ID.fullmatch(run_id)
    return found is not None and bool(found["part"])


def experiment_of(run_id: str) -> str | None:
    """The experiment in a run's id; None if the text is not a complete id."""
    found = _ID.fullmatch(run_id)
    return None if found is None else found["experiment"]
