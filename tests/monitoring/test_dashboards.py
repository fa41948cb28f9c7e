"""A real Prometheus scrapes a server under load, and every question of the dashboards and rules has an answer."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from tests.background import serving
from tests.http.raw_http import Connection, rows_body, scoring
from tests.live_server import PRIMARY, LiveServer, free_port, wait_until
from tests.patience import PROGRAM_S
from tests.tiny_models import write_mlp

from stoker.gateway.describing.triton_exposition import gpu_metrics
from stoker.gpu.facts import GpuReading

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
GIB = 1 << 30

with_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool (Debian's package prometheus)")
with_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="no prometheus (Debian's package of that name)"
)

NEVER_HERE = {"p99 of waiting for a turn"}
"""Panels of what one model on one device has not."""


def panels_of(board: Path) -> Iterator[tuple[str, str]]:
    """The title of each panel, with each of its queries."""
    for panel in json.loads(board.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def rules() -> list[dict[str, Any]]:
    """Recording rules and alerts."""
    found = [yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("*.yaml"))]
    return [rule for content in found for group in content["groups"] for rule in group["rules"]]


def answered(expression: str) -> str:
    """Return the queries of Grafana, of all servers and models, over the time of this test."""
    for variable in ("job", "instance", "model"):
        expression = expression.replace(f'"${variable}"', '".*"')
    return expression.replace("$__rate_interval", "30s")


class Prometheus:
    """A Prometheus with the rules of this repository, which looks at two addresses every half second."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        self.port = free_port()
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(RULES / "*.yaml")],
            "scrape_configs": [{"job_name": "stoker", "static_configs": [{"targets": targets}]}],
        }
        path = folder / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config))
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(PROMETHEUS),
                    f"--config.file={path}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an instant query."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{query}") as answer:
            return list(json.load(answer)["data"]["result"])

    def has_looked(self) -> bool:
        """Whether rates are known of all that is scraped, and rules have run."""
        try:
            recorded = [rule["record"] for rule in rules() if "record" in rule]
            return bool(self.ask("count(count_over_time(up[1m]) > 8) >= 2")) and all(map(self.ask, recorded))
        except OSError:
            return False

    def end(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=PROGRAM_S)


@pytest.fixture(scope="module")
def gpus() -> Iterator[str]:
    """The address of made-up metrics of two GPUs; their text is made as a server makes it."""
    readings = [
        GpuReading(
            number, f"GPU-{number}", 80 * GIB, 30 * GIB, 50 * GIB, 50, 300_000, 700_000, 60, 10**9, 0x24
        )
        for number in range(2)
    ]

    class Readings:
        def collect(self) -> Iterator[Any]:
            return gpu_metrics(readings)

    registry = CollectorRegistry()
    registry.register(Readings())  # type: ignore[arg-type]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(generate_latest(registry))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"127.0.0.1:{server.server_port}"


def load(port: int, caller: int, stop: threading.Event) -> None:
    """Requests of all fates, until the end."""
    kept = rows_body([0.5] * 784, [0.25] * 784)
    with Connection(port) as connection:
        for number in itertools.count():
            if stop.is_set():
                return
            new = rows_body([caller + number / 1000] * 784)
            late = scoring("/score", PRIMARY, rows_body([-number] * 784), (("X-Request-Timeout-Ms", "1"),))
            for body, key in ((kept, PRIMARY), (new, PRIMARY), (b'{"data": 3}', PRIMARY), (new, "none")):
                connection.ask(scoring("/score", key, body))
            connection.ask(late)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, gpus: str) -> Iterator[Prometheus]:
    """A Prometheus that has seen a server under load for some seconds."""
    folder = tmp_path_factory.mktemp("monitoring")
    write_mlp(folder / "mlp.onnx")
    deployment = folder / "deployment.yaml"
    deployment.write_text("models:\n  - path: mlp.onnx\n    target_ms: 500\n    cache_mb: 1\n")
    stop = threading.Event()
    with LiveServer(folder, "--config", deployment) as server, ThreadPoolExecutor() as threads:
        callers = [threads.submit(load, server.port, caller, stop) for caller in range(4)]
        made = Prometheus(folder, [f"127.0.0.1:{server.port}", gpus])
        try:
            wait_until(made.has_looked, "Prometheus has looked", timeout_s=PROGRAM_S, every_s=0.5)
            yield made
        finally:
            stop.set()
            made.end()
            for caller in callers:
                caller.result()


@with_prometheus
@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda path: path.stem)
def test_each_panel_has_data(prometheus: Prometheus, board: Path) -> None:
    """Each query of each panel gives at least one series."""
    panels = list(panels_of(board))
    assert panels
    empty = [(title, query) for title, query in panels if not prometheus.ask(answered(query))]
    assert [title for title, _ in empty if title not in NEVER_HERE] == [], empty


@with_prometheus
def test_each_rule_queries_existing_series(prometheus: Prometheus) -> None:
    """Recording rules give series, and so does each metric that an alert looks at."""
    recorded = [rule["record"] for rule in rules() if "record" in rule]
    assert [name for name in recorded if not prometheus.ask(name)] == []
    for alert in (rule for rule in rules() if "alert" in rule):
        for selector in re.findall(r"(?:\w+:)?(?:stoker_\w+|up)(?::\w+)?(?:\{[^}]*\})?", alert["expr"]):
            assert prometheus.ask(selector.split("{")[0]), (alert["alert"], selector)


@with_promtool
def test_the_rules_and_the_configuration_are_valid() -> None:
    """Prometheus' own tool takes them."""
    for words in (["config", DEPLOY / "prometheus" / "prometheus.yaml"], ["rules", *RULES.glob("*.yaml")]):
        done = subprocess.run(
            [str(PROMTOOL), "check", *map(str, words)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@with_promtool
def test_each_alert_fires_when_it_should_and_only_then() -> None:
    """By promtool's own tests of rules: one case in which it fires, one in which it is near and silent."""
    cases = sorted((DEPLOY / "prometheus").glob("*.test.yaml"))
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", *cases], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    named = {case["name"] for path in cases for case in yaml.safe_load(path.read_text())["tests"]}
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert named == {f"{alert} {outcome}" for alert in alerts for outcome in ("fires", "is silent")}


def test_each_dashboard_has_an_address_of_its_own() -> None:
    """Two files with one `uid` would replace each other in Grafana."""
    addresses = [json.loads(path.read_text())["uid"] for path in DASHBOARDS]
    assert len(set(addresses)) == len(addresses)


def test_the_rules_for_prometheus_operator_are_the_same() -> None:
    """`prometheus-rule.yaml` holds all groups of both files."""
    operator = yaml.safe_load((DEPLOY / "prometheus" / "prometheus-rule.yaml").read_text())
    groups = [
        group for path in sorted(RULES.glob("*.yaml")) for group in yaml.safe_load(path.read_text())["groups"]
    ]
    assert operator["spec"]["groups"] == groups
