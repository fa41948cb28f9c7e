"""All bounds for a GPU in one run: Stoker beside the runtime alone, and peers on the same device."""

from __future__ import annotations

import io
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from stoker.errors import OperatorError
from stoker_bench.contestants.contest import LoadedServer
from stoker_bench.contestants.entry_scripts import GRAPH_SCORE
from stoker_bench.contestants.servers import HTTP_OK, RunningServer, post, stoker_launch
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import LoadFigures, OwnGenerator, output_of
from stoker_bench.generators.scoring_request import DATA_LISTS, ScoringRequest, random_rows
from stoker_bench.gpu.ceiling import Ceiling, measure_ceiling
from stoker_bench.gpu.many_models import load_on_demand, lose_device, share_fairly
from stoker_bench.gpu.models import GpuModel, ModelMaker, Network, Precision, WireDtype
from stoker_bench.gpu.peers import PEERS, GpuPeer
from stoker_bench.gpu.poisson import PoissonOptions, search_poisson
from stoker_bench.gpu.server import GpuServer, ServingOptions
from stoker_bench.networks.onnx_graphs import seeded_mlp
from stoker_bench.networks.trained_run import ROW_SHAPE, classes_of, trained_run
from stoker_bench.reports import aligned, figure, say

_LOADED: Final = re.compile(r"loaded in ([\d.]+) s, warm after ([\d.]+) s")
_PHOTO: Final = (500, 375)
_IMAGE_CALLERS: Final = 64
"""For each frontend, half of the images that it lets wait."""
_BERT_ROWS: Final = (1, 64)
_BERT_CALLERS: Final = 256
_DEMAND_MODELS: Final = 200
_DEMAND_MB: Final = 20 << 10
_DEMAND_S: Final = 60.0
_SHARING_MODELS: Final = 8
_HOW_TO_ROWS: Final = 256
_HOW_TO_CALLERS: Final = 64
_TENSORFLOW_START_S: Final = 180.0
_TESTS_S: Final = 300.0
_PYTORCH_START_S: Final = 120.0
"""Most time for importing PyTorch, capturing and exporting."""


@dataclass(frozen=True)
class Aim:
    """A bound of the project on one H200 with 16 cores.

    Attributes:
        at_least: Whether figures have to be at least the bound; else at most.
        before: What was measured on 2026-11-26, at commit 4aad2cc.
    """

    text: str
    bound: float
    before: str
    at_least: bool = True


AIMS: Final = {
    "closed 512": Aim("ResNet-50 FP16, uint8, 512 callers, of the ceiling", 0.97, "0.82"),
    "closed 64": Aim("the same, 64 callers", 0.90, "0.63"),
    "poisson": Aim("Poisson arrivals, p99 ≤ 15 ms, of the ceiling", 0.92, "0.62"),
    "large rows": Aim("float32 rows of 602 kB, 256 callers, of the ceiling with copies", 0.95, "0.71"),
    "lone resnet50": Aim("lone caller over the runtime with copies, ResNet-50", 1.25, "2.1", at_least=False),
    "lone mlp": Aim("lone caller over the runtime with copies, MLP", 2.5, "6", at_least=False),
    "bert onnx": Aim(
        "BERT-base, 128 tokens, FP16, 256 callers, of PyTorch's captured rate with 64 rows", 0.75, "0.38"
    ),
    "bert lone": Aim("the same, lone caller, the faster runtime, of PyTorch's rate with 1 row", 0.75, "0.29"),
    "bert torch": Aim("the same, 256 callers, served by the PyTorch runtime", 0.97, "-"),
    "poisson 100": Aim("Poisson arrivals, p99 ≤ 100 ms, of the ceiling", 0.99, "-"),
    "load": Aim("load of ResNet-50, s", 4.0, "14.5", at_least=False),
    "load again": Aim("the same, from the workspace's cache, s", 1.5, "-", at_least=False),
    "images": Aim("JPEG 500 × 375 to an answer, per second", 6000, "2,865"),
    "tensorflow": Aim("SavedModel with XLA, 256 callers, of TensorFlow alone", 0.9, "-"),
    "how-to": Aim("TensorFlow 1 script of Azure's how-to, wrong answers", 0, "-", at_least=False),
    "tensorrt": Aim("ResNet-50 FP16 by TensorRT, 64 callers, of ONNX Runtime's CUDA provider", 1.0, "-"),
    "demand wrong": Aim("200 models on demand, answers of another model", 0, "-", at_least=False),
    "demand memory": Aim("the same, memory at each second, of the budget", 1.0, "-", at_least=False),
    "demand p99": Aim("the same, p99 of a loaded model beside loads, × without", 1.5, "-", at_least=False),
    "sharing": Aim("8 models that share the card, lowest rate of the mean", 0.5, "-"),
    "lost": Aim("a killed device process, seconds until callers are told", 2.0, "-", at_least=False),
    "tests": Aim("tests/gpu, tests that failed", 0, "-", at_least=False),
}


