"""Services of deployment code: start, search, change, end.

A puppet stands for `stoker serve`: a process that answers where the deployment file says, and holds what a server
would hold. `tests/process/test_azure_deploy.py` has the real one.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.live_server import free_port, wait_until

import stoker.azure  # noqa: F401  # provides azureml

from azureml.core import Environment, Model, Webservice, Workspace  # isort: skip
from azureml.core.compute import AksCompute, ComputeTarget
from azureml.core.model import InferenceConfig
from azureml.core.webservice import AciWebservice, AksWebservice, LocalWebservice
from azureml.exceptions import WebserviceException

from stoker.keys.keyring import read_signing_secret
from stoker.settings.loading import load_settings
from stoker.settings.server import ServerSettings
from stoker_azure.sdk.services import process as service_process
from stoker_azure.sdk.services.records import Services

PRIMARY, SECONDARY = "primary-key-of-the-tests-0001", "secondary-key-of-the-tests-002"

# Arguments: port, service, file of keys. It is ready as long as there is no file "not-ready" in the current folder,
# and ends with the code in a file "fail" there.
PUPPET = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
port, name, keys = sys.argv[1:]
print("the puppet starts", flush=True)
if os.path.exists("fail"):
    print("SystemExit: no weights", file=sys.stderr)
    sys.exit(3)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path in (f"/api/v1/service/{name}/", "/v2/health/ready")
        self.answer((503 if os.path.exists("not-ready") else 200) if known else 404, {})
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        bearer = (self.headers["authorization"] or "none").removeprefix("Bearer ")
        if os.path.exists(keys) and bearer not in json.load(open(keys)).values() and bearer.count(".") != 2:
            return self.answer(401, {"message": "a key is needed"})
        if body == "fail":
            return self.answer(500, {"message": "it was told to fail"})
        self.answer(200, [self.path, body, bearer, self.headers["content-type"]])
    def answer(self, status, content):
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *_): ...
HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


class Starts:
    """The started processes: commands and environments, and the folders."""

    def __init__(self) -> None:
        self.commands: list[Sequence[str]] = []
        self.environs: list[dict[str, str]] = []
        self.folders: list[Path] = []

    @property
    def settings(self) -> ServerSettings:
        """The settings that `stoker serve` would have read last."""
        return load_settings({}, self.environs[-1], self.deployment_file, ())

    @property
    def deployment_file(self) -> Path:
        """The file that it would have read."""
        *program, option, file, _, _ = self.commands[-1]
        assert (program, option) == ([sys.executable, "-P", "-m", "stoker.cli", "serve"], "--config")
        return Path(file)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script, an environment and a workspace."""
    for variable in [name for name in os.environ if name.startswith("STOKER_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    (tmp_path / "score.py").write_text("def init(): ...\ndef run(raw_data): ...\n")
    (tmp_path / "myenv.yml").write_text(
        "dependencies:\n- pip:\n  - numpy\n  - no-such-package-anywhere==1.0\n"
    )
    return tmp_path


@pytest.fixture
def starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    """Let puppets be started instead of servers; they end with the test."""
    starts, start = Starts(), service_process.start

    def start_puppet(at: Path, command: Sequence[str], environ: dict[str, str], head: Sequence[str]) -> int:
        starts.commands.append(command)
        starts.environs.append(environ)
        starts.folders.append(at)
        settings = starts.settings
        name = str(settings.models[0].name)
        keys = folder / "workspace" / "keys" / f"{name}.keys" if settings.auth or settings.token_auth else ""
        puppet = [sys.executable, "-I", "-S", "-c", PUPPET, str(settings.port), name, str(keys)]
        return start(at, puppet, {**environ}, head)

    monkeypatch.setattr(service_process, "start", start_puppet)
    monkeypatch.setattr("stoker_azure.sdk.services.backends.ProcessBackend.poll_s", 0.01)
    yield starts
    for service in Webservice.list(Workspace.from_config()):
        service.delete()


@pytest.fixture
def ws(starts: Starts) -> Workspace:
    """The workspace, with a model."""
    ws = Workspace.from_config()
    Path("model.pkl").write_text("weights")
    Model.register(ws, "model.pkl", "digits")
    return ws


Deploy = Callable[..., Any]


@pytest.fixture
def deploy(ws: Workspace) -> Deploy:
    """Deploy the script; by default as on Azure Kubernetes Service."""

    def deploy(name: str = "digits-1", config: Any = None, **options: Any) -> Any:
        options.setdefault("inference_config", InferenceConfig("score.py"))
        options.setdefault("models", [Model(ws, "digits")])
        config = AksWebservice.deploy_configuration() if config is None else config
        return Model.deploy(ws, name, deployment_config=config, **options)

    return deploy


def test_deployment_of_the_how_to_becomes_a_deployment_file(
    deploy: Deploy, starts: Starts, ws: Workspace, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole of the how-to: model, script, environment, replicas, keys."""
    environment = Environment.from_conda_specification("myenv", "myenv.yml")
    environment.environment_variables["A"] = "b"
    target = ComputeTarget.create(ws, "aks-gpu", AksCompute.provisioning_configuration())
    capsys.readouterr()
    service = deploy(
        "aks-dnn-mnist",
        AksWebservice.deploy_configuration(
            autoscale_enabled=False,
            num_replicas=3,
            memory_gb=4,
            scoring_timeout_ms=7000,
            collect_model_data=True,
            replica_max_concurrent_requests=2,
            description="Digits.",
            tags={"team": "vision"},
            primary_key=PRIMARY,
        ),
        inference_config=InferenceConfig("score.py", source_directory=".", environment=environment),
        deployment_target=target,
    )
    settings = starts.settings
    (model,) = settings.models
    assert (settings.replicas, settings.timeout_ms, settings.auth, settings.collect) == (3, 7000, True, True)
    assert (model.name, model.path, model.uses) == ("aks-dnn-mnist", folder / "score.py", ("digits:1",))
    assert (model.max_concurrent_requests, model.description) == (6, "Digits.")
    assert model.environment_variables == {
        "A": "b",
        "AML_APP_ROOT": str(folder.parent),
        "AZUREML_SOURCE_DIRECTORY": folder.name,
    }
    assert model.environment is not None
    assert (model.environment.name, model.environment_managed) == ("myenv.yml", "user")
    assert settings.port == int(service.scoring_uri.split(":")[2].split("/")[0])
    assert PRIMARY not in starts.deployment_file.read_text()
    assert not any(name.startswith("STOKER_") for name in starts.environs[0])

    printed = capsys.readouterr().out
    assert "memory_gb 4" in printed
    assert "packages myenv.yml (user-managed): 2 packages asked for, 1 missing" in printed
    assert "no-such-package-anywhere" in printed
    assert service.get_logs().startswith(printed)
    assert "replicas 3" in printed
    assert (service.compute_name, service.compute_type, service.tags) == (
        "aks-gpu",
        "AKS",
        {"team": "vision"},
    )
    assert PRIMARY not in json.dumps(service.serialize())
    assert PRIMARY not in (ws.local.services_dir / "aks-dnn-mnist" / "service.json").read_text()


def test_services_differ_in_where_they_would_run(deploy: Deploy, starts: Starts) -> None:
    """Paths, keys by default and compute types are those of Azure."""
    port = free_port()
    aks = deploy("on-aks")
    aci = deploy("on-aci", AciWebservice.deploy_configuration(1, 1))
    local = deploy("on-local", LocalWebservice.deploy_configuration(port=port))
    assert [type(service) for service in (aks, aci, local)] == [AksWebservice, AciWebservice, LocalWebservice]
    assert aks.scoring_uri.endswith("/api/v1/service/on-aks/score")
    assert aks.swagger_uri.endswith("/api/v1/service/on-aks/swagger.json")
    assert (local.scoring_uri, local.swagger_uri, local.port) == (
        f"http://127.0.0.1:{port}/score",
        f"http://127.0.0.1:{port}/swagger.json",
        port,
    )
    assert [service.auth_enabled for service in (aks, aci, local)] == [True, False, False]
    for service in (aci, local):
        with pytest.raises(WebserviceException, match="auth_enabled is off"):
            service.get_keys()
    local.wait_for_deployment()
    assert local.state == LocalWebservice.STATE_RUNNING == "running"
    local.delete()
    assert local.state == "deleted"


def test_a_service_is_found_by_a_class_that_is_not_its_own(deploy: Deploy, ws: Workspace) -> None:
    """It is of its own class then, and whole."""
    deploy("on-aks")
    found: Any = AciWebservice(ws, "on-aks")
    assert (type(found), found.name, found.compute_type) == (AksWebservice, "on-aks", "AKS")


@pytest.mark.parametrize("given", ["digits", ["digits"], None])
def test_models_that_are_no_list_of_models(deploy: Deploy, ws: Workspace, given: Any) -> None:
    """The error names the expected form; a single model without its list is the usual mistake."""
    with pytest.raises(
        WebserviceException, match=r"models must be a list such as \[Model\(workspace, NAME\)\]"
    ):
        deploy(models=given)
    with pytest.raises(WebserviceException, match="got Model"):
        deploy(models=Model(ws, "digits"))
    assert ws.webservices == {}


def test_taken_port_is_refused_before_the_start(deploy: Deploy, starts: Starts, ws: Workspace) -> None:
    """With the service that has it; that one goes on."""
    port = free_port()
    holder = deploy("on-local", LocalWebservice.deploy_configuration(port=port))
    holder.wait_for_deployment()
    with pytest.raises(WebserviceException, match=f"port {port} is taken by the service on-local"):
        deploy("another", LocalWebservice.deploy_configuration(port=port))
    assert (list(ws.webservices), len(starts.commands), holder.state) == (["on-local"], 1, "running")


def test_without_a_script_the_model_is_served(deploy: Deploy, starts: Starts, ws: Workspace) -> None:
    """One that Stoker can serve by itself, under the name of the service."""
    Model.register(ws, "score.py", "script")
    deploy("alone", models=[Model(ws, "script")], inference_config=None)
    (model,) = starts.settings.models
    assert (model.registered, model.name, model.path) == ("script:1", "alone", None)
    with pytest.raises(WebserviceException, match=r"without an inference_config.*not digits:1 \(files\)"):
        deploy("files", inference_config=None)
    with pytest.raises(WebserviceException, match="not none"):
        deploy("nothing", models=[], inference_config=None)


def test_settings_of_stoker_itself_are_inherited(
    deploy: Deploy, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the environment, as `stoker serve` takes them; the port is each service's own, and keys become its keys.

    Nor is a certificate inherited: what stands in for Azure's SDK asks by plain HTTP.
    """
    monkeypatch.setenv("STOKER_DEVICE", "cpu")
    monkeypatch.setenv("STOKER_TLS_CERT", "tls.crt")
    monkeypatch.setenv("STOKER_PORT", "1")
    monkeypatch.setenv("STOKER_PRIMARY_KEY", PRIMARY)
    service = deploy()
    assert starts.settings.device == ("cpu",)
    assert starts.settings.port > 1
    assert "STOKER_PRIMARY_KEY" not in starts.environs[0]
    assert "STOKER_TLS_CERT" not in starts.environs[0]
    assert starts.settings.tls is None
    assert service.get_keys()[0] == PRIMARY


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "Digits"}, "3 to 32 small letters"),
        ({"name": "ab"}, "3 to 32 small letters"),
        ({"name": "ends-in-"}, "3 to 32 small letters"),
        ({"config": {"primary_key": "short"}}, "the primary key has 5 characters"),
    ],
)
def test_failed_deployment_leaves_no_service(
    deploy: Deploy, ws: Workspace, change: dict[str, Any], reason: str
) -> None:
    """The reason is a `WebserviceException`, and later code finds no service."""
    if "config" in change:
        change = {"config": AksWebservice.deploy_configuration(**change["config"])}
    with pytest.raises(WebserviceException, match=reason):
        deploy(**change)
    assert ws.webservices == {}
    assert not any(path.suffix == ".keys" for path in ws.local.root.glob("keys/*"))
    with pytest.raises(WebserviceException, match="WebserviceNotFound: there is no service 'digits-1'"):
        Webservice(ws, "digits-1")


