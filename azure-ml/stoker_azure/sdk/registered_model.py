"""Registered models of the workspace: finding, registering and copying them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from stoker_azure.exceptions import ModelNotFoundException, NotOffered, WebserviceException
from stoker_azure.model_path import find_model_path
from stoker_azure.sdk.base import BaseWorkspace, Filter, has_labels, raised_as, text_labels
from stoker_azure.sdk.unoffered import with_unoffered_names

if TYPE_CHECKING:
    from stoker.errors import OperatorError
    from stoker.models.registered import Registered
    from stoker.models.repository import ModelFacts, Repository

__all__ = ["RegisteredModel", "ResourceConfiguration", "model_ids", "refuse_parts"]


class ResourceConfiguration(Struct, frozen=True):
    """The resources that a container of the model would get on Azure."""

    cpu: float | None = None
    memory_in_gb: float | None = None
    gpu: int | None = None


_TENSORFLOW: Final = dict.fromkeys(("tensorflow", "tf1-checkpoint"), "TensorFlow")
_AZURE_FRAMEWORKS: Final = {**_TENSORFLOW, "onnx": "Onnx", "sklearn": "ScikitLearn"}

_ONE_FOLDER: Final = (
    "data sets and child_paths are not kept with a model here; leave them out, and copy the files that belong "
    "together into one folder"
)


@with_unoffered_names
class RegisteredModel:
    """One version of a registered model.

    Attributes:
        id: `NAME:VERSION`.
        model_framework: The framework, in Azure's words.
        run_id: The run that produced the model; None if there is none.
    """

    run = created_by = parent_id = None
    model_framework_version = resource_configuration = sample_input_dataset = sample_output_dataset = None

    class Framework:
        """Frameworks, for `register`."""

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
        workspace: BaseWorkspace,
        name: str | None = None,
        id: str | None = None,  # noqa: A002  # Azure's name
        tags: Filter | None = None,
        properties: Filter | None = None,
        version: int | str | None = None,
        run_id: str | None = None,
        model_framework: str | None = None,
        expand: bool = True,
        *,
        _registered: Registered | None = None,
    ) -> None:
        """Find a model in the workspace: the newest version to which all arguments apply.

        Args:
            id: `NAME:VERSION`, instead.
            run_id: The run that produced the model.
            model_framework: The framework, in Azure's words.
            expand: Not used: a model is always whole.
            _registered: The version, where it has been found already.

        Raises:
            ModelNotFoundException: There is none; a `WebserviceException` too.
            WebserviceException: Neither `name` nor `id` is given, or a model cannot be read.
        """
        del expand
        self.workspace = workspace
        if _registered is None:
            if id:
                name, _, of_id = id.partition(":")
                version = of_id or version
            if not name:
                raise WebserviceException("one of name and id has to be given")
            found = self.list(workspace, name, tags, properties, run_id, model_framework=model_framework)
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
        self.model_framework = _AZURE_FRAMEWORKS.get(registered.framework, self.Framework.CUSTOM)

    def __repr__(self) -> str:
        return (
            f"Model(workspace={self.workspace!r}, name={self.name!r}, id={self.id!r}, version={self.version!r}, "
            f"tags={self.tags!r}, properties={self.properties!r})"
        )

    @classmethod
    def register(
        cls,
        workspace: BaseWorkspace,
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
    ) -> Self:
        """Copy a file or a folder into the workspace, as the next version of a model.

        The files tell the framework. A pickle is for an entry script, unless `model_framework` is SCIKITLEARN. The
        framework's version and the resources have no effect.

        Args:
            model_framework: `Model.Framework.SCIKITLEARN` for a pickle that is served by itself.
            sample_input_dataset: Rows for a model of scikit-learn: an array, table or lists.

        Raises:
            WebserviceException: The name is malformed, or the files cannot be copied.
            NotOffered: A data set, `child_paths`, or a sample for another framework is given.
        """
        from stoker_azure.sdk.registration import register, sample_file

        del model_framework_version, resource_configuration
        pickles = model_framework == cls.Framework.SCIKITLEARN
        refuse_parts(datasets, child_paths, () if pickles else (sample_input_dataset, sample_output_dataset))
        facts: ModelFacts = {
            "tags": text_labels(tags),
            "properties": text_labels(properties),
            "description": description or "",
        }
        with raised_as(WebserviceException), sample_file(sample_input_dataset) as sample:
            repository = _repository(workspace, create=True)
            registered = register(
                repository, model_name, Path(model_path), facts, pickles=pickles, sample=sample
            )
        print(f"Registering model {model_name}: version {registered.version}")
        return cls(workspace, _registered=registered)

    @classmethod
    def list(
        cls,
        workspace: BaseWorkspace,
        name: str | None = None,
        tags: Filter | None = None,
        properties: Filter | None = None,
        run_id: str | None = None,
        latest: bool = False,
        dataset_id: str | None = None,
        expand: bool = True,
        page_count: int = 255,
        model_framework: str | None = None,
    ) -> Sequence[Self]:
        """Return the models of the workspace to which all arguments apply, by name and version.

        Without `name`, models that cannot be read are left out, and a line says so.

        Args:
            run_id: The run that produced the model.
            dataset_id: No model here is kept with data sets.
            expand: Not used: a model is always whole.
            page_count: Not used: all models are there at once.
            model_framework: The framework, in Azure's words.

        Raises:
            WebserviceException: A version of the model that is named cannot be read, or the name is malformed.
        """
        del expand, page_count
        if dataset_id is not None:
            return []
        broken: dict[tuple[str, int], OperatorError] = {}
        with raised_as(WebserviceException):
            registered = _repository(workspace).list(name, broken if name is None else None)
        for error in broken.values():
            print(f"Left out: {error}")
        models = [cls(workspace, _registered=found) for found in registered]
        models = [
            model
            for model in models
            if has_labels(model.tags, tags)
            and has_labels(model.properties, properties)
            and run_id in (None, model.run_id)
            and model_framework in (None, model.model_framework)
        ]
        return list({model.name: model for model in models}.values()) if latest else models

    @staticmethod
    def get_model_path(model_name: str, version: int | None = None, _workspace: Any = None) -> str:
        """Return the path of a model's files: as an entry script finds them, or in a workspace.

        Args:
            version: Its version; without one the highest that is there.
            _workspace: A workspace to look in instead.

        Raises:
            ModelNotFoundException: There is none.
            WebserviceException: An argument has the wrong type, or a folder holds several things.
        """
        if _workspace is None:
            return find_model_path(model_name, version)
        return str(RegisteredModel(_workspace, model_name, version=version).content)

    @property
    def content(self) -> Path:
        """The registered file in the repository, or the folder."""
        files_dir = self.registered.files_dir
        is_file = set(self.registered.files) == {PurePosixPath(self.registered.source)}
        return files_dir / self.registered.source if is_file else files_dir

    @property
    def url(self) -> str:
        """The URI of the files."""
        return self.content.absolute().as_uri()

    def download(self, target_dir: str = ".", exist_ok: bool = False, exists_ok: bool | None = None) -> str:
        """Copy the registered file or folder into a folder, and return the path of the copy.

        Args:
            target_dir: The folder, created if needed.
            exists_ok: Old name of `exist_ok`.

        Raises:
            WebserviceException: The copy exists and must not be overwritten, or `target_dir` is a file.
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
        """Return the model as JSON."""
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