@dataclass(frozen=True)
class Alone:
    """The rate of a runtime without a server.

    Attributes:
        rows: Rows per batch.
        ms: The time of a batch.
    """

    runtime: str
    rows: int
    rows_per_s: float
    ms: float


PYTORCH: Final = (
    Alone("PyTorch, captured, 2026-11-26", 1, 1562.5, 0.64),
    Alone("PyTorch, captured, 2026-11-26", 64, 15225.0, 64e3 / 15225),
)
"""BERT-base in FP16 as measured on an H200, for machines without PyTorch."""


@dataclass(frozen=True)
class AcceptanceOptions:
    """How long and with what load is measured; `quick` tries everything out with small models."""

    device: str = "cuda:0"
    seconds: float = 3.0
    processes: int = 6
    frontends: int = 8
    poisson: PoissonOptions = field(default_factory=PoissonOptions)
    slow_poisson: PoissonOptions = field(default_factory=lambda: PoissonOptions(100.0, steps=4, least=0.9))
    quick: bool = False


@dataclass
class Acceptance:
    """A measurement.

    Attributes:
        values: Figures by the keys of `AIMS`.
        reasons: Why others could not be measured.
        alone: With what BERT is compared.
        notes: Remarks on the figures.
        peers: Peer, callers, answers per second and p50 in ms.
    """

    values: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    peers: list[tuple[str, int, float, float]] = field(default_factory=list)
    alone: list[Alone] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def is_met(self, key: str) -> bool | None:
        """Whether a bound is met; None if it was not measured."""
        value, aim = self.values.get(key), AIMS[key]
        if value is None:
            return None
        return value >= aim.bound if aim.at_least else value <= aim.bound

    def table(self) -> str:
        """The bounds and figures, and those of peers."""
        words = {True: "met", False: "NOT MET", None: "not measured"}
        rows = [
            [
                aim.text,
                aim.before,
                f"{'≥' if aim.at_least else '≤'} {aim.bound:g}",
                figure(self.values.get(key)),
                words[self.is_met(key)],
            ]
            for key, aim in AIMS.items()
        ]
        lines = [aligned(["", "2026-11-26", "bound", "now", ""], rows)]
        lines += [f"not measured: {AIMS[key].text}: {why}" for key, why in self.reasons.items()]
        lines += self.notes
        if self.alone:
            headings = ["BERT without a server", "rows", "rows/s", "ms"]
            alone = [
                [each.runtime, str(each.rows), figure(each.rows_per_s), figure(each.ms)]
                for each in self.alone
            ]
            lines += ["", aligned(headings, alone)]
        if self.peers:
            headings = ["on the same device", "callers", "rows/s", "p50 ms"]
            peers = [[name, f"{callers:,}", *map(figure, rest)] for name, callers, *rest in self.peers]
            lines += ["", aligned(headings, peers)]
        return "\n".join(lines)


