"""The routes of a server: health, metrics, descriptions, and paths that do not exist."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.http.conftest import Served
from tests.http.raw_http import bearer, request, rows_body
from tests.live_server import PRIMARY, wait_until

from stoker.keys.keyring import Keyring

SERVICES = ["doubler", "counted", "fussy", "mlp", "twice", "body", "batched"]


def test_the_root_says_healthy(served: Served) -> None:
    """`GET /` is Azure's health probe: the word as HTML, and nothing more for HEAD."""
    get = served.server.get("/")
    with served.server.connect() as connection:
        connection.send(request("HEAD", "/"))
        head = connection.answer(bodiless=True)
        connection.assert_open()

    assert (get.status, get.body) == (200, b"Healthy")
    assert get.header("content-type") == "text/html; charset=utf-8"
    assert (head.status, head.header("content-length")) == (200, "7")


def test_live_and_ready(served: Served) -> None:
    """The Open Inference Protocol's probes say so in JSON."""
    live, ready = served.server.get("/v2/health/live"), served.server.get("/v2/health/ready")

    assert (live.status, live.json()) == (200, {"live": True})
    assert (ready.status, ready.json()) == (200, {"ready": True})


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/score/",
        "/scores",
        "/api/v1/service//score",
        "/api/v1/service/doubler",
        "/metrics/x",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_paths_are_not_found(served: Served, path: str, method: str) -> None:
    """A path that does not exist is 404, with a key as without, in the shape of all errors."""
    with served.server.connect() as connection:
        answer = connection.ask(request(method, path, [bearer(PRIMARY)], b"{}"))
        connection.assert_open()

    assert answer.status == 404
    assert answer.error_code() in ("not_found", "unknown_service")
    assert answer.header("x-request-id")


def test_an_unknown_service_is_refused_without_the_names_of_others(served: Served) -> None:
    """A request for a wrong one has shown no key, and names are for callers with a key."""
    answer = served.server.score([1], path=served.path("nothing"))

    assert (answer.status, answer.error_code()) == (404, "unknown_service")
    assert "'nothing'" in answer.json()["message"]
    for name in SERVICES:
        assert name not in answer.json()["message"]


def test_score_without_a_name_needs_a_single_service(served: Served, narrow_server: Served) -> None:
    """`/score` is the only service where there is one; with several it says where they are."""
    several = served.server.score([1], path="/score")
    only = narrow_server.server.score([1], path="/score")

    assert (several.status, several.error_code()) == (404, "unknown_service")
    assert "/api/v1/service/" in several.json()["message"]
    assert only.status == 401


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/service/doubler/score", {"GET", "HEAD", "OPTIONS", "POST"}),
        ("DELETE", "/api/v1/service/doubler/score", {"GET", "HEAD", "OPTIONS", "POST"}),
        ("PATCH", "/api/v1/service/doubler/score", {"GET", "HEAD", "OPTIONS", "POST"}),
        ("POST", "/", {"GET", "HEAD", "OPTIONS"}),
        ("DELETE", "/metrics", {"GET", "HEAD"}),
        ("PUT", "/api/v1/service/doubler/swagger.json", {"GET", "HEAD", "OPTIONS"}),
    ],
)
def test_a_wrong_method_gets_the_allowed_ones(
    served: Served, method: str, path: str, allowed: set[str]
) -> None:
    """405 comes with `Allow`."""
    with served.server.connect() as connection:
        answer = connection.ask(request(method, path, [bearer(PRIMARY)], b""))
        connection.assert_open()

    assert (answer.status, answer.error_code()) == (405, "method_not_allowed")
    assert set((answer.header("allow") or "").split(", ")) == allowed
    assert answer.header("x-request-id")


def test_metrics_are_a_prometheus_exposition(served: Served) -> None:
    """`/metrics` parses, names every service, and holds what the dashboard shows."""
    served.server.score([1, 2, 3, 4], path=served.path("doubler"))
    answer = served.server.get("/metrics")

    assert answer.status == 200
    assert (answer.header("content-type") or "").startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    assert {
        "stoker_requests",
        "stoker_rejections",
        "stoker_rows",
        "stoker_rows_in_flight",
        "stoker_queue_rows",
        "stoker_dispatches",
        "stoker_batch_rows",
        "stoker_stage_seconds",
    } <= set(families)
    assert all(family.documentation for family in families.values())
    assert {sample.labels["model"] for sample in families["stoker_rows"].samples} == set(SERVICES)
    stages = {sample.labels["stage"] for sample in families["stoker_stage_seconds"].samples}
    assert stages == {"parse", "queue", "compute", "total"}


def test_the_load_alone_is_short(served: Served) -> None:
    """An autoscaler asks a thousand servers each second."""
    answer = served.server.get("/metrics?only=load")
    assert answer.status == 200
    names, values = zip(*(line.split(" ") for line in answer.body.decode().splitlines()), strict=True)
    assert names == ("stoker_load", 'stoker_rejections_total{reason="overloaded"}')
    assert all(float(value) >= 0 for value in values)
    assert len(answer.body) <= 300