def refuse_parts(datasets: Any, child_paths: Any = None, samples: Sequence[Any] = ()) -> None:
    """Raise `NotOffered` if a model is to be registered with data sets, or of several files that are named."""
    if datasets or child_paths or any(sample is not None for sample in samples):
        raise NotOffered(_ONE_FOLDER)


def _repository(workspace: BaseWorkspace, *, create: bool = False) -> Repository:
    from stoker.models.repository import Repository

    return Repository((workspace.local.create() if create else workspace.local).models_dir)


def _not_found(
    workspace: BaseWorkspace, name: str, version: int | str | None, *, narrowed: bool
) -> ModelNotFoundException:
    known = ", ".join(model.id for model in RegisteredModel.list(workspace)) or "none"
    wanted = name if version is None else f"{name} version {version}"
    narrower = ", or none with these tags, properties, run and framework" if narrowed else ""
    return ModelNotFoundException(
        f"ModelNotFound: the workspace has no model {wanted}{narrower}; registered are: {known}. "
        f"Register it with Model.register or 'stoker models register {name} PATH'"
    )


def model_ids(models: Sequence[RegisteredModel]) -> list[str]:
    """Return `NAME:VERSION` of each model.

    Raises:
        WebserviceException: `models` is not a list of models; often it is a single one, or names.
    """
    if isinstance(models, list | tuple) and all(
        isinstance(getattr(model, "id", None), str) for model in models
    ):
        return [model.id for model in models]
    raise WebserviceException(
        f"models must be a list such as [Model(workspace, NAME)], got {type(models).__name__}"
        + (f" of {type(models[0]).__name__}" if isinstance(models, list | tuple) else "")
    )
