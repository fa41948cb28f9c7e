"""Data stores, data sets, and the classes of compute targets that train."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.web import Web

import stoker.azure  # noqa: F401  # provides azureml

from azureml.core import Dataset, Datastore, Workspace  # isort: skip
from azureml.core.compute import (
    AksCompute,
    AmlCompute,
    BatchCompute,
    ComputeTarget,
    DatabricksCompute,
    HDInsightCompute,
    RemoteCompute,
)
from azureml.core.compute_target import ComputeTargetException
from azureml.data import OutputFileDatasetConfig
from azureml.data.datapath import DataPath
from azureml.exceptions import UserErrorException

from stoker.models import mirrors, remote_stores, remote_writing
from stoker.settings.workspace import Workspace as LocalWorkspace
from stoker_azure.exceptions import NotOffered
from stoker_runs.launch.inputs import find_input
from stoker_runs.launch.stores import remote_store
from stoker_runs.targets import registry
from stoker_runs.targets.definitions import Target, find_target, list_targets
from stoker_runs.targets.engine import EngineFailure


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "train").mkdir(parents=True)
    for name in ("a.csv", "train/b.csv"):
        (tmp_path / "data" / name).write_text(name)
    return Workspace.from_config()


def test_the_config_is_found_where_it_was_written(ws: Workspace, tmp_path: Path) -> None:
    """In .azureml, and where code says that this is the path."""
    named = Workspace.create("demo", subscription_id="1", resource_group="g")
    named.write_config(path=".azureml")
    assert (tmp_path / ".azureml" / ".azureml" / "config.json").is_file()
    assert Workspace.from_config().name == "demo"
    Workspace.create("other").write_config()
    assert Workspace.from_config().name == "other"


def test_siblings_below_a_configuration_share_their_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Azure, code in one folder registers for code in the next one, with any name of the file."""
    monkeypatch.delenv("STOKER_WORKSPACE", raising=False)
    for name in ("a", "b", "elsewhere"):
        (tmp_path / "project" / name).mkdir(parents=True)
    for name in ("config.json", "other.json"):
        (tmp_path / "project" / name).write_text('{"workspace_name": "w"}')
    (tmp_path / "project" / "b" / "config.json").write_text('{"workspace_name": "w"}')
    monkeypatch.chdir(tmp_path / "project" / "a")
    home = tmp_path / "project" / ".stoker"
    assert Workspace.from_config().local.root == home
    assert Workspace.from_config(_file_name="other.json").local.root == home
    assert Workspace.from_config("..").local.root == home
    assert Workspace.from_config("../b/config.json").local.root == tmp_path / "project" / "b" / ".stoker"
    Workspace.create("w")
    assert home.is_dir()
    monkeypatch.chdir(tmp_path / "project" / "b")
    assert Workspace.from_config().local.root == home


def test_a_configuration_in_a_folder_of_its_own_is_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`aml_config/` and the like have no workspace in them."""
    monkeypatch.delenv("STOKER_WORKSPACE", raising=False)
    (tmp_path / "aml_config").mkdir()
    (tmp_path / "aml_config" / "config.json").write_text('{"workspace_name": "w"}')
    monkeypatch.chdir(tmp_path)
    assert Workspace.from_config("aml_config/config.json").local.root == tmp_path / ".stoker"


def test_an_upload_writes_through_no_link(ws: Workspace, tmp_path: Path) -> None:
    """Runs write into a store too: a link that one has left there leads no upload out of it."""
    store = ws.get_default_datastore()
    store.upload("data", "digits")
    (tmp_path / "elsewhere").mkdir()
    (store.root / "link").symlink_to(tmp_path / "elsewhere")
    (store.root / "digits" / "a.csv").unlink()
    (store.root / "digits" / "a.csv").symlink_to(tmp_path / "elsewhere" / "new")
    with pytest.raises(UserErrorException, match=r"cannot be put into the store: .*link"):
        store.upload("data", "link")
    store.upload("data", "digits", overwrite=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (store.root / "digits" / "a.csv").read_text() == "a.csv"


def test_upload_prints_its_progress(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """It has Azure's words; present files are skipped, unless they may be replaced."""
    store = ws.get_default_datastore()
    reference = store.upload("data", "/digits/", overwrite=False)
    assert capsys.readouterr().out.splitlines() == [
        "Uploading an estimated of 2 files",
        "Uploaded data/a.csv, 1 files out of an estimated total of 2",
        "Uploaded data/train/b.csv, 2 files out of an estimated total of 2",
        "Uploaded 2 files",
    ]
    assert (str(reference), reference.path_on_datastore) == (
        "$AZUREML_DATAREFERENCE_workspaceblobstore",
        "/digits/",
    )
    store.upload("data", "digits")
    assert capsys.readouterr().out.splitlines()[1:] == [
        "Target already exists. Skipping upload for digits/a.csv",
        "Target already exists. Skipping upload for digits/train/b.csv",
        "Uploaded 0 files",
    ]
    store.upload("data", "digits", overwrite=True, show_progress=False)
    store.upload_files(["data/train/b.csv"], target_path="flat", show_progress=False)
    store.upload_files(["data/train/b.csv"], "data", "deep", show_progress=False)
    assert capsys.readouterr().out == ""
    assert sorted(path.relative_to(store.root).as_posix() for path in store.root.rglob("*.csv")) == [
        "deep/train/b.csv",
        "digits/a.csv",
        "digits/train/b.csv",
        "flat/b.csv",
    ]
    with pytest.raises(UserErrorException, match="leads out of the data store"):
        store.upload("data", "../../elsewhere")