class AcceptanceBench:
    """One run.

    Args:
        folder: For models, and the servers' workspaces and logs.
    """

    def __init__(self, options: AcceptanceOptions, folder: Path) -> None:
        self.found = Acceptance()
        self._options, self._folder = options, folder
        self._maker = ModelMaker(folder)
        self._generator = OwnGenerator(options.processes, 1.5)
        self._servers = 0

    def run(self) -> Acceptance:
        """Measure all bounds; one that cannot be measured is noted with its reason."""
        steps: list[tuple[tuple[str, ...], Callable[[], None]]] = [
            (
                ("closed 512", "closed 64", "poisson", "poisson 100", "lone resnet50", "load", "load again"),
                self._resnet50,
            ),
            (("images",), self._images),
            (("large rows",), self._large_rows),
            (("lone mlp",), self._mlp),
            (("bert onnx", "bert lone", "bert torch"), self._bert),
            (("demand wrong", "demand memory", "demand p99"), self._on_demand),
            (("sharing", "lost"), self._sharing),
            (("tensorrt",), self._tensorrt),
            (("tensorflow",), self._tensorflow),
            (("how-to",), self._how_to),
            (("tests",), self._tests),
        ]
        for keys, measure in steps:
            try:
                measure()
            except OperatorError as error:
                missing = (key for key in keys if key not in self.found.values)
                self.found.reasons |= dict.fromkeys(missing, str(error))
        return self.found

    def _model(self, network: Network, precision: Precision, wire_dtype: WireDtype) -> GpuModel:
        if self._options.quick:
            return self._maker.make("mlp", "fp32", "float32")
        return self._maker.make(network, precision, wire_dtype)

    def _ceiling(self, model: GpuModel, *batches: int) -> Ceiling:
        say(f"{model.name}, the runtime alone")
        seconds = 0.02 if self._options.quick else 0.3
        ceiling = measure_ceiling(model, self._options.device, batches, seconds)
        best, rate = ceiling.best, figure(ceiling.rows_per_s)
        self.found.notes.append(
            f"{model.name}, ONNX Runtime alone: {rate} rows/s, {best.way}, batches of {best.rows}"
        )
        return ceiling

    def _server(
        self,
        model: GpuModel,
        max_batch_rows: int = 256,
        others: Sequence[Path] = (),
        **more: Any,
    ) -> GpuServer:
        """Return a server; `more` are further `ServingOptions`."""
        say(f"starting Stoker with {model.name}")
        self._servers += 1
        options = ServingOptions(
            self._options.device, max_batch_rows, frontends=self._options.frontends, **more
        )
        return GpuServer(model, options, self._folder / f"server{self._servers}", others)

    def _load(self, request: ScoringRequest, callers: int) -> LoadFigures:
        say(f"{callers} callers")
        figures = self._generator.run(request, callers, self._options.seconds)
        if figures.errors:
            raise BenchedServerError(f"{figures.errors} of the requests of {callers} callers failed")
        return figures

    def _load_row(self, server: GpuServer, callers: int) -> LoadFigures:
        """Load a server with callers of one row, and note the figures."""
        model = server.model
        figures = self._load(server.request(random_rows(1, model.row_shape)), callers)
        rate, p50_ms = figure(figures.requests_per_s), figure(figures.p50_ms)
        self.found.notes.append(f"{model.name}, {callers} callers: {rate} rows/s, p50 {p50_ms} ms")
        return figures

    def _resnet50(self) -> None:
        model, values = self._model("resnet50", "fp16", "uint8"), self.found.values
        ceiling = self._ceiling(model, 1, 64, 128, 256)
        with self._server(model) as server:
            server.check()
            for callers in (512, 64):
                rows_per_s = self._load_row(server, callers).requests_per_s
                values[f"closed {callers}"] = rows_per_s / ceiling.rows_per_s
            values["lone resnet50"] = self._load_row(server, 1).p50_ms / _copied_ms(ceiling)
            say("Poisson arrivals")
            for key, options in (
                ("poisson", self._options.poisson),
                ("poisson 100", self._options.slow_poisson),
            ):
                values[key] = self._poisson(server, ceiling, options)
            values["load"] = _load_s(server.log())
        with server:
            server.check()
            values["load again"] = _load_s(server.log())
        for peer in PEERS:
            self._peer(peer, model)

    def _poisson(self, server: GpuServer, ceiling: Ceiling, options: PoissonOptions) -> float:
        """Search the highest rate of Poisson arrivals; returns it over the ceiling."""
        request = server.request(random_rows(1, server.model.row_shape))
        search = search_poisson(request, ceiling.rows_per_s, options)
        note = f"Poisson arrivals by {search.generator}, p99 ≤ {options.limit_ms:g} ms"
        self.found.notes.append(f"{note}: {figure(search.rate_per_s)} rows/s")
        if search.best:
            self.found.notes[-1] += f", p99 {figure(search.best.p99_ms)} ms"
        return search.of_ceiling

    def _images(self) -> None:
        averages = self._maker.make_averages() if self._options.quick else None
        model = averages or self._model("resnet50", "fp16", "uint8")
        with self._server(model, image_size=(224, 224)) as server:
            answers = self._load(server.image_request(_photo()), _IMAGE_CALLERS * self._options.frontends)
        self.found.values["images"] = answers.requests_per_s

    def _large_rows(self) -> None:
        model = self._model("resnet50", "tf32", "float32")
        ceiling = self._ceiling(model, 64)
        with self._server(model, 64) as server:
            server.check()
            rows_per_s = self._load_row(server, 256).requests_per_s
        self.found.values["large rows"] = rows_per_s / max(b.copied_rows_per_s for b in ceiling.batches)

    def _mlp(self) -> None:
        model = self._model("mlp", "fp32", "float32")
        ceiling = self._ceiling(model, 1)
        with self._server(model) as server:
            server.check()
            lone = self._load_row(server, 1)
        self.found.values["lone mlp"] = lone.p50_ms / _copied_ms(ceiling)

    def _bert(self) -> None:
        sizes = "tiny" if self._options.quick else "base"
        model = self._maker.make_bert(sizes, "fp32" if self._options.quick else "fp16")
        values = self.found.values
        self._add_ceiling(self._ceiling(model, *_BERT_ROWS))
        exported = self._folder / f"bert-{sizes}.pt2"
        pytorch = self._pytorch(sizes, exported)
        self.found.alone += pytorch
        one, full = pytorch
        with self._server(model, full.rows) as server:
            server.check()
            values["bert onnx"] = self._load_row(server, _BERT_CALLERS).requests_per_s / full.rows_per_s
            values["bert lone"] = one.ms / self._load_row(server, 1).p50_ms
        if not exported.exists():
            raise BenchedServerError("PyTorch could not be measured here")
        with self._server(replace(model, path=exported, reference=model.path), full.rows) as server:
            server.check()
            values["bert torch"] = self._load_row(server, _BERT_CALLERS).requests_per_s / full.rows_per_s
            values["bert lone"] = max(values["bert lone"], one.ms / self._load_row(server, 1).p50_ms)
            # Whether it is captured, and if not, why.
            self.found.notes += [line for line in server.log().splitlines() if ": execution " in line]

    def _copies(self, count: int) -> tuple[GpuModel, list[Path], list[NDArray[np.float32]]]:
        """Write perceptrons with weights of their own; returns the first, the others, and the outputs of one row."""
        model = self._maker.make("mlp", "fp32", "float32")
        networks = [seeded_mlp(self._maker.seed + number) for number in range(count)]
        others = [self._folder / f"mlp{number}.onnx" for number in range(1, count)]
        for network, path in zip(networks[1:], others, strict=True):
            network.save(path)
        rows = random_rows(1, model.row_shape)
        return model, others, [network.logits(rows) for network in networks]

    def _on_demand(self) -> None:
        model, others, expected = self._copies(4 if self._options.quick else _DEMAND_MODELS)
        options = {"max_batch_rows": 64, "memory_mb": _DEMAND_MB}
        with self._server(model, others=others, **options) as server:
            seconds = 2.0 if self._options.quick else _DEMAND_S
            figures = load_on_demand(server, expected, random_rows(1, model.row_shape), seconds)
        values = self.found.values
        values["demand wrong"], values["demand p99"] = figures.wrong, figures.slowdown
        self.found.notes.append(f"{len(expected)} models on demand: {figures.right} right answers")
        if figures.memory_bytes:
            values["demand memory"] = max(figures.memory_bytes) / (_DEMAND_MB << 20)
        else:
            raise BenchedServerError("there is no GPU whose memory could be read")

    def _sharing(self) -> None:
        model, others, _ = self._copies(2 if self._options.quick else _SHARING_MODELS)
        rows = random_rows(1, model.row_shape)
        with self._server(model, others=others) as server:
            fairness = share_fairly(server, 1 + len(others), rows, self._options.seconds)
            self.found.values["sharing"] = fairness
            self.found.values["lost"] = lose_device(server, rows)

    def _tensorrt(self) -> None:
        self._require_gpu()
        if find_spec("tensorrt") is None:
            raise BenchedServerError("TensorRT is not installed: pip install 'tensorrt-cu13<11'")
        model, rates = self._model("resnet50", "fp16", "uint8"), []
        for provider in ("cuda", "tensorrt"):
            with self._server(model, 64, settings={"provider": provider}) as server:
                server.check()
                rates.append(self._load_row(server, 64).requests_per_s)
        self.found.values["tensorrt"] = rates[1] / rates[0]

    def _tensorflow(self) -> None:
        self._require_gpu()
        if find_spec("tensorflow") is None:
            raise BenchedServerError("TensorFlow is not installed: pip install 'tensorflow[and-cuda]'")
        mlp, folder = self._maker.make("mlp", "tf32", "float32"), self._folder / "saved_model"
        command = [sys.executable, "-m", "stoker_bench.gpu.tensorflow_alone", str(folder)]
        command += ["--device", self._options.device, "--seed", str(self._maker.seed)]
        command += ["--rows", "64", "--seconds", str(self._options.seconds)]
        alone = orjson.loads(output_of(command, _TENSORFLOW_START_S).splitlines()[-1])["rows_per_s"]
        model = replace(mlp, path=folder, reference=mlp.path)
        with self._server(model, 64, settings={"xla": True, "batch_buckets": [1, 8, 64]}) as server:
            server.check()
            self.found.values["tensorflow"] = self._load_row(server, 256).requests_per_s / alone

    def _how_to(self) -> None:
        if self._options.quick:
            self._require_gpu()
        if find_spec("tensorflow") is None:
            raise BenchedServerError("TensorFlow is not installed: pip install 'tensorflow[and-cuda]'")
        say("training the model of the TensorFlow 1 script")
        run, folder = trained_run(self._folder / "how-to-run"), self._folder / "how-to"
        folder.mkdir()
        options = ["--model-dir", str(run), "--device", self._options.device]
        key, frontends = secrets.token_urlsafe(32), self._options.frontends
        launch = stoker_launch(GRAPH_SCORE, folder / "workspace", key, frontends, options=options)
        rows = random_rows(_HOW_TO_ROWS, ROW_SHAPE)
        say("starting Stoker with the TensorFlow 1 script")
        with RunningServer(launch, folder / "log"):
            server = LoadedServer("Stoker", launch.uri, self._generator, DATA_LISTS, ROW_SHAPE, key=key)
            request = server.request(rows)
            status, body = post(request.host, request.port, request.path, request.body, request.headers)
            if status != HTTP_OK:
                raise BenchedServerError(f"the TensorFlow 1 script answered {status}: {body[:200]!r}")
            rate = self._load(server.request(rows[:1]), _HOW_TO_CALLERS).requests_per_s
        differ = DATA_LISTS.decode(body, len(rows)) != classes_of(run)(rows)
        self.found.values["how-to"] = int(differ.sum())
        self.found.notes.append(f"TensorFlow 1 script, {_HOW_TO_CALLERS} callers: {figure(rate)} requests/s")

    def _tests(self) -> None:
        self._require_gpu()
        folder = Path(__file__).parents[3]
        if not (folder / "tests/gpu").is_dir() or find_spec("pytest") is None:
            raise BenchedServerError("the tests are in a clone of the project, and need pytest")
        command = [sys.executable, "-m", "pytest", "tests/gpu", "-rfE", "-k", "not bench"]
        ended = subprocess.run(
            command, cwd=folder, timeout=_TESTS_S, capture_output=True, text=True, check=False
        )
        if ended.returncode not in (0, 1):
            raise BenchedServerError(f"pytest ended with {ended.returncode}: {ended.stdout[-500:]}")
        failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        self.found.values["tests"] = len(failed)
        self.found.notes += failed

    def _require_gpu(self) -> None:
        if self._options.quick or self._options.device == "cpu":
            raise BenchedServerError("it is measured on a GPU, and not in quick runs")

    def _add_ceiling(self, ceiling: Ceiling) -> None:
        """Note the fastest way of each batch size, and why others failed."""
        for rows in _BERT_ROWS:
            best = max(
                (each for each in ceiling.batches if each.rows == rows), key=lambda each: each.rows_per_s
            )
            self.found.alone.append(
                Alone(f"ONNX Runtime, {best.way}", rows, best.rows_per_s, 1e3 * rows / best.rows_per_s)
            )
        self.found.notes += [f"BERT by ONNX Runtime alone, {failure}" for failure in ceiling.failures]

    def _pytorch(self, sizes: str, exported: Path) -> Sequence[Alone]:
        """Measure the same network in PyTorch and export it, or take the figures that were measured before."""
        if find_spec("torch") is None:
            self.found.notes.append("PyTorch is not installed: BERT is compared with figures of 2026-11-26")
            return PYTORCH
        say("BERT, PyTorch alone")
        seconds = 0.02 if self._options.quick else 0.7
        command = [sys.executable, "-m", "stoker_bench.gpu.torch_alone", "--device", self._options.device]
        command += ["--sizes", sizes, "--seed", str(self._maker.seed), "--seconds", str(seconds)]
        command += ["--export", str(exported), "--batches", *map(str, _BERT_ROWS)]
        try:
            figures = orjson.loads(output_of(command, _PYTORCH_START_S).splitlines()[-1])
        except OperatorError as error:
            self.found.notes.append(f"BERT is compared with figures of 2026-11-26: {error}")
            return PYTORCH
        return [Alone("PyTorch, captured", **each) for each in figures]

    def _peer(self, peer: GpuPeer, model: GpuModel) -> None:
        """Load a peer as Stoker was loaded; one that is not installed is left out."""
        try:
            with peer.start(model, self._options.device, self._folder) as request:
                for callers in (64, 512):
                    figures = self._load(request, callers)
                    self.found.peers.append((peer.name, callers, figures.requests_per_s, figures.p50_ms))
        except OperatorError as error:
            say(f"{peer.name} is left out: {error}")


