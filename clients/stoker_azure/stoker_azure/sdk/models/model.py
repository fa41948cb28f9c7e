"""`azureml.core.model`: models of the workspace, and deploying them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from stoker_azure import model_path as installed
from stoker_azure.config.fields import Kind
from stoker_azure.exceptions import ModelNotFoundException, NotOffered, WebserviceException
from stoker_azure.sdk import deferred
from stoker_azure.sdk.failures import raised_as
from stoker_azure.sdk.labels import Wanted, carries, labels
from stoker_azure.sdk.models.inference_config import InferenceConfig
from stoker_azure.sdk.models.references import ids_of
from stoker_azure.sdk.unoffered import UnofferedByModel
from stoker_azure.sdk.workspace import Workspace

if TYPE_CHECKING:
    from stoker.errors import OperatorError
    from stoker.models.registered import Registered
    from stoker_azure.sdk.compute import ComputeTarget

from stoker_azure.sdk.models.resource_configuration import ResourceConfiguration

__all__ = ["InferenceConfig", "Model", "ModelNotFoundException", "written_sample"]


# Rows that `Model.register` is given as a sample, as the request that a server tries the model with.


_MOST_ROWS: Final = 16


@contextmanager
def written_sample(rows: Any) -> Iterator[Path | None]:
    """Write the first rows as a request into a file, which is there for as long as the context.

    Args:
        rows: A table of pandas, an array, or lists; None writes nothing.

    Raises:
        NotOffered: It is something else, such as a data set of Azure.
    """
    if rows is None:
        yield None
        return
    array = rows.to_numpy() if hasattr(rows, "to_numpy") else rows
    listed = array.tolist() if hasattr(array, "tolist") else array
    try:
        content = json.dumps({"data": list(listed)[:_MOST_ROWS]}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise NotOffered(
            "sample_input_dataset is taken here as a table, an array or lists of rows without NaN, and not as a data "
            f"set: {error}"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "sample_input.json")
        file.write_text(content, encoding="utf-8")
        yield file


_TENSORFLOW: Final = dict.fromkeys(("tensorflow", "tf1-checkpoint"), "TensorFlow")
_AZURE_FRAMEWORKS: Final = {**_TENSORFLOW, "onnx": "Onnx", "sklearn": "ScikitLearn"}

_ONE_FOLDER: Final = (
    "data sets and child_paths are not kept with a model here; leave them out, and copy the files that belong "
    "together into one folder"
)


class Model(installed.Model, UnofferedByModel):
    """A registered model, in one version.

    Attributes:
        workspace: Its workspace.
        name: Its name.
        version: Its version.
        id: `NAME:VERSION`.
        tags: Its tags.
        properties: Its properties.
        description: Its description.
        created_time: When it was registered.
        model_framework: Its framework, in Azure's words.
        run_id: The run that it was registered from; None where there was none.
        experiment_name: The experiment of that run.
    """

    run = created_by = parent_id = None
    model_framework_version = resource_configuration = sample_input_dataset = sample_output_dataset = None

    class Framework:
        """Names of frameworks, for `register`."""

        CUSTOM = "Custom"
        KERAS = "Keras"
        MULTI = "Multi"
        ONNX = "Onnx"
        PYTORCH = "PyTorch"
        SCIKITLEARN = "ScikitLearn"
        TENSORFLOW = "TensorFlow"
        TFKERAS = "TfKeras"

    def __init__(
        self,
        workspace: Workspace,
        name: str | None = None,
        id: str | None = None,  # noqa: A002  # Azure's name
        tags: Wanted | None = None,
        properties: Wanted | None = None,
        version: int | str | None = None,
        run_id: str | None = None,
        model_framework: str | None = None,
        *,
        _registered: Registered | None = None,
    ) -> None:
        """Find a model in the workspace: the newest version to which all of it applies.

        Args:
            workspace: The workspace.
            name: Its name.
            id: `NAME:VERSION`, instead.
            tags: Tags that it has.
            properties: Properties that it has.
            version: Its version.
            run_id: Not known here: runs are on Azure.
            model_framework: Its framework, in Azure's words.
            _registered: The version, where it has been found already.

        Raises:
            ModelNotFoundException: There is none, which is a `WebserviceException` too.
            WebserviceException: Neither `name` nor `id` is given, or a model cannot be read.
        """
        self.workspace = workspace
        if _registered is None:
            if id:
                name, _, of_id = id.partition(":")
                version = of_id or version
            if not name:
                raise WebserviceException("one of name and id has to be given")
            found: Sequence[Model] = Model.list(
                workspace, name, tags, properties, run_id, model_framework=model_framework
            )
            versions = [model for model in found if version is None or str(model.version) == str(version)]
            if not versions:
                narrowed = any((tags, properties, run_id, model_framework))
                raise _not_found(workspace, name, version, narrowed=narrowed)
            _registered = versions[-1].registered
        self._describe(_registered)

    def _describe(self, registered: Registered) -> None:
        self.registered: Registered = registered
        self.name = registered.name
        self.version = registered.version
        self.id = registered.reference
        self.tags = dict(registered.tags)
        self.properties = dict(registered.properties)
        self.description = registered.description
        self.created_time = datetime.fromisoformat(registered.created_at)
        self.run_id = registered.properties.get("run")
        self.experiment_name = registered.properties.get("experiment")
        self.model_framework = _AZURE_FRAMEWORKS.get(registered.framework, Model.Framework.CUSTOM)

    def __repr__(self) -> str:
        return (
            f"Model(workspace={self.workspace!r}, name={self.name!r}, id={self.id!r}, version={self.version!r}, "
            f"tags={self.tags!r}, properties={self.properties!r})"
        )

    @staticmethod
    def register(
        workspace: Workspace,
        model_path: str,
        model_name: str,
        tags: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        description: str | None = None,
        datasets: Any = None,
        model_framework: str | None = None,
        model_framework_version: str | None = None,
        child_paths: Sequence[str] | None = None,
        sample_input_dataset: Any = None,
        sample_output_dataset: Any = None,
        resource_configuration: ResourceConfiguration | None = None,
    ) -> Model:
        """Copy a file or a folder into the workspace, as the next version of a model.

        Its files tell what it is. A pickle is for an entry script, unless its framework is said to be SCIKITLEARN.

        Args:
            workspace: The workspace.
            model_path: The file or folder.
            model_name: Name of the model.
            tags: Labels.
            properties: Labels.
            description: Free text.
            datasets: Not offered: data sets are on Azure.
            model_framework: Whether a pickle is a model of scikit-learn; else not used.
            model_framework_version: Not used.
            child_paths: Not offered.
            sample_input_dataset: Rows for a model of scikit-learn: an array, table or lists. Of others not offered.
            sample_output_dataset: Of those not used, of others not offered.
            resource_configuration: Not used: it is about containers.

        Raises:
            WebserviceException: The name is malformed, or the files cannot be copied.
            NotOffered: A data set or `child_paths` is given.
        """
        del model_framework_version, resource_configuration
        pickles = model_framework == Model.Framework.SCIKITLEARN
        _check_kept(datasets, child_paths, () if pickles else (sample_input_dataset, sample_output_dataset))
        facts: deferred.repository.ModelFacts = {"tags": labels(tags), "properties": labels(properties)}
        with raised_as(WebserviceException), written_sample(sample_input_dataset) as sample:
            repository = _repository(workspace, create=True)
            facts["description"] = description or ""
            registered = deferred.registering.register(
                repository, model_name, Path(model_path), facts, pickles=pickles, sample=sample
            )
        print(f"Registering model {model_name}: version {registered.version}")
        return Model(workspace, _registered=registered)

    @staticmethod
    def list(
        workspace: Workspace,
        name: str | None = None,
        tags: Wanted | None = None,
        properties: Wanted | None = None,
        run_id: str | None = None,
        latest: bool = False,
        model_framework: str | None = None,
    ) -> Sequence[Model]:
        """The models of the workspace to which all of it applies: by name, then by version.

        A model that cannot be read is left out of a list of all, which says so.

        Args:
            workspace: The workspace.
            name: Their name.
            tags: Tags that they have.
            properties: Properties that they have.
            run_id: No model here has one.
            latest: Only the newest version of each.
            model_framework: Their framework, in Azure's words.

        Raises:
            WebserviceException: A version of the model that is named cannot be read, or the name is malformed.
        """
        if run_id is not None:
            return []
        broken: dict[tuple[str, int], OperatorError] = {}
        with raised_as(WebserviceException):
            registered = _repository(workspace).list(name, broken if name is None else None)
        for error in broken.values():
            print(f"Left out: {error}")
        models = [Model(workspace, _registered=found) for found in registered]
        models = [
            model
            for model in models
            if carries(model.tags, tags)
            and carries(model.properties, properties)
            and model_framework in (None, model.model_framework)
        ]
        return list({model.name: model for model in models}.values()) if latest else models

    @staticmethod
    def get_model_path(model_name: str, version: int | None = None, _workspace: Any = None) -> str:
        """Where the files of a model are: as an entry script finds them, or in a workspace.

        Args:
            model_name: Name of the model.
            version: Its version; without one the highest that is there.
            _workspace: A workspace to look in instead.

        Raises:
            ModelNotFoundException: There is none.
            WebserviceException: An argument has the wrong type, or a folder holds several things.
        """
        if _workspace is None:
            return installed.Model.get_model_path(model_name, version)
        return str(Model(_workspace, model_name, version=version).content)

    @property
    def content(self) -> Path:
        """What was registered: the file in the repository, or the folder."""
        files_dir = self.registered.files_dir
        is_file = set(self.registered.files) == {PurePosixPath(self.registered.source)}
        return files_dir / self.registered.source if is_file else files_dir

    @property
    def url(self) -> str:
        """Where its files are."""
        return self.content.absolute().as_uri()

    def download(self, target_dir: str = ".", exist_ok: bool = False, exists_ok: bool | None = None) -> str:
        """Copy what was registered into a folder, under its name; returns the path of the copy.

        Args:
            target_dir: The folder, which is made if it is not there.
            exist_ok: Overwrite what is there.
            exists_ok: The same, by its old name.

        Raises:
            WebserviceException: There is something of that name, and it must not be overwritten; or the target is no
                folder.
        """
        content, target = self.content, Path(target_dir) / self.registered.source
        if Path(target_dir).is_file():
            raise WebserviceException(f"the target_dir {target_dir} is a file; give a folder")
        if target.exists() and not (exist_ok or exists_ok):
            raise WebserviceException(f"{target} is there already; overwrite it with exist_ok=True")
        files = [PurePosixPath()] if content.is_file() else self.registered.files
        for name in files:
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            # Registered files are read-only; the copy is the user's own.
            copy.unlink(missing_ok=True)
            shutil.copyfile(content / name, copy)
        return str(target)

    def delete(self) -> None:
        """Delete this version.

        Raises:
            WebserviceException: A service uses it.
        """
        with raised_as(WebserviceException):
            _repository(self.workspace).delete(self.name, self.version)

    def serialize(self) -> dict[str, Any]:
        """The model as JSON."""
        return {
            "id": self.id,
            "name": self.name,
            "version": self.version,
            "description": self.description,
            "tags": self.tags,
            "properties": self.properties,
            "framework": self.model_framework,
            "createdTime": self.created_time.isoformat(),
        }

    @staticmethod
    def deploy(
        workspace: Workspace,
        name: str,
        models: Sequence[Model],
        inference_config: InferenceConfig | None = None,
        deployment_config: deferred.deploy_configuration.WebserviceDeploymentConfiguration | None = None,
        deployment_target: ComputeTarget | None = None,
        overwrite: bool = False,
        show_output: bool = False,
    ) -> deferred.webservice.Webservice:
        """Start a service on this machine: a process that goes on when this one ends.

        Args:
            workspace: The workspace.
            name: Name of the service.
            models: Its models, which the script finds by AZUREML_MODEL_DIR.
            inference_config: Its script and environment; without it the one model is served by itself.
            deployment_config: How; without it as `AksWebservice` if there is a target, else as `AciWebservice`.
            deployment_target: The target.
            overwrite: Replace a service of the same name that runs.
            show_output: Not used: what is to be said is said always.

        Raises:
            WebserviceException: The service is there already, or a setting, file or model cannot be used.
        """
        del show_output
        if deployment_config is None:
            kind: Kind = "aci" if deployment_target is None else "aks"
            deployment_config = deferred.deploy_configuration.WebserviceDeploymentConfiguration(kind)
        plan = deferred.plan.Plan(
            name=name,
            kind=deployment_config.kind,
            keywords=deployment_config.keywords,
            models=tuple(ids_of(models)),
            compute_name=deployment_config.compute_target_name
            if deployment_target is None
            else deployment_target.name,
            inference=None if inference_config is None else inference_config.to_json(),
            first_version=deployment_config.first_version,
        )
        with raised_as(WebserviceException):
            deferred.deploying.deploy(workspace.local, plan, overwrite=overwrite)
        return deferred.webservice.Webservice(workspace, name)

    @staticmethod
    def profile(
        workspace: Workspace,
        profile_name: str,
        models: Sequence[Model],
        inference_config: InferenceConfig | None,
        input_dataset: Any,
        cpu: float | None = None,
        memory_in_gb: float | None = None,
        description: str | None = None,
    ) -> deferred.profile.ModelProfile:
        """Find out on this machine what a service of the models bears, and with which settings.

        The arguments are those of `deploy`; `input_dataset` has a file that is a request, or is its path, or None for
        the model's sample. `cpu` and `memory_in_gb` limit nothing here.

        Raises:
            UserErrorException: The name is none, or the data set has no file.
            WebserviceException: A model or file cannot be used.
        """
        asked = {"cpu": cpu, "memory_in_gb": memory_in_gb, "description": description}
        return deferred.profile.start_profile(
            workspace, profile_name, ids_of(models), inference_config, input_dataset, asked
        )


def _check_kept(datasets: Any, child_paths: Any, samples: Sequence[Any]) -> None:
    if datasets or child_paths or any(sample is not None for sample in samples):
        raise NotOffered(_ONE_FOLDER)


def _repository(workspace: Workspace, *, create: bool = False) -> deferred.repository.Repository:
    return deferred.repository.Repository(
        (workspace.local.create() if create else workspace.local).models_dir
    )


def _not_found(
    workspace: Workspace, name: str, version: int | str | None, *, narrowed: bool
) -> ModelNotFoundException:
    known = ", ".join(model.id for model in Model.list(workspace)) or "none"
    wanted = name if version is None else f"{name} version {version}"
    narrower = ", or none with these tags, properties, run and framework" if narrowed else ""
    return ModelNotFoundException(
        f"ModelNotFound: the workspace has no model {wanted}{narrower}; registered are: {known}. "
        f"Register it with Model.register or 'stoker models register {name} PATH'"
    )
