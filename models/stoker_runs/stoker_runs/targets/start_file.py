"""`start.json`: what the agent of an attempt is told. The agent's README is the contract."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from stoker.system.durable import replace_file
from stoker_runs.targets.engine import Job

__all__ = ["start_content", "write_start"]

_REFERENCE: Final = "$AZUREML_DATAREFERENCE_"


def start_content(
    job: Job,
    python: Sequence[str],
    directory: PurePath,
    *,
    resume_from: PurePath | None = None,
    variables: Mapping[str, str] | None = None,
    lease_s: float | None = None,
    shared_directory: PurePath | None = None,
) -> dict[str, Any]:
    """Return the content of `start.json` for an attempt whose processes all run on one machine.

    Args:
        job: The attempt.
        python: How the script's interpreter is called there.
        directory: The script's working directory there.
        resume_from: From which folder there it goes on.
        variables: Environment variables besides those that were asked for.
        lease_s: How long the script may go on without a word from the runner; None is for ever.
        shared_directory: The folder there that runs of one experiment share.
    """
    definition = job.record.definition
    places = {name: str(path) for name, path in definition.inputs.items()}
    arguments = [_with_places(argument, places) for argument in definition.arguments]
    if definition.resume_from and resume_from is not None:
        arguments += ["--resume-from", str(resume_from)]
    gpus = {} if job.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(job.gpus)}
    return {
        "version": 1,
        "run_id": job.record.id,
        "experiment": job.record.experiment,
        "attempt": job.attempt,
        "command": [*python, definition.script, *arguments],
        "directory": str(directory),
        "variables": {**(variables or {}), **gpus, **definition.variables},
        "grace_s": definition.grace_s,
        "max_duration_s": definition.max_duration_s,
        "lease_s": lease_s,
        "inputs": places,
        "relaxed": definition.environment.get("kind") == "relaxed",
        "resume_from": None if resume_from is None else str(resume_from),
        "processes": definition.processes,
        "communicator": definition.communicator,
        "shared_directory": None if shared_directory is None else str(shared_directory),
    }


def _with_places(argument: str, places: Mapping[str, str]) -> str:
    """Put in the paths of data. A name may be the beginning of another one: the longest comes first."""
    if _REFERENCE in argument:
        for name in sorted(places, key=len, reverse=True):
            argument = argument.replace(f"{_REFERENCE}{name}", places[name])
    return argument


def write_start(job: Job, content: Mapping[str, Any]) -> None:
    """Write `start.json` into the attempt's folder, for its owner alone: variables may hold secrets."""
    replace_file(job.place / "start.json", json.dumps(content, indent=2).encode(), mode=0o600)
