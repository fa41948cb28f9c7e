"""The framework of a model is recognised by its files."""

from pathlib import Path

import pytest
from tests.unit.models.model_files import touch

from stoker.errors import RepositoryError
from stoker.models.frameworks import Detected, detect
from stoker.models.layouts import discover


@pytest.mark.parametrize(
    ("files", "framework", "entry"),
    [
        (["score.py"], "script", "score.py"),
        (["score.py", "model.onnx", "saved_model.pb", "a.meta", "a.index"], "script", "score.py"),
        (["model.onnx"], "onnx", "model.onnx"),
        (["digits.onnx", "notes.txt"], "onnx", "digits.onnx"),
        (["model.onnx", "other.onnx"], "onnx", "model.onnx"),
        (["saved_model.pb", "variables/variables.index"], "tensorflow", "."),
        (["saved_model.pbtxt"], "tensorflow", "."),
        (["m.model.meta", "m.model.index", "m.model.data-00000-of-00001"], "tf1-checkpoint", "m.model.meta"),
    ],
)
def test_folders_are_recognised(tmp_path: Path, files: list[str], framework: str, entry: str) -> None:
    """The framework follows from the files alone, and an entry script comes before all else."""
    detected = detect(touch(tmp_path, *files))
    assert detected.framework == framework
    assert detected.path == tmp_path / entry


@pytest.mark.parametrize("path", ["model.bin", "."])
def test_the_framework_files_takes_any_files(tmp_path: Path, path: str) -> None:
    """They need only exist; without the setting no path is taken for `files`."""
    touch(tmp_path, "model.bin")
    with pytest.raises(RepositoryError, match="holds no model"):
        detect(tmp_path / path)
    assert detect(tmp_path / path, "files").path == tmp_path / path
    with pytest.raises(RepositoryError, match="does not exist"):
        detect(tmp_path / "nothing", "files")


@pytest.mark.parametrize(
    ("file", "framework", "entry"),
    [
        ("digits.onnx", "onnx", "digits.onnx"),
        ("serve_digits.py", "script", "serve_digits.py"),
        ("saved_model.pb", "tensorflow", "."),
        ("churn.pkl", "sklearn", "churn.pkl"),
        ("churn.joblib", "sklearn", "churn.joblib"),
    ],
)
def test_files_are_recognised(tmp_path: Path, file: str, framework: str, entry: str) -> None:
    """A single file is an ONNX model, a pickle, an entry script of any name, or stands for its SavedModel."""
    detected = detect(touch(tmp_path, file) / file)
    assert (detected.framework, detected.path) == (framework, tmp_path / entry)


@pytest.mark.parametrize(
    ("files", "entry"),
    [
        (("model.joblib", "labels.txt"), "model.joblib"),
        (("churn.pkl", "requirements.txt"), "churn.pkl"),
        (("model.pkl", "encoder.pkl"), "model.pkl"),
        (("model.pkl", "data/rows.csv"), "model.pkl"),
    ],
)
def test_a_pickle_is_the_model_of_its_folder(tmp_path: Path, files: tuple[str, ...], entry: str) -> None:
    """The pickle with the usual name counts, else the only one."""
    assert detect(touch(tmp_path, *files)) == Detected("sklearn", tmp_path / entry)


@pytest.mark.parametrize(
    ("name", "content", "is_one"),
    [
        ("model.json", b'{"learner":{"attributes":{}', True),
        ("model.ubj", b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner", True),
        ("model.txt", b"tree\nversion=v4\n", True),
        ("model.bst", b"tree\nversion=v4\n", True),
        ("model.json", b'{"data": [[1]]}', False),
        ("model.txt", b"", False),
    ],
)
def test_boosters_are_recognised_by_their_beginning(
    tmp_path: Path, name: str, content: bytes, is_one: bool
) -> None:
    """Many files have such names; one that begins as XGBoost or LightGBM write it is a model, also in a folder."""
    (tmp_path / name).write_bytes(content)
    (tmp_path / "sample_input.json").write_text('{"data": [[1]]}')
    for path in (tmp_path, tmp_path / name):
        if is_one:
            assert detect(path) == Detected("sklearn", tmp_path / name)
        else:
            with pytest.raises(RepositoryError, match="holds no model"):
                detect(path)


def test_a_pickle_beside_another_model_belongs_to_it(tmp_path: Path) -> None:
    """It may be a vocabulary: the models of the folder and its versions stay as they are."""
    assert detect(touch(tmp_path / "a", "model.onnx", "model.pkl")).framework == "onnx"
    assert detect(tmp_path / "a", "sklearn").path.name == "model.pkl"
    versions = discover(touch(tmp_path / "b", "1/model.onnx", "2/model.pkl", "words.pkl"))
    assert [(source.version, source.framework) for source in versions] == [(1, "onnx"), (2, "sklearn")]
    with pytest.raises(
        RepositoryError, match=r"could be several models: sklearn \(a.pkl\), sklearn \(b.pkl\)"
    ):
        detect(touch(tmp_path / "c", "a.pkl", "b.pkl"))


def test_the_framework_can_be_chosen(tmp_path: Path) -> None:
    """The setting chooses one of several models in a folder; a missing one is refused."""
    touch(tmp_path, "score.py", "model.onnx")
    assert detect(tmp_path, "onnx").path == tmp_path / "model.onnx"
    with pytest.raises(RepositoryError, match="looked for a model of the framework tensorflow"):
        detect(tmp_path, "tensorflow")


@pytest.mark.parametrize(
    "files",
    [["a.onnx", "b.onnx"], ["saved_model.pb", "model.onnx"], ["a.meta", "a.index", "b.meta", "b.index"]],
)
def test_ambiguous_folders_are_refused(tmp_path: Path, files: list[str]) -> None:
    """A folder that could be several models is refused with their list."""
    with pytest.raises(RepositoryError, match="could be several models") as refusal:
        detect(touch(tmp_path, *files))
    for name in {Path(file).stem for file in files} - {"saved_model"}:
        assert name in str(refusal.value)


@pytest.mark.parametrize("files", [[], ["readme.txt"], ["a.meta"], ["deep/model.onnx"]])
def test_folders_without_a_model_are_refused(tmp_path: Path, files: list[str]) -> None:
    """The message for a folder without a model has the expected files."""
    with pytest.raises(RepositoryError, match=r"holds no model; looked for an entry script \(score\.py\)"):
        detect(touch(tmp_path, *files))


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    """The message says that it does not exist."""
    with pytest.raises(RepositoryError, match="does not exist"):
        detect(tmp_path / "absent")
    with pytest.raises(RepositoryError, match="does not exist"):
        discover(tmp_path / "absent")
