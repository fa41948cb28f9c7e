"""Access to metadata of models: for callers who may score with them, or load them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.contract.in_process import KEY, InProcessServer, script
from tests.http.raw_http import Answer, bearer, request
from tests.puppet_supervisor import PuppetSupervisor, with_admin_key

from stoker.gateway.administration import AdminAccess
from stoker.gateway.console.routes import describe_models
from stoker.gateway.gateway_settings import GatewaySettings
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.gateway.traffic import DEPLOYMENT_HEADER, Traffic
from stoker.keys.access import Access
from stoker.keys.callers import CallerBook
from stoker.keys.keyring import Keyring, Keys
from stoker.keys.verifier import KeyVerifier
from stoker.settings.traffic import Endpoint
from stoker.settings.versions import VersionStatus

HEADER = DEPLOYMENT_HEADER.decode()
ADMIN = "the-admin-key-of-the-tests"
GUARDED = [
    ("GET", "/v2/repository/events"),
    ("GET", "/v2/repository/models/model/events"),
    ("GET", "/swagger.json"),
    ("GET", "/api/v1/service/model/swagger.json"),
    ("GET", "/v2"),
    ("HEAD", "/v2"),
    ("GET", "/v2/"),
    ("GET", "/v2/models"),
    ("GET", "/v2/models/model"),
    ("GET", "/v2/models/model/versions/1"),
    ("GET", "/v2/models/stats"),
    ("GET", "/v2/models/model/stats"),
    ("GET", "/v2/models/model/versions/1/stats"),
    ("POST", "/v2/repository/index"),
    ("GET", "/v1/models/model/metadata"),
    ("GET", "/v1/models/model/versions/1/metadata"),
]
OPEN = [
    "/",
    "/api/v1/service/model/",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/model/ready",
    "/v1/models/model",
]


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A server whose model needs a key."""
    with InProcessServer(script(lambda raw_data: raw_data), key=KEY) as running:
        PuppetSupervisor(running.gateway, with_admin_key(ADMIN))
        yield running


def ask(server: InProcessServer, method: str, path: str, key: str | None) -> Answer:
    """Ask with a key, or without."""
    headers = [] if key is None else [bearer(key)]
    with server.connect() as connection:
        connection.send(request(method, path, headers, b"" if method == "POST" else None))
        return connection.answer(bodiless=method == "HEAD")


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_metadata_of_models_needs_a_key(server: InProcessServer, method: str, path: str) -> None:
    """Metadata needs a key of the model or the admin key; each protocol refuses in its shape."""
    for key in (None, "a-key-that-is-none-here"):
        refused = ask(server, method, path, key)
        assert (refused.status, refused.header("www-authenticate")) == (401, "Bearer")
        if method != "HEAD":
            assert "Authorization: Bearer" in refused.json()["message" if "swagger" in path else "error"]
    for key in (KEY, ADMIN):
        # The model is a script that takes whole bodies, of which TensorFlow Serving's metadata cannot say anything.
        assert ask(server, method, path, key).status == (400 if path.startswith("/v1") else 200)


@pytest.mark.parametrize("path", OPEN)
def test_health_is_open(server: InProcessServer, path: str) -> None:
    """Probes have no keys."""
    assert ask(server, "GET", path, None).status == 200


