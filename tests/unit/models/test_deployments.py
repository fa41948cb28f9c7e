"""From settings to deployments."""

import dataclasses
import json
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.mlflow_folders import write_mlmodel

from stoker.deployment import Deployment
from stoker.errors import (
    CorruptModel,
    InvalidSettings,
    ModelInUse,
    OperatorError,
    RepositoryError,
    UnknownModel,
)
from stoker.metrics.layout import MODEL_SLOTS
from stoker.models.available_models import find_available_models
from stoker.models.deployments import resolve
from stoker.models.mlflow_serving import ENTRY_SCRIPT
from stoker.models.repository import Repository
from stoker.models.sources import Broken
from stoker.settings.choices import Acceleration
from stoker.settings.model import ModelSettings
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.system.durable import replace_file

NOW = datetime(2026, 10, 18, 12, 30, tzinfo=UTC)
SCRIPT = "def init(): ...\ndef run(raw_data): ...\n"


def script(folder: Path, name: str = "score.py") -> Path:
    """An entry script in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(SCRIPT)
    return path


def onnx(path: Path) -> Path:
    """A file with the name of an ONNX model, which is never loaded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"weights of " + path.name.encode())
    return path


def deploy(
    workspace: Workspace, leases: ExitStack, *models: ModelSettings, **settings: object
) -> list[Deployment]:
    """Resolve settings with these models."""
    return resolve(ServerSettings(models=models, **settings), workspace, leases)  # type: ignore[arg-type]


