"""The folder of models that a script finds as AZUREML_MODEL_DIR."""

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stoker.deployment import Deployment
from stoker.errors import CorruptModel, InvalidSettings, ModelInUse, UnknownModel
from stoker.models.deployments import resolve
from stoker.models.model_links import copy_model, link_models
from stoker.models.registered import Registered
from stoker.models.repository import Repository
from stoker.settings.model import ModelSettings
from stoker.settings.sequence import SequenceSettings, StateTensor
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "app" / "score.py"
    path.parent.mkdir()
    path.write_text("def init(): ...\ndef run(raw_data): ...\n")
    return path


SEQUENCE = SequenceSettings((StateTensor("h", "hn"),))
NOT_FOR_SEQUENCES: list[tuple[dict[str, Any], str]] = [
    ({"cache_mb": 1}, "leave cache_mb out"),
    ({"shadow": {"next": 10}}, "leave shadow out"),
    ({"pad": {"x": 0}}, "leave pad out"),
    ({"zipmap": "objects"}, "leave zipmap out"),
    ({"execution": "graph"}, "leave execution out"),
    ({"batching": "none"}, "leave batching out"),
    ({"precision": "fp16"}, "precision fp16 and provider cuda are not for it"),
    ({"canary": {"stable": 90, "next": 10}}, "canary needs canary_by"),
]


def register(repository: Repository, source: Path, name: str) -> Registered:
    """Register a version of a file or folder, which is never loaded."""
    if source.suffix:
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(b"weights of " + source.name.encode())
    else:
        source.mkdir(parents=True, exist_ok=True)
        (source / "model.onnx").write_bytes(b"weights")
        (source / "labels").mkdir(exist_ok=True)
        (source / "labels" / "en.txt").write_text("zero")
    return repository.register(name, source, now=NOW)


def test_one_model_is_its_version_folder(tmp_path: Path, repository: Repository) -> None:
    """AZUREML_MODEL_DIR ends in NAME/VERSION, and the file is in it under its own name."""
    model = register(repository, tmp_path / "digits.onnx", "digits")
    folder = link_models([model], tmp_path / "run")
    assert folder.parts[-3:] == ("azureml-models", "digits", "1")
    assert folder.is_absolute()
    assert [path.name for path in folder.iterdir()] == ["digits.onnx"]
    assert (folder / "digits.onnx").read_bytes() == b"weights of digits.onnx"


@pytest.mark.parametrize("name", ["digits.onnx", "outputs/model"])
def test_a_copy_for_another_machine_has_the_files_of_the_links(
    tmp_path: Path, repository: Repository, name: str
) -> None:
    """Azure's form of a folder, VERSION/FOLDER/..., has no links, which not all transfers keep."""
    model = register(repository, tmp_path / name, "digits")
    linked, copied = link_models([model], tmp_path / "run"), tmp_path / "copy"
    copy_model(model, copied)
    files = [path.relative_to(model.files_dir) for path in model.files_dir.rglob("*") if path.is_file()]
    prefixes = [Path()] if name == "digits.onnx" else [Path(), Path("model")]
    for file in (prefix / file for prefix in prefixes for file in files):
        assert (copied / file).read_bytes() == (linked / file).read_bytes()
    for link in [path for path in copied.iterdir() if path.is_symlink()]:
        link.unlink()
    assert all((copied / prefixes[-1] / file).is_file() for file in files)


def test_several_models_are_below_one_folder(tmp_path: Path, repository: Repository) -> None:
    """It is `azureml-models`, with NAME/VERSION in it, also for two versions of one model."""
    first = register(repository, tmp_path / "digits.onnx", "digits")
    second = register(repository, tmp_path / "digits.onnx", "digits")
    other = register(repository, tmp_path / "letters.onnx", "letters")
    folder = link_models([first, second, other], tmp_path / "run")
    assert folder.name == "azureml-models"
    assert sorted(str(path.relative_to(folder)) for path in folder.glob("*/*/*")) == [
        "digits/1/digits.onnx",
        "digits/2/digits.onnx",
        "letters/1/letters.onnx",
    ]


def test_a_folder_is_found_under_its_name_and_without_it(tmp_path: Path, repository: Repository) -> None:
    """Azure puts `outputs/model` at VERSION/model; its files are in VERSION too."""
    model = register(repository, tmp_path / "outputs" / "model", "digits")
    folder = link_models([model], tmp_path / "run")
    assert sorted(path.name for path in folder.iterdir()) == ["labels", "model", "model.onnx"]
    assert (folder / "model" / "labels" / "en.txt").read_text() == "zero"
    assert (folder / "labels" / "en.txt").read_text() == "zero"


def test_the_same_models_give_the_same_folder(tmp_path: Path, repository: Repository) -> None:
    """A second server and a restart find it; other models have another one; no other files are left."""
    first = register(repository, tmp_path / "digits.onnx", "digits")
    second = register(repository, tmp_path / "digits.onnx", "digits")
    run_dir = tmp_path / "run"
    one = link_models([first], run_dir)
    assert link_models([first], run_dir) == one
    assert link_models([second], run_dir) != one
    assert link_models([first, second], run_dir) == link_models([second, first], run_dir)
    assert len(list((run_dir / "models").iterdir())) == 3