def test_the_operator_can_open_it(server: InProcessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `open_metadata`; scoring needs its key as before."""
    monkeypatch.setattr(server.gateway, "settings", GatewaySettings(metadata_need_key=False))
    for method, path in GUARDED:
        assert ask(server, method, path, None).status == (400 if path.startswith("/v1") else 200)
    assert ask(server, "POST", "/score", None).status == 401


def test_a_server_without_keys_is_open() -> None:
    """There is nothing to guard."""
    with InProcessServer(script(lambda raw_data: raw_data)) as running:
        PuppetSupervisor(running.gateway, AdminAccess())
        for method, path in GUARDED:
            assert ask(running, method, path, None).status == (400 if path.startswith("/v1") else 200)


def test_a_key_is_for_its_model() -> None:
    """Metadata of one model need its key; those of the server, or of a model that is not loaded, any key."""
    echo: Any = lambda raw_data: raw_data  # noqa: E731  # one line is enough
    with InProcessServer({"model": script(echo), "other": script(echo)}, key=KEY) as running:
        services = running.gateway.directory.services
        other = "the-key-of-the-other-model"
        only = KeyVerifier(Path("no-keys"), "other", Keys(other, other))
        services["other"].access = Access(only)
        running.gateway.route("gone", ServedModel({"1": ServedVersion(VersionStatus(5, "END"))}, None))
        for path, statuses in (
            ("/v2", (200, 200)),
            ("/v2/models/stats", (200, 200)),
            ("/v2/models/model", (200, 401)),
            ("/v2/models/other", (401, 200)),
            ("/v2/models/other/stats", (401, 200)),
            ("/v2/models/gone/versions/1/stats", (200, 200)),
        ):
            assert tuple(ask(running, "GET", path, key).status for key in (KEY, other)) == statuses


def test_description_has_only_models_that_the_key_opens() -> None:
    """A key of one model sees the paths of that model; the admin key, and anybody where metadata are open, all."""
    echo: Any = lambda raw_data: raw_data  # noqa: E731  # one line is enough
    with InProcessServer({"model": script(echo), "other": script(echo)}, key=KEY) as running:
        PuppetSupervisor(running.gateway, with_admin_key(ADMIN))
        other = "the-key-of-the-other-model"
        verifier = KeyVerifier(Path("no-keys"), "other", Keys(other, other))
        running.gateway.directory.services["other"].access = Access(verifier)

        def described(key: str | None) -> set[str]:
            paths = ask(running, "GET", "/openapi.json", key).json()["paths"]
            return {path.split("/")[4] for path in paths if path.startswith("/api/v1/service/")}

        assert described(KEY) == {"model"}
        assert described(other) == {"other"}
        assert described(ADMIN) == {"model", "other"}
        assert ask(running, "GET", "/openapi.json", None).status == 401
        running.set(metadata_need_key=False)
        assert described(None) == {"model", "other"}


@pytest.mark.parametrize("path", ["/score", "/invocations", "/v1/embeddings", "/v1/rerank"])
def test_error_of_a_path_without_a_model_names_the_path_with_one(path: str) -> None:
    """Where several models are served, callers of each API learn the path of that API."""
    echo: Any = lambda raw_data: raw_data  # noqa: E731  # one line is enough
    with InProcessServer({"model": script(echo), "other": script(echo)}, key=KEY) as running:
        answer = ask(running, "POST", path, KEY)
    assert answer.status == 404
    assert f"use /api/v1/service/<name>{path}." in answer.body.decode()


def test_lists_name_only_models_that_a_key_opens(tmp_path: Path) -> None:
    """A named key with a scope sees no other customer's models: in lists, statistics, events and the console."""
    echo: Any = lambda raw_data: raw_data  # noqa: E731  # one line is enough
    names = ["shop-eu", "shop-us", "bank"]
    keyring = Keyring(tmp_path, "shop-eu")
    keyring.ensure()
    shop = CallerBook(tmp_path).add("shop", terms={"models": frozenset({"shop-*"})})
    with InProcessServer({name: script(echo) for name in names}, key=KEY) as running:
        entries = tuple({"name": name, "model": name} for name in names)
        PuppetSupervisor(running.gateway, with_admin_key(ADMIN), entries)
        for name, service in running.gateway.directory.services.items():
            service.access = Access(KeyVerifier(tmp_path, "shop-eu", model=name))

        def named(method: str, path: str, key: str) -> set[str]:
            content = ask(running, method, path, key).json()
            entries = (
                content if isinstance(content, list) else content.get("models") or content["model_stats"]
            )
            return {one if isinstance(one, str) else one.get("name") or one["model"] for one in entries}

        for method, path in (
            ("POST", "/v2/repository/index"),
            ("GET", "/v2/repository/events"),
            ("GET", "/v2/models"),
            ("GET", "/v2/models/stats"),
        ):
            assert named(method, path, shop) == {"shop-eu", "shop-us"}
            assert named(method, path, keyring.show().primary) == set(names)
            assert named(method, path, ADMIN) == set(names)
        caller = running.gateway.directory.services["shop-us"].access.check(b"Bearer " + shop.encode())
        assert {one["name"] for one in describe_models(running.gateway, caller)} == {"shop-eu", "shop-us"}


def test_error_of_a_wrong_name_lists_no_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of services and deployments are metadata, and a request for another one has shown no key."""
    echo: Any = lambda raw_data: raw_data  # noqa: E731  # one line is enough
    endpoint = Endpoint("endpoint", {"blue": 0, "green": 0})
    wrong = ["/api/v1/service/red/score", "/score", "/invocations"]
    with InProcessServer({"blue": script(echo), "green": script(echo)}, key=KEY) as running:
        monkeypatch.setattr(running.gateway.directory, "only", None)
        for traffic, headers in ((None, []), (Traffic(endpoint), []), (Traffic(endpoint), [(HEADER, "red")])):
            monkeypatch.setattr(running.gateway.directory, "traffic", traffic)
            for opened in (False, True):
                monkeypatch.setattr(running.gateway.directory, "hides_names", not opened)
                for path in wrong:
                    with running.connect() as connection:
                        connection.send(request("POST", path, [bearer(KEY), *headers], b"x"))
                        answer = connection.answer()
                    assert answer.status == 404
                    assert ("blue, green" in answer.json()["message"]) == opened


def test_without_a_model_the_admin_key_is_needed(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has a key of a model then."""
    monkeypatch.setattr(server.gateway.directory, "models", {"model": SimpleNamespace(services=())})
    refused = ask(server, "POST", "/v2/repository/index", KEY)
    assert refused.status == 401
    assert "admin key" in refused.json()["error"]
    assert ask(server, "POST", "/v2/repository/index", ADMIN).status == 200