def test_a_bare_path_is_served_under_its_own_name(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """A file needs no registration: its name is the service, its folder the model folder."""
    path = onnx(tmp_path / "digits.onnx")
    (deployed,) = deploy(workspace, leases, ModelSettings(path=path))
    assert (deployed.name, deployed.version, deployed.framework) == ("digits", 1, "onnx")
    assert (deployed.path, deployed.model_dir) == (path, tmp_path)
    assert (deployed.slot, deployed.max_delay_ms, deployed.max_batch_rows) == (0, 0.0, 256)
    assert deployed.max_body_bytes == 100 * 2**20


def test_relative_paths_become_absolute(
    tmp_path: Path, workspace: Workspace, leases: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device process may run in another folder."""
    script(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    (deployed,) = deploy(
        workspace, leases, ModelSettings(path=Path("model/score.py"), model_dir=Path("model"))
    )
    assert deployed.path == tmp_path / "model" / "score.py"
    assert deployed.model_dir == tmp_path / "model"


def test_a_models_settings_win_over_the_servers(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """Name, model folder and batching can be set per model; zero is a delay too."""
    weights = tmp_path / "weights"
    weights.mkdir()
    own = ModelSettings(
        path=script(tmp_path / "a"),
        name="mine",
        model_dir=weights,
        max_batch_rows=8,
        max_delay_ms=0,
        target_ms=25,
        late="refuse",
    )
    other = ModelSettings(path=script(tmp_path / "b"))
    first, second = deploy(workspace, leases, own, other, max_batch_rows=32, max_delay_ms=5.0)
    assert (first.name, first.model_dir) == ("mine", weights)
    assert (first.max_batch_rows, first.max_delay_ms, first.slot) == (8, 0, 0)
    assert (second.name, second.max_batch_rows) == ("b", 32)
    assert (second.max_delay_ms, second.slot) == (5.0, 1)
    assert (first.target_ms, first.late) == (25, "refuse")
    assert (second.target_ms, second.late) == (None, "answer")


def test_replicas_and_devices_of_a_model_win_over_the_servers(
    tmp_path: Path, workspace: Workspace, leases: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the defaults; replicas on the CPU share the cores."""
    for module in ("stoker.models.deployments", "stoker.settings.server"):
        monkeypatch.setattr(f"{module}.usable_cores", lambda: 8)
    path = onnx(tmp_path / "digits.onnx")
    many, elsewhere, plain = deploy(
        workspace,
        leases,
        ModelSettings(path=path, name="many", replicas=12),
        ModelSettings(path=path, name="elsewhere", device=("cuda:0", "cuda:1")),
        ModelSettings(path=path, name="plain"),
        device=("cpu",),
        replicas=3,
        frontends=2,
    )
    assert (many.devices, many.threads) == (("cpu",) * 8, 1)
    assert "12 replicas were asked for, 8 run" in many.shortfall
    assert (elsewhere.devices, elsewhere.threads) == (("cuda:0", "cuda:1", "cuda:0"), 8)
    assert (plain.devices, plain.threads) == (("cpu",) * 3, 2)


@pytest.mark.parametrize(
    ("cores", "frontends", "expected"),
    [(1, 1, (1, 1, 1)), (2, 1, (2, 1, 1)), (8, 4, (8, 3, 4)), (2, 16, (2, 1, 1))],
)
def test_models_use_all_cores_but_scripts_those_that_frontends_leave(
    tmp_path: Path,
    workspace: Workspace,
    leases: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    frontends: int,
    expected: tuple[int, int, int],
) -> None:
    """The setting of a model is the most that it uses; each has one thread at least."""
    for module in ("stoker.models.deployments", "stoker.settings.server"):
        monkeypatch.setattr(f"{module}.usable_cores", lambda: cores)
    found = deploy(
        workspace,
        leases,
        ModelSettings(path=onnx(tmp_path / "digits.onnx"), name="plain"),
        ModelSettings(path=onnx(tmp_path / "digits.onnx"), name="limited", threads=3),
        ModelSettings(path=script(tmp_path / "b")),
        device=("cpu",),
        frontends=frontends,
    )
    assert tuple(one.threads for one in found) == (
        expected[0],
        min(expected[0], 3),
        expected[2],
    )


def test_precision_auto_becomes_tf32(tmp_path: Path, workspace: Workspace, leases: ExitStack) -> None:
    """The deployment has TF32, also by default: the console shows it."""
    path = onnx(tmp_path / "digits.onnx")
    deployed = deploy(
        workspace,
        leases,
        ModelSettings(path=path),
        ModelSettings(path=path, name="auto", precision="auto"),
        ModelSettings(path=path, name="exact", precision="fp32"),
    )
    assert [model.acceleration.precision for model in deployed] == ["tf32", "tf32", "fp32"]


def test_settings_of_a_gpu_reach_the_servable(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """Engines of TensorRT are kept in the workspace, by model, version and files; other models have no folder."""
    path = onnx(tmp_path / "digits.onnx")
    fast = ModelSettings(path=path, name="fast", provider="tensorrt", precision="fp16", gpu_memory_mb=100)
    plain, built = deploy(workspace, leases, ModelSettings(path=path, optimize="off"), fast)
    assert plain.engine_cache is None
    assert built.acceleration == Acceleration("tensorrt", "fp16", 100)
    engines = built.engine_cache
    assert engines is not None
    assert engines.parent == workspace.engines_dir
    assert engines.name.startswith("fast-1-")

    path.write_bytes(b"other weights")
    (changed,) = deploy(workspace, leases, fast)
    assert changed.engine_cache != engines


def test_compiled_code_is_kept_in_the_workspace(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """PyTorch's compiled code has a folder, on the CPU too; models that are not compiled have none."""
    path = onnx(tmp_path / "net.pt2")
    plain, compiled = deploy(
        workspace, leases, ModelSettings(path=path), ModelSettings(path=path, name="fast", compile=True)
    )
    assert (plain.acceleration.compile, plain.engine_cache) == (False, None)
    assert compiled.acceleration.compile
    assert compiled.engine_cache is not None
    assert compiled.engine_cache.parent == workspace.engines_dir


def test_settings_that_a_framework_does_not_have_are_refused(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """They are refused before a process is started."""
    digits = ModelSettings(path=onnx(tmp_path / "digits.onnx"), xla=True)
    assert str(refusal(workspace, leases, digits)).startswith("digits: xla is for SavedModels")


def test_models_are_audited_and_scripts_are_not(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """A model may overrule the server; for a script the setting is an error with the reason."""
    path = onnx(tmp_path / "digits.onnx")
    named = [
        ModelSettings(path=path, name=f"m{number}", audit=rate) for number, rate in enumerate((None, 0.0, 1))
    ]
    assert [model.audit for model in deploy(workspace, leases, *named, audit=0.5)] == [0.5, 0, 1]
    mine = script(tmp_path / "a")
    deploy(workspace, leases, ModelSettings(path=mine, audit=0.0))
    refused = str(refusal(workspace, leases, ModelSettings(path=mine, audit=0.1)))
    assert "is an entry script: audit is for models alone" in refused


def test_time_and_concurrency_of_a_model(tmp_path: Path, workspace: Workspace, leases: ExitStack) -> None:
    """Settings of a model overrule the defaults of all models, which overrule the server's settings."""
    path = onnx(tmp_path / "digits.onnx")
    own, plain = deploy(
        workspace,
        leases,
        ModelSettings(
            path=path,
            name="own",
            timeout_ms=7,
            load_timeout_s=9.5,
            max_concurrent_requests=9,
            max_queue_wait_ms=0,
        ),
        ModelSettings(path=path, name="plain", threads=1),
        timeout_ms=5,
        model_defaults=ModelSettings(max_concurrent_requests=3, description="All of them."),
    )
    assert (own.timeout_ms, own.max_concurrent_requests) == (7, 9)
    assert (own.max_queue_wait_ms, own.description) == (0, "All of them.")
    assert (plain.timeout_ms, plain.max_concurrent_requests) == (5, 3)
    assert (plain.max_queue_wait_ms, plain.threads) == (500, 1)
    assert (own.load_timeout_s, plain.load_timeout_s) == (9.5, 600)


@pytest.mark.parametrize(
    ("limit", "frontends", "shares"),
    [(None, 2, [None, None]), (8, 2, [4, 4]), (7, 3, [3, 2, 2]), (1, 3, [1, 1, 1]), (5, 1, [5])],
)
def test_frontends_share_a_limit(
    tmp_path: Path,
    workspace: Workspace,
    leases: ExitStack,
    limit: int | None,
    frontends: int,
    shares: list[int | None],
) -> None:
    """The shares add up to the limit, unless there are more frontends than requests: each takes one."""
    model = ModelSettings(path=onnx(tmp_path / "digits.onnx"), max_concurrent_requests=limit)
    (deployed,) = deploy(workspace, leases, model)
    kept = [deployed.share_of(frontend, frontends) for frontend in range(frontends)]
    assert [terms.max_concurrent_requests for terms in kept] == shares


def test_frontends_share_the_room_for_kept_answers(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """All frontends together keep no more than the setting, whether or not requests are limited."""
    path = onnx(tmp_path / "digits.onnx")
    for limit in (None, 4):
        model = ModelSettings(path=path, cache_mb=1.5, max_concurrent_requests=limit)
        (deployed,) = deploy(workspace, leases, model)
        kept = [deployed.share_of(frontend, 4).cache_bytes for frontend in range(4)]
        assert kept == [3 << 17] * 4
        assert deployed.cache_bytes == 3 << 19


def test_cache_mb_of_an_entry_script_keeps_its_answers(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """With the setting the author vouches that equal requests have equal answers."""
    (deployed,) = deploy(workspace, leases, ModelSettings(path=script(tmp_path / "a"), cache_mb=1))
    assert deployed.cache_bytes == 1 << 20


def test_the_batch_size_of_a_foreign_layout_counts(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """Triton's max_batch_size stands between the model's own setting and the server's default."""
    onnx(tmp_path / "models" / "digits" / "2" / "model.onnx")
    onnx(tmp_path / "models" / "digits" / "10" / "model.onnx")
    (tmp_path / "models" / "digits" / "config.pbtxt").write_text("max_batch_size: 16\n")
    onnx(tmp_path / "models" / "letters" / "1" / "model.onnx")
    digits, letters = deploy(workspace, leases, ModelSettings(path=tmp_path / "models"))
    assert (digits.name, digits.version, digits.max_batch_rows) == (
        "digits",
        10,
        16,
    )
    assert (letters.name, letters.max_batch_rows) == ("letters", 256)
    assert [digits.slot, letters.slot] == [0, 1]
    (named,) = deploy(workspace, leases, ModelSettings(path=tmp_path / "models" / "digits", max_batch_rows=4))
    assert named.max_batch_rows == 4
    model = ModelSettings(path=tmp_path / "models" / "digits")
    for for_all, most in ((2, 2), (64, 16)):
        (limited,) = deploy(workspace, leases, model, max_batch_rows=for_all)
        assert limited.max_batch_rows == most


def test_the_operators_settings_overrule_tritons_configuration(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """Versions, delay, instances and device count unless the operator sets others; ignored fields are noted."""
    base = tmp_path / "digits"
    for version in ("1", "2", "3"):
        onnx(base / version / "model.onnx")
    (base / "config.pbtxt").write_text(
        "version_policy { latest { num_versions: 2 } } dynamic_batching { max_queue_delay_microseconds: 500 }\n"
        "instance_group { kind: KIND_CPU count: 2 } response_cache { enable: true }\n"
        'model_warmup { name: "w" inputs { key: "x" value { data_type: TYPE_FP32 dims: 2 zero_data: true } } }'
    )
    second, third = deploy(workspace, leases, ModelSettings(path=base))
    assert [deployed.version for deployed in (second, third)] == [2, 3]
    assert (third.max_delay_ms, third.instances, third.devices) == (0.5, 2, ("cpu",))
    assert third.notes == (
        "config.pbtxt of digits: response_cache is passed over: answers are kept with the setting cache_mb",
    )
    assert [request.name for request in third.warm_up] == ["w"]
    model = ModelSettings(path=base, versions="latest", max_delay_ms=3.0, instances=1)
    (only,) = deploy(workspace, leases, model, device=("cuda:1",))
    assert (only.max_delay_ms, only.instances, only.devices) == (3.0, 1, ("cuda:1",))


def test_configured_batch_size_declares_the_batch_axis(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """`max_batch_size: 0` declares that there is no batch axis; the operator's settings win."""
    onnx(tmp_path / "digits" / "1" / "model.onnx")
    (tmp_path / "digits" / "config.pbtxt").write_text("max_batch_size: 0")

    def batched(**settings: Any) -> bool | None:
        (deployed,) = deploy(workspace, leases, ModelSettings(path=tmp_path / "digits", **settings))
        assert deployed.declaration is not None
        return deployed.declaration.batched

    assert batched() is False
    assert batched(batching="none") is False
    (of_server,) = deploy(workspace, leases, ModelSettings(path=tmp_path / "digits"), max_batch_rows=8)
    assert of_server.declaration is not None
    assert of_server.declaration.batched is False, "said for all models, not for this one"
    assert batched(max_batch_rows=8) is batched(batching="rows") is None


def test_without_named_models_all_registered_ones_are_served(
    tmp_path: Path, workspace: Workspace, repository: Repository, leases: ExitStack
) -> None:
    """Each registered model in its newest version."""
    for name in ("digits", "letters", "digits"):
        repository.register(name, onnx(tmp_path / "x.onnx"), now=NOW)
    deployed = deploy(workspace, leases)
    assert [(d.name, d.version, d.slot) for d in deployed] == [
        ("digits", 2, 0),
        ("letters", 1, 1),
    ]


def test_an_unreadable_manifest_stops_only_its_own_version(
    tmp_path: Path, workspace: Workspace, repository: Repository, leases: ExitStack
) -> None:
    """Another model is served, an older version too, and an old one that is broken does no harm."""
    for name in ("digits", "digits", "letters"):
        repository.register(name, onnx(tmp_path / "x.onnx"), now=NOW)
    manifest = repository.get("digits", 1).folder / "manifest.json"
    whole = manifest.read_bytes()
    replace_file(manifest, b"{")
    served = deploy(workspace, leases)
    assert [f"{d.name}:{d.version}" for d in served] == ["digits:2", "letters:1"]
    for path in (workspace.models_dir, workspace.models_dir / "digits"):
        (digits, *_) = deploy(workspace, leases, ModelSettings(path=path))
        assert (digits.name, digits.version) == ("digits", 2)
    replace_file(manifest, whole)
    replace_file(repository.get("digits", 2).folder / "manifest.json", b"{")
    (letters,) = deploy(workspace, leases, ModelSettings(registered="letters"))
    (digits,) = deploy(workspace, leases, ModelSettings(registered="digits:1"))
    assert (letters.name, digits.version) == ("letters", 1)
    with pytest.raises(
        CorruptModel, match=r"digits:2: the file manifest\.json .*stoker models delete digits:2"
    ):
        deploy(workspace, leases)
    available = find_available_models(ServerSettings(), workspace)
    assert list(available) == ["digits", "letters"], "a server that runs can load the others"


def test_model_registered_as_files_is_not_served_by_itself(
    tmp_path: Path, workspace: Workspace, repository: Repository, leases: ExitStack
) -> None:
    """Registered files are for entry scripts, so they are not served unless they are named."""
    repository.register("weights", onnx(tmp_path / "x.pkl"), now=NOW, framework="files")
    with pytest.raises(RepositoryError, match="nothing is registered"):
        deploy(workspace, leases)
    repository.register("digits", onnx(tmp_path / "x.onnx"), now=NOW)
    assert [d.name for d in deploy(workspace, leases)] == ["digits"]


def test_a_registered_model_can_be_named_with_its_version(
    tmp_path: Path, workspace: Workspace, repository: Repository, leases: ExitStack
) -> None:
    """NAME is the newest version, NAME:VERSION a certain one; two versions can have two names."""
    for _ in range(3):
        repository.register("digits", onnx(tmp_path / "x.onnx"), now=NOW)
    deployed = deploy(
        workspace,
        leases,
        ModelSettings(registered="digits"),
        ModelSettings(registered="digits:2", name="old"),
    )
    assert [(d.name, d.version) for d in deployed] == [("digits", 3), ("old", 2)]


def test_a_served_version_is_held(tmp_path: Path, workspace: Workspace, repository: Repository) -> None:
    """It cannot be deleted while it is served, and can be afterwards."""
    repository.register("digits", onnx(tmp_path / "x.onnx"), now=NOW)
    with ExitStack() as leases:
        deploy(workspace, leases, ModelSettings(registered="digits"))
        with pytest.raises(ModelInUse):
            repository.delete("digits", 1)
    repository.delete("digits", 1)


def test_a_changed_file_is_refused_by_its_name(
    tmp_path: Path, workspace: Workspace, repository: Repository, leases: ExitStack
) -> None:
    """Only the registered content is served."""
    registered = repository.register("digits", onnx(tmp_path / "x.onnx"), now=NOW)
    registered.path.chmod(0o600)
    registered.path.write_bytes(b"other weights")
    with pytest.raises(CorruptModel, match=r"x\.onnx"):
        deploy(workspace, leases, ModelSettings(registered="digits"))


def refusal(workspace: Workspace, leases: ExitStack, *models: ModelSettings) -> OperatorError:
    """The error with which these models are refused."""
    with pytest.raises(OperatorError) as refused:
        deploy(workspace, leases, *models)
    return refused.value


def test_an_empty_workspace_is_an_error_with_advice(workspace: Workspace, leases: ExitStack) -> None:
    """The error names two commands."""
    error = refusal(workspace, leases)
    assert isinstance(error, RepositoryError)
    assert "stoker serve model.onnx" in str(error)
    assert "stoker models register NAME PATH" in str(error)


def test_unknown_models_and_paths_are_refused(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """A name that nobody registered and a path that does not exist."""
    assert isinstance(refusal(workspace, leases, ModelSettings(registered="digits")), UnknownModel)
    missing = refusal(workspace, leases, ModelSettings(path=tmp_path / "missing.onnx"))
    assert "missing.onnx does not exist" in str(missing)


def test_two_models_cannot_share_a_name(tmp_path: Path, workspace: Workspace, leases: ExitStack) -> None:
    """The name is the address; the message has it."""
    first, second = onnx(tmp_path / "a" / "digits.onnx"), onnx(tmp_path / "b" / "digits.onnx")
    error = refusal(workspace, leases, ModelSettings(path=first), ModelSettings(path=second))
    assert isinstance(error, InvalidSettings)
    assert "two models would be served as 'digits'" in str(error)
    renamed = ModelSettings(path=second, name="other")
    assert len(deploy(workspace, leases, ModelSettings(path=first), renamed)) == 2


def test_one_name_does_not_fit_several_models(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """A folder of models keeps their names."""
    for name in ("digits", "letters"):
        onnx(tmp_path / "models" / name / "1" / "model.onnx")
    error = refusal(workspace, leases, ModelSettings(path=tmp_path / "models", name="mine"))
    assert "holds 2 models, one name does not fit them all" in str(error)


@pytest.mark.parametrize("name", ["a/b", "..", "", "x" * 300, "a:b", "a "])
def test_a_name_that_is_no_address_is_refused(
    tmp_path: Path, workspace: Workspace, leases: ExitStack, name: str
) -> None:
    """Service names are path segments."""
    path = onnx(tmp_path / "digits.onnx")
    assert isinstance(refusal(workspace, leases, ModelSettings(path=path, name=name)), InvalidSettings)


def test_there_is_a_limit_to_the_models(tmp_path: Path, workspace: Workspace, leases: ExitStack) -> None:
    """The metrics have a slot for each of so many models, and no more."""
    path = onnx(tmp_path / "digits.onnx")
    models = [ModelSettings(path=path, name=f"m{number}") for number in range(MODEL_SLOTS + 1)]
    assert [d.slot for d in deploy(workspace, leases, *models[:-1])] == list(range(MODEL_SLOTS))
    assert f"at most {MODEL_SLOTS} versions of models" in str(refusal(workspace, leases, *models))


def test_a_model_folder_must_exist(tmp_path: Path, workspace: Workspace, leases: ExitStack) -> None:
    """A typing error in --model-dir is found before anything starts."""
    path = script(tmp_path / "a")
    error = refusal(workspace, leases, ModelSettings(path=path, model_dir=tmp_path / "wieghts"))
    assert str(error) == f"the model folder {tmp_path / 'wieghts'} is not a directory"


def test_a_model_of_mlflow_is_served_by_our_script(
    tmp_path: Path, workspace: Workspace, repository: Repository, leases: ExitStack
) -> None:
    """Its folder is the model's, its example the sample, its environment file that of the packages."""
    folder = write_mlmodel(
        tmp_path / "prices",
        {"sklearn": {"pickled_model": "model.pkl"}},
        example=({"type": "ndarray"}, {"inputs": [[1, 2]]}),
    )
    (folder / "model.pkl").write_bytes(b"a pickle")
    (folder / "requirements.txt").write_text("scikit-learn\n")
    registered = repository.register("houses", folder, now=NOW)
    assert (registered.framework, registered.entry) == ("mlflow", ".")
    models = (ModelSettings(path=folder, batching="none"), ModelSettings(registered="houses"))
    settings = ServerSettings(models=models, device=("cpu",))
    found = resolve(settings, workspace, leases)
    for deployed, files in zip(found, (folder, registered.files_dir), strict=True):
        assert (deployed.framework, deployed.path, deployed.model_dir) == (
            "script",
            ENTRY_SCRIPT,
            files,
        )
        assert ENTRY_SCRIPT.is_file()
        assert deployed.sample_file is not None
        assert deployed.sample_file.read_text() == '{"inputs": [[1, 2]]}'
        assert deployed.environment == files / "requirements.txt"
    assert [deployed.batching for deployed in found] == ["none", "auto"]
    with pytest.raises(InvalidSettings, match="model_dir is for those alone"):
        resolve(
            dataclasses.replace(settings, models=(ModelSettings(path=folder, model_dir=tmp_path),)),
            workspace,
            leases,
        )


def pickle_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.pkl").write_bytes(b"a pickle")
    return folder / "model.pkl"


def mlflow_in(folder: Path) -> Path:
    path = write_mlmodel(folder, {"sklearn": {"pickled_model": "model.pkl"}})
    (folder / "model.pkl").write_bytes(b"a pickle")
    return path


def test_pickles_of_mlservers_models_need_permission_in_a_folder(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """A named file beside the models' folders needs permission too; the folder of one model does not."""
    for name, uri in (("homes", "./model.pkl"), ("flats", "../shared.pkl")):
        pickle_in(tmp_path / "models" / name)
        settings = {
            "name": name,
            "implementation": "mlserver_sklearn.SKLearnModel",
            "parameters": {"uri": uri},
        }
        (tmp_path / "models" / name / "model-settings.json").write_text(json.dumps(settings))
    (tmp_path / "models" / "shared.pkl").write_bytes(b"a pickle")
    broken: Broken = {}
    found = ServerSettings(models=(ModelSettings(path=tmp_path / "models"),))
    assert resolve(found, workspace, leases, broken) == []
    assert all("lies in a folder of models" in str(error) for error in broken.values())
    assert sorted(broken) == [("flats", 1), ("homes", 1)]
    deployed = resolve(dataclasses.replace(found, allow_pickle=True), workspace, leases)
    assert [one.name for one in deployed] == ["flats", "homes"]
    (named,) = deploy(workspace, leases, ModelSettings(path=tmp_path / "models" / "homes"))
    assert named.name == "homes"


@pytest.mark.parametrize("write", [pickle_in, mlflow_in])
def test_pickles_in_a_folder_of_models_need_permission(
    tmp_path: Path, workspace: Workspace, leases: ExitStack, write: Callable[[Path], Path]
) -> None:
    """The model's setting or the server's gives it; versions of one model are such a folder too."""
    write(tmp_path / "models" / "homes" / "1")
    for path in (tmp_path / "models", tmp_path / "models" / "homes"):
        found = ModelSettings(path=path)
        refused = "homes lies in a folder of models, and loading it runs the code .* allow_pickle: true"
        with pytest.raises(InvalidSettings, match=refused):
            deploy(workspace, leases, found)
        with pytest.raises(InvalidSettings, match=refused):
            deploy(workspace, leases, dataclasses.replace(found, allow_pickle=False), allow_pickle=True)
        for deployed in (
            deploy(workspace, leases, found, allow_pickle=True),
            deploy(workspace, leases, dataclasses.replace(found, allow_pickle=True)),
        ):
            assert [one.allow_pickle for one in deployed] == [True]


@pytest.mark.parametrize("write", [pickle_in, mlflow_in])
def test_pickles_that_the_operator_names_need_no_setting(
    tmp_path: Path,
    workspace: Workspace,
    repository: Repository,
    leases: ExitStack,
    write: Callable[[Path], Path],
) -> None:
    """This holds for a file, the folder around it, one version of a folder of models, and registered models."""
    file = write(tmp_path / "models" / "homes" / "1")
    repository.register("homes", file, now=NOW)
    for named in (
        ModelSettings(path=file),
        ModelSettings(path=tmp_path / "models" / "homes" / "1"),
        ModelSettings(path=tmp_path / "models" / ".." / "models" / "homes" / "1"),
        ModelSettings(registered="homes"),
    ):
        (deployed,) = deploy(workspace, leases, named)
        assert not deployed.allow_pickle


def test_manifests_in_a_folder_of_models_give_no_permission(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """A writer of pickles can write manifests too; the folder of one version may be named instead."""
    registered = Repository(tmp_path / "shared").register("homes", pickle_in(tmp_path / "homes"), now=NOW)
    for path in (tmp_path / "shared", tmp_path / "shared" / "homes"):
        with pytest.raises(InvalidSettings, match="homes lies in a folder of models"):
            deploy(workspace, leases, ModelSettings(path=path))
    (deployed,) = deploy(workspace, leases, ModelSettings(path=registered.folder))
    assert deployed.path == registered.path


def test_file_without_pickles_needs_no_permission(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """Boosters in files of their libraries, ONNX models and scripts are served from a folder of models."""
    onnx(tmp_path / "models" / "digits" / "1" / "model.onnx")
    script(tmp_path / "models" / "app" / "1")
    booster = tmp_path / "models" / "trees" / "1" / "model.json"
    booster.parent.mkdir(parents=True)
    booster.write_text('{"learner":{}}')
    deployed = deploy(workspace, leases, ModelSettings(path=tmp_path / "models"))
    assert [one.name for one in deployed] == ["app", "digits", "trees"]


def test_a_model_of_mlflow_keeps_its_name_and_files(
    tmp_path: Path, workspace: Workspace, repository: Repository, leases: ExitStack
) -> None:
    """A SavedModel in it is served under the name of MLflow's folder, and registered with the files around it."""
    folder = write_mlmodel(tmp_path / "shop" / "digits", {"tensorflow": {"saved_model_dir": "tf2model"}})
    (folder / "tf2model").mkdir()
    (folder / "tf2model" / "saved_model.pb").touch()
    (folder / "requirements.txt").write_text("tensorflow\n")
    registered = repository.register("kept", folder, now=NOW)
    assert registered.path == registered.files_dir / "tf2model"
    assert (registered.files_dir / "MLmodel").is_file()
    settings = ServerSettings(models=(ModelSettings(path=folder),), device=("cpu",))
    (deployed,) = resolve(settings, workspace, leases)
    assert (deployed.name, deployed.path) == ("digits", folder / "tf2model")
    assert deployed.environment == folder / "requirements.txt"


def test_settings_reach_the_deployment_by_their_names(
    tmp_path: Path, workspace: Workspace, leases: ExitStack
) -> None:
    """The model's setting, else the server's, else the default."""
    path = onnx(tmp_path / "digits.onnx")
    own = ModelSettings(path=path, name="own", warm_up_runs=5, max_delay_ms=0.0)
    first, second = deploy(workspace, leases, own, ModelSettings(path=path), max_delay_ms=2.0)
    assert (first.warm_up_runs, first.max_delay_ms) == (5, 0)
    assert (second.warm_up_runs, second.max_delay_ms) == (1, 2)
