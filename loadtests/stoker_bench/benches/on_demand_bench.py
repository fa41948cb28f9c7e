"""`python -m stoker_bench.benches.on_demand_bench`: many models in a memory for few, loaded when they are asked for.

Callers ask for models by Zipf's law. Each answer is compared with the table of its model, the memory of the device
processes is read every second, and the hit rate stands beside that of the simulation of the same requests. Then the
same callers ask for one loaded model alone, and one caller alone asks for all: no load waits for another one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from stoker.system.resources import private_memory
from stoker_bench.benches.simulated_residency import ResidencyOutcome, Sizes, Trace, simulate_residency
from stoker_bench.contestants.servers import HOST, RunningServer, deployment_launch
from stoker_bench.networks.tables import table_rows, write_table

_MB: Final = 1 << 20
_ROWS: Final = 8
_TIMEOUT_S: Final = 120.0
_WAIT: Final = re.compile(r"load;dur=([0-9.]+)")
_LOADED: Final = re.compile(r"loaded m([0-9]+) version 1 on demand in ([0-9.e-]+) s")
_DEVICE: Final = "stoker.device.process"
_SPARE_BYTES: Final = 256 << 20
_HIT_RATE_BOUND: Final = 0.02
_P99_BOUND: Final = 1.5
_COLD_BOUND: Final = 1.2


@dataclass(frozen=True, slots=True)
class Answered:
    """One request.

    Attributes:
        at_s: When it was sent.
        waited_s: How long it waited for its model to be loaded; 0 if it was loaded.
    """

    at_s: float
    model: int
    status: int
    right: bool
    lasted_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the result.

    Attributes:
        bound: What it must be, in words; empty if nothing is asked of it.
        met: Whether it is so.
    """

    name: str
    value: str
    bound: str = ""
    met: bool = True

    def __str__(self) -> str:
        verdict = "" if not self.bound else "met" if self.met else "MISSED"
        return f"| {self.name:<54} | {self.value:>10} | {self.bound:<26} | {verdict:<6} |"


@dataclass
class Load:
    """Callers in a closed loop, each with a connection; the answers and the memory of the device processes."""

    server: RunningServer
    popularity: np.ndarray
    answers: list[Answered] = field(default_factory=list)
    used_bytes: list[int] = field(default_factory=list)

    def run(self, seconds: float, callers: int, pause_s: float, seed: int) -> None:
        """Ask for so many seconds, each caller after a pause."""
        stop = threading.Event()
        with ThreadPoolExecutor(callers + 1) as threads:
            threads.submit(self._measure, stop)
            asking = [threads.submit(self._ask, stop, pause_s, seed + caller) for caller in range(callers)]
            time.sleep(seconds)
            stop.set()
            for one in asking:
                one.result()

    def _measure(self, stop: threading.Event) -> None:
        while not stop.wait(1.0):
            self.used_bytes.append(_used_bytes(self.server))

    def _ask(self, stop: threading.Event, pause_s: float, seed: int) -> None:
        dice = np.random.default_rng(seed)
        connection = http.client.HTTPConnection(HOST, self.server.launch.port, timeout=_TIMEOUT_S)
        headers = {
            "Authorization": f"Bearer {self.server.launch.key}",
            "Content-Type": "application/json",
        }
        while not stop.wait(float(dice.exponential(pause_s))):
            model, row = int(dice.choice(len(self.popularity), p=self.popularity)), int(dice.integers(_ROWS))
            begun_s = time.monotonic()
            connection.request("POST", _path(model), json.dumps({"data": [[row]]}), headers)
            response = connection.getresponse()
            body = response.read()
            lasted_s = time.monotonic() - begun_s
            waited = _WAIT.search(", ".join(response.headers.get_all("server-timing", [])))
            right = response.status == http.client.OK and bool(
                np.allclose(json.loads(body)[0], table_rows(model, _ROWS)[row], rtol=1e-6)
            )
            waited_s = 0.0 if waited is None else float(waited[1]) / 1000
            self.answers.append(Answered(begun_s, model, response.status, right, lasted_s, waited_s))


def _used_bytes(server: RunningServer) -> int:
    used_bytes = 0
    for pid in server.tree.named(_DEVICE):
        # It may have just ended.
        with suppress(OSError):
            used_bytes += private_memory(pid)
    return used_bytes


