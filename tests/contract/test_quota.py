"""Limits of callers over HTTP: both paths, and every protocol in its own form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.in_process import DOORS, InProcessServer
from tests.http.raw_http import Answer, bearer
from tests.puppets import HandClock, PuppetRuntime

from stoker.gateway.rows.urgency import DEFAULT_URGENCY, Quotas
from stoker.keys.access import Access
from stoker.keys.callers import CallerBook, KnownCallers
from stoker.keys.keyring import Keyring
from stoker.keys.verifier import KeyVerifier
from stoker.settings.model_limits import ModelLimit

ONE_ROW = b'{"data": [[1, 2]]}'
V2_ROW = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'
FORMS: dict[str, tuple[str, bytes]] = {
    "azure": ("/score", ONE_ROW),
    "v2": ("/v2/models/model/infer", V2_ROW),
    "tfs": ("/v1/models/model:predict", b'{"instances": [[1, 2]]}'),
    "mlflow": ("/invocations", b'{"inputs": [[1, 2]]}'),
}


class Limited:
    """A server with a caller of a limit, and another one without."""

    def __init__(self, server: InProcessServer, keys_dir: Path) -> None:
        self.server = server
        self.book = CallerBook(keys_dir)
        self.clock = HandClock()
        self.key = self.book.add("ads", terms={"rows_per_s": 2.0, "burst_s": 2.0})
        self.free_key = self.book.add("free")
        service = server.service
        service.access = Access(KeyVerifier(keys_dir, "model", model="model"))
        quotas = Quotas(
            server.memory.caller_usage(),
            server.memory.page(0).callers,
            KnownCallers(keys_dir),
            several=False,
            clock_ns=self.clock,
        )
        service.limits = msgspec.structs.replace(service.limits, quotas=quotas)

    def ask(self, path: str, body: bytes, door: str = "direct", key: str | None = None) -> Answer:
        """Ask through a door."""
        headers = [bearer(key or self.key), *DOORS[door]]
        return self.server.ask("POST", path, headers, body)

    def spend(self, rows: int = 4) -> None:
        """Fill the bucket, and take so many rows out of it."""
        self.clock.advance_ms(10_000)
        if rows:
            body = json.dumps({"data": [[1, 2]] * rows}).encode()
            assert self.ask("/score", body).status == 200


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    """A model that doubles rows of two numbers; a caller may send two rows a second, four at once."""
    keyring = Keyring(tmp_path_factory.mktemp("limits") / "keys", "model")
    keyring.ensure()
    with InProcessServer(PuppetRuntime()) as server:
        yield Limited(server, keyring.keys_dir)


@pytest.mark.parametrize("door", DOORS)
def test_a_limited_caller_gets_its_remaining_quota(limited: Limited, door: str) -> None:
    """With each answer; then 429 with when to come back, and by then the request is taken."""
    limited.spend(0)
    answer = limited.ask("/score", b'{"data": [[1, 2], [3, 4], [5, 6]]}', door)
    assert answer.status == 200
    assert answer.header("ratelimit-policy") == '"rows";q=4;qu="rows";w=2'
    assert answer.header("ratelimit") == '"rows";r=1;t=2'
    answer = limited.ask("/score", b'{"data": [[1, 2], [3, 4]]}', door)
    assert (answer.status, answer.error_code()) == (429, "quota_exceeded")
    assert (answer.header("retry-after"), answer.header("retry-after-ms")) == ("1", "500")
    assert answer.header("stoker-refused") == "reason=quota-rows"
    assert answer.header("ratelimit-policy") == '"rows";q=4;qu="rows";w=2'
    assert answer.header("ratelimit") == '"rows";r=1;t=1'
    limited.clock.advance_ms(500)
    assert limited.ask("/score", b'{"data": [[1, 2], [3, 4]]}', door).status == 200


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("form", FORMS)
def test_errors_have_the_form_of_their_protocol(limited: Limited, form: str, door: str) -> None:
    """Clients handle this error as they handle others."""
    path, body = FORMS[form]
    limited.spend()
    answer = limited.ask(path, body, door)
    assert answer.status == 429
    assert answer.header("retry-after-ms") == "500"
    content: Any = answer.json()
    if form == "azure":
        assert content["code"] == "quota_exceeded"
    else:
        assert answer.header("x-stoker-error-code") == "quota_exceeded"
    if form in ("v2", "tfs"):
        assert "limit of this caller" in content["error"]
    assert limited.ask(path, body, door, limited.free_key).status == 200


@pytest.mark.parametrize("door", DOORS)
def test_more_rows_than_are_ever_taken_are_too_large(limited: Limited, door: str) -> None:
    """A repetition would not help, so it is 413, without a time to come back."""
    limited.spend(0)
    answer = limited.ask("/score", json.dumps({"data": [[1, 2]] * 5}).encode(), door)
    assert (answer.status, answer.error_code()) == (413, "request_over_quota")
    assert "at most 4 at once" in answer.json()["message"]
    assert answer.header("retry-after") is None
    assert answer.header("ratelimit") == '"rows";r=4;t=0'


@pytest.mark.parametrize("door", DOORS)
def test_answer_to_an_unlimited_caller_has_no_limit_headers(limited: Limited, door: str) -> None:
    """Callers without a limit see no limits, with any usage of others."""
    limited.spend()
    answer = limited.ask("/score", ONE_ROW, door, limited.free_key)
    assert answer.status == 200
    assert answer.header("ratelimit-policy") is None
    assert answer.header("ratelimit") is None


def test_a_long_body_is_refused_unread(limited: Limited) -> None:
    """It is not JSON, and nobody has noticed."""
    limited.spend()
    answer = limited.ask("/score", b"x" * 40_000)
    assert (answer.status, answer.header("retry-after")) == (429, "2")
    limited.clock.advance_ms(10_000)
    assert limited.ask("/score", b"x" * 40_000).status == 400


def test_limits_change_with_the_next_request(limited: Limited) -> None:
    """In both directions."""
    limited.spend()
    assert limited.ask("/score", ONE_ROW).status == 429
    limited.book.change("ads", {"rows_per_s": None})
    assert limited.ask("/score", ONE_ROW).status == 200
    limited.book.change("ads", {"rows_per_s": 2.0})
    limited.clock.advance_ms(10_000)
    assert limited.ask("/score", ONE_ROW).header("ratelimit") == '"rows";r=3;t=1'
    assert limited.server.memory.totals().model(0).rejections()["quota"] > 0


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("form", FORMS)
def test_a_group_of_models_has_a_limit_for_all_callers(limited: Limited, form: str, door: str) -> None:
    """Callers without a limit see the rest of the group's. For the others both limits hold."""
    service, (path, body) = limited.server.service, FORMS[form]
    limited.spend(0)
    assert service.limits.quotas is not None
    number = list(FORMS).index(form) * len(DOORS) + list(DOORS).index(door)
    shared = service.limits.quotas.of_models(ModelLimit("mod*", number, rows_per_s=1.0))
    service.limits = msgspec.structs.replace(service.limits, urgency=DEFAULT_URGENCY._replace(shared=shared))
    try:
        answer = limited.ask(path, body, door, limited.free_key)
        assert (answer.status, answer.header("ratelimit")) == (200, '"rows";r=1;t=1')
        assert limited.ask(path, body, door).header("ratelimit") == '"rows";r=3;t=1'
        refused = [limited.ask(path, body, door, key) for key in (limited.key, limited.free_key)]
        assert [answer.status for answer in refused] == [429, 429]
        assert all(b"The limit of the models mod* is reached" in answer.body for answer in refused)
        assert refused[1].header("retry-after-ms") == "1000"
        limited.clock.advance_ms(1000)
        assert limited.ask(path, body, door).status == 200
    finally:
        service.limits = msgspec.structs.replace(service.limits, urgency=None)
