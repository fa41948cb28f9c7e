"""Files that a server writes to its workspace before it loads a model, and workspaces that are not writable."""

import contextlib
import dataclasses
import itertools
import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.puppets import BODIES, ROWS, metric_memory
from tests.tiny_models import write_doubler

from stoker.control.frontend_messages import ServerRules
from stoker.deployment import SAMPLE_INPUT, Deployment
from stoker.errors import InvalidSettings, RepositoryError
from stoker.gateway.assembly import assemble
from stoker.keys.keyring import Keyring
from stoker.keys.verifier import KeyVerifier
from stoker.models.available_models import AvailableModel, find_available_models
from stoker.models.mirrors import Mirror
from stoker.script_form import ScriptForm
from stoker.settings.model import ModelSettings
from stoker.settings.server import ServerSettings
from stoker.settings.traffic import Endpoint
from stoker.settings.workspace import Workspace
from stoker.supervisor import stock as stock_module
from stoker.supervisor.reports import ModelReport
from stoker.supervisor.stock import Stock
from stoker.supervisor.summary import curl_data, sample_file, service_lines
from stoker.tensors import Signature

KEY = "0123456789abcdef"


def take(tmp_path: Path, workspace: Workspace, primary_key: str | None = None) -> None:
    model = ModelSettings(path=write_doubler(tmp_path / "doubler.onnx"), device=("cpu",))
    settings = ServerSettings(models=(model,), primary_key=primary_key)
    with Stock(settings, workspace, print) as stock:
        stock.prepare_first(stock.find_models())
        if primary_key is not None:
            assert stock.keys.find_primary(["doubler"]) == {"doubler": primary_key}


def test_keys_of_a_new_workspace_are_out_of_gits_sight(tmp_path: Path) -> None:
    """The first server in a folder makes the keys, and with them the whole workspace."""
    workspace = Workspace(tmp_path / "new")
    take(tmp_path, workspace)
    assert (workspace.keys_dir / "doubler.keys").exists()
    assert (workspace.root / ".gitignore").read_text() == "*\n"


def test_an_endpoint_has_the_keys_of_its_deployments(tmp_path: Path) -> None:
    """Deployments have no keys of their own: those of the endpoint open them all, and the summary names them."""
    workspace = Workspace(tmp_path / "new")
    write_doubler(tmp_path / "doubler.onnx")
    models = tuple(ModelSettings(path=tmp_path / "doubler.onnx", name=name) for name in ("blue", "green"))
    settings = ServerSettings(models=models, endpoint=Endpoint("shop", {"blue": 90, "green": 10}))
    with Stock(settings, workspace, print) as stock:
        stock.prepare_first(stock.find_models())
        shown = stock.keys.find_primary(["blue", "green"])
    assert [file.name for file in workspace.keys_dir.glob("*.keys")] == ["shop.keys"]
    page = metric_memory().page(0)
    server = ServerRules(True, False, workspace.keys_dir, 1000, 1000, 1, 1000, settings.endpoint)
    green = Deployment("green", 1, "onnx", tmp_path, tmp_path, 1, 64)
    primary = Keyring(workspace.keys_dir, "shop").show().primary
    assert assemble(green, page, server).access.allows(f"Bearer {primary}".encode())
    assert shown == {"blue": primary, "green": primary}
    report = reported(green, ROWS)
    assert any("shop.keys" in line for line in service_lines(settings, workspace, report, "http://x/score"))


def test_keys_need_a_workspace_that_can_be_written(tmp_path: Path) -> None:
    """The message says what to do; with keys from outside nothing has to be written."""
    (tmp_path / "file").touch()
    workspace = Workspace(tmp_path / "file" / "workspace")
    with pytest.raises(InvalidSettings, match=r"keys of doubler cannot be kept in .*: File exists; choose"):
        take(tmp_path, workspace)
    take(tmp_path, workspace, KEY)


