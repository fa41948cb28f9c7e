"""A server from both configurations of the Azure CLI: tokens at its doors, its limit, its models, its variables."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.http.raw_http import Answer, Headers, bearer, request, scoring
from tests.live_server import LiveServer, run_stoker, wait_until
from tests.tiny_models import Gate, write_doubler

from stoker.keys.keyring import Keyring, read_signing_secret
from stoker.keys.tokens import issue_token
from stoker.models.repository import Repository
from stoker.settings.workspace import Workspace

SCRIPT = """
import json
import os
import time
from pathlib import Path

def init():
    global gate, seen
    gate = Path(os.environ["GATE"])
    names = ("AZUREML_MODEL_DIR", "AML_APP_ROOT", "AZUREML_SOURCE_DIRECTORY", "EXAMPLE_ENV_VAR")
    seen = {name: os.environ[name] for name in names}
    seen["models"] = sorted(str(path) for path in Path(os.environ["AZUREML_MODEL_DIR"]).glob("*/*/*"))

def run(raw_data):
    value = json.loads(raw_data)
    if value == "hold":
        gate.joinpath("entered").touch()
        while not gate.joinpath("open").exists():
            time.sleep(0.002)
    return seen if value == "tell" else value
"""
DEPLOYMENT = {
    "computeType": "aks",
    "numReplicas": 1,
    "tokenAuthEnabled": True,
    "maxConcurrentRequestsPerContainer": 1,
    "maxQueueWaitMs": 200,
    "description": "The deployment of the tests.",
    "namespace": "tests",
}
SCORE, TOKEN = "/api/v1/service/azure/score", "/api/v1/service/azure/token"
DOORS: dict[str, Headers] = {"plain": [], "app": [("Origin", "https://x.example")]}


@dataclass(frozen=True)
class Deployed:
    """The server, its keyring, the gate of its script, and the folder that was deployed."""

    server: LiveServer
    keyring: Keyring
    gate: Gate
    app: Path

    def token(self, *, age_s: float = 0, valid_s: int = 600) -> str:
        """A token that was signed some time ago."""
        secret = read_signing_secret(self.keyring.keys_dir, "azure")
        return issue_token(secret, "azure", now_s=time.time() - age_s, valid_s=valid_s).text

    def score(self, credential: str, body: object = "x", headers: Headers = ()) -> Answer:
        """Score on a connection of its own."""
        with self.server.connect() as connection:
            return connection.ask(scoring(SCORE, credential, json.dumps(body).encode(), headers))


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """One server of a script, with two registered models, as `az ml model deploy` would be given it."""
    scratch = tmp_path_factory.mktemp("azure")
    app, gate = scratch / "app", scratch / "gate"
    for folder in (gate, app / "source"):
        folder.mkdir(parents=True)
    (app / "source" / "score.py").write_text(SCRIPT)
    variables = {"EXAMPLE_ENV_VAR": "of the configuration", "GATE": str(gate)}
    inference = {
        "entryScript": "score.py",
        "sourceDirectory": "source",
        "environment": {"environmentVariables": variables},
    }
    (app / "inferenceconfig.json").write_text(json.dumps(inference))
    (app / "deploymentconfig.json").write_text(json.dumps(DEPLOYMENT))
    workspace = Workspace(scratch / "workspace").create()
    for name in ("first", "second"):
        now = datetime(2026, 11, 21, tzinfo=UTC)
        Repository(workspace.models_dir).register(name, write_doubler(scratch / f"{name}.onnx"), now=now)
    configuration = ["--inference-config", app / "inferenceconfig.json"]
    configuration += ["--deployment-config", app / "deploymentconfig.json"]
    models = ["--use-model", "first", "--use-model", "second:1"]
    with LiveServer(
        scratch, *configuration, *models, "--name", "azure", "--frontends", "1", given_keys=False
    ) as server:
        yield Deployed(server, Keyring(workspace.keys_dir, "azure"), Gate(gate), app)


@pytest.mark.parametrize("door", DOORS)
def test_a_token_scores_and_a_key_does_not(deployed: Deployed, door: str) -> None:
    """With `tokenAuthEnabled` callers send tokens, as on Azure, again and again over one connection."""
    key = deployed.keyring.show().primary
    refused = deployed.score(key, headers=DOORS[door])
    token = deployed.token()
    with deployed.server.connect() as connection:
        answers = [connection.ask(scoring(SCORE, token, b"[1]", DOORS[door])) for _ in range(3)]
    assert refused.status == 401
    assert [(answer.status, answer.json()) for answer in answers] == [(200, [1])] * 3


@pytest.mark.parametrize("door", DOORS)
def test_a_401_names_the_fault_of_the_token(deployed: Deployed, door: str) -> None:
    """Expired, invalid, or absent: in the message, and in `WWW-Authenticate` as RFC 6750 has it."""
    expired = deployed.score(deployed.token(age_s=60, valid_s=60), headers=DOORS[door])
    invalid = deployed.score(deployed.token()[:-8] + "00000000", headers=DOORS[door])
    with deployed.server.connect() as connection:
        absent = connection.ask(request("POST", SCORE, DOORS[door], b"[1]"))
    assert [answer.error_code() for answer in (expired, invalid, absent)] == ["unauthorized"] * 3
    assert expired.json()["message"].startswith("The token has expired; fetch one from " + TOKEN)
    assert expired.header("www-authenticate") == (
        'Bearer error="invalid_token", error_description="The token has expired"'
    )
    assert invalid.json()["message"].startswith("The token is not valid")
    assert (invalid.header("www-authenticate") or "").startswith('Bearer error="invalid_token"')
    assert absent.json()["message"].startswith("A valid token is needed")
    assert absent.header("www-authenticate") == "Bearer"


@pytest.mark.parametrize("path", [TOKEN, "/token"])
def test_a_key_fetches_a_token(deployed: Deployed, path: str) -> None:
    """Either key does, and the token scores; what came is in Azure's words, and nobody may store it."""
    for key in (deployed.keyring.show().primary, deployed.keyring.show().secondary):
        answer = deployed.server.get(path, [bearer(key)])
        fetched = answer.json()
        assert (answer.status, fetched["tokenType"]) == (200, "Bearer")
        assert answer.header("cache-control") == "no-store"
        assert (fetched["expiresInSeconds"], fetched["refreshInSeconds"]) == (43_200, 21_600)
        assert fetched["expiryOn"] - fetched["refreshAfter"] == 21_600
        assert deployed.score(fetched["accessToken"]).status == 200
    for headers in ([], [bearer("not-a-key-of-the-tests-00")], [bearer(fetched["accessToken"])]):
        assert deployed.server.get(path, headers).status == 401


