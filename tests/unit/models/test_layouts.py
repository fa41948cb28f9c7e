"""The models in a folder of each layout."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.unit.models.model_files import touch

from stoker.errors import RepositoryError
from stoker.models.frameworks import detect
from stoker.models.layouts import discover, likely_name
from stoker.models.repository import Repository
from stoker.models.sources import Broken

NOW = datetime(2026, 10, 18, tzinfo=UTC)


def found(path: Path) -> list[tuple[str, int, str, str]]:
    root = path if path.is_dir() else path.parent
    return [(s.name, s.version, s.framework, str(s.path.relative_to(root))) for s in discover(path)]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("digits/mlp.onnx", "mlp"),
        ("digits/model.onnx", "digits"),
        ("digits/score.py", "digits"),
        ("digits/My model (2).onnx", "My-model-2"),
        ("digits/...onnx", "model"),
    ],
)
def test_a_file_is_one_model(tmp_path: Path, file: str, name: str) -> None:
    """A file is named by its stem, or by its folder where files of its kind are always called so."""
    (source,) = discover(touch(tmp_path, file) / file)
    assert (source.name, source.version, source.path) == (name, 1, tmp_path / file)
    assert source.model_dir == tmp_path / "digits"


def test_a_folder_is_one_model(tmp_path: Path) -> None:
    """A SavedModel's folder gives its name, and is what the runtime loads."""
    touch(tmp_path, "digits/saved_model.pb", "digits/variables/")
    (source,) = discover(tmp_path / "digits")
    assert (source.name, source.framework, source.path) == ("digits", "tensorflow", tmp_path / "digits")
    assert source.model_dir == tmp_path / "digits"


