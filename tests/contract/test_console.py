"""The console over HTTP: a page that loads without a key, and figures for callers with one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.in_process import DOORS, KEY, InProcessServer
from tests.http.raw_http import bearer, request
from tests.puppet_supervisor import PuppetSupervisor
from tests.puppets import PuppetRuntime

from stoker.control.frontend_messages import AskKeys, Refusal
from stoker.gateway.administration import AdminAccess
from stoker.gateway.console import routes
from stoker.gpu.facts import GpuReading
from stoker.metrics.history import Past
from stoker.metrics.layout import SUPERVISOR_PAGE
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
    """A key of a service is enough; without one there are none."""
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


def test_a_model_is_described_with_its_traffic_and_the_memory_of_gpus(server: InProcessServer) -> None:
    """Shares of versions without weights are all of the default's; memory is that of whole GPUs."""
    reading = GpuReading(0, "GPU-0", memory_total_bytes=80 << 30, memory_used_bytes=12 << 30)
    server.gateway.metrics.page(SUPERVISOR_PAGE).set_gpus([reading])
    found = json.loads(server.ask("GET", "/console/models").body)
    (version,) = found["models"][0]["versions"]
    assert (version["share_percent"], found["models"][0]["endpoint"]) == (100, None)
    assert found["gpus"] == [
        {"index": 0, "uuid": "GPU-0", "memory_used_bytes": 12 << 30, "memory_total_bytes": 80 << 30}
    ]


@pytest.mark.parametrize("since", ["-1", "x", "1" * 19])
def test_steps_are_numbers(server: InProcessServer, since: str) -> None:
    """Anything else is refused."""
    assert server.ask("GET", f"/console/figures?since={since}").status == 400


@pytest.mark.parametrize("step_s", ["2", "x", "900"])
def test_steps_have_one_of_two_lengths(server: InProcessServer, step_s: str) -> None:
    """A second, or twenty; others are refused."""
    assert server.ask("GET", f"/console/figures?step_s={step_s}").status == 400
    assert server.ask("GET", "/console/figures?step_s=20").json()["step"] == 0


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("accept", [BROWSER, "text/html", "TEXT/HTML; q=0.5"])
def test_the_root_leads_browsers_to_the_console(server: InProcessServer, door: str, accept: str) -> None:
    """And nobody else: who accepts HTML by its name."""
    led = server.ask("GET", "/", headers=[("Accept", accept), *DOORS[door]])
    assert (led.status, led.header("location"), led.header("vary")) == (307, "console/", "accept")
    at_service = server.ask("GET", "/api/v1/service/model/", headers=[("Accept", accept), *DOORS[door]])
    assert at_service.body == b"Healthy"


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("accept", [None, "*/*", "", "text/plain", "application/json, text/*", "text/htmlx"])
def test_probes_get_the_word_that_they_have_always_got(
    server: InProcessServer, door: str, accept: str | None
) -> None:
    """The same bytes as from a server without a console, but for the ids and the time."""
    headers = [*DOORS[door], *([] if accept is None else [("Accept", accept)])]
    with InProcessServer(PuppetRuntime(), key=KEY) as without:
        heads = []
        for one in (server, without):
            answer = one.ask("GET", "/", headers=headers)
            assert (answer.status, answer.body) == (200, b"Healthy")
            varies = ("date", "x-request-id", "x-ms-request-id", "x-ms-client-request-id")
            heads.append([(name, "" if name in varies else value) for name, value in answer.headers])
    assert heads[0] == heads[1]


def test_a_token_is_exchanged_for_the_keys(server: InProcessServer) -> None:
    """The supervisor names them; its refusal becomes the answer."""
    supervisor = PuppetSupervisor(server.gateway, AdminAccess(), ({"name": "model", "key": KEY},))
    exchange = request("POST", "/console/sign-in", [bearer("once")])
    with server.connect() as connection:
        taken = connection.ask(exchange)
    assert (taken.status, taken.json(), taken.header("cache-control")) == (
        200,
        {"keys": {"model": KEY}},
        "no-store",
    )
    assert [(type(ask), getattr(ask, "token", "")) for ask in supervisor.requests] == [(AskKeys, "once")]
    assert "once" not in repr(supervisor.requests)
    supervisor.refusal = Refusal(0, 401, "unauthorized", "This link has been used or has expired.")
    with server.connect() as connection:
        assert connection.ask(exchange).status == 401
    assert server.ask("GET", "/console/sign-in").status == 405


def test_a_server_without_keys_asks_for_none() -> None:
    """Its console is as open as its scoring."""
    running = with_past(InProcessServer(PuppetRuntime()))
    running.set(keyless=True)
    with running as server:
        assert [server.ask("GET", path).status for path in FIGURES] == [200, 200]


def test_a_console_that_is_switched_off_is_not_there() -> None:
    """Neither its page nor its figures."""
    with InProcessServer(PuppetRuntime(), key=KEY) as server:
        assert {server.ask("GET", path).status for path in ("/console", "/console/", *FIGURES)} == {404}


def test_a_page_without_its_libraries_says_how_to_build_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its libraries it would be blank."""
    (tmp_path / "index.html").write_text("<title>A page</title>")
    monkeypatch.setattr(routes, "_PAGE", tmp_path)
    with with_past(InProcessServer(PuppetRuntime(), key=KEY)) as server:
        page = server.ask("GET", "/console/")
    assert (page.status, b"This page is not built" in page.body) == (503, True)
