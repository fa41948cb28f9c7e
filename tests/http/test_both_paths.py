"""Scoring on the fast path and through the ASGI app: the same answer, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.http.conftest import Served
from tests.http.raw_http import THE_APP, Answer, Connection, rows_body, scoring
from tests.live_server import PRIMARY, SECONDARY, wait_until
from tests.tiny_models import PICKY_LIMIT, RAISE

GOOD: dict[str, tuple[str, bytes, Any]] = {
    "one row": ("doubler", rows_body([1, 2, 3, 4]), [[2.0, 4.0, 6.0, 8.0]]),
    "many rows": (
        "doubler",
        rows_body(*([i, 0, -i, 0.5] for i in range(100))),
        [[2 * i, 0, -2 * i, 1] for i in range(100)],
    ),
    "more rows than may wait at once": (
        "doubler",
        rows_body(*([i, 1, 2, 3] for i in range(9000))),
        [[2 * i, 2, 4, 6] for i in range(9000)],
    ),
    "integers and exponents": ("doubler", b'{"data": [[1, 2.5e1, -0, 1E-1]]}', [[2, 50, 0, 0.2]]),
    "white space": (
        "doubler",
        b' \r\n{ "data" :\t[ [ 1 , 2 ,\n3 , 4 ] ] } ',
        [[2.0, 4.0, 6.0, 8.0]],
    ),
    "a byte order mark": ("doubler", b"\xef\xbb\xbf" + rows_body([1, 2, 3, 4]), [[2, 4, 6, 8]]),
    "further keys": (
        "doubler",
        b'{"method": "predict", "data": [[1, 2, 3, 4]], "id": "[7]"}',
        [[2, 4, 6, 8]],
    ),
    "a large answer": (
        "doubler",
        rows_body(*([0.1, 0.2, 0.3, float(i)] for i in range(3000))),
        [[0.2, 0.4, 0.6, 2 * i] for i in range(3000)],
    ),
    "rows of a batched script": (
        "batched",
        rows_body([1, 2, 3, 4], [5, 6, 7, 8]),
        [[3, 6, 9, 12], [15, 18, 21, 24]],
    ),
    "a batch limit below the rows": (
        "twice",
        rows_body(*([i] * 4 for i in range(20))),
        [[2 * i] * 4 for i in range(20)],
    ),
    "a body for an undecorated script": ("body", b'{"data": [[1, 2], [3, 4.5]]}', [3, 7.5]),
    "a script that returns null": ("body", b'{"return": null}', {}),
    "a script that returns JSON text": ("body", b'{"return": "[1, 2]"}', "[1, 2]"),
    "a script that returns an object": (
        "body",
        b'{"return": {"b": [1], "a": "\\u00e9"}}',
        {"b": [1], "a": "é"},
    ),
}

FAILED = "An unexpected error occurred in scoring script. Check the logs for more info."

BAD: dict[str, tuple[str, bytes, int, str, str]] = {
    "malformed": ("doubler", b'{"data": [[1, 2, 3, 4]', 400, "malformed_body", "not valid JSON"),
    "not JSON at all": ("doubler", b"data=1", 400, "malformed_body", "not valid JSON"),
    "trailing text": ("doubler", b'{"data": [[1, 2, 3, 4]]} {}', 400, "malformed_body", "not valid JSON"),
    "trailing bracket": ("doubler", b'{"data": [[1, 2, 3, 4]]}]', 400, "malformed_body", "not valid JSON"),
    "not UTF-8": (
        "doubler",
        b'{"data": [[1, 2, 3, 4]], "id": "\xff"}',
        400,
        "malformed_body",
        "decoded as UTF-8",
    ),
    "UTF-16": (
        "doubler",
        '{"data": [[1, 2, 3, 4]]}'.encode("utf-16"),
        400,
        "malformed_body",
        "decoded as UTF-8",
    ),
    "NaN": ("doubler", b'{"data": [[1, NaN, 3, 4]]}', 400, "malformed_body", "NaN"),
    "infinity": ("doubler", b'{"data": [[1, -Infinity, 3, 4]]}', 400, "malformed_body", "Infinity"),
    "an overflowing literal": ("doubler", b'{"data": [[1, 1e999, 3, 4]]}', 400, "malformed_body", ""),
    "too large for float32": ("doubler", b'{"data": [[1, 1e300, 3, 4]]}', 422, "invalid_input", "too large"),
    "only white space": ("doubler", b"  ", 400, "malformed_body", ""),
    "deep nesting": ("doubler", b"[" * 200_000, 400, "malformed_body", "nested"),
    "deep balanced nesting": (
        "doubler",
        b'{"data": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        400,
        "malformed_body",
        "nested",
    ),
    "deep objects": ("doubler", b'{"a":' * 50_000 + b"1" + b"}" * 50_000, 400, "malformed_body", "nested"),
    "ragged": (
        "doubler",
        rows_body([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3]),
        422,
        "invalid_input",
        "expected rows of 4 numbers, row 3 has 3",
    ),
    "ragged with the right sum": (
        "doubler",
        rows_body([1, 2, 3], [1, 2, 3, 4, 5]),
        422,
        "invalid_input",
        "expected rows of 4 numbers, row 0 has 3",
    ),
    "too wide": (
        "doubler",
        rows_body([1, 2, 3, 4, 5]),
        422,
        "invalid_input",
        "expected rows of 4 numbers, row 0 has 5",
    ),
    "an empty row": (
        "doubler",
        b'{"data": [[]]}',
        422,
        "invalid_input",
        "expected rows of 4 numbers, row 0 has 0",
    ),
    "too deep a row": (
        "doubler",
        b'{"data": [[[1, 2, 3, 4]]]}',
        422,
        "invalid_input",
        "expected rows of 4 numbers",
    ),
    "too flat": ("doubler", b'{"data": [1, 2, 3, 4]}', 422, "invalid_input", "expected rows of 4 numbers"),
    "a nested number": (
        "doubler",
        b'{"data": [[1, 2, [3], 4]]}',
        422,
        "invalid_input",
        "row 0 has a list of 1, expected a number",
    ),
    "a string": (
        "doubler",
        b'{"data": [[1, 2, "3", 4]]}',
        422,
        "invalid_input",
        "row 0 has a string, expected a number",
    ),
    "null": ("doubler", b'{"data": [[1, 2, null, 4]]}', 422, "invalid_input", "row 0 has null"),
    "a boolean": ("doubler", b'{"data": [[1, 2, true, 4]]}', 422, "invalid_input", "row 0 has true"),
    "no rows": ("doubler", b'{"data": []}', 422, "invalid_input", "expected rows of 4 numbers"),
    "no data": ("doubler", b'{"rows": [[1, 2, 3, 4]]}', 422, "invalid_input", '"data"'),
    "data is a string": ("doubler", b'{"data": "1 2 3 4"}', 422, "invalid_input", "a string"),
    "data is no list": ("doubler", b'{"data": {"x": 1}}', 422, "invalid_input", "an object"),
    "no object": ("doubler", b"[[1, 2, 3, 4]]", 422, "invalid_input", '"data"'),
    "a scalar": ("doubler", b"7", 422, "invalid_input", '"data"'),
    "a row that the runtime refuses": (
        "fussy",
        rows_body([PICKY_LIMIT, 1, 1, 1]),
        500,
        "model_failed",
        FAILED,
    ),
    "a row that a batched script refuses": (
        "batched",
        rows_body([RAISE, 1, 1, 1]),
        500,
        "model_failed",
        FAILED,
    ),
    "a script that raises": ("body", b'{"tell": "raise"}', 500, "model_failed", FAILED),
    "a script that exits": ("body", b'{"tell": "exit"}', 500, "model_failed", FAILED),
    "a body that the script cannot read": ("body", b"not json", 400, "malformed_body", "not valid JSON"),
}


def _by_both_doors(served: Served, service: str, body: bytes, key: str = PRIMARY) -> tuple[Answer, Answer]:
    """Ask through each door on one kept-alive connection, and prove that the connection is still good."""
    path = served.path(service)
    with served.server.connect() as connection:
        answers = (
            connection.ask(scoring(path, key, body)),
            connection.ask(scoring(path, key, body, THE_APP)),
        )
        connection.assert_open()
    return answers


@pytest.mark.parametrize("case", GOOD)
def test_good_requests_have_the_same_right_answer(served: Served, case: str) -> None:
    """A good request gets the model's answer as JSON, in the same bytes through both paths."""
    service, body, expected = GOOD[case]

    direct, app = _by_both_doors(served, service, body)

    assert direct.status == 200, direct.body
    assert direct.header("content-type") == "application/json"
    if isinstance(expected, list) and expected and isinstance(expected[0], list):
        flat = [number for row in direct.json() for number in row]
        assert flat == pytest.approx([number for row in expected for number in row], rel=1e-6)
        assert [len(row) for row in direct.json()] == [len(row) for row in expected]
    else:
        assert direct.json() == expected
    assert app.comparable() == direct.comparable()


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_have_the_same_clear_error(served: Served, case: str) -> None:
    """A bad request gets a status, a code and a message that says what is wrong, the same through both paths."""
    service, body, status, code, message = BAD[case]

    direct, app = _by_both_doors(served, service, body)

    assert (direct.status, direct.error_code()) == (status, code), direct.body
    assert message in direct.json()["message"]
    assert app.comparable() == direct.comparable()