def test_the_current_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stoker serve .` and `stoker serve ..` name the model by the folder's real name."""
    touch(tmp_path, "digits/saved_model.pb", "digits/assets/")
    monkeypatch.chdir(tmp_path / "digits")
    assert discover(Path())[0].name == "digits"
    monkeypatch.chdir(tmp_path / "digits" / "assets")
    assert discover(Path(".."))[0].name == "digits"


def test_one_version_is_served_as_that_version(tmp_path: Path) -> None:
    """A path that ends in a version number takes name and version from the layout."""
    touch(tmp_path, "digits/7/saved_model.pb")
    (tmp_path / "digits" / "config.pbtxt").write_text("max_batch_size: 16\n")
    (source,) = discover(tmp_path / "digits" / "7")
    assert source.config is not None
    assert (source.name, source.version, source.config.settings.max_batch_rows) == ("digits", 7, 16)


def test_a_checkpoint_needs_a_script(tmp_path: Path) -> None:
    """A bare TensorFlow 1 checkpoint is refused with the command that serves it."""
    touch(tmp_path, "m.meta", "m.index")
    with pytest.raises(RepositoryError, match=f"stoker serve score.py --model-dir {tmp_path}"):
        discover(tmp_path)


def test_a_triton_repository(tmp_path: Path) -> None:
    """Triton's layout gives every version of every model, versions by number, the newest last."""
    touch(
        tmp_path,
        "onnx-net/1/model.onnx",
        "onnx-net/2/model.onnx",
        "onnx-net/10/model.onnx",
        "saved/3/model.savedmodel/saved_model.pb",
        "large/1/model.onnx/model.onnx",
        "large/1/model.onnx/weights",
        ".git/1/model.onnx",
        "docs/readme.md",
    )
    assert found(tmp_path) == [
        ("large", 1, "onnx", "large/1/model.onnx/model.onnx"),
        ("onnx-net", 1, "onnx", "onnx-net/1/model.onnx"),
        ("onnx-net", 2, "onnx", "onnx-net/2/model.onnx"),
        ("onnx-net", 10, "onnx", "onnx-net/10/model.onnx"),
        ("saved", 3, "tensorflow", "saved/3/model.savedmodel"),
    ]


@pytest.mark.parametrize(
    ("config", "max_batch_rows"),
    [
        ('name: "net"\nmax_batch_size: 32\n', 32),
        ("  max_batch_size : 8 # rows", 8),
        ("max_batch_size: 0", 0),
        ("# max_batch_size: 8", None),
        ("", None),
        (None, None),
    ],
)
def test_tritons_batch_size_is_read(tmp_path: Path, config: str | None, max_batch_rows: int | None) -> None:
    """`max_batch_size` of config.pbtxt becomes a setting."""
    touch(tmp_path, "net/1/model.onnx")
    if config is not None:
        (tmp_path / "net" / "config.pbtxt").write_text(config)
    for path in (tmp_path, tmp_path / "net", tmp_path / "net" / "1"):
        (source,) = discover(path)
        if config is None:
            assert source.config is None
            continue
        assert source.config is not None
        assert source.config.settings.max_batch_rows == (max_batch_rows or None)
        assert source.config.declaration.batched == (None if max_batch_rows is None else max_batch_rows > 0)


@pytest.mark.parametrize(
    ("config", "files", "path"),
    [
        ('default_model_filename: "net.onnx"', ["1/net.onnx", "1/other.onnx"], "net/1/net.onnx"),
        ('default_model_filename: "saved"', ["1/saved/saved_model.pb", "1/model.onnx"], "net/1/saved"),
        ('backend: "onnxruntime"', ["1/model.onnx", "1/saved_model.pb"], "net/1/model.onnx"),
        ('platform: "tensorflow_savedmodel"', ["1/model.onnx", "1/saved_model.pb"], "net/1"),
    ],
)
def test_tritons_configuration_names_the_files_of_the_model(
    tmp_path: Path, config: str, files: list[str], path: str
) -> None:
    """It gives the name of the file or folder, or the framework among several; for one version's path too."""
    touch(tmp_path, *(f"net/{file}" for file in files))
    (tmp_path / "net" / "config.pbtxt").write_text(config)
    for given in (tmp_path, tmp_path / "net", tmp_path / "net" / "1"):
        (source,) = discover(given)
        assert (source.name, source.version, source.path) == ("net", 1, tmp_path / path)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            'default_model_filename: "gone.onnx"',
            "version 1 of net has no gone.onnx, which is default_model_filename",
        ),
        ('backend: "tensorflow"', "holds no model; looked for a model of the framework tensorflow"),
        ("max_batch_size 8", "config.pbtxt of net, line 1, column 16"),
        ('backend: "tensorrt"', "'tensorrt' is not offered"),
        ('backend: "python"', "looked for score.py, or model.py with the class TritonPythonModel"),
    ],
)
def test_a_wrong_configuration_breaks_only_its_model(tmp_path: Path, config: str, problem: str) -> None:
    """All its versions are broken; the other models of the folder are found."""
    touch(tmp_path, "net/1/model.onnx", "other/1/model.onnx")
    (tmp_path / "net" / "config.pbtxt").write_text(config)
    broken: Broken = {}
    assert [source.name for source in discover(tmp_path, broken)] == ["other"]
    assert list(broken) == [("net", 1)]
    with pytest.raises(RepositoryError, match=problem):
        discover(tmp_path)


def test_optimum_export_is_found_as_a_model(tmp_path: Path) -> None:
    """`onnx/model.onnx` below a Hugging Face model is found; an ONNX file beside `onnx` comes first."""
    touch(tmp_path, "bert/config.json", "bert/onnx/model.onnx", "bert/onnx/model_quantized.onnx")
    assert found(tmp_path / "bert") == [("bert", 1, "onnx", "onnx/model.onnx")]
    touch(tmp_path, "bert/own.onnx")
    assert found(tmp_path / "bert") == [("bert", 1, "onnx", "own.onnx")]


def test_a_tensorflow_serving_repository(tmp_path: Path) -> None:
    """Models with SavedModels in numbered folders are found, time stamps as versions too."""
    touch(
        tmp_path,
        "digits/1/saved_model.pb",
        "digits/1729245600/saved_model.pb",
        "cats/00000002/saved_model.pb",
    )
    assert [(name, version) for name, version, _, _ in found(tmp_path)] == [
        ("cats", 2),
        ("digits", 1),
        ("digits", 1729245600),
    ]


def test_the_base_path_of_one_model(tmp_path: Path) -> None:
    """A folder with numbered versions is one model under the folder's name."""
    touch(tmp_path, "digits/1/saved_model.pb", "digits/2/saved_model.pb", "digits/docs/")
    assert found(tmp_path / "digits") == [("digits", 1, "tensorflow", "1"), ("digits", 2, "tensorflow", "2")]


def test_registered_models_as_a_folder(tmp_path: Path) -> None:
    """The repository, a model or a version of it can be given as a path, and bring their checksums along."""
    onnx = tmp_path / "digits.onnx"
    onnx.write_bytes(b"weights")
    repository = Repository(tmp_path / "models")
    for _ in range(2):
        repository.register("digits", onnx, now=NOW)
    repository.register("zero", onnx, now=NOW)
    for path, expected in [
        (tmp_path / "models", ["digits:1", "digits:2", "zero:1"]),
        (tmp_path / "models" / "digits", ["digits:1", "digits:2"]),
        (tmp_path / "models" / "digits" / "1", ["digits:1"]),
    ]:
        sources = discover(path)
        assert [source.registered and source.registered.reference for source in sources] == expected
        assert [f"{source.name}:{source.version}" for source in sources] == expected
    (source,) = discover(tmp_path / "models" / "zero")
    assert source.path.read_bytes() == b"weights"
    assert source.model_dir == source.path.parent


def test_each_file_of_several_is_a_model(tmp_path: Path) -> None:
    """Each has the name of its file; weights and notes beside them are no models."""
    touch(tmp_path, "b.onnx", "a c.onnx", "b.onnx.data", "notes.txt", "d.pt2", "words.pkl", "deep/model.onnx")
    found = [
        (source.name, source.version, source.framework, source.path.name) for source in discover(tmp_path)
    ]
    assert found == [
        ("a-c", 1, "onnx", "a c.onnx"),
        ("b", 1, "onnx", "b.onnx"),
        ("d", 1, "torch", "d.pt2"),
    ]


def test_two_files_with_one_name_are_refused(tmp_path: Path) -> None:
    """Other models are served."""
    broken: Broken = {}
    sources = discover(touch(tmp_path, "a.onnx", "b.onnx", "a.pt2", "c.onnx"), broken)
    assert [source.name for source in sources] == ["b", "c"]
    assert "would both be called a; rename one" in str(broken["a", 1])


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["a.onnx", "b.onnx", "1/model.onnx"], "could be several models"),
        (["a.onnx", "b.onnx", "net/1/model.onnx"], "could be several models"),
        (["a.onnx", "b.onnx", "saved_model.pb"], "could be several models"),
        (["notes.txt"], "nothing to serve in .*; looked for an entry script"),
        (["notes.txt", "a/b/c/model.onnx"], "nothing to serve"),
        (["net/1/model.plan"], "version 1 of net .* holds no model that Stoker serves, but model.plan"),
        (["net/1/"], "version 1 of net .* but nothing"),
        (["net/1/a.onnx", "net/1/b.onnx"], "could be several models"),
        (
            ["1/model.onnx", "net/1/model.onnx"],
            r"could be one model \(its versions 1\) or a repository of models \(net\)",
        ),
        (["net/1/m.meta", "net/1/m.index"], "stoker serve score.py --model-dir"),
    ],
)
def test_unclear_folders_are_refused(tmp_path: Path, files: list[str], problem: str) -> None:
    """Ambiguous and empty folders are refused, and the message has the expected files."""
    with pytest.raises(RepositoryError, match=problem):
        discover(touch(tmp_path, *files))


def test_a_folder_with_an_invalid_name_breaks_only_its_model(tmp_path: Path) -> None:
    """The models beside it are served; without these it is the error."""
    folder = touch(tmp_path, "net/1/model.onnx", "my:net/1/model.onnx", "my:net/3/model.onnx")
    broken: Broken = {}
    assert [source.name for source in discover(folder, broken)] == ["net"]
    assert list(broken) == [("my:net", 1), ("my:net", 3)]
    with pytest.raises(RepositoryError, match=r"'my:net' cannot be a model name: .*; rename the folder"):
        discover(folder)


def test_a_folder_that_cannot_be_read_is_broken_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the folder of a model or of a version."""
    folder = touch(tmp_path, "net/1/model.onnx", "net/2/model.onnx", "shut/1/model.onnx")
    is_dir = Path.is_dir

    def refuse(path: Path) -> bool:
        if folder / "shut" in path.parents or folder / "net" / "2" in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refuse)
    broken: Broken = {}
    assert [(source.name, source.version) for source in discover(folder, broken)] == [("net", 1)]
    assert {
        name: str(error).endswith("cannot be read: Permission denied") for name, error in broken.items()
    } == {
        ("shut", 1): True,
        ("net", 2): True,
    }


@pytest.mark.parametrize(
    ("file", "served", "name"),
    [
        ("digits.onnx", "digits.onnx", "digits"),
        ("here/score.py", "here/score.py", "here"),
        ("here/main.py", "here/main.py", "here"),
        ("here/my.model.onnx", "here/my.model.onnx", "my.model"),
        ("net.v2/saved_model.pb", "net.v2/saved_model.pb", "net.v2"),
        ("net.v2/saved_model.pb", "net.v2", "net.v2"),
        ("net/3/saved_model.pb", "net/3/saved_model.pb", "net"),
        ("net/3/model.onnx", "net/3", "net"),
        ("net/3/model.onnx", "net/3/model.onnx", "net"),
    ],
)
def test_a_path_has_one_name(tmp_path: Path, file: str, served: str, name: str) -> None:
    """The name does not depend on whether the model is found there now, later, or in a pod."""
    (source,) = discover(touch(tmp_path, file) / served)
    assert source.name == likely_name(tmp_path / served) == name


def test_the_folder_without_leading_zeros_counts(tmp_path: Path) -> None:
    """This is Triton's rule; a single folder with zeros is a version, as in TensorFlow Serving."""
    folder = touch(tmp_path, "net/1/model.onnx", "net/01/old.onnx", "padded/0003/model.onnx")
    net, padded = discover(folder)
    assert (net.version, net.path.name) == (1, "model.onnx")
    assert (padded.version, padded.path.parent.name) == (3, "0003")


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("model.keras", r'export it as a SavedModel \(model.export\("saved_model"\)\), or write a score.py'),
        ("weights.H5", "export it as a SavedModel"),
        ("deployment.yaml", "serve a deployment file with --config, or write a score.py"),
        ("model.tar.xz", "unpack it, or write a score.py"),
        ("models.config", "give it as --model-config-file"),
        ("model.bin", r"\*.joblib\): write a score.py whose init\(\) loads it"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_advice(tmp_path: Path, file: str, hint: str) -> None:
    """The sentence is about the file, not about layouts of folders."""
    with pytest.raises(RepositoryError, match=f"{file} is no file that Stoker loads by itself .*{hint}"):
        discover(touch(tmp_path, file) / file)


def test_a_saved_models_file_stands_for_its_folder(tmp_path: Path) -> None:
    """The folder also gives its name and version."""
    touch(tmp_path, "iris/3/saved_model.pb", "flat/saved_model.pb")
    for path in (tmp_path / "iris" / "3", tmp_path / "flat"):
        assert discover(path / "saved_model.pb") == discover(path)
    (source,) = discover(tmp_path / "iris" / "3" / "saved_model.pb")
    assert (source.name, source.version, source.path) == ("iris", 3, tmp_path / "iris" / "3")


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("small.onnx", "small.onnx"),
        ("repo/net/1/saved_model.pb", "repo/net/1/saved_model.pb"),
        ("repo/net/1", "repo/net/1/saved_model.pb"),
        ("secret", "secret"),
        ("repo", "repo/net/1"),
    ],
)
def test_unreadable_file_is_refused_as_permission_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, refused: str
) -> None:
    """The error names the unreadable path before a framework raises another error."""
    touch(tmp_path, "small.onnx", "repo/net/1/saved_model.pb", "secret/model.onnx")
    monkeypatch.setattr(
        "stoker.models.frameworks.os.access", lambda path_of_file, _: Path(path_of_file) != tmp_path / refused
    )
    with pytest.raises(RepositoryError, match=f"{tmp_path / refused} cannot be read: permission denied"):
        discover(tmp_path / path)


def test_names_that_are_no_text_are_refused_unless_python_opens_the_file(tmp_path: Path) -> None:
    """Frameworks take paths as UTF-8; Python itself opens entry scripts."""
    model, script = (tmp_path / os.fsdecode(name) for name in (b"b\xffd.onnx", b"b\xffd.py"))
    model.touch()
    script.touch()
    with pytest.raises(RepositoryError, match=r"bytes in its name that are no UTF-8.*; rename it"):
        detect(model)
    assert detect(script).framework == "script"


def test_a_model_py_of_tritons_python_backend_is_a_script(tmp_path: Path) -> None:
    """Its class shows it, beside any other files; its configuration must name the backend."""
    touch(tmp_path, "net/1/model.pt")
    (tmp_path / "net" / "1" / "model.py").write_text("class Net: ...")
    assert [source.framework for source in discover(tmp_path)] == ["torch"]
    (tmp_path / "net" / "1" / "model.py").write_text("class TritonPythonModel: ...")
    (source,) = discover(tmp_path)
    assert (source.framework, source.path.name) == ("script", "model.py")
    (tmp_path / "net" / "config.pbtxt").write_text("max_batch_size: 8")
    with pytest.raises(
        RepositoryError, match=r'does not name the backend of model.py: add backend: "python"'
    ):
        discover(tmp_path)
    (tmp_path / "net" / "config.pbtxt").write_text('backend: "python" default_model_filename: "own.py"')
    (tmp_path / "net" / "1" / "model.py").rename(tmp_path / "net" / "1" / "own.py")
    assert [source.path.name for source in discover(tmp_path)] == ["own.py"]
