"""A model in MLflow's format: a folder with a file `MLmodel` that lists its flavors and its signature."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from stoker.errors import InvalidSettings, RepositoryError
from stoker.settings.files import parse_json, settings_text

MLMODEL: Final = "MLmodel"
_SAVED_MODEL: Final = ("saved_model.pb", "saved_model.pbtxt")
_SERVING_EXAMPLE: Final = "serving_input_example.json"
_DEFAULT_SIGNATURE: Final = "serving_default"
_MOST_EXAMPLE_BYTES: Final = 256 << 20
_SERVED_TAGS: Final = ["serve"]


class Column(Struct, frozen=True):
    """A column of the model's input table.

    Attributes:
        name: Its name; None if the signature has none.
        type: MLflow's name of its type: `double`, `long`, `string` and so on.
    """

    name: str | None
    type: str
    required: bool = True


class TensorInput(Struct, frozen=True):
    """An input tensor of the model.

    Attributes:
        name: Its name; None for an unnamed tensor.
    """

    name: str | None
    dtype: str
    shape: tuple[int, ...]


class MlflowFolder(Struct, frozen=True):
    """The content of an `MLmodel` file.

    Attributes:
        inputs: The model's inputs, either columns or tensors; empty without a signature, or if mlflow itself has to
            check a signature of another kind.
    """

    folder: Path
    flavors: Mapping[str, Mapping[str, Any]]
    inputs: tuple[Column, ...] | tuple[TensorInput, ...] = ()
    example: Mapping[str, Any] | None = None
    """The metadata of its input example."""

    @classmethod
    def read(cls, folder: Path) -> MlflowFolder:
        """Read the `MLmodel` of a folder."""
        from stoker.settings.yaml_files import read_yaml

        file = folder / MLMODEL
        try:
            content = read_yaml(file, "description of the model", "the flavors of a model of MLflow")
        except InvalidSettings as error:
            raise RepositoryError(str(error)) from error
        flavors = content.get("flavors")
        if not isinstance(flavors, dict) or not all(isinstance(one, dict) for one in flavors.values()):
            raise RepositoryError(f"{file} names no flavors, so it is no model of MLflow")
        example = content.get("saved_input_example_info")
        return cls(
            folder, flavors, _inputs(content.get("signature")), example if isinstance(example, dict) else None
        )

    @property
    def native(self) -> tuple[Literal["onnx", "tensorflow"], Path] | None:
        """The contained model that a runtime loads without MLflow; None if it needs a script."""
        onnx = self.flavors.get("onnx")
        if onnx is not None:
            file = self._inside(onnx.get("data"), "model.onnx")
            # Older versions keep the file in a folder.
            return "onnx", file / "model.onnx" if file.is_dir() else file
        tensorflow = self.flavors.get("tensorflow")
        if tensorflow is None or tensorflow.get("signature_def_key") not in (None, _DEFAULT_SIGNATURE):
            return None
        if tensorflow.get("meta_graph_tags") not in (None, _SERVED_TAGS):
            return None
        root = self._inside(tensorflow.get("saved_model_dir", tensorflow.get("data")), "data")
        for folder in (root, root / "model"):
            if any((folder / name).is_file() for name in _SAVED_MODEL):
                return "tensorflow", folder
        return None

    @property
    def pickled_sklearn(self) -> Path | None:
        """The pickle of a scikit-learn model; None for other models, and for other storage formats."""
        sklearn = self.flavors.get("sklearn")
        if sklearn is None or sklearn.get("serialization_format", "pickle") not in ("pickle", "cloudpickle"):
            return None
        return self._inside(sklearn.get("pickled_model"), "model.pkl")

    @property
    def python_function(self) -> Mapping[str, Any]:
        """The settings of the flavor that mlflow itself loads; empty if there is none."""
        return self.flavors.get("python_function", {})

    def sample(self) -> Any:
        """Return a request that the model is known to answer, as JSON; None if there is no input example."""
        serving = self.folder / _SERVING_EXAMPLE
        if serving.is_file():
            return _read_json(serving)
        if self.example is None:
            return None
        content = _read_json(self._inside(self.example.get("artifact_path"), "input_example.json"))
        if self.example.get("type") == "dataframe":
            if self.example.get("pandas_orient") == "records":
                return {"dataframe_records": content}
            return {"dataframe_split": content}
        if isinstance(content, dict) and self.example.get("type") == "ndarray":
            # An unnamed array is stored under this key already.
            return content if "inputs" in content else {"inputs": content}
        return {"inputs": content}

    def _inside(self, name: Any, default: str) -> Path:
        """Return the path of a file or folder of the model, which may not be outside."""
        path = self.folder / (name if isinstance(name, str) and name else default)
        if not path.exists() or not path.resolve().is_relative_to(self.folder.resolve()):
            raise RepositoryError(f"{self.folder / MLMODEL} names {path.name}, which is not in the folder")
        return path


def _inputs(signature: Any) -> tuple[Column, ...] | tuple[TensorInput, ...]:
    """Parse the inputs of a signature, which are JSON text; empty if they are neither columns nor tensors."""
    if not isinstance(signature, dict) or not isinstance(signature.get("inputs"), str):
        return ()
    try:
        listed = parse_json(signature["inputs"])
        if all(one["type"] == "tensor" for one in listed):
            specs = [(one.get("name"), one["tensor-spec"]) for one in listed]
            return tuple(TensorInput(name, str(spec["dtype"]), tuple(spec["shape"])) for name, spec in specs)
        if all(isinstance(one["type"], str) and one["type"] not in ("tensor", *_NESTED) for one in listed):
            return tuple(Column(one.get("name"), one["type"], _is_required(one)) for one in listed)
    except (ValueError, TypeError, KeyError):
        pass
    return ()


_NESTED: Final = ("object", "array", "map", "any", "sparkml vector")


def _is_required(column: Mapping[str, Any]) -> bool:
    return bool(column.get("required", not column.get("optional", False)))


def _read_json(file: Path) -> Any:
    try:
        return parse_json(settings_text(file, _MOST_EXAMPLE_BYTES))
    except (OSError, ValueError) as error:
        raise RepositoryError(f"the input example {file} cannot be read: {error}") from error