def test_an_empty_body_is_malformed(served: Served) -> None:
    """The answer to a POST without a body says so, through both paths."""
    direct, app = _by_both_doors(served, "doubler", b"")

    assert (direct.status, direct.error_code()) == (400, "malformed_body")
    assert "empty" in direct.json()["message"]
    assert app.comparable() == direct.comparable()


def test_a_script_gets_nothing_that_is_not_text(served: Served) -> None:
    """An undecorated script takes its body as text: bytes that are not UTF-8 are the caller's error."""
    direct, app = _by_both_doors(served, "body", b'{"data": [[1]], "x": "\xff"}')

    assert (direct.status, direct.error_code()) == (400, "malformed_body")
    assert app.comparable() == direct.comparable()


def test_numbers_that_json_does_not_have_are_written_as_azure_does(served: Served) -> None:
    """NaN and infinities in a result become the tokens that Python's json module reads back."""
    direct, app = _by_both_doors(served, "body", b'{"tell": "nan"}')

    assert (direct.status, direct.body) == (200, b"[NaN, Infinity, -Infinity]")
    assert app.comparable() == direct.comparable()


def test_a_failure_in_the_script_shows_its_caller_only_an_id(served: Served) -> None:
    """The traceback goes to the log under the id that the caller gets, and nowhere else."""
    answer, _ = _by_both_doors(served, "batched", rows_body([RAISE, 0, 0, 0]))

    error_id = answer.json()["error_id"]
    log = served.server.output()
    logged = log[log.index(error_id) :]
    assert "Traceback" in logged
    assert "a secret of the log" in logged
    assert b"Traceback" not in answer.raw
    assert b"secret" not in answer.raw