def test_keys_of_a_folder_take_the_place_of_the_workspaces(tmp_path: Path) -> None:
    """None are made, those of the folder are followed, and the summary shows how a caller gets one."""
    workspace, folder = Workspace(tmp_path / "workspace"), tmp_path / "keys"
    folder.mkdir()
    (folder / "primary").write_text(KEY)
    model = ModelSettings(path=write_doubler(tmp_path / "doubler.onnx"), device=("cpu",))
    settings = ServerSettings(models=(model,), keys_dir=folder)
    with Stock(settings, workspace, print) as stock:
        stock.prepare_first(stock.find_models())
        stock.keys.provide_for_admin()
        assert not (workspace.keys_dir / "doubler.keys").exists()
        verifier = KeyVerifier(workspace.keys_dir, "doubler")
        assert verifier.verify(f"Bearer {KEY}".encode())
        (folder / "generation").write_text("7")
        (folder / "primary").write_text(KEY * 2)
        assert stock.keys.generation == 0
        stock.keys.poll()
        assert stock.keys.generation == 7
        assert verifier.verify(f"Bearer {KEY * 2}".encode())
        assert stock.keys.find_primary(["doubler"]) == {"doubler": KEY * 2}
    report = reported(Deployment("doubler", 1, "onnx", tmp_path, tmp_path, 1, 64), ROWS)
    # As in a container: a path without its slash would be one that is nowhere else.
    with contextlib.chdir("/"):
        lines = list(service_lines(settings, workspace, report, "http://x/score"))
    assert any(f"keys     from {folder}, followed" in line for line in lines)


@pytest.mark.parametrize("place", ["keys", "keys/doubler.keys", "mounted/primary"])
def test_keys_that_others_may_write_are_refused(tmp_path: Path, place: str) -> None:
    """Other users could give themselves keys. The folder of a mounted Secret may be open, as it is not writable."""
    workspace = Workspace(tmp_path)
    take(tmp_path, workspace)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    mounted.chmod(0o777)
    for name in ("primary", "secondary"):
        (mounted / name).write_text(KEY + name)
    settings = ServerSettings(keys_dir=mounted)
    with Stock(settings, workspace, print):
        pass
    (tmp_path / place).chmod(0o777)
    with pytest.raises(InvalidSettings, match=f"{place} holds keys, and everybody may write it"):
        Stock(settings, workspace, print)
    with Stock(dataclasses.replace(settings, auth=False), workspace, print):
        pass


