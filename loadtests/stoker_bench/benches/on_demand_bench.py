"""`python -m stoker_bench.benches.on_demand_bench`: many models in a memory for few, loaded when they are asked for.

Callers ask for models by Zipf's law. Each answer is compared with the table of its model, the memory of the device
processes is read every second, and the hit rate stands beside that of the simulation of the same requests.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.simulation.residency import RULES, Sizes, Trace, simulate_residency
from stoker.system.resources import private_memory
from stoker_bench.contestants.servers import HOST, RunningServer, deployment_launch
from stoker_bench.networks.tables import table_rows, write_table

_MB: Final = 1 << 20
_ROWS: Final = 8
_TIMEOUT_S: Final = 120.0
_LOAD: Final = re.compile(r"load;dur=([0-9.]+)")
_DEVICE: Final = "stoker.device.process"


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
            used_bytes = 0
            for pid in self.server.tree.named(_DEVICE):
                try:
                    used_bytes += private_memory(pid)
                except OSError:
                    continue
            self.used_bytes.append(used_bytes)

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
            waited = _LOAD.search(", ".join(response.headers.get_all("server-timing", [])))
            right = response.status == http.client.OK and bool(
                np.allclose(json.loads(body)[0], table_rows(model, _ROWS)[row], rtol=1e-6)
            )
            waited_s = 0.0 if waited is None else float(waited[1]) / 1000
            self.answers.append(Answered(begun_s, model, response.status, right, lasted_s, waited_s))


def _path(model: int) -> str:
    return f"/api/v1/service/m{model}/score"


def run_on_demand_bench(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make the models in a folder, serve and ask them; returns the figures.

    Raises:
        BenchedServerError: The server does not start.
    """
    dice = np.random.default_rng(options.seed)
    low, high = np.log(options.min_mb), np.log(options.max_mb)
    sizes = (np.exp(dice.uniform(low, high, options.models)) * _MB).astype(int)
    for number, size_bytes in enumerate(sizes.tolist()):
        write_table(folder / "models" / f"m{number}" / "1" / "model.onnx", size_bytes, number)
    weights = 1 / np.arange(1, options.models + 1) ** options.exponent
    popularity = dice.permutation(weights / weights.sum())
    deployment = {
        "memory_mb": options.memory_mb,
        "device": "cpu",
        "timeout_ms": int(1000 * _TIMEOUT_S),
        "models": [{"path": str(folder / "models")}],
    }
    launch = deployment_launch(deployment, folder, folder / "workspace")
    with RunningServer(launch, folder / "server.log") as server:
        load = Load(server, popularity)
        load.run(options.seconds, options.callers, options.pause_s, options.seed)
        alone = Load(server, _only_loaded(load.answers, options.models))
        alone.run(options.seconds / 5, options.callers, options.pause_s, options.seed + 1000)
        return _figures(server, load, alone, sizes, options)


def _only_loaded(answers: list[Answered], models: int) -> np.ndarray:
    """The popularity of the model that was asked for last: it is loaded, and stays alone."""
    popularity = np.zeros(models)
    popularity[max(answers, key=lambda one: one.at_s + one.lasted_s).model] = 1
    return popularity


def _figures(
    server: RunningServer, load: Load, alone: Load, sizes: np.ndarray, options: argparse.Namespace
) -> dict[str, Any]:
    answers = sorted(load.answers, key=lambda one: one.at_s)
    cold = [one for one in answers if one.waited_s]
    warm_s = [one.lasted_s for one in answers if one.right and not one.waited_s]
    alone_s = [one.lasted_s for one in alone.answers if one.right and not one.waited_s]
    footprints = json.loads((server_folder(server) / "workspace/run/footprints.json").read_text())
    known = {int(key.split(":")[0][1:]): value for key, value in footprints.items()}
    typical_s = float(np.median([value[1] for value in known.values()]))
    memory = Sizes(
        [known.get(number, (size, 0))[0] for number, size in enumerate(sizes.tolist())],
        [known.get(number, (0, typical_s))[1] for number in range(len(sizes))],
    )
    trace = Trace(np.array([one.at_s for one in answers]), np.array([one.model for one in answers]))
    budget_bytes = options.memory_mb * _MB
    # The process that the models share, and the file of a model that is being loaded, take their part.
    simulated = simulate_residency(trace, memory, budget_bytes - int(sizes.max()), RULES["Stoker"](memory))
    return {
        "models": len(sizes),
        "files_mb": round(sizes.sum() / _MB),
        "ready_s": round(server.start_s, 2),
        "requests": len(answers),
        "wrong_or_lost": sum(not one.right for one in (*answers, *alone.answers)),
        "statuses": {
            str(code): sum(one.status == code for one in answers) for code in {a.status for a in answers}
        },
        "hit_rate": round(1 - len(cold) / len(answers), 4),
        "simulated_hit_rate": round(simulated.hits / simulated.requests, 4),
        "memory_mb": options.memory_mb,
        "most_used_mb": round(max(load.used_bytes) / _MB),
        "seconds_above": sum(used > budget_bytes for used in load.used_bytes),
        "p99_loaded_ms": _percentile_ms(warm_s, 99),
        "p99_alone_ms": _percentile_ms(alone_s, 99),
        "median_cold_ms": _percentile_ms([one.lasted_s for one in cold], 50),
        "median_wait_ms": _percentile_ms([one.waited_s for one in cold], 50),
        "median_load_ms": round(1000 * typical_s, 1),
    }


def server_folder(server: RunningServer) -> Path:
    """Return the folder of the bench, which the server's workspace is in."""
    command = server.launch.command
    return Path(command[command.index("--workspace") + 1]).parent


def _percentile_ms(seconds: list[float], percent: float) -> float | None:
    return round(1000 * float(np.percentile(seconds, percent)), 1) if seconds else None


def main() -> None:
    """Run the bench, and print its figures as JSON."""
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run_on_demand_bench(options, Path(folder)), indent=2))


if __name__ == "__main__":
    main()
