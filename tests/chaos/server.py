"""The server that is hurt: its models, its processes as the kernel sees them, and whether it is whole again."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import numpy as np
from tests.chaos.questions import ON_DEMAND_MODELS, PAIR_NUMBERS
from tests.http.raw_http import Answer, Connection, bearer, request, rows_body, scoring
from tests.live_server import PRIMARY, LiveServer, free_port, metric_total, wait_until
from tests.observing import connections_of
from tests.tables import write_table
from tests.tiny_models import BATCHED_SCRIPT, write_doubler, write_marked, write_script

__all__ = ["RECOVERY_S", "ChaosServer", "Usage"]

RECOVERY_S: Final = 180.0
"""How long it may take until the server is whole again; a process that keeps dying is started every 30 s."""
_ADMIN: Final = "admin-key-of-the-chaos-0001"
_FRONTENDS: Final = 2
_PACKED: Final = 4
_MEMORY_MB: Final = 288
_TABLE_BYTES: Final = 24 << 20
"""So large that the memory has no room for all tables, and so small that each is loaded in no time."""
_READINGS: Final = 3
_LOOKS: Final = 24
"""More connections than callers have, so that each frontend gets some however theirs are shared out."""
_LOG_LINES: Final = 40
_TIMEOUT_MS: Final = 8000
"""So long that on a busy machine nothing is late but what a fault holds up."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of a process: its share of the memory that it sees, all of that, and the files that it has open."""

    pss_bytes: float
    rss_bytes: float
    files: float


