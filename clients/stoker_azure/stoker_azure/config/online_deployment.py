"""A deployment of an online endpoint, in Stoker's settings: what `az ml online-deployment create -f FILE` reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.names import checked_name
from stoker.settings.model import ModelSettings, model_settings
from stoker.settings.yaml_file import read_yaml
from stoker_azure.config.online_assets import OnlineEnvironment, OnlineModel, path_beside, read_collections
from stoker_azure.config.online_fields import DEPLOYMENT_FIELDS, checked_values, kept_notes

__all__ = ["OnlineDeployment"]

_SCHEMA: Final = "onlinedeployment.schema.json"
_PER_INSTANCE: Final = "request_settings.max_concurrent_requests_per_instance"


@dataclass(frozen=True, slots=True)
class OnlineDeployment:
    """A deployment, checked.

    Attributes:
        name: Its name; the name of the service.
        values: The settings that were given, by their dotted names.
        entry_script: The script; None where the model is served without one.
        source_directory: The folder that is copied with it on Azure.
        asset: The model; None for a script that needs none.
        environment: The packages.
        collect: The setting `collect`, as `model_settings` reads it; None where nothing is said of it.
        source: Name of the file, for messages.
    """

    name: str
    values: Mapping[str, Any] = field(repr=False)
    entry_script: Path | None
    source_directory: Path | None
    asset: OnlineModel | None
    environment: OnlineEnvironment
    collect: Mapping[str, Any] | bool | None
    source: str

    @classmethod
    def from_file(cls, file: Path) -> OnlineDeployment:
        """Read the YAML of a managed or Kubernetes online deployment. Paths in it are relative to it, as in the CLI.

        Raises:
            InvalidSettings: It cannot be read, a setting is unknown or has a bad value, or a file is not there.
        """
        content = read_yaml(file, "deployment", "the settings of an online deployment by name")
        schema = str(content.get("$schema", _SCHEMA))
        if not schema.lower().endswith(_SCHEMA):
            raise InvalidSettings(
                f"{file} is no online deployment, for its $schema is {schema}; an endpoint is given with --endpoint"
            )
        values = checked_values(content, DEPLOYMENT_FIELDS, file.name)
        if "name" not in values:
            raise InvalidSettings(f"{file.name}: name is missing; a deployment has one, such as blue")
        folder, script = _script(values, file)
        asset = OnlineModel.of(values.get("model"), file)
        if asset is None and script is None:
            raise InvalidSettings(
                f"{file.name} has neither model nor code_configuration, so there is nothing to serve: an image that "
                "brings its own server cannot run here"
            )
        return cls(
            checked_name(values["name"], "deployment"),
            values,
            script,
            folder,
            asset,
            OnlineEnvironment.of(values.get("environment"), file),
            read_collections(values, file.name),
            file.name,
        )

    @property
    def endpoint_name(self) -> str | None:
        """The endpoint to which it belongs."""
        return self.values.get("endpoint_name")

    @property
    def replicas(self) -> int | None:
        """How many replicas run: as many as asked for, or the fewest that Azure's autoscaler would keep."""
        fewest: int | None = self.values.get(
            "instance_count", self.values.get("scale_settings.min_instances")
        )
        return fewest

    def model(self, run_dir: Path) -> ModelSettings:
        """The settings of the model that it describes.

        Args:
            run_dir: The workspace's folder of the state of running servers, for what has to become a file.

        Raises:
            InvalidSettings: A value is none that Stoker can use.
        """
        values = self.values
        of_instance = values.get(_PER_INSTANCE)
        cores = values.get("resources.requests.cpu", 0)
        given = {
            "name": self.name,
            **self._files(run_dir),
            "environment": self.environment.file(run_dir / "conda", self.source),
            "environment_variables": self._variables(),
            "replicas": self.replicas,
            "timeout_ms": values.get("request_settings.request_timeout_ms"),
            "max_concurrent_requests": of_instance and of_instance * (self.replicas or 1),
            "max_queue_wait_ms": values.get("request_settings.max_queue_wait_ms"),
            "threads": math.floor(cores) or None,
            "description": values.get("description"),
            "collect": self.collect,
        }
        return model_settings(
            {name: value for name, value in given.items() if value is not None}, self.source
        )

    def notes(self) -> Iterable[str]:
        """What the operator is told of it, one line each."""
        values, prefix = self.values, f"{self.name}: "
        shown = [f"instance_count {self.replicas}"] if self.replicas is not None else []
        shown += [
            f"{name.partition('.')[2]} {value}"
            for name, value in values.items()
            if name.startswith("request_settings.")
        ]
        yield f"{self.source}: deployment {', '.join([self.name, *shown])}"
        if _PER_INSTANCE in values:
            yield (
                f"{prefix}a batch cannot have rows of more requests than max_concurrent_requests_per_instance "
                "allows; without that setting there is no limit"
            )
        elif "request_settings.max_queue_wait_ms" in values:
            yield f"{prefix}max_queue_wait_ms has no effect without max_concurrent_requests_per_instance"
        if self.collect is False and "true" in str(values.get("data_collector.collections")).lower():
            yield (
                f"{prefix}data_collector keeps nothing: what a script collects itself is kept beside requests or "
                "answers alone; enable model_inputs or model_outputs"
            )
        yield from (f"{prefix}{note}" for note in self.environment.notes)
        yield from kept_notes(values, DEPLOYMENT_FIELDS, prefix)

    def _files(self, run_dir: Path) -> dict[str, Any]:
        asset = self.asset
        if self.entry_script is not None:
            found: dict[str, Any] = {"path": self.entry_script}
            if asset is not None and asset.registered:
                found["uses"] = [asset.registered]
            elif asset is not None:
                found["model_dir"] = asset.model_dir(run_dir)
            return found
        assert asset is not None, "looked at when it was read"
        return {"registered": asset.registered} if asset.registered else {"path": asset.path}

    def _variables(self) -> dict[str, Any] | None:
        variables = self.values.get("environment_variables")
        if self.source_directory is None or not isinstance(variables, Mapping | None):
            # What is none is refused where settings are checked.
            return variables
        # On Azure the folder lies in AML_APP_ROOT, where the script is started.
        return {
            "AML_APP_ROOT": str(self.source_directory.parent),
            "AZUREML_SOURCE_DIRECTORY": self.source_directory.name,
            **(variables or {}),
        }


def _script(values: Mapping[str, Any], file: Path) -> tuple[Path | None, Path | None]:
    """The folder of the code and the script in it; None where there is none."""
    code, script = (values.get(f"code_configuration.{part}") for part in ("code", "scoring_script"))
    if code is None and script is None:
        return None, None
    if code is None or script is None:
        missing = "code" if code is None else "scoring_script"
        raise InvalidSettings(f"{file.name}: code_configuration must have {missing} beside the other")
    folder = path_beside(code, "code_configuration.code", file.parent.absolute(), file.name).resolve()
    if not folder.is_dir():
        raise InvalidSettings(
            f"{file.name}: code_configuration.code {code!r} is not a folder in {file.parent.absolute()}"
        )
    path = folder / script
    if path.suffix != ".py" or not path.is_file():
        raise InvalidSettings(
            f"{file.name}: code_configuration.scoring_script {script!r} is not a Python file in {folder}"
        )
    return folder, path
