"""The run of this process, which the agent describes in environment variables."""

import json
import os
from pathlib import Path
from typing import Dict, Mapping, Union

from stoker_run.exceptions import RunEnvironmentException
from stoker_run.offline_run import OfflineRun
from stoker_run.records import Recorder
from stoker_run.run import Experiment, Run, RunWorkspace

_known: Dict[str, Run] = {}
_offline: Dict[str, OfflineRun] = {}


def is_submitted(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of a run."""
    return "STOKER_ATTEMPT_DIR" in variables and "STOKER_RUN_ID" in variables


def run_of(variables: Mapping[str, str]) -> Run:
    """Return the run that environment variables describe."""
    folder = Path(variables["STOKER_ATTEMPT_DIR"])
    recorder = Recorder(
        folder,
        Path(variables.get("STOKER_WORK_DIR", ".")),
        int(variables.get("STOKER_ATTEMPT", "1")),
        int(variables.get("STOKER_RANK", "0")),
    )
    experiment = Experiment(variables.get("STOKER_EXPERIMENT", ""), RunWorkspace(variables))
    inputs = json.loads(variables.get("STOKER_INPUTS", "{}"))
    return Run(recorder, variables["STOKER_RUN_ID"], experiment, inputs)


def current(allow_offline: bool = True) -> Union[Run, OfflineRun]:
    """Return the run of this process, the same object each time; outside of a run one that prints.

    Raises:
        RunEnvironmentException: There is no run, and `allow_offline` is false.
    """
    if is_submitted():
        key = os.environ["STOKER_ATTEMPT_DIR"]
        if key not in _known:
            _known[key] = run_of(os.environ)
        return _known[key]
    if not allow_offline:
        raise RunEnvironmentException(
            "this process is not of a run; submit the script, or allow_offline=True"
        )
    return _offline.setdefault("", OfflineRun())