class ChaosServer:
    """A workspace, a folder of models, and the server that runs with them now; several, one after the other.

    Attributes:
        port, grpc_port: Where each of them listens.
        label_means: The versions of `marked` that the label `stable` may mean now.
        down: Whether its port may be closed now.
        clock: Whether the wall clock of its processes can be moved.
        newest: The newest version of `marked`.
        on_demand: Whether it has models that are loaded when they are asked for, within a budget of memory.
    """

    def __init__(self, scratch: Path, *, packs: bool = False, on_demand: bool = False) -> None:
        """Write its models and settings; with `packs`, models are loaded into processes that others use."""
        self._scratch = scratch
        self.marked = scratch / "models" / "marked"
        self.port, self.grpc_port = free_port(), free_port()
        self.newest = 1
        self.on_demand = on_demand
        self.down = True
        self.label_means: set[int] = {1}
        self._starts = 0
        self._started = False
        self._replicas = {"marked": min(2, len(os.sched_getaffinity(0))), "tripler": 1, "pair": 1, "extra": 1}
        self._clock_file = scratch / "clock"
        self.clock = self._compile_clock()
        write_marked(self.marked / "1" / "model.onnx", 1)
        self.write_label(1)
        self.script = write_script(scratch / "models" / "tripler", BATCHED_SCRIPT)
        extra = write_doubler(scratch / "models" / "extra" / "1" / "model.onnx").parents[1]
        self._config = scratch / "deployment.yaml"
        models = [
            {"path": str(self.marked), "replicas": 2, "collect": True},
            {"path": str(self.script), "name": "tripler"},
            {"path": str(_write_pair(scratch / "models" / "pair.pkl")), "replicas": 1},
            {"path": str(extra)},
        ]
        if on_demand:
            models = [model | {"always_loaded": True} for model in models]
            tables = scratch / "models" / "tables"
            for number in range(ON_DEMAND_MODELS):
                write_table(tables / f"table{number}" / "1" / "model.onnx", _TABLE_BYTES, number)
            models.append({"path": str(tables)})
        settings = {
            "models": models,
            "frontends": _FRONTENDS,
            "timeout_ms": _TIMEOUT_MS,
            "drain_grace_s": 0.5,
            "later_mb": 64,
            "models_per_process": _PACKED if packs else None,
            "memory_mb": _MEMORY_MB if on_demand else None,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        self._config.write_text(json.dumps(given))

    def start(self) -> None:
        """Start it and wait until it is whole."""
        self._starts += 1
        folder = self._scratch / f"start{self._starts}"
        folder.mkdir()
        env = {"STOKER_ADMIN_KEY": _ADMIN}
        if self.clock:
            env |= {
                "LD_PRELOAD": str(self._scratch / "clock.so"),
                "STOKER_TESTS_CLOCK": str(self._clock_file),
            }
        arguments = ("--config", self._config, "--grpc-port", str(self.grpc_port), "--device", "cpu")
        self.live = LiveServer(
            folder, *arguments, env=env, workspace=self._scratch / "workspace", port=self.port
        )
        self.down = False
        self._started = True
        self.wait_until_whole()

    def kill(self) -> None:
        """Kill what is left of it."""
        if self._started:
            self.live.kill()

    def output(self) -> str:
        """The log of the server that runs now."""
        return self.live.output()

    def faults_in_logs(self) -> list[str]:
        """The last lines of all tracebacks that any of the servers has written, and their first."""
        text = "".join(log.read_text(errors="replace") for log in self._scratch.glob("start*/server.log"))
        blocks = re.findall(r"^(?!  )([^\n]*)\n  Traceback .*\n((?:  .*\n)+)", text, re.MULTILINE)
        return [f"{source}: {block.splitlines()[-1].strip()}" for source, block in blocks]

    def write_version(self, *, broken: bool = False) -> int:
        """Put the next version of `marked` into its folder, whole at once; returns its number."""
        self.newest += 1
        beside = self._scratch / f"marked-{self.newest}"
        write_marked(beside / "model.onnx", self.newest)
        if broken:
            (beside / "model.onnx").write_bytes(b"no model")
        beside.rename(self.marked / str(self.newest))
        return self.newest

    def remove_newest(self) -> None:
        """Take the newest version of `marked` out of its folder; its number is not used again."""
        shutil.rmtree(self.marked / str(self.newest))

    def write_label(self, version: int) -> None:
        """Let the label `stable` mean this version."""
        beside = self._scratch / "labels.json"
        beside.write_text(json.dumps({"stable": version}))
        beside.rename(self.marked / "labels.json")

    def labelled(self) -> set[int]:
        """The versions that the label means in any frontend now; none while two servers have frontends.

        One that is replaced goes on with what it knows on the connections that it has.
        """
        if len(self.live.frontend_pids()) > _FRONTENDS:
            return set()
        answers = [self.live.get("/v1/models/marked/labels/stable").json() for _ in range(12)]
        return {int(status["version"]) for one in answers for status in one["model_version_status"]}

    def administer(self, action: str) -> Answer:
        """Ask for a load or unload: `marked/load`; a load takes its time."""
        return self._ask_as_administrator(f"/v2/repository/models/{action}")

    def reload(self) -> Answer:
        """Ask for a new server in the place of this one."""
        return self._ask_as_administrator("/-/reload")

    def _ask_as_administrator(self, path: str) -> Answer:
        with self.live.connect() as connection:
            connection.socket.settimeout(RECOVERY_S)
            return connection.ask(request("POST", path, [bearer(_ADMIN)], b""))

    def kinds(self) -> dict[str, list[int]]:
        """The numbers of its processes by kind, in the order of their age."""
        return {
            "supervisor": [self._supervisor()],
            "frontend": sorted(self.live.frontend_pids()),
            "device": sorted(self.live.device_pids()),
        }

    def _supervisor(self) -> int:
        """The one that serves: the first process of the server, or a child that has taken its place."""
        frontends = self.live.frontend_pids()
        # The newest frontend is of the newest server.
        return _parent(max(frontends)) if frontends else self.live.process.pid

    def connections_of(self, pid: int) -> dict[int, set[int]]:
        """The ports of the callers whose connections a stopped process has taken, by the port that they came to."""
        ports = (self.port, self.grpc_port)
        readings = [connections_of(pid, *ports) for _ in range(_READINGS)]
        return {port: set().union(*(reading[port] for reading in readings)) for port in ports}

    def usage(self) -> dict[str, Usage]:
        """The use of its processes, as the mean of each kind."""
        found = {}
        for kind, pids in self.kinds().items():
            each = [_usage(pid) for pid in pids]
            found[kind] = Usage(*(sum(values) / len(values) for values in zip(*each, strict=True)))
        return found

    def metric_total(self, name: str, connection: Connection | None = None) -> float:
        """The sum of a metric over all labels, asked for on a connection, or on a new one."""
        answer = (
            self.live.get("/metrics") if connection is None else connection.ask(request("GET", "/metrics"))
        )
        return metric_total(answer.body.decode(), name)

    def _find_missing(self) -> str:
        """Say what is missing until it is whole: frontends, replicas, models on demand; empty if nothing is."""
        frontends = len(self.live.frontend_pids())
        if frontends != _FRONTENDS:
            return f"it has {frontends} of {_FRONTENDS} frontends"
        if not self.live.ready_on(_LOOKS):
            return "a frontend is not ready"
        with self.live.connect() as connection:
            index = request("POST", "/v2/repository/index", [bearer(_ADMIN)], b'{"ready": true}')
            served = connection.ask(index).json()
        versions = [(one["name"], one["version"]) for one in served if one["name"] in self._replicas]
        if absent := set(self._replicas) - {name for name, _ in versions}:
            return f"not served: {sorted(absent)}"
        for name, version in versions:
            ready = self.live.metric("stoker_ready_replicas", model=name, version=version)
            if ready != self._replicas[name]:
                return f"{name} version {version} has {ready:g} of {self._replicas[name]} replicas"
        return self._find_missing_on_demand() if self.on_demand else ""

    def _find_missing_on_demand(self) -> str:
        """A model on demand that does not answer, or the memory that the device processes have and may not."""
        for number in range(ON_DEMAND_MODELS):
            with self.live.connect() as connection:
                connection.socket.settimeout(RECOVERY_S)
                question = scoring(f"/api/v1/service/table{number}/score", PRIMARY, rows_body([0]))
                answer = connection.ask(question)
                if answer.status != HTTPStatus.OK:
                    return f"table{number} answers {answer.status}: {answer.body[:200]!r}"
        used_bytes = self.metric_total("stoker_model_memory_bytes")
        return "" if used_bytes <= _MEMORY_MB << 20 else f"device processes have {used_bytes:g} bytes"

    def wait_until_whole(self) -> None:
        """Wait until all frontends are ready and every version that is served has all of its replicas.

        Fails after `RECOVERY_S` with what is missing and the end of the log.
        """
        missing = "everything"

        def whole() -> bool:
            nonlocal missing
            try:
                missing = self._find_missing()
            except (OSError, AssertionError) as failure:
                missing = repr(failure)
            return not missing

        try:
            wait_until(whole, "the server is whole", timeout_s=RECOVERY_S, every_s=0.05)
        except AssertionError as failure:
            end = "\n".join(self.output().splitlines()[-_LOG_LINES:])
            raise AssertionError(f"{failure}; {missing}; the log ends with\n{end}") from None

    def set_clock(self, offset_s: int) -> None:
        """Let the wall clock of all its processes jump to so many seconds beside the system's."""
        with self._clock_file.open("r+b") as file:
            file.write(struct.pack("q", offset_s))

    def _compile_clock(self) -> bool:
        self._clock_file.write_bytes(struct.pack("q", 0))
        compiler = shutil.which("cc")
        if not compiler:
            return False
        source = Path(__file__).with_name("clock.c")
        command = [
            compiler,
            "-shared",
            "-fPIC",
            "-O1",
            "-o",
            str(self._scratch / "clock.so"),
            str(source),
            "-ldl",
        ]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _parent(pid: int) -> int:
    return int(re.findall(r"^PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0])


def _usage(pid: int) -> tuple[int, int, int]:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    pss, rss = (int(re.findall(rf"^{name}:\s+(\d+)", text, re.MULTILINE)[0]) << 10 for name in ("Pss", "Rss"))
    return pss, rss, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _write_pair(path: Path) -> Path:
    """Write a classifier with two outputs: of a number x below `PAIR_NUMBERS` x mod 7 and x mod 5."""
    from sklearn.tree import DecisionTreeClassifier

    numbers = np.arange(PAIR_NUMBERS)
    classifier = DecisionTreeClassifier(random_state=0)
    classifier.fit(numbers[:, None], np.stack([numbers % 7, numbers % 5], axis=1))
    path.write_bytes(pickle.dumps(classifier))
    return path