def test_the_last_request_of_a_connection_has_the_same_answer(served: Served) -> None:
    """`Connection: close` is answered in the same bytes through both paths, and obeyed."""
    answers = []
    # The second time the head is known.
    for headers in ([], [], THE_APP):
        with served.server.connect() as connection:
            last = [("Connection", "close"), *headers]
            message = scoring(served.path("doubler"), PRIMARY, rows_body([1, 2, 3, 4]), last)
            answers.append(connection.ask(message))
            connection.assert_ended()

    assert answers[0].json() == [[2, 4, 6, 8]]
    assert answers[0].closes
    assert len({answer.comparable() for answer in answers}) == 1


@pytest.mark.parametrize("key", [PRIMARY, SECONDARY], ids=["primary", "secondary"])
def test_either_key_is_good_at_both_doors(served: Served, key: str) -> None:
    """The primary and the secondary key are equals."""
    direct, app = _by_both_doors(served, "doubler", rows_body([1, 2, 3, 4]), key)

    assert direct.status == 200
    assert app.comparable() == direct.comparable()


def test_every_answer_tells_where_its_time_went(served: Served) -> None:
    """`Server-Timing` names the stages; they add up to no more than the total."""
    for answer in _by_both_doors(served, "doubler", rows_body([1, 2, 3, 4])):
        timing = answer.header("server-timing")
        assert timing is not None
        stages = dict(stage.split(";dur=") for stage in timing.split(", "))
        assert list(stages) == ["parse", "queue", "compute", "total"]
        times = {name: float(value) for name, value in stages.items()}
        assert min(times.values()) >= 0
        assert times["parse"] + times["queue"] + times["compute"] <= times["total"] + 0.01


