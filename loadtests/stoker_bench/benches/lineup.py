"""The servers of one bench: started one after the other, loaded in turns, ended together."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from stoker_bench.contestants.contest import Case, Contestant, LoadedServer, Slice, run_in_turns
from stoker_bench.contestants.servers import Launch, RunningServer, tree_behind
from stoker_bench.generators.load_generator import LoadGenerator
from stoker_bench.generators.scoring_request import DATA_LISTS, Dialect, random_rows
from stoker_bench.reports import CaseResult, say

METRICS_PATH = "/metrics"


class Lineup:
    """Starts servers and lets them take their turns."""

    def __init__(
        self, folder: Path, stack: contextlib.ExitStack, generator: LoadGenerator, row_shape: tuple[int, ...]
    ) -> None:
        self._folder = folder
        self._stack = stack
        self._generator = generator
        self._row_shape = row_shape

    def start(self, launch: Launch, dialect: Dialect = DATA_LISTS, *, metrics: bool = False) -> LoadedServer:
        """Start a server and wait until it is ready."""
        say(f"starting {launch.name}")
        log = self._folder / f"{launch.name.replace(' ', '-')}.log"
        server = self._stack.enter_context(RunningServer(launch, log))
        return LoadedServer(
            launch.name,
            launch.uri,
            self._generator,
            dialect,
            self._row_shape,
            tree=server.tree,
            key=launch.key,
            metrics_path=METRICS_PATH if metrics else None,
        )

    def join(self, name: str, uri: str, key: str | None) -> LoadedServer:
        """Take in a Stoker that runs already."""
        return LoadedServer(
            name,
            uri,
            self._generator,
            DATA_LISTS,
            self._row_shape,
            tree=tree_behind(uri),
            key=key,
            metrics_path=METRICS_PATH,
        )

    def contest(
        self, contestants: Sequence[Contestant], case: Case, seconds: int, rounds: int, subject: str = ""
    ) -> CaseResult:
        """Let contestants take turns in a case; the first is the one that the others are compared with."""
        say(f"{subject}: {case.title}" if subject else case.title)
        total = len(contestants) * rounds
        with tqdm(total=total, disable=None, leave=False, unit="slice", file=sys.stderr) as bar:

            def on_slice(name: str, taken: Slice) -> None:
                bar.set_postfix_str(f"{name} {taken.requests_per_s:,.0f}/s")
                bar.update()

            slices = run_in_turns(contestants, case, seconds, rounds, on_slice)
        servers = [contestant for contestant in contestants if isinstance(contestant, LoadedServer)]
        rows = random_rows(case.rows, self._row_shape)
        return CaseResult(
            case,
            tuple(dict.fromkeys(len(server.request(rows).body) for server in servers)),
            slices,
            {server.name: server.tree.memory().pss_bytes for server in servers if server.tree},
            subject,
        )
