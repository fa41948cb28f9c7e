"""Fixtures for tests of plans and their objects."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from referencing import Registry, Resource
from tests.unit.stoker_cluster.puppet_api import PuppetApi

import stoker.azure  # noqa: F401  # provides azureml
from stoker.cli import main
from stoker_cluster.access import Cluster

from azureml.core import Model, Workspace  # isort: skip

SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
NEWEST = sorted(
    (folder for folder in SCHEMAS.glob("v*-local-strict")),
    key=lambda folder: [int(part) for part in folder.name[1:].partition("-")[0].split(".")],
)[-3:]


@pytest.fixture(scope="session")
def check_schema() -> Callable[..., None]:
    """Checks an object against the schemas of the newest minor versions of Kubernetes, unknown names refused.

    A whole Deployment takes 10 ms: `minor` chooses one of the three, 0 to 2.
    """
    definitions = [
        (folder, Resource.from_contents(json.loads((folder / "_definitions.json").read_text())) @ Registry())
        for folder in NEWEST
    ]
    known: dict[str, list[jsonschema.Draft202012Validator]] = {}

    def check(content: dict[str, Any], minor: int | None = None) -> None:
        group, _, version = content["apiVersion"].rpartition("/")
        prefix = f"{group.partition('.')[0]}-" if group else ""
        file = f"{content['kind'].lower()}-{prefix}{version}.json"
        if file not in known:
            schemas = [
                (json.loads((folder / file).read_text()), registry) for folder, registry in definitions
            ]
            known[file] = [
                jsonschema.Draft202012Validator(schema, registry=Resource.from_contents(schema) @ registry)
                for schema, registry in schemas
            ]
        for validator in known[file] if minor is None else [known[file][minor]]:
            validator.validate(content)

    return check


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> PuppetApi:
    """The API of every context."""
    puppet = PuppetApi()
    monkeypatch.setattr(Cluster, "connect", lambda *_, **__: puppet.cluster())
    return puppet


@pytest.fixture
def ws(api: PuppetApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with a model and a script, in which `aks-gpu` is bound."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    Path("model.pkl").write_text("1")
    Path("score.py").write_text("def init(): ...\ndef run(data): return data\n")
    assert main(["compute", "bind", "aks-gpu", "--image", "stoker:1"]) == 0
    ws = Workspace.from_config()
    Model.register(ws, "model.pkl", "digits")
    return ws
