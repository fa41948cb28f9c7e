"""Which framework files belong to, and which models a folder in somebody's layout holds."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stoker.errors import RepositoryError
from stoker.models.frameworks import Detected, detect
from stoker.models.layouts import discover, likely_name
from stoker.models.repository import Repository
from stoker.models.sources import Broken

NOW = datetime(2026, 10, 18, tzinfo=UTC)


def touch(root: Path, *files: str) -> Path:
    """Create empty files and their folders below `root`; a trailing slash makes a folder."""
    for name in files:
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    return root


def found(path: Path) -> list[tuple[str, int, str, str]]:
    root = path if path.is_dir() else path.parent
    return [(s.name, s.version, s.framework, str(s.path.relative_to(root))) for s in discover(path)]


# Detection


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
def test_any_files_are_a_model_if_that_is_said(tmp_path: Path, path: str) -> None:
    """Nothing is taken for `files` unasked; they need only be there."""
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
    """The one that is called so, else the only one."""
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
def test_boosters_are_told_by_their_beginning(
    tmp_path: Path, name: str, content: bytes, is_one: bool
) -> None:
    """Many files have their names; one that begins as XGBoost or LightGBM writes it is a model, also in a folder."""
    (tmp_path / name).write_bytes(content)
    (tmp_path / "sample_input.json").write_text('{"data": [[1]]}')
    for path in (tmp_path, tmp_path / name):
        if is_one:
            assert detect(path) == Detected("sklearn", tmp_path / name)
        else:
            with pytest.raises(RepositoryError, match="holds no model"):
                detect(path)


def test_a_pickle_beside_another_model_is_a_file_of_that(tmp_path: Path) -> None:
    """As a vocabulary may be: neither a model of the folder nor versions in it become anything else by it."""
    assert detect(touch(tmp_path / "a", "model.onnx", "model.pkl")).framework == "onnx"
    assert detect(tmp_path / "a", "sklearn").path.name == "model.pkl"
    versions = discover(touch(tmp_path / "b", "1/model.onnx", "2/model.pkl", "words.pkl"))
    assert [(source.version, source.framework) for source in versions] == [(1, "onnx"), (2, "sklearn")]
    with pytest.raises(
        RepositoryError, match=r"could be several models: sklearn \(a.pkl\), sklearn \(b.pkl\)"
    ):
        detect(touch(tmp_path / "c", "a.pkl", "b.pkl"))


def test_the_framework_can_be_chosen(tmp_path: Path) -> None:
    """What a folder holds besides can be asked for, and is refused where it is not there."""
    touch(tmp_path, "score.py", "model.onnx")
    assert detect(tmp_path, "onnx").path == tmp_path / "model.onnx"
    with pytest.raises(RepositoryError, match="looked for a model of the framework tensorflow"):
        detect(tmp_path, "tensorflow")


@pytest.mark.parametrize(
    "files",
    [["a.onnx", "b.onnx"], ["saved_model.pb", "model.onnx"], ["a.meta", "a.index", "b.meta", "b.index"]],
)
def test_ambiguous_folders_are_refused(tmp_path: Path, files: list[str]) -> None:
    """A folder that could be several models is refused with what it could be."""
    with pytest.raises(RepositoryError, match="could be several models") as refusal:
        detect(touch(tmp_path, *files))
    for name in {Path(file).stem for file in files} - {"saved_model"}:
        assert name in str(refusal.value)


@pytest.mark.parametrize("files", [[], ["readme.txt"], ["a.meta"], ["deep/model.onnx"]])
def test_folders_without_a_model_are_refused(tmp_path: Path, files: list[str]) -> None:
    """The message for a folder without a model says what was looked for."""
    with pytest.raises(RepositoryError, match=r"holds no model; looked for an entry script \(score\.py\)"):
        detect(touch(tmp_path, *files))


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    """A missing path is said to be missing."""
    with pytest.raises(RepositoryError, match="does not exist"):
        detect(tmp_path / "absent")
    with pytest.raises(RepositoryError, match="does not exist"):
        discover(tmp_path / "absent")


# One model


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


# Layouts


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
    """`max_batch_size` of config.pbtxt is taken over where it is there."""
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
def test_tritons_configuration_says_which_files_are_the_model(
    tmp_path: Path, config: str, files: list[str], path: str
) -> None:
    """By the name of the file or folder, or by its kind where there are several; for one version's path too."""
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
def test_a_model_whose_configuration_is_wrong_is_broken_alone(
    tmp_path: Path, config: str, problem: str
) -> None:
    """In all its versions; the other models of the folder are found."""
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
    """Called as the file. Weights and notes beside them are none."""
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
    """The others are served."""
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
    """What is unclear or not there is refused, and the message says what was looked for."""
    with pytest.raises(RepositoryError, match=problem):
        discover(touch(tmp_path, *files))


def test_a_folder_whose_name_is_none_is_broken_alone(tmp_path: Path) -> None:
    """It takes nothing from the models beside it; without those it is the error."""
    folder = touch(tmp_path, "net/1/model.onnx", "my:net/1/model.onnx", "my:net/3/model.onnx")
    broken: Broken = {}
    assert [source.name for source in discover(folder, broken)] == ["net"]
    assert list(broken) == [("my:net", 1), ("my:net", 3)]
    with pytest.raises(RepositoryError, match=r"'my:net' cannot be a model name: .*; rename the folder"):
        discover(folder)


def test_a_folder_that_cannot_be_read_is_broken_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is that of a model, or of a version."""
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
    """Whether the model is found there, or is to be found there later or elsewhere, such as in a pod."""
    (source,) = discover(touch(tmp_path, file) / served)
    assert source.name == likely_name(tmp_path / served) == name


def test_of_one_number_the_folder_without_zeros_counts(tmp_path: Path) -> None:
    """As in Triton; alone, one with zeros is a version, as in TensorFlow Serving."""
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
def test_a_file_of_another_kind_is_refused_with_what_to_do(tmp_path: Path, file: str, hint: str) -> None:
    """In one sentence: layouts of folders are of no interest to who has named a file."""
    with pytest.raises(RepositoryError, match=f"{file} is no file that Stoker loads by itself .*{hint}"):
        discover(touch(tmp_path, file) / file)


def test_a_saved_models_file_stands_for_its_folder(tmp_path: Path) -> None:
    """In its name and version too."""
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
    """The error names the unreadable path before a framework complains of something else."""
    touch(tmp_path, "small.onnx", "repo/net/1/saved_model.pb", "secret/model.onnx")
    monkeypatch.setattr(
        "stoker.models.frameworks.os.access", lambda asked, _: Path(asked) != tmp_path / refused
    )
    with pytest.raises(RepositoryError, match=f"{tmp_path / refused} cannot be read: permission denied"):
        discover(tmp_path / path)


def test_names_that_are_no_text_are_refused_unless_python_opens_the_file(tmp_path: Path) -> None:
    """Frameworks take paths as UTF-8; entry scripts are Python's own business."""
    model, script = (tmp_path / os.fsdecode(name) for name in (b"b\xffd.onnx", b"b\xffd.py"))
    model.touch()
    script.touch()
    with pytest.raises(RepositoryError, match=r"bytes in its name that are no UTF-8.*; rename it"):
        detect(model)
    assert detect(script).framework == "script"


def test_a_model_py_of_tritons_python_backend_is_a_script(tmp_path: Path) -> None:
    """By its class, beside whatever else is there; its configuration must name the backend."""
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