def test_wrong_keyword_is_refused_at_once() -> None:
    """The error has the nearest keyword; attributes can be changed and are checked again."""
    with pytest.raises(WebserviceException, match="'num_replica'; did you mean num_replicas"):
        AksWebservice.deploy_configuration(num_replica=3)
    config = AksWebservice.deploy_configuration(num_replicas=2, primary_key=PRIMARY)
    assert (config.num_replicas, config.cpu_cores) == (2, None)
    assert PRIMARY not in repr(config)
    config.num_replicas = 0
    with pytest.raises(WebserviceException, match="num_replicas must be"):
        config.validate_configuration()


def test_a_service_that_becomes_ready(
    deploy: Deploy, ws: Workspace, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is waited for, with Azure's words, and is found by later code."""
    (folder / "not-ready").touch()
    service = deploy()
    assert service.state == "Transitioning"
    with pytest.raises(WebserviceException, match=r"not deployed after 0\.05 s"):
        service.wait_for_deployment(timeout_sec=0.05)
    (folder / "not-ready").unlink()
    capsys.readouterr()
    service.wait_for_deployment(show_output=True)
    assert capsys.readouterr().out.replace(".", "") == (
        'Running\nSucceeded\nAKS service creation operation finished, operation "Succeeded"\n'
    )
    assert (service.state, service.error) == ("Healthy", None)
    (folder / "not-ready").touch()
    assert service.state == "Unhealthy"
    (folder / "not-ready").unlink()
    found = Workspace.from_config().webservices["digits-1"]
    assert (found.state, found.scoring_uri) == ("Healthy", service.scoring_uri)
    assert found.models[0].id == "digits:1"
    assert found.created_time <= found.updated_time <= datetime.now(UTC)
    assert service.get_logs(1) == "the puppet starts\n"
    for count in (0, -1, "5"):
        with pytest.raises(WebserviceException, match="num_lines must be a whole number above 0"):
            service.get_logs(count)


def test_failed_start_raises_the_end_of_the_log(
    deploy: Deploy, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`wait_for_deployment` raises; it can be deployed again without more ado."""
    (folder / "fail").touch()
    service = deploy()
    capsys.readouterr()
    with pytest.raises(WebserviceException, match=r"(?s)state is Failed: .*SystemExit: no weights") as raised:
        service.wait_for_deployment(show_output=True)
    assert "the process of digits-1 has ended" in raised.value.message
    assert capsys.readouterr().out.endswith("\nFailed\n")
    assert service.state == "Failed"
    (folder / "fail").unlink()
    again = deploy()
    assert "digits-1: its process has ended, it is started anew" in capsys.readouterr().out
    again.wait_for_deployment()
    assert service.state == "Healthy", "the same service, for whoever has found it before"


def test_a_process_that_has_died_is_recognised(deploy: Deploy, ws: Workspace) -> None:
    """This holds for each kind of death, and if another process has its number."""
    service = deploy()
    service.wait_for_deployment()
    record = Services(ws.local).find("digits-1")
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: service.state == "Unhealthy", "its death is seen")
    assert "has ended" in service.error
    service.delete()
    assert ws.webservices == {}


def test_unreadable_record_is_named(ws: Workspace, folder: Path) -> None:
    """With the file's name and what to do."""
    file = folder / "workspace" / "services" / "broken" / "service.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    with pytest.raises(WebserviceException, match=r"service\.json cannot be read.*deploy the service again"):
        Webservice(ws, "broken")
    file.unlink()


def test_bodies_are_scored_with_the_key(deploy: Deploy, ws: Workspace) -> None:
    """A key that was replaced meanwhile is fetched again; bytes and text are sent as they are."""
    service = deploy(config=AksWebservice.deploy_configuration(primary_key=PRIMARY, secondary_key=SECONDARY))
    service.wait_for_deployment()
    assert service.get_keys() == (PRIMARY, SECONDARY)
    path = "/api/v1/service/digits-1/score"
    assert service.run('{"data": [1]}') == [path, '{"data": [1]}', PRIMARY, "application/json"]
    Webservice(ws, "digits-1").regen_key("Primary", set_key="another-key-of-the-tests")
    assert service.run(b"[]")[1:3] == ["[]", "another-key-of-the-tests"]
    service.regen_key("secondary")
    assert service.get_keys()[1] != SECONDARY
    with pytest.raises(WebserviceException, match="Primary and Secondary, not 'third'"):
        service.regen_key("third")
    with pytest.raises(WebserviceException, match=r"answered 500.*told to fail") as raised:
        service.run("fail")
    assert raised.value.status_code == 500
    with pytest.raises(WebserviceException, match=r"json\.dumps"):
        service.run({"data": [1]})


def test_tokens_are_signed_and_renewed(deploy: Deploy, starts: Starts, ws: Workspace) -> None:
    """`get_token` gives the token and when to fetch another one; there are no keys then."""
    service = deploy(config=AksWebservice.deploy_configuration(token_auth_enabled=True))
    service.wait_for_deployment()
    assert (starts.settings.auth, starts.settings.token_auth) == (False, True)
    assert read_signing_secret(ws.local.keys_dir, "digits-1")
    token, refresh_by = service.get_token()
    access = service.get_access_token()
    assert datetime.now(UTC) < refresh_by <= access.refresh_after < access.expiry_on
    assert token.count(".") == 2
    assert token not in repr(access)
    assert service.run("[]")[2].count(".") == 2
    with pytest.raises(WebserviceException, match=r"get_token\(\)"):
        service.get_keys()


def test_run_of_a_stopped_service_raises(deploy: Deploy) -> None:
    """The caller hears where it was and how it stands."""
    service = deploy(config=AciWebservice.deploy_configuration())
    service.wait_for_deployment()
    service.delete()
    with pytest.raises(WebserviceException, match=r"cannot be reached.*its state is Deleted"):
        service.run("[]")
    assert service.get_logs() == ""
    service.delete()


def test_a_running_service_is_not_replaced_unasked(deploy: Deploy, starts: Starts, ws: Workspace) -> None:
    """With `overwrite` it is: the same port, the same keys, another process, and one folder."""
    first = deploy()
    keys, uri = first.get_keys(), first.scoring_uri
    with pytest.raises(WebserviceException, match="overwrite=True"):
        deploy()
    second = deploy(overwrite=True)
    second.wait_for_deployment()
    assert (second.get_keys(), second.scoring_uri) == (keys, uri)
    assert [folder.name for folder in starts.folders] == ["1", "2"]
    assert [folder.exists() for folder in starts.folders] == [False, True]
    assert not service_process.is_running(starts.folders[0])


def test_update_keeps_other_settings(deploy: Deploy, starts: Starts, ws: Workspace) -> None:
    """And a setting that excludes an old one takes its place."""
    config = AksWebservice.deploy_configuration(num_replicas=2, auth_enabled=True, properties={"a": "1"})
    service = deploy(config=config)
    service.update(scoring_timeout_ms=9000, properties={"b": "2"}, description="New.")
    settings = starts.settings
    assert (settings.timeout_ms, settings.replicas, settings.auth) == (9000, 2, True)
    assert (service.description, service.properties) == ("New.", {"a": "1", "b": "2"})
    service.update(autoscale_enabled=True, autoscale_min_replicas=1, autoscale_max_replicas=4)
    assert starts.settings.replicas == 1
    service.update(num_replicas=1, token_auth_enabled=True)
    assert (starts.settings.timeout_ms, starts.settings.auth, starts.settings.token_auth) == (
        9000,
        False,
        True,
    )
    Path("model.pkl").write_text("others")
    newer = Model.register(ws, "model.pkl", "digits")
    Path("other.py").write_text("def init(): ...\n")
    service.update(models=[newer], inference_config=InferenceConfig("other.py"))
    (model,) = starts.settings.models
    assert (model.uses, Path(str(model.path)).name) == (("digits:2",), "other.py")
    service.wait_for_deployment()
    assert len(starts.commands) == 5


def test_an_update_that_is_refused_changes_nothing(deploy: Deploy, starts: Starts) -> None:
    """The process that was there goes on."""
    service = deploy()
    service.wait_for_deployment()
    with pytest.raises(WebserviceException, match="did you mean num_replicas") as raised:
        service.update(num_replica=3)
    assert raised.value.__suppress_context__, "nothing of Stoker's own code stands above the reason"
    with pytest.raises(WebserviceException, match="images"):
        service.update(image=object())
    assert service.state == "Healthy"
    assert len(starts.commands) == 1


def test_labels_change_while_it_runs(deploy: Deploy, starts: Starts) -> None:
    """Tags and properties are no reason for another process."""
    service = deploy(config=AksWebservice.deploy_configuration(tags={"a": "1", "b": "2"}))
    service.add_tags({"c": 3})
    service.remove_tags(["a"])
    service.add_properties({"p": "q"})
    assert (service.tags, service.properties) == ({"b": "2", "c": "3"}, {"p": "q"})
    service.update(tags={"only": "this"})
    assert service.tags == {"only": "this"}
    assert len(starts.commands) == 1


def test_services_are_filtered(deploy: Deploy, ws: Workspace) -> None:
    """By compute type, model, tags and properties."""
    deploy("on-aks", AksWebservice.deploy_configuration(tags={"team": "vision"}))
    deploy("on-aci", AciWebservice.deploy_configuration(properties={"p": "q"}), models=[])

    def names(**wanted: Any) -> list[str]:
        return [service.name for service in Webservice.list(ws, **wanted)]

    assert names() == ["on-aci", "on-aks"]
    assert names(compute_type="AKS") == names(model_name="digits") == names(model_id="digits:1") == ["on-aks"]
    assert names(tags=["team"]) == names(tags=[["team", "vision"]]) == ["on-aks"]
    assert names(properties={"p": "q"}) == ["on-aci"]
    assert names(image_name="any") == names(tags=["nobody"]) == []
    assert names(compute_type="aci") == ["on-aci"]
    with pytest.raises(WebserviceException, match="'VM': it is one of ACI, AKS, Local"):
        names(compute_type="VM")


def test_a_local_service_is_reloaded(deploy: Deploy, starts: Starts) -> None:
    """Another process with the same settings, for a script that was changed; or with another port."""
    service = deploy("on-local", LocalWebservice.deploy_configuration(free_port()))
    service.reload(wait=True)
    assert len(starts.commands) == 2
    port = free_port()
    service.update(deployment_config=LocalWebservice.deploy_configuration(port), wait=True)
    assert (service.port, service.state) == (port, "running")


def test_a_service_that_starts_is_waited_for(deploy: Deploy, tmp_path: Path) -> None:
    """A body posted right after a reload gets the answer of the new process, or the reason why there is none."""
    service = deploy("on-local", LocalWebservice.deploy_configuration(free_port()))
    service.reload()
    assert service.run("[]")[1] == "[]"
    (tmp_path / "fail").touch()
    service.reload()
    with pytest.raises(WebserviceException, match=r"(?s)its state is failed: .*no weights"):
        service.run("[]")


def test_keys_that_were_there_before_outlive_the_service(deploy: Deploy, ws: Workspace) -> None:
    """Those that were made for it do not."""
    keys = ws.local.keys_dir
    service = deploy()
    service.delete()
    assert [path.name for path in keys.glob("digits-1.*")] == []
    from stoker.keys.keyring import Keyring

    mine = Keyring(keys, "digits-1").ensure()
    service = deploy()
    assert service.get_keys() == (mine.primary, mine.secondary)
    service.delete()
    assert Keyring(keys, "digits-1").show() == mine


def test_port_of_another_process_is_left_alone(deploy: Deploy, folder: Path) -> None:
    """A service whose process has ended comes back at another port, if it must."""
    (folder / "fail").touch()
    service = deploy()
    wait_until(lambda: service.error is not None, "it has ended")
    (folder / "fail").unlink()
    port = int(service.scoring_uri.split(":")[2].split("/")[0])
    with socket.create_server(("127.0.0.1", port)):
        deploy().wait_for_deployment()
    assert f":{port}/" not in service.scoring_uri


def test_the_deployment_file_is_one_of_stoker(deploy: Deploy, starts: Starts) -> None:
    """It can be read, taken over and served by hand."""
    deploy()
    content = yaml.safe_load(starts.deployment_file.read_text())
    assert set(content) == {"port", "auth", "token_auth", "models"}