def _path(model: int) -> str:
    return f"/api/v1/service/m{model}/score"


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a server.

    Attributes:
        sizes: Bytes of each model's file.
        footprints: By model the bytes that it takes.
        base_bytes: Memory of the device processes without models.
        crowd: All callers ask for all models.
        on_loaded: All callers ask for one model that is loaded.
        single: One caller asks for all models.
        loads: The loads for `crowd` in their order: models, and seconds that each took.
        single_loads: Those for `single`.
    """

    sizes: list[int]
    footprints: dict[int, int]
    base_bytes: int
    crowd: Load
    on_loaded: Load
    single: Load
    loads: list[tuple[int, float]]
    single_loads: list[tuple[int, float]]

    @property
    def cold_over_load(self) -> list[tuple[float, float]]:
        """Seconds of each cold request of `single`, and of its load."""
        found, loads = [], list(self.single_loads)
        for one in sorted(self.single.answers, key=lambda one: one.at_s):
            if not one.waited_s:
                continue
            # The log may end before the line of the last one.
            place = next((place for place, (model, _) in enumerate(loads) if model == one.model), None)
            if place is not None:
                found.append((one.lasted_s, loads[place][1]))
                del loads[: place + 1]
        return found


def run_on_demand_bench(options: argparse.Namespace, folder: Path) -> list[Figure]:
    """Make the models in a folder, serve and ask them; returns the figures.

    Raises:
        BenchedServerError: The server does not start.
        OSError: The folder has no room for the models.
    """
    dice = np.random.default_rng(options.seed)
    low, high = np.log(options.min_mb), np.log(options.max_mb)
    sizes = (np.exp(dice.uniform(low, high, options.models)) * _MB).astype(int).tolist()
    if shutil.disk_usage(folder).free < sum(sizes) + _SPARE_BYTES:
        raise OSError(f"{folder} needs {(sum(sizes) + _SPARE_BYTES) >> 20} MiB for the models; see --folder")
    for number, size_bytes in enumerate(sizes):
        write_table(folder / "models" / f"m{number}" / "1" / "model.onnx", size_bytes, number)
    weights = 1 / np.arange(1, options.models + 1) ** options.exponent
    popularity = dice.permutation(weights / weights.sum())
    deployment = {
        "memory_mb": options.memory_mb,
        "device": "cpu",
        "timeout_ms": int(1000 * _TIMEOUT_S),
        "models": [{"path": str(folder / "models")}],
    }
    log = folder / "server.log"
    launch = deployment_launch(deployment, folder, folder / "workspace")
    with RunningServer(launch, log) as server:
        smallest = int(np.argmin(sizes))
        first = Load(server, _only(smallest, options.models))
        first.run(2, 1, options.pause_s, options.seed)
        base_bytes = max(0, _used_bytes(server) - sizes[smallest])
        before = len(_loads(log))
        crowd = Load(server, popularity)
        crowd.run(options.seconds, options.callers, options.pause_s, options.seed)
        loads = _loads(log)[before:]
        on_loaded = Load(server, _only(_last(crowd.answers), options.models))
        on_loaded.run(options.seconds / 5, options.callers, options.pause_s, options.seed + 1000)
        before_single = len(_loads(log))
        single = Load(server, popularity)
        single.run(options.seconds / 5, 1, options.pause_s, options.seed + 2000)
        single_loads = _loads(log)[before_single:]
    kept = json.loads((folder / "workspace/run/footprints.json").read_text())
    footprints = {int(key.split(":")[0][1:]): value[0] for key, value in kept.items()}
    return describe(
        Measured(sizes, footprints, base_bytes, crowd, on_loaded, single, loads, single_loads), options
    )


def _only(model: int, models: int) -> np.ndarray:
    popularity = np.zeros(models)
    popularity[model] = 1
    return popularity


def _last(answers: list[Answered]) -> int:
    """The model that was answered last: it is loaded, and stays if nothing else is asked for."""
    return max(answers, key=lambda one: one.at_s + one.lasted_s).model


def _loads(log: Path) -> list[tuple[int, float]]:
    """The loads of a server in their order: models and seconds."""
    return [(int(model), float(seconds)) for model, seconds in _LOADED.findall(log.read_text())]


def between_loads_s(measured: Measured) -> float | None:
    """Return the mean seconds from the end of a load to the begin of the next one that a request waits for.

    None if no request of the crowd waited behind the load of another model.
    """
    loaded_s: dict[int, float] = {}
    turns_s, before_s = [], -np.inf
    for ended_s, one in _by_end(measured.crowd):
        if one.at_s < loaded_s.get(one.model, -np.inf):
            # It has waited for the same load as the one before.
            continue
        if one.at_s < before_s:
            turns_s.append(ended_s - before_s)
        loaded_s[one.model] = before_s = ended_s
    if not turns_s:
        return None
    return max(0.0, float(np.mean(turns_s)) - _usual_load_s(measured))


def _by_end(load: Load) -> list[tuple[float, Answered]]:
    """The requests that waited for loads, with the times of their answers."""
    cold = [(one.at_s + one.lasted_s, one) for one in load.answers if one.waited_s]
    return sorted(cold, key=lambda pair: pair[0])


def _usual_load_s(measured: Measured) -> float:
    return float(np.mean([seconds for _, seconds in measured.loads]))


def simulate(measured: Measured, budget_bytes: int) -> ResidencyOutcome:
    """Serve the same requests from a simulated memory, by the server's rule and with its times of loads."""
    took_s: dict[int, list[float]] = {}
    for model, seconds in measured.loads:
        took_s.setdefault(model, []).append(seconds)
    # To make room before it and to answer after it takes time too: longer beside other callers, who delay later ones.
    around_s = between_loads_s(measured)
    if around_s is None:
        around_s = float(np.median([cold_s - load_s for cold_s, load_s in measured.cold_over_load] or [0.0]))
    usual_s = _usual_load_s(measured)
    numbers = range(len(measured.sizes))
    sizes = Sizes(
        [measured.footprints.get(number, measured.sizes[number]) for number in numbers],
        [around_s + float(np.mean(took_s.get(number, usual_s))) for number in numbers],
        # A load has the file in memory beside the weights.
        measured.sizes,
    )
    answers = sorted(measured.crowd.answers, key=lambda one: one.at_s)
    trace = Trace(np.array([one.at_s for one in answers]), np.array([one.model for one in answers]))
    return simulate_residency(trace, sizes, budget_bytes - measured.base_bytes)


