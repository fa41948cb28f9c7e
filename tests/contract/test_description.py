"""Descriptions of services (CONTRACT A.3): versions, names, paths, and texts of the user."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import msgspec
import pytest
from tests.contract.in_process import InProcessServer, script

from stoker.gateway.describing.swagger import Naming
from stoker.gateway.scoring.service_facts import ServiceFacts
from stoker.runtimes.base import Runtime

NAMING = Naming(title="ML service", version="3.1.4", path_prefix="/pre")
INVALID = "Swagger version [{}] is not valid. Supported versions: [2, 3, 3.1]."


def echo(raw_data: str) -> str:
    """The body as it came."""
    return raw_data


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """An undecorated script under the names that Azure's variables give."""
    with InProcessServer(script(echo), naming=NAMING) as running:
        yield running


def test_the_description_of_an_undecorated_script(server: InProcessServer) -> None:
    """Title, version and paths as the variables say; any object in, any object out."""
    answer = server.ask("GET", "/swagger.json")

    described = answer.json()
    assert answer.status == 200
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-ms-run-function-failed") == "False"
    assert answer.body == json.dumps(described).encode()
    assert described["info"] == {
        "title": "ML service",
        "version": "3.1.4",
        "description": "API specification for the Azure Machine Learning service ML service",
    }
    operations = {
        path: (method, operation["operationId"])
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }
    assert operations == {
        "/pre/": ("get", "ServiceHealthCheck"),
        "/pre/score": ("post", "RunMLService"),
        "/pre/swagger.json": ("get", "GetSwaggerSpec"),
    }
    schemas = described["definitions"]
    assert schemas["ServiceInput"] == schemas["ServiceOutput"] == {"type": "object", "example": {}}
    assert schemas["ErrorResponse"]["properties"]["message"] == {"type": "string"}
    (payload,) = described["paths"]["/pre/score"]["post"]["parameters"]
    assert (payload["name"], payload["in"]) == ("serviceInputPayload", "body")
    bearer = described["securityDefinitions"]["Bearer"]
    assert (bearer["type"], bearer["name"], bearer["in"]) == ("apiKey", "Authorization", "header")


@pytest.mark.parametrize(
    ("query", "key", "number"),
    [
        ("", "swagger", "2.0"),
        ("?version=2", "swagger", "2.0"),
        ("?version=2.0", "swagger", "2.0"),
        ("?version=3", "openapi", "3.0.3"),
        ("?version=3.0", "openapi", "3.0.3"),
        ("?version=3.1", "openapi", "3.1.0"),
        ("?version=3&version=2", "openapi", "3.0.3"),
        ("?other=3", "swagger", "2.0"),
    ],
)
def test_versions(server: InProcessServer, query: str, key: str, number: str) -> None:
    """2 is the default; of several the first counts."""
    described = server.ask("GET", f"/swagger.json{query}").json()

    assert described[key] == number
    home = described["definitions"] if key == "swagger" else described["components"]["schemas"]
    assert set(home) == {"ServiceInput", "ServiceOutput", "ErrorResponse"}


@pytest.mark.parametrize("version", ["4", "", "1", "3.2", "x"])
def test_versions_that_do_not_exist(server: InProcessServer, version: str) -> None:
    """404 from the handler, in Azure's words, with all headers of handlers."""
    answer = server.ask("GET", f"/swagger.json?version={version}", [("TraceId", "t")])

    assert (answer.status, answer.json()["message"]) == (404, INVALID.format(version))
    assert answer.header("x-ms-run-function-failed") == "False"
    assert (answer.header("traceid"), bool(answer.header("x-request-id"))) == ("t", True)


def test_the_prefix_is_only_text(server: InProcessServer) -> None:
    """The proxy takes it off: here no path has it."""
    assert server.ask("POST", "/pre/score", body=b"{}").status == 404


def test_head_of_a_description(server: InProcessServer) -> None:
    """The length without the content."""
    get, head = server.ask("GET", "/swagger.json"), server.ask("HEAD", "/swagger.json")

    assert (head.status, head.header("content-length")) == (200, str(len(get.body)))


class _SchemaOfLists:
    """A script whose schema has lists of mixed types, which Swagger 2 cannot express."""

    def __init__(self, runtime: Runtime) -> None:
        form = runtime.signature.script
        assert form is not None
        form = msgspec.structs.replace(form, swagger_versions=("3", "3.1"))
        self.signature = dataclasses.replace(runtime.signature, script=form)
        self.run = runtime.run


def test_versions_that_a_schema_cannot_be_expressed_in() -> None:
    """404 in Azure's words for 2, which is the default; the others are there."""
    with InProcessServer(_SchemaOfLists(script(echo))) as server:
        answers = [server.ask("GET", f"/swagger.json{query}") for query in ("", "?version=2.0")]
        invalid = server.ask("GET", "/swagger.json?version=4")
        assert server.ask("GET", "/swagger.json?version=3").status == 200

    for answer, version in zip(answers, ("2", "2.0"), strict=True):
        assert (answer.status, answer.json()["message"]) == (
            404,
            f"Swagger version [{version}] is not supported for the scoring script. "
            "Supported swagger versions: [3, 3.1].",
        )
    assert invalid.json()["message"].endswith("Supported versions: [3, 3.1].")


def test_description_by_the_user_wins_for_its_version() -> None:
    """The user's description is served for its version; the others are generated."""
    own = {"swagger": "2.0", "info": {"title": "é", "version": "0"}, "paths": {}}
    with InProcessServer(script(echo)) as server:
        server.service.facts = ServiceFacts("model", swagger={"2": own})
        described = server.ask("GET", "/swagger.json")
        by_name = server.ask("GET", "/api/v1/service/model/swagger.json")
        made = server.ask("GET", "/swagger.json?version=3").json()

    assert described.body == by_name.body == json.dumps(own).encode()
    assert made["info"]["title"] == "model"


def test_a_service_describes_the_paths_that_lead_to_it() -> None:
    """It has its own path, with any prefix of the only service; the operator's sentence is there."""
    with InProcessServer({"a": script(echo), "b": script(echo)}, naming=NAMING) as server:
        server.gateway.directory.services["b"].facts = ServiceFacts("b", description="Tells what it is told.")
        described = server.ask("GET", "/api/v1/service/b/swagger.json").json()
        several = server.ask("GET", "/swagger.json")

    prefix = "/api/v1/service/b"
    assert set(described["paths"]) == {f"{prefix}/", f"{prefix}/score", f"{prefix}/swagger.json"}
    assert described["info"]["description"] == "Tells what it is told."
    assert (several.status, several.json()["code"]) == (404, "unknown_service")
