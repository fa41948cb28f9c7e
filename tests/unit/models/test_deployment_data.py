"""Images and collected data of a deployed model: settings, registration, and missing packages."""

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stoker.deployment import Deployment
from stoker.errors import InvalidSettings
from stoker.models import deployments
from stoker.models.deployments import resolve
from stoker.models.repository import Repository
from stoker.settings.collection import CollectionSettings
from stoker.settings.image_input import ImageInput
from stoker.settings.loading import load_settings
from stoker.settings.model import ModelSettings
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace

DIGITS = ImageInput(28, 28, channels=1, invert=True)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "digits.py"
    path.write_text("def init(): ...\ndef run(raw_data): ...\n")
    return path


def deployed(workspace: Workspace, model: ModelSettings, **settings: Any) -> Deployment:
    """The one model that these settings deploy."""
    with ExitStack() as leases:
        (only,) = resolve(ServerSettings(models=(model,), **settings), workspace, leases)
        return only


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let a package be missing."""
    find = deployments.find_spec
    monkeypatch.setattr(deployments, "find_spec", lambda name: None if name == package else find(name))


def test_a_registered_image_input_is_served_unless_the_settings_say_another(
    workspace: Workspace, script: Path
) -> None:
    """The registered image input counts without a setting; a setting overrules it."""
    Repository(workspace.models_dir).register(
        "digits", script, now=datetime(2026, 1, 1, tzinfo=UTC), image=DIGITS.to_json()
    )
    Repository(workspace.models_dir).register("plain", script, now=datetime(2026, 1, 1, tzinfo=UTC))
    other = ImageInput(8, 8)
    assert deployed(workspace, ModelSettings(registered="digits")).image == DIGITS
    assert deployed(workspace, ModelSettings(registered="digits", image=other)).image == other
    assert deployed(workspace, ModelSettings(registered="plain")).image is None


def test_without_pillow_a_setting_is_an_error_and_a_registration_a_warning(
    workspace: Workspace, script: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An image input of the settings needs Pillow; without it, one of the registration is ignored."""
    without(monkeypatch, "PIL")
    with pytest.raises(
        InvalidSettings, match=r"digits: images are decoded by Pillow.* pip install 'pillow>="
    ):
        deployed(workspace, ModelSettings(path=script, image=DIGITS))
    Repository(workspace.models_dir).register(
        "digits", script, now=datetime(2026, 1, 1, tzinfo=UTC), image=DIGITS.to_json()
    )
    assert deployed(workspace, ModelSettings(registered="digits")).image is None
    assert "digits takes no images, only numbers: images are decoded by Pillow" in caplog.text
    assert deployed(workspace, ModelSettings(path=script)).image is None
    assert len(caplog.records) == 1


def test_the_setting_collect_of_a_model_overrules_the_servers(workspace: Workspace, script: Path) -> None:
    """It can also switch collection off."""
    plain = ModelSettings(path=script)
    sampled = CollectionSettings(sample_rate=0.5)
    assert deployed(workspace, plain).collection is None
    assert not workspace.root.exists()
    collecting = deployed(workspace, plain, collect=True)
    assert collecting.collection == CollectionSettings()
    assert collecting.data_dir == workspace.root / "data" / "digits"
    assert workspace.root.exists()
    for server in (False, True):
        own = deployed(workspace, ModelSettings(path=script, collect=sampled), collect=server)
        assert own.collection == sampled
        assert (
            deployed(workspace, ModelSettings(path=script, collect=False), collect=server).collection is None
        )


def test_parquet_without_pyarrow_is_an_error(
    workspace: Workspace, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install; JSON lines need no package."""
    without(monkeypatch, "pyarrow")
    with pytest.raises(InvalidSettings, match=r"collect: .* pip install 'pyarrow>="):
        deployed(workspace, ModelSettings(path=script, collect=CollectionSettings(format="parquet")))
    assert deployed(workspace, ModelSettings(path=script), collect=True).collection is not None


def test_settings_are_read_from_the_deployment_file(tmp_path: Path) -> None:
    """Both settings of a model are mappings in YAML; errors in them have the file's name."""
    file = tmp_path / "deployment.yaml"
    file.write_text("""
max_image_mpx: 0.5
models:
  - {path: a.onnx, image: {size: [28, 28], channels: 1, invert: true}, collect: {sample_rate: 0.1}}
  - {path: b.onnx, image: "size=28x28,channels=1,invert", collect: true}
  - {path: c.onnx, collect: false}
""")
    settings = load_settings({}, {}, file, ())
    assert settings.max_image_pixels == 500_000
    assert [model.image for model in settings.models] == [DIGITS, DIGITS, None]
    assert [model.collect for model in settings.models] == [
        CollectionSettings(sample_rate=0.1),
        CollectionSettings(),
        False,
    ]
    assert load_settings({}, {"STOKER_COLLECT": "true"}, None, ()).collect is True
    for line, problem in (
        ("image: {size: [28]}", "image has a value of size that must be height and width"),
        ("collect: {max_mb: 1}", "collect has a value of max_mb that must be a whole number"),
    ):
        file.write_text(f"models:\n  - {{path: a.onnx, {line}}}\n")
        with pytest.raises(InvalidSettings, match=rf"deployment.yaml, models\[0\] \(a.onnx\): {problem}"):
            load_settings({}, {}, file, ())
