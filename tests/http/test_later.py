"""Answers later over HTTP: what callers see of `Prefer: respond-async`, and who sees it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.http.raw_http import Answer, bearer, request, rows_body, scoring
from tests.live_server import PRIMARY, SECONDARY, LiveServer, wait_until
from tests.tiny_models import write_doubler

from stoker.keys.callers import CallerBook
from stoker.keys.keyring import Keyring
from stoker_client import Client

ADMIN = "admin-key-of-the-tests-0001"
INFER = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
).encode()
ASYNC = ("Prefer", "respond-async")


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that answers later."""
    scratch = tmp_path_factory.mktemp("later")
    model = write_doubler(scratch / "doubler.onnx")
    with LiveServer(
        scratch,
        model,
        *("--frontends", "2", "--later-mb", "1", "--callback-hosts", "127.0.0.1"),
        given_keys=False,
        env={"STOKER_ADMIN_KEY": ADMIN},
    ) as server:
        keys = Keyring(server.workspace / "keys", "doubler")
        keys.regenerate("primary", PRIMARY)
        keys.regenerate("secondary", SECONDARY)
        CallerBook(server.workspace / "keys").add("named", "key-of-a-named-caller-0001")
        yield server


def send(
    server: LiveServer,
    body: bytes = rows_body([1, 2, 3, 4]),  # it never changes
    headers: Sequence[tuple[str, str]] = (),
    path: str = "/score",
    key: str = PRIMARY,
) -> Answer:
    """Send a request that is to be answered later."""
    with server.connect() as connection:
        return connection.ask(scoring(path, key, body, [ASYNC, *headers]))


def fetch(server: LiveServer, location: str, key: str = PRIMARY) -> Answer:
    """Fetch an answer, once it is there."""

    def look() -> Answer | None:
        answer = server.get(location, key=key)
        return None if answer.status == 202 else answer

    return wait_until(look, "it is answered")


def location_of(answer: Answer) -> str:
    """Where an accepted request is answered."""
    assert answer.status == 202, answer.raw
    return str(answer.header("location"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/score", rows_body([1, 2, 3, 4])),
        ("/api/v1/service/doubler/score", rows_body([1, 2, 3, 4])),
        ("/v2/models/doubler/infer", INFER),
        ("/v1/models/doubler:predict", b'{"instances": [[1, 2, 3, 4]]}'),
        ("/predictions/doubler", b"[[1, 2, 3, 4]]"),
        ("/invocations", b'{"inputs": [[1, 2, 3, 4]]}'),
        ("/score", b'{"data": [["a", 2, 3, 4]]}'),
        ("/v2/models/doubler/infer", b"{"),
    ],
)
def test_the_answer_is_that_of_an_answer_at_once(later: LiveServer, path: str, body: bytes) -> None:
    """Status, headers and body, of every protocol, errors included; and how often it was tried."""
    accepted = send(later, body, [("X-Request-Id", "mine")], path)
    assert accepted.header("preference-applied") == "respond-async"
    assert accepted.header("retry-after") == "1"
    assert accepted.header("x-request-id") == "mine"
    answer = fetch(later, location_of(accepted))
    with later.connect() as connection:
        at_once = connection.ask(scoring(path, PRIMARY, body, [("X-Request-Id", "mine")]))
    assert (answer.status, answer.body) == (at_once.status, at_once.body) or "model_version" in answer.json()
    own = {"stoker-attempt", "stoker-tier", "date"}
    assert {name for name, _ in answer.headers} - own == {name for name, _ in at_once.headers} - own
    assert (answer.header("stoker-attempt"), answer.header("stoker-tier")) in (("1", "low"), ("1", None))


def test_only_its_sender_and_an_administrator_see_an_answer(later: LiveServer) -> None:
    """A service's two keys are one sender; a named key is another one."""
    location = location_of(send(later))
    assert fetch(later, location, SECONDARY).status == 200
    assert later.get(location, key=ADMIN).status == 200
    assert later.get(location, key="key-of-a-named-caller-0001").error_code() == "not_found"
    assert later.get(location).error_code() == "unauthorized"
    assert send(later, key="no-key-that-anybody-has").error_code() == "unauthorized"
    named = location_of(send(later, key="key-of-a-named-caller-0001"))
    assert fetch(later, named, "key-of-a-named-caller-0001").status == 200
    assert later.get(named, key=PRIMARY).error_code() == "not_found"


def test_a_cancelled_request_is_gone(later: LiveServer) -> None:
    """And so is its answer; cancelling it again finds nothing."""
    location = location_of(send(later))
    fetch(later, location)
    message = request("DELETE", location, [bearer(PRIMARY)])
    with later.connect() as connection:
        assert [connection.ask(message).status for _ in range(2)] == [204, 404]
    assert later.get(location, key=PRIMARY).error_code() == "not_found"