def test_files_of_a_store_come_back(ws: Workspace, tmp_path: Path) -> None:
    """All come, or those below a path; present files stay unless they may be replaced."""
    store = Datastore.get_default(ws)
    store.upload("data", show_progress=False)
    assert store.download("back", "train") == 1
    assert store.download("back") == 1
    assert store.download("back", overwrite=True) == 2
    assert (tmp_path / "back" / "train" / "b.csv").read_text() == "train/b.csv"
    assert store.path("train").as_download().path("deep").to_path() == store.root / "train" / "deep"


def test_a_folder_can_be_a_store(ws: Workspace, tmp_path: Path) -> None:
    """Under a name, also as the default; stores of Azure say what to do instead."""
    Datastore.register_folder(ws, "mine", "data")
    assert Datastore.get(ws, "mine").root == tmp_path / "data"
    assert list(ws.datastores) == ["mine", "workspaceblobstore"]
    ws.set_default_datastore("mine")
    assert ws.get_default_datastore().name == "mine"
    with pytest.raises(UserErrorException, match=r"there is no data store 'other'.*mine"):
        Datastore(ws, "other")
    with pytest.raises(NotOffered, match="copy it into a folder"):
        Datastore.register_azure_file_share(ws, "files", "share", "account")


def test_a_store_at_an_address_is_used_like_a_folder(ws: Workspace, tmp_path: Path) -> None:
    """Uploads go there, present names are skipped, references and data sets fetch their files."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    address = f"file://{tmp_path}/away/far"
    store = Datastore.register_address(ws, "far", address, auto_mkdir=True)
    lines: list[str] = []
    store.upload("data", "/digits", show_progress=False)
    assert (store.has("digits"), store.has("none")) == (True, False)
    assert (tmp_path / "away" / "far" / "digits" / "train" / "b.csv").read_text() == "train/b.csv"
    (tmp_path / "data" / "train" / "b.csv").write_text("changed")
    store.upload("data", "digits", show_progress=False)
    assert (tmp_path / "away" / "far" / "digits" / "train" / "b.csv").read_text() == "train/b.csv"
    store.upload("data", "digits", overwrite=True, show_progress=False)
    place = store.path("digits/train").as_download().to_path()
    assert (place / "b.csv").read_text() == "changed"
    assert find_input("digits", "far/digits", ws.local, say=lines.append).endswith("/digits")
    assert lines == [f"fetching 2 files (0.0 MB) of {address}/digits"]
    assert store.download("back", "digits") == 2
    assert (tmp_path / "back" / "digits" / "train" / "b.csv").read_text() == "changed"
    found = Dataset.File.from_files((store, "digits/**/*.csv"))
    assert sorted(path.name for path in found.files()) == ["a.csv", "b.csv"]
    with pytest.raises(UserErrorException, match="leads out"):
        store.place("../other")
    with pytest.raises(UserErrorException, match="there is nothing at"):
        store.place("none")
    store.unregister()
    assert (tmp_path / "away" / "far" / "digits").is_dir()


def test_containers_of_azure_are_addresses(ws: Workspace) -> None:
    """With the credentials in a file for their owner alone, and in no output."""
    store = Datastore.register_azure_blob_container(ws, "blobs", "box", "account", account_key="secret-of-it")
    kept = remote_store(ws.local, "blobs")
    assert kept is not None
    assert (kept.address, dict(kept.options)) == (
        "az://box",
        {"account_name": "account", "account_key": "secret-of-it"},
    )
    assert (store.container_name, store.account_name) == ("box", "account")
    secret = ws.local.root / "stores" / "blobs.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert "secret-of-it" not in f"{store!r} {kept!r}"
    lake = Datastore.register_azure_data_lake_gen2(ws, "lake", "files", "account", "t", "c", "secret-of-it")
    assert "secret-of-it" not in repr(lake)
    assert sorted(ws.datastores) == ["blobs", "lake", "workspaceblobstore"]
    store.unregister()
    assert not secret.exists()
    with pytest.raises(UserErrorException, match="is no address"):
        Datastore.register_address(ws, "x", "no/address")
    with pytest.raises(
        UserErrorException, match=r"an address of the web is a single file.*=https://host/data$"
    ):
        Datastore.register_address(ws, "x", "https://host/data?sas=secret")


@pytest.mark.parametrize("endpoint", ["core.windows.net", "core.chinacloudapi.cn"])
def test_a_container_is_at_the_endpoint_of_its_storage(ws: Workspace, endpoint: str) -> None:
    """As Azure takes the domain, without the account; it is reached by https alone."""
    Datastore.register_azure_blob_container(
        ws, "blobs", "box", "account", sas_token="sig", protocol="https", endpoint=endpoint
    )
    kept = remote_store(ws.local, "blobs")
    assert kept is not None
    assert kept.options["account_host"] == f"account.blob.{endpoint}"
    with pytest.raises(UserErrorException, match="the protocol is https, not 'http'"):
        Datastore.register_azure_blob_container(ws, "plain", "box", "account", protocol="http")


def test_an_upload_opens_the_store_once(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its listing and for all files; of two files of one name the first one stays, as in a folder."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    opened: list[str] = []
    open_store = remote_stores.open_store

    def counted(address: str, options: Any = None) -> tuple[Any, str]:
        opened.append(address)
        return open_store(address, options)

    for module in (mirrors, remote_stores, remote_writing):
        monkeypatch.setattr(module, "open_store", counted)
    address = f"file://{tmp_path}/away"
    Datastore.register_address(ws, "away", address, auto_mkdir=True)
    (tmp_path / "data" / "train" / "a.csv").write_text("another")
    for store in (Datastore(ws, "away"), ws.get_default_datastore()):
        opened.clear()
        store.upload_files(
            ["data/a.csv", "data/train/a.csv", "data/train/b.csv"], target_path="./x", show_progress=False
        )
        assert opened in ([f"{address}/x", address], [])
        store.upload_files(["data/train/a.csv"], target_path="./x", show_progress=False)
        assert (store.place("x") / "a.csv").read_text() == "a.csv"


def test_versions_of_a_data_set_never_change(ws: Workspace) -> None:
    """The same paths again are the same version, others the next one, if that is wanted."""
    store = ws.get_default_datastore()
    store.upload("data", "digits", show_progress=False)
    first = Dataset.File.from_files((store, "/digits")).register(ws, "digits", description="all")
    again = Dataset.File.from_files([(store, "/digits")]).register(ws, "digits")
    assert (first.version, again.version) == (1, 1)
    part = Dataset.File.from_files(DataPath(store, "digits/train"))
    with pytest.raises(UserErrorException, match="create_new_version=True"):
        part.register(ws, "digits")
    assert part.register(ws, "digits", create_new_version=True).version == 2
    assert Dataset.get_by_name(ws, "digits").to_path() == ["/b.csv"]
    found = Dataset.get_by_name(ws, "digits", version=1)
    assert (found.description, found.to_path()) == ("all", ["/a.csv", "/train/b.csv"])
    assert found.as_mount().dataset is found
    assert found.as_named_input("x").as_download().name == "x"
    assert list(ws.datasets) == ["digits"]
    with pytest.raises(UserErrorException, match="there is no data set 'digits:3'"):
        Dataset.get_by_name(ws, "digits", version=3)


def test_a_data_set_is_of_the_web(
    ws: Workspace, tmp_path: Path, web: Web, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Azure's MNIST how-to has it: addresses, a name with a space, files that are fetched when they are needed."""
    addresses = [f"http://{web.place}/exdb/mnist/{name}.gz" for name in ("images", "labels")]
    made = Dataset.File.from_files(path=addresses).register(ws, "mnist dataset", create_new_version=True)
    assert capsys.readouterr().out == ""
    found = Dataset.get_by_name(ws, "mnist dataset")
    assert (made.version, repr(found)) == (
        1,
        f"FileDataset({', '.join(addresses)}, name='mnist dataset', version=1)",
    )
    assert list(ws.datasets) == ["mnist dataset"]
    folder = found.folder()
    assert capsys.readouterr().out.splitlines() == [
        f"fetching 1 file (0.0 MB) of {address}" for address in addresses
    ]
    paths = [f"{web.place.replace(':', '-')}/exdb/mnist/{name}.gz" for name in ("images", "labels")]
    assert found.to_path() == [f"/{path}" for path in paths]
    assert (folder / paths[0]).read_text() == "one"
    assert found.download("copy") == [str(tmp_path / "copy" / path) for path in paths]
    assert found.as_mount().name == "mnist_dataset"
    one = Dataset.File.from_files(addresses[0])
    assert (one.folder().name, one.to_path()) == ("images.gz", ["/images.gz"])
    with pytest.raises(UserErrorException, match="cannot be a data set name"):
        one.register(ws, "mnist ")