def test_a_folder_that_cannot_be_made_is_an_operators_error(tmp_path: Path, repository: Repository) -> None:
    """The message names it; a version that is named twice is refused."""
    model = register(repository, tmp_path / "digits.onnx", "digits")
    (tmp_path / "run").write_text("a file")
    with pytest.raises(InvalidSettings, match=r"the folder of models .* cannot be made"):
        link_models([model], tmp_path / "run")
    with pytest.raises(InvalidSettings, match="cannot use digits:1 twice"):
        link_models([model, model], tmp_path / "other")


def serve(workspace: Workspace, leases: ExitStack, **settings: object) -> Deployment:
    """The only model of these settings."""
    (deployed,) = resolve(ServerSettings(models=(ModelSettings(**settings),)), workspace, leases)  # type: ignore[arg-type]
    return deployed


def test_a_script_uses_registered_models(
    tmp_path: Path, workspace: Workspace, repository: Repository, leases: ExitStack, script: Path
) -> None:
    """It gets the newest version, which cannot be deleted while it is served."""
    for _ in range(2):
        register(repository, tmp_path / "digits.onnx", "digits")
    deployed = serve(workspace, leases, path=script, uses=("digits",))
    assert deployed.model_dir.parts[-2:] == ("digits", "2")
    assert (deployed.name, deployed.path) == ("app", script)
    with pytest.raises(ModelInUse):
        repository.delete("digits", 2)
    leases.close()
    repository.delete("digits", 2)


def test_used_models_are_verified(
    tmp_path: Path, workspace: Workspace, repository: Repository, leases: ExitStack, script: Path
) -> None:
    """A file that was changed after its registration stops the start, as one that is not registered does."""
    model = register(repository, tmp_path / "digits.onnx", "digits")
    with pytest.raises(UnknownModel, match="has no version 3"):
        serve(workspace, leases, path=script, uses=("digits:3",))
    stored = model.files_dir / "digits.onnx"
    stored.chmod(0o600)
    stored.write_bytes(b"others")
    with pytest.raises(CorruptModel):
        serve(workspace, leases, path=script, uses=("digits",))


def test_only_a_script_uses_models(
    tmp_path: Path, workspace: Workspace, repository: Repository, leases: ExitStack, script: Path
) -> None:
    """Other models have no settings of scripts, and no model has two model folders."""
    model = register(repository, tmp_path / "digits.onnx", "digits")
    with pytest.raises(InvalidSettings, match="digits is no entry script: uses is for those alone"):
        serve(workspace, leases, path=tmp_path / "digits.onnx", uses=(model.reference,))
    scripts: dict[str, Any] = {"tensorflow_compat": "v1", "model_dir": tmp_path}
    for name, value in scripts.items():
        with pytest.raises(InvalidSettings, match=f"digits is no entry script: {name} is for those alone"):
            serve(workspace, leases, path=tmp_path / "digits.onnx", **{name: value})
    with pytest.raises(InvalidSettings, match="batching is one of auto, rows, none, not merge"):
        serve(workspace, leases, path=tmp_path / "digits.onnx", batching="merge")
    with pytest.raises(InvalidSettings, match="batching is one of auto, merge, handle, none, not rows"):
        serve(workspace, leases, path=script, batching="rows")
    with pytest.raises(
        InvalidSettings, match="digits is neither a SavedModel nor one of scikit-learn: signature"
    ):
        serve(workspace, leases, path=tmp_path / "digits.onnx", signature=("embed",))
    for name, value in {"late": "refuse", "admission": "target"}.items():
        with pytest.raises(InvalidSettings, match="digits has no target_ms: late and admission"):
            serve(workspace, leases, path=tmp_path / "digits.onnx", **{name: value})
    with pytest.raises(InvalidSettings, match="for a replica on each write cuda:0,cuda:1"):
        serve(workspace, leases, path=tmp_path / "digits.onnx", device=("cuda:0+cuda:1",))
    with pytest.raises(InvalidSettings, match="app is no ONNX model: zipmap is for those alone"):
        serve(workspace, leases, path=script, zipmap="objects")
    with pytest.raises(InvalidSettings, match=r"app is an entry script, .* leave state out of its sequence"):
        serve(workspace, leases, path=script, sequence=SEQUENCE)
    with pytest.raises(InvalidSettings, match="one request at a time: leave batching out"):
        serve(workspace, leases, path=script, sequence=SequenceSettings(), batching="merge")
    with pytest.raises(InvalidSettings, match="digits: sequence needs its state"):
        serve(workspace, leases, path=tmp_path / "digits.onnx", sequence=SequenceSettings())
    for more, complaint in NOT_FOR_SEQUENCES:
        with pytest.raises(InvalidSettings, match=complaint):
            serve(workspace, leases, path=tmp_path / "digits.onnx", sequence=SEQUENCE, **more)
    with pytest.raises(InvalidSettings, match="environment_variables is for those alone"):
        serve(workspace, leases, path=tmp_path / "digits.onnx", environment_variables={"A": "1"})
    with pytest.raises(InvalidSettings, match="writes its answers itself: leave non_finite out"):
        serve(workspace, leases, path=script, non_finite="null")
    with pytest.raises(InvalidSettings, match="app has model_dir and uses"):
        serve(workspace, leases, path=script, uses=("digits",), model_dir=tmp_path)
