"""`Model.get_model_path`: its places, in their order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker_azure.exceptions import AzureMLException, ModelNotFoundException, WebserviceException
from stoker_azure.sdk import core
from stoker_azure.sdk.model import Model

Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Create files below the working directory, which is empty; no variable is set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AZUREML_MODEL_DIR", raising=False)
    monkeypatch.delenv("AML_APP_ROOT", raising=False)

    def put(*paths: str) -> Path:
        for path in paths:
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        return tmp_path

    return put


@pytest.fixture
def model_dir(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Let AZUREML_MODEL_DIR be a folder, which is not the working directory."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def use(folder: str) -> Path:
        monkeypatch.setenv("AZUREML_MODEL_DIR", str(tmp_path / folder))
        return tmp_path

    return use


def test_both_imports_are_one_class() -> None:
    """`azureml.core.Model` is `azureml.core.model.Model`, and finds models as it is tested here."""
    from azureml.core import model

    assert core.Model is model.Model is Model


def test_the_highest_version_of_the_cache(put: Put) -> None:
    """Versions are numbers; the path is that of the only entry, relative to the working directory."""
    put(
        "azureml-models/mnist/9/nine.onnx",
        "azureml-models/mnist/10/ten.onnx",
        "azureml-models/mnist/notes.txt",
    )
    assert Model.get_model_path("mnist") == "azureml-models/mnist/10/ten.onnx"
    assert Model.get_model_path("mnist", 9) == "azureml-models/mnist/9/nine.onnx"
    assert Model.get_model_path(model_name="mnist", version=9).endswith("nine.onnx")


def test_the_only_entry_may_be_a_folder(put: Put) -> None:
    """Azure keeps the name of a folder that was registered."""
    put("azureml-models/mnist/1/model/a", "azureml-models/mnist/1/model/b")
    assert Model.get_model_path("mnist") == "azureml-models/mnist/1/model"


def test_the_app_root_holds_the_cache(put: Put, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in Azure's images, where it is not the working directory."""
    root = put("app/azureml-models/mnist/1/m.pkl")
    monkeypatch.setenv("AML_APP_ROOT", str(root / "app"))
    assert Model.get_model_path("mnist") == str(root / "app/azureml-models/mnist/1/m.pkl")


@pytest.mark.parametrize("files", [("a", "b"), ()])
def test_several_entries_in_the_cache_are_refused(put: Put, files: tuple[str, ...]) -> None:
    """Nobody can say which is meant."""
    root = put(*(f"azureml-models/mnist/1/{name}" for name in files))
    (root / "azureml-models/mnist/1").mkdir(parents=True, exist_ok=True)
    with pytest.raises(WebserviceException, match=r"can contain only 1 file or folder. Found") as refused:
        Model.get_model_path("mnist")
    assert str(list(files)) in refused.value.message
    assert not isinstance(refused.value, ModelNotFoundException)


def test_the_working_directory_comes_next(put: Put) -> None:
    """A file or folder of the model's name, also where the cache lacks the version."""
    put("mnist/model.onnx", "azureml-models/mnist/1/m.onnx")
    assert Model.get_model_path("mnist", 2) == "mnist"
    put("plain")
    assert Model.get_model_path("plain") == "plain"


def test_a_cache_without_versions_is_passed_over(put: Put) -> None:
    """A folder of the model's name that holds no number."""
    put("azureml-models/mnist/readme", "mnist")
    assert Model.get_model_path("mnist") == "mnist"


def test_a_model_folder_that_is_the_version(put: Put, model_dir: Callable[[str], Path]) -> None:
    """One model: the folder itself, or its only entry; another version of it is not there."""
    root = model_dir("azureml-models/mnist/3")
    put("azureml-models/mnist/3/a")
    assert Model.get_model_path("mnist") == str(root / "azureml-models/mnist/3/a")
    put("azureml-models/mnist/3/b")
    assert Model.get_model_path("mnist", 3) == str(root / "azureml-models/mnist/3")
    with pytest.raises(ModelNotFoundException):
        Model.get_model_path("mnist", 4)
    with pytest.raises(ModelNotFoundException):
        Model.get_model_path("other")


def test_a_model_folder_of_the_repository(put: Put, model_dir: Callable[[str], Path]) -> None:
    """A registered version lies in NAME/VERSION/files."""
    root = model_dir("models/mnist/3/files")
    put("models/mnist/3/files/score.py", "models/mnist/3/files/m.onnx")
    assert Model.get_model_path("mnist") == str(root / "models/mnist/3/files")


def test_a_model_folder_of_several_models(put: Put, model_dir: Callable[[str], Path]) -> None:
    """NAME/VERSION below it, else NAME."""
    root = model_dir("azureml-models")
    put("azureml-models/a/1/x", "azureml-models/a/2/y", "azureml-models/b/1/x", "azureml-models/b/1/y")
    put("azureml-models/c/m.pkl", "azureml-models/d.pkl")
    base = root / "azureml-models"
    assert Model.get_model_path("a") == str(base / "a/2/y")
    assert Model.get_model_path("a", 1) == str(base / "a/1/x")
    assert Model.get_model_path("b") == str(base / "b/1")
    assert Model.get_model_path("c") == str(base / "c")
    assert Model.get_model_path("d.pkl") == str(base / "d.pkl")


def test_the_working_directory_is_before_the_model_folder(put: Put, model_dir: Callable[[str], Path]) -> None:
    """As on Azure, where the model folder is not looked at."""
    model_dir("models")
    put("models/mnist/m", "elsewhere/mnist")
    assert Model.get_model_path("mnist") == "mnist"


@pytest.mark.parametrize("folder", ["", "missing", "a-file"])
def test_a_model_that_is_nowhere(
    put: Put, model_dir: Callable[[str], Path], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says where it was looked for; scripts catch it as Azure's exceptions."""
    put("a-file")
    model_dir(folder) if folder else monkeypatch.setenv("AZUREML_MODEL_DIR", "")
    with pytest.raises(
        ModelNotFoundException, match="Model mnist not found in cache at azureml-models"
    ) as missing:
        Model.get_model_path("mnist")
    assert isinstance(missing.value, WebserviceException)
    assert isinstance(missing.value, AzureMLException)
    assert str(missing.value) == missing.value.message


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("mnist", "1"), "version should be an int"), ((None,), "model_name"), ((["mnist"],), "model_name")],
)
@pytest.mark.usefixtures("put")
def test_arguments_of_other_types_are_refused(arguments: tuple[Any, ...], text: str) -> None:
    """With Azure's words for the version."""
    with pytest.raises(WebserviceException, match=text):
        Model.get_model_path(*arguments)