def test_histograms_are_cumulative(served: Served) -> None:
    """Buckets of a histogram never fall, and the last one is the count."""
    served.server.score(*([1] * 4 for _ in range(40)), path=served.path("doubler"))
    wait_until(
        lambda: served.server.metric("stoker_batch_rows_count", model="doubler"), "a batch has been counted"
    )
    text = served.server.get("/metrics").body.decode()
    family = next(
        family for family in text_string_to_metric_families(text) if family.name == "stoker_batch_rows"
    )
    samples = [sample for sample in family.samples if sample.labels["model"] == "doubler"]
    buckets = [sample.value for sample in samples if sample.name.endswith("_bucket")]
    (count,) = (sample.value for sample in samples if sample.name.endswith("_count"))

    assert len(buckets) > 5
    assert buckets == sorted(buckets)
    assert buckets[-1] == count >= 1


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ("", "swagger", "2.0"),
        ("?version=2", "swagger", "2.0"),
        ("?version=2.0", "swagger", "2.0"),
        ("?version=3", "openapi", "3.0.3"),
        ("?version=3.0", "openapi", "3.0.3"),
        ("?version=3.1", "openapi", "3.1.0"),
    ],
)
def test_descriptions_have_versions(served: Served, query: str, key: str, value: str) -> None:
    """`swagger.json` describes a service in Swagger 2 or OpenAPI 3, with Azure's operation names."""
    answer = served.server.describe(f"/api/v1/service/doubler/swagger.json{query}")

    assert answer.status == 200
    description = answer.json()
    assert description[key] == value
    assert description["info"]["title"] == "doubler"
    post = description["paths"]["/api/v1/service/doubler/score"]["post"]
    assert post["operationId"] == "RunMLService"
    schemas = description["definitions"] if key == "swagger" else description["components"]["schemas"]
    row = schemas["ServiceInput"]["properties"]["data"]["items"]
    assert (row["minItems"], row["maxItems"]) == (4, 4)


def test_unknown_description_versions_are_not_found(served: Served) -> None:
    """The error names the versions that there are, in the Azure server's words."""
    answer = served.server.describe("/api/v1/service/doubler/swagger.json?version=4")

    assert (answer.status, answer.error_code()) == (404, "not_found")
    expected = "Swagger version [4] is not valid. Supported versions: [2, 3, 3.1]."
    assert answer.json()["message"] == expected


def test_the_only_service_is_described_at_the_root(narrow_server: Served) -> None:
    """`/swagger.json` describes the only service, with `/score` as its path."""
    keys = Keyring(narrow_server.server.workspace / "keys", "batched").show()
    answer = narrow_server.server.get("/swagger.json", key=keys.primary)

    assert answer.status == 200
    assert "/score" in answer.json()["paths"]


def test_an_undecorated_script_is_described_without_a_schema(served: Served) -> None:
    """Only the script knows what it takes: any object, as on Azure."""
    answer = served.server.describe("/api/v1/service/body/swagger.json")

    assert answer.json()["definitions"]["ServiceInput"] == {"type": "object", "example": {}}


def test_two_services_of_one_server_do_not_mix(served: Served) -> None:
    """Requests to different services, in turn on one connection, get each its own model's answer."""
    with served.server.connect() as connection:
        for number in range(5):
            row = [number, 1, 2, 3]
            doubled = connection.ask(
                request("POST", served.path("doubler"), [bearer(PRIMARY)], rows_body(row))
            )
            tripled = connection.ask(request("POST", served.path("fussy"), [bearer(PRIMARY)], rows_body(row)))

            assert doubled.json() == [[2 * value for value in row]]
            assert tripled.json() == [[3 * value for value in row]]


def test_the_newest_version_of_a_repository_is_served(served: Served) -> None:
    """Of a folder in Triton's layout, the highest version is served, and its batch limit is obeyed."""
    output = served.server.output()

    assert "mlp version 2 (onnx)" in output
    assert "twice version 10 (onnx)" in output

    def largest_batches() -> float:
        return served.server.metric("stoker_dispatches_total", model="twice", version="10", reason="full")

    before = largest_batches()
    served.server.score(*([1] * 4 for _ in range(24)), path=served.path("twice"))
    wait_until(lambda: largest_batches() >= before + 3, "24 rows have left in full batches of 8")


def test_start_up_prints_addresses_and_keys(served: Served) -> None:
    """Device, models with signatures and load times, scoring URIs, keys and a curl line are printed."""
    output = served.server.output()

    assert re.search(r"^  device   \w+(:\d+)?: ", output, re.MULTILINE)
    assert "doubler version 1 (onnx): x float32[n,4] -> y float32[n,4]" in output
    assert re.search(r"loaded in \d+\.\d\d s, warm after \d+\.\d\d s", output)
    for name in SERVICES:
        assert f"scoring  http://127.0.0.1:{served.server.port}/api/v1/service/{name}/score" in output
    assert "STOKER_PRIMARY_KEY" in output
    assert 'curl -s -H "Authorization: Bearer $STOKER_PRIMARY_KEY" -d @' in output
    assert PRIMARY not in output