def test_expired_location_gets_410_and_an_altered_one_404(later: LiveServer) -> None:
    """A location has its expiry in its name: an expired one is reported, an altered one is unknown."""
    name = location_of(send(later)).rpartition("-")[2]
    # The answer that is there has another expiry.
    assert later.get(f"/later/ffffffff-{name}", key=PRIMARY).error_code() == "not_found"
    name = name[:-1] + ("1" if name.endswith("0") else "0")
    assert later.get(f"/later/00000001-{name}", key=PRIMARY).error_code() == "answer_expired"
    assert later.get(f"/later/ffffffff-{name}", key=PRIMARY).error_code() == "not_found"
    assert later.get("/later/nonsense", key=PRIMARY).error_code() == "not_found"


def test_an_idempotency_key_makes_one_request_of_several(later: LiveServer) -> None:
    """The same body gets the same location, another body an error."""
    key = [("Idempotency-Key", "once")]
    first, second = (location_of(send(later, headers=key)) for _ in range(2))
    assert first == second
    assert send(later, rows_body([4, 3, 2, 1]), key).error_code() == "idempotency_key_reused"


@pytest.mark.parametrize(
    "headers",
    [
        [("Prefer", "return=minimal")],
        [("Prefer", "respond-asynchronously")],
        [ASYNC, ("X-Request-Timeout-Ms", "5000")],
    ],
)
def test_other_preferences_are_answered_at_once(later: LiveServer, headers: list[tuple[str, str]]) -> None:
    """A deadline asks for an answer now."""
    with later.connect() as connection:
        answer = connection.ask(scoring("/score", PRIMARY, rows_body([1, 2, 3, 4]), headers))
    assert (answer.status, answer.header("preference-applied")) == (200, None)


def test_a_full_spool_refuses_without_cost_to_others(later: LiveServer) -> None:
    """The refusal of a request larger than the budget has a retry time."""
    refused = send(later, b" " * (1 << 20) + rows_body([1, 2, 3, 4]))
    assert (refused.error_code(), refused.header("retry-after")) == ("spool_full", "5")
    assert later.score([1, 2, 3, 4]).status == 200


def test_a_callback_tells_of_the_answer(later: LiveServer) -> None:
    """Once; a host that the operator has not named is refused at once."""
    received: list[Any] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        location = location_of(send(later, headers=[("Stoker-Callback", url)]))
        thread.join()
    assert received == [{"type": "answer.ready", "data": {"location": location, "status": 200, "attempt": 1}}]
    refused = send(later, headers=[("Stoker-Callback", "http://169.254.169.254/")])
    assert refused.error_code() == "callback_refused"


def test_the_metrics_count_requests(later: LiveServer) -> None:
    """Accepted and answered ones, and the bytes on the disk."""
    fetch(later, location_of(send(later)))
    text = later.get("/metrics").body.decode()
    assert "stoker_later_accepted_total " in text
    assert later.metric("stoker_later_ended_total", result="answered") >= 1
    assert later.metric("stoker_later_requests", state="answered") >= 1


def test_the_python_client_scores_later(later: LiveServer) -> None:
    """It sends, waits and reads the numbers."""
    with Client(f"http://127.0.0.1:{later.port}/score", key=PRIMARY) as client:
        answer = client.fetch(client.score_later([[1, 2, 3, 4]]))
    assert answer.tolist() == [[2, 4, 6, 8]]


_WAITING = """
import pathlib, time

def init():
    pass

def run(raw_data):
    while not pathlib.Path("{gate}").exists():
        time.sleep(0.01)
    return 7
"""


def test_a_server_finishes_requests_that_another_accepted(tmp_path: Path) -> None:
    """Any server with the same folder has the answers, also those that a killed one was to give."""
    (tmp_path / "shared").mkdir()
    servers = []
    for name in ("first", "second"):
        scratch = tmp_path / name
        (scratch / "workspace").mkdir(parents=True)
        (scratch / "workspace" / "later").symlink_to(tmp_path / "shared")
        (scratch / "score.py").write_text(_WAITING.format(gate=scratch / "gate"))
        servers.append((scratch, scratch / "score.py", *("--name", "digits", "--later-mb", "1")))
    (tmp_path / "second" / "gate").touch()
    with LiveServer(*servers[0]) as first:
        locations = [location_of(send(first)) for _ in range(3)]

        def are_running() -> bool:
            states = [first.get(location, key=PRIMARY).json()["status"] for location in locations]
            return states == ["running"] * 3

        wait_until(are_running, "the first server runs them")
        with LiveServer(*servers[1]) as second:
            assert second.get(locations[0], key=PRIMARY).status == 202
            first.kill()
            answers = [fetch(second, location) for location in locations]
    assert [(answer.status, answer.body, answer.header("stoker-attempt")) for answer in answers] == [
        (200, b"7", "2")
    ] * 3