def test_paths_that_others_may_write_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server warns of a workspace and a model that others may write."""
    workspace = Workspace(tmp_path / "workspace").create()
    take(tmp_path, workspace)
    (tmp_path / "doubler.onnx").chmod(0o664)
    served = ServerSettings(models=(ModelSettings(path=tmp_path / "doubler.onnx", device=("cpu",)),))
    with Stock(served, workspace, print) as stock:
        stock.prepare_first(stock.find_models())
    assert caplog.messages == []
    workspace.root.chmod(0o777)
    (tmp_path / "doubler.onnx").chmod(0o646)
    with Stock(served, workspace, print) as stock:
        stock.prepare_first(stock.find_models())
    assert [message.partition(",")[0] for message in caplog.messages] == [
        "everybody may write the workspace",
        "everybody may write the model doubler",
    ]


def test_an_unreachable_store_is_logged_once_and_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However often is looked; other stores and folders are looked at all the same."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    mirrors = []
    for name in ("away", "there"):
        (tmp_path / name).write_bytes(b"1")
        mirrors.append(Mirror(f"file://{tmp_path}/{name}", tmp_path / "cache"))
        mirrors[-1].update()
    (tmp_path / "away").unlink()
    (tmp_path / "there").write_bytes(b"22")
    with Stock(ServerSettings(auth=False), Workspace(tmp_path / "workspace"), print, {}, mirrors) as stock:
        stock.update_mirrors()
        stock.update_mirrors()
    (warning,) = caplog.messages
    assert warning == f"there is nothing at file://{tmp_path}/away; the files of the last time are used"
    assert mirrors[1].path.read_bytes() == b"22"


def reported(deployment: Deployment, signature: Signature) -> ModelReport:
    return ModelReport(deployment, signature, ["cpu"], 0.5, 0.25, 8)


@pytest.mark.parametrize(
    ("file", "curls"),
    [("sample_input.json", "-d @"), ("digit.png", '-H "Content-Type: image/png" --data-binary @')],
)
def test_the_sample_of_a_script_is_the_one_that_its_batching_is_checked_with(
    tmp_path: Path, file: str, curls: str
) -> None:
    """It lies beside the script, or is named by a setting; it is shown as curl sends it unchanged."""
    sample = tmp_path / file
    sample.touch()
    named = None if file == SAMPLE_INPUT else sample
    deployment = Deployment(
        "digits", 1, "script", tmp_path / "score.py", tmp_path / "model", 1, 64, sample_input=named
    )
    assert sample_file(Workspace(tmp_path / "workspace"), reported(deployment, BODIES)) == sample
    assert curl_data(sample).startswith(curls)


def test_the_sample_of_decorators_is_written_where_a_caller_finds_it(tmp_path: Path) -> None:
    """A script with `inference_schema` knows what it takes; another one without a sample file does not."""
    deployment = Deployment("digits", 1, "script", tmp_path / "score.py", tmp_path, 1, 64)
    form = ScriptForm(kind="schema", input_schema={"type": "object", "example": {"data": [[1, 2]]}})
    workspace = Workspace(tmp_path / "workspace")
    written = sample_file(workspace, reported(deployment, dataclasses.replace(BODIES, script=form)))
    assert written is not None
    assert json.loads(written.read_text()) == {"data": [[1, 2]]}
    assert sample_file(workspace, reported(deployment, BODIES)) is None


def test_no_sample_is_shown_where_none_can_be_written(tmp_path: Path) -> None:
    """It is a convenience: a server that is ready does not end for it."""
    (tmp_path / "file").touch()
    deployment = Deployment("digits", 1, "onnx", Path("x"), tmp_path, max_batch_rows=4, max_body_bytes=64)
    report = reported(deployment, ROWS)
    assert sample_file(Workspace(tmp_path / "file" / "workspace"), report) is None
    assert sample_file(Workspace(tmp_path / "there"), report) is not None


def test_one_of_many_models_is_found_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is now: with further versions, or what is broken of it; another look at all is for what is not there."""
    looks: list[object] = []

    def look(*arguments: Any) -> dict[str, AvailableModel]:
        looks.append(arguments)
        return find_available_models(*arguments)

    monkeypatch.setattr(stock_module, "find_available_models", look)
    store = tmp_path / "store"
    for name in ("a", "b"):
        write_doubler(store / name / "1" / "model.onnx")
    settings = ServerSettings(models=(ModelSettings(path=store),))
    with Stock(settings, Workspace(tmp_path / "new"), print, {"a": {"stable": 1}}) as stock:
        at_first = stock.find_models()
        assert stock.find_model("a").versions == (1,)
        write_doubler(store / "a" / "2" / "model.onnx")
        (store / "a" / "3").mkdir()
        found = stock.find_model("a")
        assert (found.versions, list(found.broken), found.earlier_labels) == ((1, 2), [3], {"stable": 1})
        assert found.source(1) == at_first["a"].source(1)
        assert len(looks) == 1
        shutil.rmtree(store / "a")
        with pytest.raises(RepositoryError):
            stock.find_model("a")
        assert len(looks) == 2


class _Numbers:
    """Counts, and lets others wait for each number that was taken."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._taken = threading.Semaphore(0)

    def __next__(self) -> int:
        number = next(self._numbers)
        self._taken.release()
        return number

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self._taken.acquire(timeout=PATIENCE_S)


def test_threads_share_a_look_at_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that began after they asked: who asks later sees what has come meanwhile."""
    looks, numbers = 0, _Numbers()
    monkeypatch.setattr(stock_module, "itertools", SimpleNamespace(count=lambda _: numbers))
    settings = ServerSettings(models=(ModelSettings(path=write_doubler(tmp_path / "doubler.onnx")),))
    with Stock(settings, Workspace(tmp_path / "new"), print) as stock:
        threads = [threading.Thread(target=stock.find_models) for _ in range(20)]

        def look(*_: object) -> dict[str, AvailableModel]:
            nonlocal looks
            looks += 1
            if looks == 1:
                for thread in threads:
                    thread.start()
                numbers.wait_for(2 + len(threads))
            return {}

        monkeypatch.setattr(stock_module, "find_available_models", look)
        stock.find_models()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert looks == 2
        stock.find_models()
        assert looks == 3
