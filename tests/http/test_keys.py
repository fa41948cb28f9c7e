"""Bearer keys at the scoring routes and at the metrics."""

from __future__ import annotations

import pytest
from tests.http.conftest import Served
from tests.http.raw_http import Headers, bearer, request, rows_body, scoring
from tests.live_server import PRIMARY

from stoker.keys.keyring import Keyring

BODY = rows_body([1, 2, 3, 4])

REFUSED: dict[str, Headers] = {
    "no key": [],
    "an empty value": [("Authorization", "")],
    "only the scheme": [("Authorization", "Bearer")],
    "an empty key": [("Authorization", "Bearer ")],
    "a wrong key": [bearer("not-the-key-of-the-tests-0001")],
    "a key with one letter wrong": [bearer(PRIMARY[:-1] + "2")],
    "the beginning of a key": [bearer(PRIMARY[:-1])],
    "a key with more behind it": [bearer(PRIMARY + "1")],
    "both keys at once": [("Authorization", f"Bearer {PRIMARY}, {PRIMARY}")],
    "a wrong scheme": [("Authorization", f"Basic {PRIMARY}")],
    "no scheme": [("Authorization", PRIMARY)],
    "another header": [("X-Api-Key", PRIMARY)],
    "bytes that are no text": [("Authorization", "Bearer \xff\xfe\x80")],
    "a very long key": [bearer("x" * 8000)],
    "a valid key twice": [bearer(PRIMARY), bearer(PRIMARY)],
    "a valid key first": [bearer(PRIMARY), bearer("x" * 43)],
    "a valid key last": [bearer("x" * 43), bearer(PRIMARY)],
    "a valid key behind nothing": [("Authorization", ""), bearer(PRIMARY)],
    "a valid key before nothing": [bearer(PRIMARY), ("Authorization", "")],
    "two valid keys in one header": [("Authorization", f"Bearer {PRIMARY}, Bearer {PRIMARY}")],
    "a tab behind the scheme": [("Authorization", f"Bearer\t{PRIMARY}")],
    "a key in quotes": [("Authorization", f'Bearer "{PRIMARY}"')],
}


@pytest.mark.parametrize("door", [[], [("Origin", "https://x.example")]], ids=["plain", "app"])
@pytest.mark.parametrize("case", REFUSED)
def test_without_a_valid_key_nothing_is_scored(served: Served, case: str, door: Headers) -> None:
    """Other keys get 401 with the expected scheme, and no further information."""
    with served.server.connect() as connection:
        answer = connection.ask(request("POST", served.path("doubler"), [*REFUSED[case], *door], BODY))
        connection.assert_open()

    assert (answer.status, answer.error_code()) == (401, "unauthorized")
    assert answer.header("www-authenticate") == "Bearer"
    assert answer.header("x-request-id")
    assert PRIMARY.encode() not in answer.raw


def test_the_scheme_has_no_case(served: Served) -> None:
    """`bearer` and `BEARER` are the same scheme (RFC 9110, section 11.1)."""
    for scheme in ("bearer", "BEARER"):
        headers = [("Authorization", f"{scheme} {PRIMARY}")]
        with served.server.connect() as connection:
            answer = connection.ask(request("POST", served.path("doubler"), headers, BODY))

        assert answer.status == 200, scheme


def test_a_bad_body_without_a_key_is_not_read(served: Served) -> None:
    """The key comes first: a caller without one learns nothing about bodies or their limit."""
    with served.server.connect() as connection:
        answer = connection.ask(request("POST", served.path("doubler"), [], b"{"))

    assert answer.status == 401


def test_refused_callers_are_counted(served: Served) -> None:
    """The metrics tell requests without a valid key from others."""
    before = served.server.metric("stoker_rejections_total", model="fussy", reason="unauthorized")
    with served.server.connect() as connection:
        connection.ask(request("POST", served.path("fussy"), [], BODY))

    assert served.server.metric("stoker_rejections_total", model="fussy", reason="unauthorized") == before + 1


def test_each_key_of_the_workspace_is_good(narrow_server: Served) -> None:
    """Keys that the server made at its first start open the service that they belong to, the only one."""
    keys = Keyring(narrow_server.server.workspace / "keys", "batched").show()
    for key in (keys.primary, keys.secondary):
        with narrow_server.server.connect() as connection:
            answer = connection.ask(scoring("/score", key, BODY))

        assert (answer.status, answer.json()) == (200, [[3, 6, 9, 12]])
    assert keys.primary != keys.secondary


def test_metrics_can_need_a_key(narrow_server: Served) -> None:
    """With `--metrics-auth`, `/metrics` is guarded by the same keys as scoring."""
    keys = Keyring(narrow_server.server.workspace / "keys", "batched").show()
    server = narrow_server.server

    refused = server.get("/metrics")
    wrong = server.get("/metrics", [bearer(PRIMARY)])
    right = server.get("/metrics", [bearer(keys.secondary)])

    assert (refused.status, refused.error_code()) == (401, "unauthorized")
    assert refused.header("www-authenticate") == "Bearer"
    assert wrong.status == 401
    assert right.status == 200
    assert b"stoker_requests_total" in right.body


def test_health_needs_no_key(narrow_server: Served) -> None:
    """Probes carry no key."""
    for path in ("/", "/v2/health/live", "/v2/health/ready"):
        assert narrow_server.server.get(path).status == 200
