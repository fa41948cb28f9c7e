"""The YAML of `az ml online-endpoint` and `online-deployment`, in Stoker's settings."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker.settings.model import ModelSettings, model_settings
from stoker.settings.names import checked_name, name_from_file
from stoker.settings.server import ImportedSettings
from stoker.settings.traffic import Endpoint
from stoker.settings.yaml_files import read_yaml
from stoker.system.durable import private_folder
from stoker_azure.config.inference import check_names, write_conda_file
from stoker_azure.config.online_fields import (
    DEPLOYMENT_FIELDS,
    ENDPOINT_FIELDS,
    notes_without_effect,
    read_fields,
)

_REGISTERED: Final = re.compile(r"azureml:(?P<name>[^:@/]+)(?::(?P<version>[^:@/]+)|@(?P<label>[^:@/]+))?")
_REMOTE: Final = re.compile(r"[a-z]+:/", re.ASCII)
_ASSET: Final = (
    "$schema",
    "name",
    "version",
    "description",
    "tags",
    "properties",
    "stage",
    "datastore",
    "id",
)
_MODEL: Final = (*_ASSET, "path", "type", "flavors", "job_name", "utc_time_created")
_MODEL_TYPES: Final = ("custom_model", "mlflow_model", "triton_model")
_IMAGE: Final = ("image", "build", "inference_config", "os_type")
_ENVIRONMENT: Final = (*_ASSET, "conda_file", *_IMAGE)
_COLLECTION: Final = ("enabled", "data", "client_id")
_BODIES: Final = {
    "request": "inputs",
    "model_inputs": "inputs",
    "response": "outputs",
    "model_outputs": "outputs",
}
"""The collections of Azure that are bodies of requests and answers, under the names that they have here."""


class OnlineModel(Struct, frozen=True):
    """The model of a deployment: either registered or a path.

    Attributes:
        registered: A registered model as NAME[:VERSION].
        name: Name on Azure, part of AZUREML_MODEL_DIR.
    """

    registered: str = ""
    path: Path | None = None
    name: str = ""
    version: str = "1"

    @classmethod
    def of(cls, value: Any, file: Path) -> OnlineModel | None:
        """Read the key `model`; None if it is missing.

        Raises:
            InvalidSettings: The value is neither a reference to a registered model nor an existing path.
        """
        if value is None:
            return None
        if isinstance(value, str) and not value.startswith("file:"):
            return cls(registered=_reference(value, file.name))
        content, base = _inline(value, "model", file)
        check_names(content, _MODEL, "model.", file.name)
        kind = content.get("type", _MODEL_TYPES[0])
        if kind not in _MODEL_TYPES:
            raise InvalidSettings(
                f"{file.name}: model.type must be {' or '.join(_MODEL_TYPES)}, got {kind!r}"
            )
        path = path_beside(content.get("path"), "model.path", base, file.name)
        if not path.exists():
            raise InvalidSettings(f"{file.name}: model.path {content['path']!r} is not there in {base}")
        name = content.get("name")
        shown = name_from_file(str(name)) if name is not None else name_from_file(path.resolve().stem)
        return cls(path=path, name=shown, version=name_from_file(str(content.get("version", 1))))

    def model_dir(self, run_dir: Path) -> Path | None:
        """Return AZUREML_MODEL_DIR for a script: a folder that has `path` and nothing else, as on Azure.

        Args:
            run_dir: The workspace's folder of running servers.
        """
        if self.path is None:
            return None
        # `..` and a link at the end have no name of their own.
        target = self.path.absolute() if self.path.name not in ("", "..") else self.path.resolve()
        digest = hashlib.sha256(str(target).encode(errors="surrogateescape")).hexdigest()[:16]
        folder = private_folder(
            run_dir.absolute() / "models" / digest / "azureml-models" / self.name / self.version
        )
        link = folder / target.name
        # One that is there leads to the same: the digest is of the target.
        with contextlib.suppress(FileExistsError):
            link.symlink_to(target)
        return folder


class OnlineEnvironment(Struct, frozen=True):
    """The packages of a deployment.

    Attributes:
        conda_file: They as a file of conda.
        conda: The same, where the YAML itself has it.
        notes: What the operator is told of the rest.
    """

    conda_file: Path | None = None
    conda: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: Any, file: Path) -> OnlineEnvironment:
        """Read the key `environment`."""
        if value is None:
            return cls()
        if isinstance(value, str) and not value.startswith("file:"):
            if not value.startswith("azureml:"):
                raise InvalidSettings(
                    f"{file.name}: environment must be azureml:NAME:VERSION or a mapping, got {value!r}"
                )
            note = (
                f"environment {value} is one of Azure's workspace: the packages are those of this server; "
                "name a conda file to have them compared or installed (--environment)"
            )
            return cls(notes=(note,))
        content, base = _inline(value, "environment", file)
        check_names(content, _ENVIRONMENT, "environment.", file.name)
        given = ", ".join(f"{name} {content[name]}" for name in _IMAGE if content.get(name) is not None)
        notes = (f"kept for the cluster: image ({given}); no container is built here",) if given else ()
        conda = content.get("conda_file")
        if isinstance(conda, Mapping):
            return cls(conda=conda, notes=notes)
        if conda is None:
            return cls(notes=notes)
        path = path_beside(conda, "environment.conda_file", base, file.name)
        if not path.is_file():
            raise InvalidSettings(
                f"{file.name}: environment.conda_file {conda!r} is not a conda file in {base}"
            )
        return cls(conda_file=path, notes=notes)

    def file(self, conda_dir: Path, source: str) -> Path | None:
        """Return the packages as a conda file, written to a folder if needed."""
        return self.conda_file if self.conda is None else write_conda_file(self.conda, conda_dir, source)


def path_beside(value: Any, name: str, base: Path, source: str) -> Path:
    """Return a path of the YAML, which is relative to its file.

    Raises:
        InvalidSettings: It is none, or one of another machine.
    """
    if not isinstance(value, str) or not value:
        raise InvalidSettings(f"{source}: {name} must be a path, got {value!r}")
    if _REMOTE.match(value) or value.startswith("azureml:"):
        raise InvalidSettings(
            f"{source}: {name} {value!r} is not on this machine; download it and name the file or folder here"
        )
    return base / Path(value.removeprefix("file:")).expanduser()


def read_collections(values: Mapping[str, Any], source: str) -> dict[str, Any] | bool | None:
    """Read `data_collector` as the setting `collect`; None if unset."""
    collections = values.get("data_collector.collections")
    if collections is None:
        return None
    prefix = "data_collector.collections"
    if not isinstance(collections, Mapping) or not all(
        isinstance(one, Mapping) for one in collections.values()
    ):
        raise InvalidSettings(f"{source}: {prefix} must be mappings by name, got {collections!r}")
    kept = []
    for name, one in collections.items():
        check_names(one, _COLLECTION, f"{prefix}.{name}.", source)
        enabled = str(one.get("enabled", "")).lower()
        if enabled not in ("true", "false"):
            raise InvalidSettings(f"{source}: {prefix}.{name}.enabled must be true or false, got {enabled!r}")
        if enabled == "true":
            kept.append(_BODIES.get(name))
    bodies = [name for name in ("inputs", "outputs") if name in kept]
    if not bodies:
        return False
    return {"collections": bodies, "sample_rate": values.get("data_collector.sampling_rate", 1.0)}


def _inline(value: Any, name: str, file: Path) -> tuple[Mapping[str, Any], Path]:
    """Return a mapping of the YAML, or of the file that it names, and the folder of that file."""
    if isinstance(value, str):
        other = path_beside(value, name, file.parent.absolute(), file.name)
        return read_yaml(other, f"file of {name}", f"what {name} may have, by name"), other.parent
    if not isinstance(value, Mapping):
        raise InvalidSettings(f"{file.name}: {name} must be a mapping or azureml:NAME:VERSION, got {value!r}")
    return value, file.parent.absolute()


def _reference(value: str, source: str) -> str:
    found = _REGISTERED.fullmatch(value)
    if found is None:
        hint = (
            "register it here (stoker models register) and name it so"
            if value.startswith("azureml:")
            else f"a file or folder is named by model: {{path: {value}}}"
        )
        raise InvalidSettings(
            f"{source}: model must be azureml:NAME:VERSION, azureml:NAME@latest or a mapping with path, got "
            f"{value!r}; {hint}"
        )
    if found["label"] not in (None, "latest"):
        raise InvalidSettings(f"{source}: model {value!r}: of labels there is latest alone; name the version")
    return found["name"] if found["version"] is None else f"{found['name']}:{found['version']}"


_SCHEMA: Final = "onlinedeployment.schema.json"
_PER_INSTANCE: Final = "request_settings.max_concurrent_requests_per_instance"


@dataclass(frozen=True, slots=True)
class OnlineDeployment:
    """A checked online deployment.

    Attributes:
        name: Name of the deployment and of the service.
        values: The given settings, by dotted name.
        entry_script: The script; None if the model is served without one.
        source_directory: The folder that Azure copies with the script.
        asset: The model; None for a script that needs none.
        collect: The setting `collect`, as `model_settings` reads it; None if unset.
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
        values = read_fields(content, DEPLOYMENT_FIELDS, file.name)
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
        """The name of the endpoint."""
        return self.values.get("endpoint_name")

    @property
    def replicas(self) -> int | None:
        """Number of replicas: the requested one, or the fewest that Azure's autoscaler would keep."""
        fewest: int | None = self.values.get(
            "instance_count", self.values.get("scale_settings.min_instances")
        )
        return fewest

    def model(self, run_dir: Path) -> ModelSettings:
        """Return the settings of the model.

        Args:
            run_dir: The workspace's folder of running servers, for files that are written.
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
        """Yield notes for the operator."""
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
        yield from notes_without_effect(values, DEPLOYMENT_FIELDS, prefix)

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
            # A value that is no mapping is refused where settings are checked.
            return variables
        # On Azure the folder lies in AML_APP_ROOT, where the script is started.
        return {
            "AML_APP_ROOT": str(self.source_directory.parent),
            "AZUREML_SOURCE_DIRECTORY": self.source_directory.name,
            **(variables or {}),
        }


def _script(values: Mapping[str, Any], file: Path) -> tuple[Path | None, Path | None]:
    """Return the folder of the code and the script in it; None if there is none."""
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


_ENDPOINT_SCHEMA: Final = "onlineendpoint.schema.json"
_ALL: Final = 100


class OnlineEndpoint(Struct, frozen=True):
    """A checked online endpoint.

    Attributes:
        values: The given settings, by dotted name; empty without a file.
    """

    values: Mapping[str, Any] = msgspec.field(default_factory=dict)
    source: str = "endpoint"

    @classmethod
    def from_file(cls, file: Path) -> OnlineEndpoint:
        """Read the YAML of a managed or Kubernetes online endpoint as `az ml online-endpoint create -f` does.

        Raises:
            InvalidSettings: It cannot be read, or a setting is unknown or has a bad value.
        """
        content = read_yaml(file, "endpoint", "the settings of an online endpoint by name")
        schema = str(content.get("$schema", _ENDPOINT_SCHEMA))
        if not schema.lower().endswith(_ENDPOINT_SCHEMA):
            raise InvalidSettings(
                f"{file} is no online endpoint, for its $schema is {schema}; a deployment is given with --deployment"
            )
        return cls(read_fields(content, ENDPOINT_FIELDS, file.name), file.name)

    def imported(self, deployments: Sequence[OnlineDeployment]) -> ImportedSettings:
        """Return the settings of the server, with notes for the operator on the endpoint and its deployments.

        Raises:
            InvalidSettings: The deployments are of several endpoints or have the same name, or the endpoint's traffic
                does not fit them.
        """
        names = [deployment.name for deployment in deployments]
        if len(set(names)) < len(names):
            raise InvalidSettings(f"two deployments have the same name: {', '.join(names)}")
        endpoint = Endpoint(self._name(deployments), self._shares(names), self._mirrors(names))
        notes = [note for deployment in deployments for note in deployment.notes()]
        return ImportedSettings(
            self.source, self._access(), notes=(*notes, *self._notes(endpoint)), endpoint=endpoint
        )

    def _access(self) -> dict[str, Any]:
        mode = self.values.get("auth_mode")
        return {} if mode is None else {"auth": mode == "key", "token_auth": mode != "key"}

    def _name(self, deployments: Sequence[OnlineDeployment]) -> str:
        given = {self.values.get("name"), *(deployment.endpoint_name for deployment in deployments)} - {None}
        if len(given) > 1:
            raise InvalidSettings(
                f"the deployments are of several endpoints, {', '.join(sorted(map(str, given)))}; a server has one"
            )
        return checked_name(str(*given) if given else deployments[0].name, "endpoint")

    def _shares(self, names: Sequence[str]) -> dict[str, int]:
        traffic = self.values.get("traffic")
        if not traffic:
            first = self.values.get("defaults.deployment_name", names[0])
            traffic = {first: _ALL}
        self._check_names("traffic", traffic, names)
        total = sum(traffic.values())
        if total not in (0, _ALL):
            raise InvalidSettings(f"{self.source}: traffic must add up to {_ALL} (or to 0), got {total}")
        return {name: traffic.get(name, 0) for name in names}

    def _mirrors(self, names: Sequence[str]) -> dict[str, int]:
        mirrors = {name: part for name, part in (self.values.get("mirror_traffic") or {}).items() if part}
        self._check_names("mirror_traffic", mirrors, names)
        if len(mirrors) > 1:
            raise InvalidSettings(
                f"{self.source}: mirror_traffic must name one deployment, got {', '.join(mirrors)}"
            )
        for name in mirrors:
            if self._shares(names)[name]:
                raise InvalidSettings(
                    f"{self.source}: {name} cannot have traffic and mirror_traffic; as on Azure, it is either or"
                )
        return mirrors

    def _check_names(self, key: str, given: Mapping[str, int], names: Sequence[str]) -> None:
        unknown = [name for name, part in given.items() if name not in names and part]
        if unknown:
            raise InvalidSettings(
                f"{self.source}: {key} names {', '.join(unknown)}, and the deployments that are given are "
                f"{', '.join(names)}; give each with --deployment"
            )

    def _notes(self, endpoint: Endpoint) -> Iterable[str]:
        shares = ", ".join(f"{name} {share} %" for name, share in endpoint.shares.items())
        mirrors = "".join(f", a copy of {part} % to {name}" for name, part in endpoint.mirrors.items())
        yield f"endpoint {endpoint.name}: requests to /score go to {shares}{mirrors}"
        if not self.values.get("traffic") and len(endpoint.shares) > 1:
            yield "no traffic is given (--endpoint FILE): the first deployment gets all, the header chooses another"
        if self.values.get("auth_mode") == "aad_token":
            yield "auth_mode aad_token: tokens are those of this server, not of Microsoft Entra"
        yield from notes_without_effect(self.values, ENDPOINT_FIELDS, "")
