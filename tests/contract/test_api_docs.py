"""`/openapi.json` and the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.contract.in_process import KEY, InProcessServer
from tests.puppets import PuppetRuntime

PATHS = ("/openapi.json", "/docs", "/docs/", "/docs/files/docs.js")


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with InProcessServer(PuppetRuntime(), key=KEY) as running:
        yield running


def test_description_needs_a_key_as_other_metadata_do(server: InProcessServer) -> None:
    """It names the models; with a key it has the path, the inputs and the key of each."""
    assert server.ask("GET", "/openapi.json", headers=[("authorization", "")]).status == 401
    answer = server.ask("GET", "/openapi.json")
    assert (answer.status, answer.header("content-type")) == (200, "application/json")
    described = json.loads(answer.body)
    assert described["openapi"] == "3.1.0"
    operation = described["paths"]["/score"]["post"]
    (scheme,) = operation["security"][0]
    assert described["components"]["securitySchemes"][scheme]["scheme"] == "bearer"
    assert "data" in operation["requestBody"]["content"]["application/json"]["schema"]["properties"]


def test_example_of_the_description_is_scored(server: InProcessServer) -> None:
    """Readers of the page try it first."""
    described = json.loads(server.ask("GET", "/openapi.json").body)
    content = described["paths"]["/score"]["post"]["requestBody"]["content"]["application/json"]
    assert server.ask(body=json.dumps(content["example"]).encode()).status == 200


def test_page_is_public_and_loads_nothing_from_elsewhere(server: InProcessServer) -> None:
    """Its policy is that of the console; other files than those of the page are not served."""
    script = server.ask("GET", "/docs/files/docs.js", headers=[("authorization", "")])
    policy = script.header("content-security-policy") or ""
    assert (script.status, "script-src 'self'" in policy, "unsafe" in policy) == (200, True, False)
    redirect = server.ask("GET", "/docs")
    assert (redirect.status, redirect.header("location")) == (307, "docs/")
    assert server.ask("GET", "/docs/files/../routes.py").status == 404


def test_description_that_is_switched_off_is_not_there() -> None:
    """Neither the page nor what it shows."""
    with InProcessServer(PuppetRuntime(), key=KEY, docs=False) as server:
        assert {server.ask("GET", path).status for path in PATHS} == {404}