def test_the_command_signs_for_the_running_server(deployed: Deployed) -> None:
    """`stoker token` prints one that scores, until the secret is replaced; then at once it does not."""
    workspace = ["--workspace", deployed.server.workspace]
    token = run_stoker("token", "--valid", "5m", *workspace).stdout.strip()
    assert deployed.score(token).status == 200
    assert run_stoker("keys", "regenerate", "signing", *workspace).returncode == 0
    assert deployed.score(token).status == 401
    assert deployed.score(deployed.token()).status == 200


def test_metrics_and_health_need_no_token(deployed: Deployed) -> None:
    """Probes carry none, and the limit counts no probes."""
    for path in ("/", "/v2/health/ready", "/metrics"):
        assert deployed.server.get(path).status == 200


def test_above_the_limit_requests_wait_and_are_refused(deployed: Deployed) -> None:
    """One request is in flight; a second one waits for 200 ms and gets a retry time."""
    deployed.gate.reset()
    token = deployed.token()
    with deployed.server.connect() as first:
        first.send(scoring(SCORE, token, b'"hold"'))
        wait_until(lambda: deployed.gate.entered, "the script runs")
        second = deployed.score(token)
        deployed.gate.open()
        held = first.answer()
    assert (second.status, second.error_code()) == (503, "overloaded")
    assert "as many requests in flight as it takes at once" in second.json()["message"]
    assert int(second.header("retry-after") or 0) >= 1
    assert held.status == 200
    assert deployed.score(token).status == 200


def test_the_script_finds_its_models_and_variables(deployed: Deployed) -> None:
    """AZUREML_MODEL_DIR has NAME/VERSION for each model, and the script starts where its folder lies."""
    seen = deployed.score(deployed.token(), "tell").json()
    models = Path(seen["AZUREML_MODEL_DIR"])
    assert models.name == "azureml-models"
    assert seen["models"] == [
        str(models / "first" / "1" / "first.onnx"),
        str(models / "second" / "1" / "second.onnx"),
    ]
    assert (seen["AML_APP_ROOT"], seen["AZUREML_SOURCE_DIRECTORY"]) == (str(deployed.app), "source")
    assert seen["EXAMPLE_ENV_VAR"] == "of the configuration"


def test_start_up_prints_azures_settings_with_their_effect(deployed: Deployed) -> None:
    """The summary lists settings with and without an effect, and how to get a token."""
    lines = [line for line in deployed.server.output().splitlines() if line.startswith("  azure ")]
    assert lines == [
        "  azure    deploymentconfig.json (aks): tokens, num_replicas 1, replica_max_concurrent_requests 1, "
        "max_request_wait_time 200, description The deployment of the tests.",
        "  azure    at most 1 at once (replica_max_concurrent_requests): a batch cannot have rows of more "
        "requests; without that setting there is no limit",
        "  azure    kept for the cluster: placement (namespace tests); there is no cluster here",
    ]
    workspace = os.path.relpath(deployed.server.workspace, deployed.server.scratch)
    assert f"token --name azure --workspace {workspace}" in deployed.server.output()
    assert "to fetch tokens with" in deployed.server.output()


def test_the_description_is_in_the_swagger(deployed: Deployed) -> None:
    """Callers read the operator's text."""
    described = deployed.server.get("/swagger.json", key=deployed.token()).json()
    assert described["info"]["description"] == "The deployment of the tests."