def test_the_query_of_a_scoring_request_is_ignored(served: Served) -> None:
    """`POST /score?anything` is scored as without."""
    with served.server.connect() as connection:
        plain = connection.ask(scoring(served.path("doubler"), PRIMARY, rows_body([1, 2, 3, 4])))
        query = connection.ask(scoring(served.path("doubler") + "?a=1", PRIMARY, rows_body([1, 2, 3, 4])))

    assert query.comparable() == plain.comparable()


def test_header_names_in_odd_case_are_the_same_headers(served: Served) -> None:
    """Header names have no case."""
    body = rows_body([1, 2, 3, 4])
    head = (
        f"POST {served.path('doubler')} HTTP/1.1\r\nhOST: x\r\nAUTHORIZATION: Bearer {PRIMARY}\r\n"
        f"CONTENT-length: {len(body)}\r\nX-REQUEST-ID: odd\r\n\r\n"
    )
    with served.server.connect() as connection:
        answer = connection.ask(head.encode() + body)

    assert answer.status == 200
    assert answer.header("x-request-id") == "odd"


def test_a_large_body_within_the_limit_is_scored(main_server: Served) -> None:
    """20 MB of rows pass, through both paths."""
    row = [round(0.123456789 * number, 9) for number in range(784)]
    text = json.dumps(row).encode()
    count = 20_000_000 // len(text) + 1
    body = b'{"data": [' + b", ".join([text] * count) + b"]}"
    assert len(body) > 20_000_000
    path = main_server.path("mlp")
    alone = main_server.server.score(row, path=path).json()
    with Connection(main_server.server.port) as connection:
        direct = connection.ask(scoring(path, PRIMARY, body))
        app = connection.ask(scoring(path, PRIMARY, body, THE_APP))

    assert direct.status == 200
    np.testing.assert_allclose(direct.json(), np.repeat(alone, count, axis=0), rtol=1e-4, atol=1e-4)
    assert app.comparable() == direct.comparable()


def test_requests_are_counted_the_same_at_both_doors(served: Served) -> None:
    """The metrics do not know through which door a request came."""

    def counts() -> list[float]:
        read, model = served.server.metric, {"model": "counted"}
        return [
            read("stoker_requests_total", status="200", **model),
            read("stoker_requests_total", status="422", **model),
            read("stoker_rejections_total", reason="malformed", **model),
            read("stoker_rows_total", **model),
            read("stoker_stage_seconds_count", stage="total", **model),
        ]

    path = served.path("counted")
    for headers, expected in (([], [1, 1, 1, 2, 1]), (THE_APP, [2, 2, 2, 4, 2])):
        with served.server.connect() as connection:
            connection.ask(scoring(path, PRIMARY, rows_body([1] * 4, [2] * 4), headers))
            connection.ask(scoring(path, PRIMARY, rows_body([1] * 3), headers))
        # A frontend adds up what it has answered some milliseconds later.
        wait_until(lambda: sum(counts()) >= sum(expected), f"the counts are {expected}")  # noqa: B023  # called at once
        assert counts() == expected


@pytest.mark.parametrize("form", ["TEXT", "json"])
def test_a_request_for_load_metrics_gets_them(served: Served, form: str) -> None:
    """Answers of both paths tell it, over Azure's path and the Open Inference Protocol's; others do not."""
    infer = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    bodies = {
        served.path("doubler"): rows_body([1, 2, 3, 4]),
        "/v2/models/doubler/infer": json.dumps(infer).encode(),
    }
    asks = [("endpoint-load-metrics-format", form)]
    with served.server.connect() as connection:
        for path, body in bodies.items():
            silent = connection.ask(scoring(path, PRIMARY, body))
            direct = connection.ask(scoring(path, PRIMARY, body, asks))
            app = connection.ask(scoring(path, PRIMARY, body, [*asks, *THE_APP]))
            assert (silent.status, silent.header("endpoint-load-metrics")) == (200, None)
            for answer in (direct, app):
                assert answer.body == silent.body
                metrics = answer.header("endpoint-load-metrics")
                assert metrics is not None
                assert metrics.startswith(f"{form.upper()} ")
                assert all(
                    name in metrics for name in ("application_utilization", "expected_wait_ms", "ms_per_row")
                )
