"""`stoker bench --loading`: how loading and unloading a model affects the requests to another one."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.models.repository import Repository
from stoker.settings.workspace import Workspace
from stoker_bench.benches.lineup import Lineup
from stoker_bench.contestants.contest import Case, LoadedServer, Slice, check_answers
from stoker_bench.contestants.servers import HOST, post, stoker_launch
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import pick_generator
from stoker_bench.networks.served_model import given_model, seeded_model
from stoker_bench.reports import Report, say

QUIET, LOADING = "nothing is loaded", "another model comes and goes"
OTHER = "other"
WARM_UP_S = 1
HTTP_OK = 200


@dataclass(frozen=True)
class LoadingBenchOptions:
    """Options of `stoker bench --loading`; see its help."""

    model: Path | None = None
    seconds: int = 3
    rounds: int = 5
    concurrency: tuple[int, ...] = (16,)
    frontends: int | None = None


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


class _WhileLoading:
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

    def _ask(self, what: str) -> None:
        headers = {"Authorization": f"Bearer {self._key}"}
        status, answer = post(HOST, self._port, f"/v2/repository/models/{OTHER}/{what}", b"", headers)
        if status != HTTP_OK:
            raise BenchedServerError(f"the server did not {what} a model: {status} {answer[:200]!r}")


def run_loading_bench(options: LoadingBenchOptions) -> LoadingReport:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: The server does not start, answers wrongly or does not load, or a load generator fails.
    """
    generator = pick_generator()
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        model = given_model(options.model) if options.model else seeded_model(folder)
        report = LoadingReport(generator.description, options.seconds, options.rounds, model.name)
        lineup = Lineup(folder, stack, generator, model.row_shape)
        key, workspace = secrets.token_urlsafe(32), Workspace(folder / "workspace").create()
        Repository(workspace.models_dir).register(OTHER, model.path, now=datetime.now(UTC))
        launch = stoker_launch(model.path, workspace.root, key, options.frontends)
        launch = dataclasses.replace(launch, environment={**launch.environment, "STOKER_ADMIN_KEY": key})
        quiet = lineup.start(launch, metrics=True)
        quiet.name = QUIET
        say("checking answers")
        check_answers(quiet, model.row_shape, model.outputs)
        quiet.run(Case(max(options.concurrency)), WARM_UP_S)
        loading = _WhileLoading(quiet, launch.port, key, report.loads_s)
        for connections in options.concurrency:
            case = Case(connections)
            report.cases.append(lineup.contest([loading, quiet], case, options.seconds, options.rounds))
        return report