def test_a_data_set_is_a_folder(ws: Workspace, tmp_path: Path) -> None:
    """Its own, nothing is copied; of patterns the folder above them; several are none."""
    store = ws.get_default_datastore()
    store.upload("data", "digits", show_progress=False)
    pattern = Dataset.File.from_files((store, "digits/**/*.csv"))
    assert pattern.folder() == store.root / "digits"
    assert pattern.to_path() == ["/a.csv", "/train/b.csv"]
    with pattern.mount("/mnt/x") as mounted:
        assert mounted.mount_point == str(store.root / "digits")
    assert pattern.download("copy") == [str(tmp_path / "copy" / name) for name in ("a.csv", "train/b.csv")]
    with pytest.raises(UserErrorException, match="overwrite=True"):
        pattern.download("copy")
    with pytest.raises(UserErrorException, match="is of 2 folders"):
        Dataset.File.from_files([(store, "digits"), (store, "other")]).folder()
    with pytest.raises(UserErrorException, match="upload the data first"):
        Dataset.File.from_files((store, "nothing")).folder()
    with pytest.raises(UserErrorException, match="neither a path of a data store nor an address of the web"):
        Dataset.File.from_files("wasbs://container@account/a.csv")
    with pytest.raises(NotOffered, match="read them with pandas in the script"):
        Dataset.Tabular.from_delimited_files((store, "digits/a.csv"))
    assert OutputFileDatasetConfig("out", (store, "out")).as_mount().name == "out"


