"""`make load`: locust's command line and the summary of its figures."""

import itertools
from pathlib import Path

from stoker_bench.load import LOCUSTFILE, LoadTest, summary


def load_test(**settings: object) -> LoadTest:
    """Return a load test with the given settings."""
    given = {
        "uri": "http://127.0.0.1:8080/api/v1/service/mnist/score",
        "key": "secret-key",
        "users": 8,
        "seconds": 5,
        "shape": "spike",
        "rows": 2,
        "mnist_folder": None,
        "model": None,
        **settings,
    }
    return LoadTest(**given)


def entry(method: str, name: str, times: dict[int, int], failures: int = 0) -> dict[str, object]:
    """Return one of the entries that locust writes, with a histogram of milliseconds."""
    return {
        "method": method,
        "name": name,
        "num_requests": sum(times.values()),
        "num_failures": failures,
        "total_response_time": sum(time_ms * count for time_ms, count in times.items()),
        "max_response_time": max(times),
        "response_times": {str(time_ms): count for time_ms, count in times.items()},
        "start_time": 100.0,
        "last_request_timestamp": 110.0,
    }


def test_locust_is_told_everything_but_the_key() -> None:
    """Host, path, shape and sizes are on the command line; the key is not, others could read it there."""
    command = load_test(mnist_folder=Path("digits"), model=Path("m.onnx")).command(Path("figures"))
    given = dict(itertools.pairwise(command))
    assert given["--host"] == "http://127.0.0.1:8080"
    assert given["--score-path"] == "/api/v1/service/mnist/score"
    assert given["--load-shape"] == "spike"
    assert (given["--users"], given["--run-time"], given["--rows-per-request"]) == ("8", "5s", "2")
    assert (given["--mnist-dir"], given["--served-model"]) == ("digits", "m.onnx")
    assert not any("secret-key" in part for part in command)


def test_locustfile_is_where_the_package_expects_it() -> None:
    """The file that locust is given lies in the repository."""
    assert LOCUSTFILE.is_file()


def test_summary_puts_requests_before_stages() -> None:
    """The POST line has rates and percentiles of the histogram; the server's stages follow, indented."""
    lines = summary(
        [
            entry("stage", "queue µs", {1500: 100}),
            entry("POST", "/score", {2: 90, 4: 8, 50: 2}, failures=3),
        ]
    ).splitlines()
    assert lines[2].split() == ["/score", "100", "3", "10.0", "3.12", "2.00", "50.0", "50.0"]
    assert lines[3].startswith("  queue ")
    assert lines[3].split()[-1] == "1.50"


def test_summary_of_nothing_says_so() -> None:
    """A run without any request has no table."""
    assert summary([]) == "no request was made"
