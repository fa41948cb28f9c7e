"""The console over HTTP: a page that anybody may load, and figures for those with a key."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.in_process import KEY, InProcessServer
from tests.http.raw_http import request
from tests.puppets import PuppetRuntime

from stoker.gateway.console.routes import ConsoleFiles
from stoker.metrics.history import Past
from stoker.metrics.memory import MetricMemory

FIGURES = ["/console/figures", "/console/models"]


def with_past(server: InProcessServer) -> InProcessServer:
    fd = MetricMemory.create()
    server.gateway.past = Past(fd)
    os.close(fd)
    return server


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with with_past(InProcessServer(PuppetRuntime(), key=KEY)) as running:
        yield running


def test_the_files_hold_nothing_and_load_nothing_from_elsewhere(server: InProcessServer) -> None:
    """They need no key, and their policy lets the browser run and ask nothing but this server."""
    script = server.ask("GET", "/console/files/server.js", headers=[("authorization", "")])
    policy = (script.header("content-security-policy") or "").split("; ")
    assert (script.status, script.header("content-type")) == (200, "text/javascript; charset=utf-8")
    assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} <= set(
        policy
    )
    assert "unsafe" not in "".join(policy)
    redirect = server.ask("GET", "/console")
    assert (redirect.status, redirect.header("location")) == (307, "console/")


@pytest.mark.parametrize("name", ["../routes.py", "%2e%2e/routes.py", "server", "libraries", ""])
def test_nothing_else_is_a_file_of_it(server: InProcessServer, name: str) -> None:
    """Only what lies in the page's folder and is meant for browsers is served."""
    assert server.ask("GET", f"/console/files/{name}").status == 404


@pytest.mark.parametrize("path", FIGURES)
def test_figures_need_a_key(server: InProcessServer, path: str) -> None:
    """That of a service does; without one nothing is said."""
    with server.connect() as connection:
        refused = connection.ask(request("GET", path))
    assert (refused.status, json.loads(refused.body)["code"]) == (401, "unauthorized")
    allowed = server.ask("GET", path)
    assert (allowed.status, allowed.header("cache-control")) == (200, "no-store")


def test_a_model_is_described_with_all_that_a_form_needs(server: InProcessServer) -> None:
    """Its tensors, how it is batched, where requests go."""
    found = json.loads(server.ask("GET", "/console/models").body)
    (model,) = found["models"]
    (version,) = model["versions"]
    assert (found["keyless"], model["name"], model["default"]) == (False, "model", "1")
    assert model["path"] == "/api/v1/service/model/score"
    assert version["state"] == "AVAILABLE"
    assert [tensor["datatype"] for tensor in version["inputs"]] == ["FP32"]
    assert not version["sequences"]


@pytest.mark.parametrize("since", ["-1", "x", "1" * 19])
def test_steps_are_numbers(server: InProcessServer, since: str) -> None:
    """Anything else is refused."""
    assert server.ask("GET", f"/console/figures?since={since}").status == 400


def test_a_server_without_keys_asks_for_none() -> None:
    """Its console is as open as its scoring."""
    running = with_past(InProcessServer(PuppetRuntime()))
    running.gateway.keyless = True
    with running as server:
        assert [server.ask("GET", path).status for path in FIGURES] == [200, 200]


def test_a_console_that_is_switched_off_is_not_there() -> None:
    """Neither its page nor its figures."""
    with InProcessServer(PuppetRuntime(), key=KEY) as server:
        assert {server.ask("GET", path).status for path in ("/console", "/console/", *FIGURES)} == {404}


def test_a_page_that_was_not_built_says_how_to(tmp_path: Path) -> None:
    """Without its libraries it would be blank."""
    (tmp_path / "index.html").write_text("<!doctype html>")
    page = ConsoleFiles(tmp_path).page()
    assert (page.status_code, b"make console" in bytes(page.body)) == (503, True)