def describe(measured: Measured, options: argparse.Namespace) -> list[Figure]:
    """Return the lines of the result."""
    crowd, budget_bytes = measured.crowd, options.memory_mb * _MB
    everything = [*crowd.answers, *measured.on_loaded.answers, *measured.single.answers]
    wrong = sum(not one.right for one in everything)
    cold = [one for one in crowd.answers if one.waited_s]
    hit_rate = 1 - len(cold) / len(crowd.answers)
    simulated = simulate(measured, budget_bytes)
    simulated_rate = simulated.hits / simulated.requests
    above = sum(used > budget_bytes for used in crowd.used_bytes)
    p99_ms = _percentile_ms(_warm_s(crowd), 99)
    alone_ms = _percentile_ms(_warm_s(measured.on_loaded), 99)
    over = measured.cold_over_load
    ratio = float(np.median([cold_s / load_s for cold_s, load_s in over])) if over else np.nan
    load_ms = _percentile_ms([seconds for _, seconds in measured.loads], 50)
    return [
        Figure("models", str(len(measured.sizes))),
        Figure("files, MiB", str(sum(measured.sizes) >> 20)),
        Figure("requests", str(len(everything))),
        Figure("wrong or lost", str(wrong), "0", wrong == 0),
        Figure("most memory, MiB", str(max(crowd.used_bytes) >> 20), f"{options.memory_mb}", above == 0),
        Figure("seconds above the budget", str(above), "0", above == 0),
        Figure("loads of models", str(len(measured.loads))),
        Figure("loads of models, simulated", str(simulated.loads)),
        Figure(
            "requests that found their model loaded",
            f"{hit_rate:.4f}",
            f"simulated {simulated_rate:.4f} +- 0.02",
            abs(hit_rate - simulated_rate) <= _HIT_RATE_BOUND,
        ),
        Figure("p99 of one loaded model, nothing loads, ms", f"{alone_ms:.1f}"),
        Figure(
            "p99 of loaded models while others load, ms",
            f"{p99_ms:.1f}",
            f"{_P99_BOUND} x that: {_P99_BOUND * alone_ms:.1f}",
            p99_ms <= _P99_BOUND * alone_ms,
        ),
        Figure("median load, ms", f"{load_ms:.1f}"),
        Figure(
            "cold request of one caller, time / load, median",
            f"{ratio:.2f}",
            f"{_COLD_BOUND}",
            ratio <= _COLD_BOUND,
        ),
        Figure(
            "cold request of one caller, median, ms",
            f"{_percentile_ms([cold_s for cold_s, _ in over], 50):.1f}",
        ),
        Figure(
            "cold request behind loads of others, median, ms",
            f"{_percentile_ms([one.lasted_s for one in cold], 50):.1f}",
        ),
        Figure("mean wait behind loads of others, ms", f"{1000 * _mean_s(cold):.1f}"),
        Figure(
            "mean wait behind loads of others, simulated, ms",
            f"{1000 * simulated.waited_s / max(1, simulated.requests - simulated.hits):.1f}",
        ),
    ]


def _mean_s(cold: list[Answered]) -> float:
    return float(np.mean([one.waited_s for one in cold])) if cold else float("nan")


def _warm_s(load: Load) -> list[float]:
    return [one.lasted_s for one in load.answers if one.right and not one.waited_s]


def _percentile_ms(seconds: list[float], percent: float) -> float:
    return 1000 * float(np.percentile(seconds, percent)) if seconds else float("nan")


def main() -> int:
    """Run the bench, and print its figures as a table; returns 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--min-mb", type=float, default=10)
    parser.add_argument("--max-mb", type=float, default=200)
    parser.add_argument("--memory-mb", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--pause-s", type=float, default=0.05, help="mean pause of a caller between requests")
    parser.add_argument("--exponent", type=float, default=1.0, help="of Zipf's law")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where the models are made, and removed (default: /tmp)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = run_on_demand_bench(options, Path(folder))
    print(*figures, sep="\n")
    return int(not all(figure.met for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