def test_a_target_is_of_the_class_of_its_kind(ws: Workspace) -> None:
    """A target has its class however it is found: scripts ask `type(target) is AmlCompute`."""
    made = ComputeTarget.create(
        ws, "cpu", AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes="4")
    )
    ComputeTarget.create(ws, "cluster", AksCompute.provisioning_configuration())
    ComputeTarget.attach(ws, "batch", BatchCompute.attach_configuration("group", "account"))
    found = {name: type(target) for name, target in ws.compute_targets.items()}
    assert found == {"batch": BatchCompute, "cluster": AksCompute, "cpu": AmlCompute}
    assert type(made) is type(ComputeTarget(ws, "cpu")) is AmlCompute
    assert BatchCompute(ws, "batch").cluster_resource_id == "group/account"
    with pytest.raises(
        ComputeTargetException, match="cpu is a compute target of type AmlCompute, not BatchCompute"
    ):
        BatchCompute(ws, "cpu")


def test_a_cluster_says_how_it_is(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """In Azure's JSON: one node, since this machine stands for it; a line says so."""
    given = AmlCompute.provisioning_configuration(vm_size="standard_nc6_promo", min_nodes="0", max_nodes=10)
    cluster = ComputeTarget.create(ws, "gpu", given)
    cluster.wait_for_completion(show_output=True, min_node_count=None, timeout_in_minutes=20)
    status = cluster.get_status().serialize()
    assert (status["currentNodeCount"], status["nodeStateCounts"]["idleNodeCount"]) == (1, 1)
    assert (status["vmSize"], status["scaleSettings"]["maxNodeCount"]) == ("STANDARD_NC6_PROMO", 10)
    assert "gpu: the cores and GPUs of this machine stand for the cluster" in capsys.readouterr().out
    assert {"name": "Standard_D2_v2", "vCPUs": 2, "gpus": 0} in AmlCompute.supported_vmsizes(workspace=ws)
    for wrong in ({}, {"min_nodes": 2, "max_nodes": 1}, {"max_nodes": "many"}):
        with pytest.raises(ComputeTargetException, match="max_nodes"):
            AmlCompute.provisioning_configuration("STANDARD_D2_V2", **wrong)


@pytest.mark.parametrize("kind", [RemoteCompute, HDInsightCompute])
def test_secrets_of_a_target_are_in_one_file(
    kind: type[RemoteCompute],
    ws: Workspace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For its owner alone; neither printed nor in the record, and gone with the target."""
    monkeypatch.setenv("STOKER_ATTACH_CHECK", "0")
    given = kind.attach_configuration(
        address="host", username="me", password="s3cret", private_key_passphrase="t0p"
    )
    target = ComputeTarget.attach(workspace=ws, name="vm", attach_configuration=given)
    assert "s3cret" not in repr(given) + json.dumps(target.serialize()) + capsys.readouterr().out
    (holding,) = [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert stat.S_IMODE(holding.stat().st_mode) == 0o600
    assert target.serialize()["properties"] == {"address": "host", "ssh_port": 22, "username": "me"}
    target.detach()
    assert not holding.exists()


class Machine:
    """An engine of a machine that lets nobody in but with one password."""

    def __init__(self, target: Target, workspace: LocalWorkspace) -> None:
        self._secret = workspace.targets_dir / f"{target.name}.secret"

    def check(self) -> list[str]:
        if "right" not in self._secret.read_text():
            raise EngineFailure("me@host has refused the password", "give it")
        return []


def test_a_machine_is_logged_in_to_when_it_is_attached(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that refuses the login is not attached; attached again, it takes the new password, or none."""
    monkeypatch.setattr(registry, "engine_of", Machine)

    def attach(password: str) -> ComputeTarget:
        given = RemoteCompute.attach_configuration(address="host", username="me", password=password)
        return ComputeTarget.attach(ws, "vm", given)

    with pytest.raises(ComputeTargetException, match="me@host has refused the password; give it"):
        attach("wrong")
    assert list_targets(ws.local.targets_dir) == ["local"]
    with pytest.raises(ComputeTargetException):
        ComputeTarget(ws, "vm")
    assert attach("right").provisioning_state == "Succeeded"
    assert attach("right too").provisioning_state == "Succeeded"
    secret = ws.local.targets_dir / "vm.secret"
    assert "right too" in secret.read_text()
    with pytest.raises(ComputeTargetException):
        attach("wrong")
    assert "right too" in secret.read_text()
    monkeypatch.setenv("STOKER_ATTACH_CHECK", "0")
    attach("wrong")
    assert "wrong" in secret.read_text()


def test_an_attached_machine_takes_scripts(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a compute target by SSH of the same settings, until it is detached."""
    monkeypatch.setenv("STOKER_ATTACH_CHECK", "0")
    given = RemoteCompute.attach_configuration(address="host", username="me", private_key_file="id_rsa")
    target = ComputeTarget.attach(ws, "vm", given)
    found = find_target(ws.local.targets_dir, "vm")
    expected = {"address": "host", "port": 22, "username": "me", "key_file": str(Path("id_rsa").absolute())}
    assert (found.type, found.settings) == ("ssh", expected)
    target.delete()
    assert list_targets(ws.local.targets_dir) == ["local"]


def test_a_token_is_a_secret_too(ws: Workspace) -> None:
    """Of a service that is kept as a record."""
    given = DatabricksCompute.attach_configuration("group", workspace_name="bricks", access_token="t0ken")
    target = ComputeTarget.attach(ws, "bricks", given)
    assert "t0ken" not in json.dumps(target.serialize())
