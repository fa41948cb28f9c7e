"""`stoker bench --loading`: how loading and unloading a model affects the requests to another one."""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from stoker.models.repository import Repository
from stoker.settings.workspace import Workspace
from stoker_bench.benches.lineup import BenchOptions, Lineup
from stoker_bench.contestants.contest import Case, LoadedServer, Slice
from stoker_bench.contestants.servers import HOST, post
from stoker_bench.errors import BenchedServerError
from stoker_bench.reports import Report

QUIET, LOADING = "nothing is loaded", "another model comes and goes"
OTHER = "other"
CONNECTIONS = (16,)
HTTP_OK = 200


@dataclass
class LoadingReport(Report):
    """The results of a bench of loading.

    Attributes:
        loads_s: How long each load of the other model took.
    """

    loads_s: list[float] = field(default_factory=list)

    def notes(self) -> list[str]:
        """Say how often it was loaded."""
        if not self.loads_s:
            return []
        median_s = statistics.median(self.loads_s)
        return [f"The other model was loaded {len(self.loads_s)} times, in {median_s:.2f} s each (median)."]

    def further(self) -> dict[str, Any]:
        """Return the times of the loads."""
        return {"loads_s": self.loads_s}


class WhileLoading:
    """A server under load that loads and unloads another model all the time."""

    name = LOADING

    def __init__(self, server: LoadedServer, port: int, key: str, loads_s: list[float]) -> None:
        self._server = server
        self._port = port
        self._key = key
        self._loads_s = loads_s

    def run(self, case: Case, seconds: int) -> Slice:
        """Take a turn; the other model is not loaded before and after it."""
        ended = threading.Event()
        with ThreadPoolExecutor(1) as thread:
            changing = thread.submit(self._change, ended)
            try:
                taken = self._server.run(case, seconds)
            finally:
                ended.set()
            changing.result()
        return taken

    def _change(self, ended: threading.Event) -> None:
        while not ended.is_set():
            begun_s = time.monotonic()
            self._ask("load")
            self._loads_s.append(time.monotonic() - begun_s)
            self._ask("unload")

    def _ask(self, action: str) -> None:
        headers = {"Authorization": f"Bearer {self._key}"}
        status, answer = post(HOST, self._port, f"/v2/repository/models/{OTHER}/{action}", b"", headers)
        if status != HTTP_OK:
            raise BenchedServerError(f"the server did not {action} a model: {status} {answer[:200]!r}")


def run_loading_bench(options: BenchOptions) -> LoadingReport:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: The server does not start, answers wrongly or does not load, or a load generator fails.
    """
    connections = options.concurrency or CONNECTIONS
    with Lineup(options) as lineup:
        model = lineup.model
        workspace = Workspace(lineup.folder / "workspace").create()
        Repository(workspace.models_dir).register(OTHER, model.path, now=datetime.now(UTC))
        launch = lineup.launch(model.path)
        key = str(launch.key)
        launch = dataclasses.replace(launch, environment={**launch.environment, "STOKER_ADMIN_KEY": key})
        quiet = lineup.start(launch, metrics=True)
        quiet.name = QUIET
        lineup.check([quiet], model.outputs, connections)
        report = lineup.report(LoadingReport, model.name)
        loading = WhileLoading(quiet, launch.port, key, report.loads_s)
        report.cases += [lineup.contest([loading, quiet], Case(each)) for each in connections]
        return report
