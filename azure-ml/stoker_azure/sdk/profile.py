"""`azureml.core.profile`: the load that a service can sustain on this machine, measured by `stoker profile`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from stoker.system.durable import private_folder, replace_file
from stoker_azure.exceptions import UserErrorException, WebserviceException
from stoker_azure.sdk.base import BaseWorkspace, raised_as
from stoker_azure.sdk.inference_config import InferenceConfig
from stoker_azure.sdk.services.deploying import SERVICE_NAME, deployment_file
from stoker_azure.sdk.services.records import Plan

__all__ = ["ModelProfile", "start_profile"]

_TARGET_MS: Final = ("STOKER_PROFILE_TARGET_MS", "1000")
_SECONDS: Final = ("STOKER_PROFILE_SECONDS", "60")
_STARTED, _RESULT, _LOG, _DEPLOYMENT = "profile.json", "told.json", "profile.log", "deployment.yaml"


class ModelProfile:
    """A profile, running or finished."""

    def __init__(self, workspace: BaseWorkspace, name: str) -> None:
        """Find a profile in the workspace.

        Raises:
            WebserviceException: There is none of this name.
        """
        self.workspace = workspace
        self.name = name
        self._folder = _folder_of(workspace, name)
        self._process: subprocess.Popen[bytes] | None = None
        started = self._read(_STARTED)
        if started is None:
            raise WebserviceException(
                f"the workspace has no profile {name!r}; make one with Model.profile(workspace, {name!r}, models, "
                "inference_config, input_dataset)"
            )
        self._started = started
        self.description: str | None = started["description"]
        self.created_time = datetime.fromisoformat(started["created_time"])

    def __repr__(self) -> str:
        return f"ModelProfile(workspace={self.workspace!r}, name={self.name!r}, state={self.state!r})"

    @property
    def state(self) -> str:
        """`Running`, `Succeeded` or `Failed`."""
        if self._process is not None and self._process.poll() is None:
            return "Running"
        return "Failed" if self._result is None else "Succeeded"

    @property
    def error(self) -> dict[str, str] | None:
        """Why the profile failed, as `message`; None if it has not."""
        if self.state != "Failed":
            return None
        lines = (self._folder / _LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return {"message": lines[-1] if lines else "the process that makes it has ended"}

    @property
    def recommended_cpu(self) -> float | None:
        """Cores of the measurement; None until the profile is finished."""
        return None if self._result is None else float(self._result["cores"])

    @property
    def recommended_memory(self) -> float | None:
        """Largest memory of the process in GB; None until the profile is finished."""
        return None if self._result is None else round(self._result["memory_bytes"] / 1e9, 2)

    @property
    def deployment_file(self) -> Path | None:
        """The deployment file with the settings found, for `stoker serve --config`."""
        return None if self._result is None else self._folder / _DEPLOYMENT

    def wait_for_completion(self, show_output: bool = False) -> None:
        """Wait until the profile is finished; `state` and `error` say whether it failed, as on Azure."""
        if show_output:
            print(self.state)
        if self._process is not None:
            self._process.wait()
        if show_output:
            print(self.state if self.error is None else f"{self.state}: {self.error['message']}")

    wait_for_profiling = wait_for_completion

    def get_details(self) -> dict[str, Any]:
        """Return the result by Azure's names, with Stoker's `settings` and `limit`; if the profile failed, why."""
        details: dict[str, Any] = {
            "name": self.name,
            "state": self.state,
            "createdTime": self.created_time.isoformat(),
            "requestedCpu": self._started["cpu"],
            "requestedMemoryInGB": self._started["memory_in_gb"],
        }
        result = self._result
        if result is None:
            return details | {"error": self.error}
        choice = result["choice"]
        found = choice["confirmed"] or choice
        return details | {
            "recommendedCpu": self.recommended_cpu,
            "recommendedMemoryInGB": self.recommended_memory,
            "maxUtilizedMemoryInGB": self.recommended_memory,
            "latencyPercentile50InMs": found["p50_ms"],
            "latencyPercentile99InMs": found["p99_ms"],
            "measuredQueriesPerSecond": found["load_rows_per_s"],
            "limit": found["limit"] or choice["limit"],
            "settings": choice["settings"],
        }

    def serialize(self) -> dict[str, Any]:
        """Return the profile as JSON."""
        return {"description": self.description, "modelIds": self._started["models"], **self.get_details()}

    @property
    def _result(self) -> dict[str, Any] | None:
        return self._read(_RESULT)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads((self._folder / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return content


def start_profile(
    workspace: BaseWorkspace,
    name: str,
    models: Sequence[str],
    inference: InferenceConfig | None,
    dataset: Any,
    settings: Mapping[str, Any],
) -> ModelProfile:
    """Start a profile in its own process.

    Args:
        workspace: The workspace; a profile of the same name is replaced.
        inference: The script; None for a model by itself.
        dataset: A data set with a file that is a request, or the path of one; None for the model's sample.

    Raises:
        UserErrorException: The name is not allowed, or the data set has no file.
        WebserviceException: A model or file cannot be used.
    """
    if not SERVICE_NAME.fullmatch(name or ""):
        raise UserErrorException(
            f"{name!r} cannot be the name of a profile: it has to be 3 to 32 small letters, digits and '-'"
        )
    data = _request_file(dataset)
    folder = _empty_folder(_folder_of(workspace, name))
    plan = Plan(
        name=name,
        kind="local",
        models=tuple(models),
        inference=None if inference is None else inference.to_json(),
    )
    with raised_as(WebserviceException):
        config = deployment_file(workspace.local, folder, plan)
    started = {"created_time": datetime.now(UTC).isoformat(), "models": list(models), **settings}
    replace_file(folder / _STARTED, json.dumps(started).encode() + b"\n")
    command = _command(name, config, folder / _DEPLOYMENT, workspace.local.root, data)
    profile = ModelProfile(workspace, name)
    with (folder / _RESULT).open("wb") as result, (folder / _LOG).open("wb") as log:
        profile._process = subprocess.Popen(  # noqa: SLF001  # only who begins it has the process
            command, stdin=subprocess.DEVNULL, stdout=result, stderr=log, start_new_session=True
        )
    return profile


def _command(name: str, config: Path, output: Path, workspace: Path, data: Path | None) -> list[str]:
    command = [sys.executable, "-P", "-m", "stoker.cli", "profile", name, "--config", str(config), "--json"]
    command += ["--output", str(output), "--force", "--workspace", str(workspace)]
    command += ["--target-ms", os.environ.get(*_TARGET_MS), "--seconds", os.environ.get(*_SECONDS)]
    command += [] if data is None else ["--data", str(data)]
    return command if find_spec("stoker_bench") else [*command, "--no-confirm"]


def _empty_folder(folder: Path) -> Path:
    """Return the folder of a profile, without files of an earlier one."""
    private_folder(folder.parent)
    private_folder(folder)
    for old in (_RESULT, _DEPLOYMENT):
        (folder / old).unlink(missing_ok=True)
    return folder


def _request_file(dataset: Any) -> Path | None:
    """Return the first file of a data set, or the one at a path."""
    if dataset is None:
        return None
    files = [Path(dataset)] if isinstance(dataset, str | Path) else dataset.files()
    if not files or not files[0].is_file():
        raise UserErrorException(
            f"{dataset!r} has no file with a request; upload one, or give its path as input_dataset"
        )
    return Path(files[0]).absolute()


def _folder_of(workspace: BaseWorkspace, name: str) -> Path:
    return workspace.local.create().azure_dir / "profiles" / name