def _copied_ms(ceiling: Ceiling) -> float:
    """The time of one row with its copies, in the fastest way."""
    return min(
        batch.copy_in_ms + batch.compute_ms + batch.copy_out_ms
        for batch in ceiling.batches
        if batch.rows == 1
    )


def _load_s(log: str) -> float:
    found = _LOADED.search(log)
    if found is None:
        raise BenchedServerError("the server's output does not say how long the load took")
    return float(found[1]) + float(found[2])


def _photo() -> bytes:
    """A JPEG of 500 × 375 pixels with structure: noise that is smoothed by enlarging it."""
    from PIL import Image

    width, height = _PHOTO
    noise = np.random.default_rng(5).integers(0, 256, (height // 5, width // 5, 3), np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(noise).resize(_PHOTO, Image.Resampling.BICUBIC).save(encoded, "JPEG", quality=90)
    return encoded.getvalue()


def quick(options: AcceptanceOptions) -> AcceptanceOptions:
    """The same with seconds that measure nothing."""
    poisson = replace(options.poisson, limit_ms=1000, seconds=0.3, confirm_seconds=0.3, steps=1, processes=1)
    poisson = replace(poisson, connections=16)
    return replace(
        options,
        seconds=0.3,
        processes=1,
        frontends=1,
        poisson=poisson,
        slow_poisson=poisson,
        quick=True,
    )
