"""All bounds for a GPU in one run: Stoker beside the runtime alone, and peers on the same device."""

from __future__ import annotations

import io
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import OperatorError
from stoker_bench.contestants.contest import LoadedServer
from stoker_bench.contestants.entry_scripts import GRAPH_SCORE
from stoker_bench.contestants.servers import HTTP_OK, RunningServer, post, stoker_launch
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import LoadFigures, OwnGenerator
from stoker_bench.generators.scoring_request import DATA_LISTS, ScoringRequest, random_rows
from stoker_bench.gpu.aims import Acceptance
from stoker_bench.gpu.alone import (
    NO_TENSORFLOW,
    PYTORCH,
    Alone,
    fastest_ways,
    measure_pytorch,
    measure_tensorflow,
)
from stoker_bench.gpu.ceiling import Ceiling, measure_ceiling
from stoker_bench.gpu.many_models import load_on_demand, lose_device, share_fairly
from stoker_bench.gpu.models import GpuModel, ModelMaker, Network, Precision, WireDtype
from stoker_bench.gpu.peers import PEERS, GpuPeer
from stoker_bench.gpu.poisson import PoissonOptions, search_poisson
from stoker_bench.gpu.server import GpuServer, ServingOptions
from stoker_bench.gpu.used_memory import used_bytes
from stoker_bench.networks.onnx_graphs import seeded_mlp
from stoker_bench.networks.trained_run import ROW_SHAPE, classes_of, trained_run
from stoker_bench.reports import figure, say

_LOADED: Final = re.compile(r"loaded in ([\d.]+) s, warm after ([\d.]+) s")
_PHOTO: Final = (500, 375)
_IMAGE_CALLERS: Final = 64
"""For each frontend, half of the images that it lets wait."""
_BERT_ROWS: Final = (1, 64)
_BERT_CALLERS: Final = 256
_MEMORY_SIZES: Final = (1, 8, 32, 64)
_OWN_SESSIONS: Final = ": execution graph, a session for each size"
_DEMAND_MODELS: Final = 200
_DEMAND_MB: Final = 20 << 10
_DEMAND_S: Final = 60.0
_SHARING_MODELS: Final = 8
_HOW_TO_ROWS: Final = 256
_HOW_TO_CALLERS: Final = 64
_TESTS_S: Final = 300.0


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
            (("images", "image cores"), self._images),
            (("large rows",), self._large_rows),
            (("lone mlp",), self._mlp),
            (("bert onnx", "bert lone", "bert torch"), self._bert),
            (("sizes memory",), self._sizes_memory),
            (("demand wrong", "demand memory", "demand p99"), self._on_demand),
            (("sharing", "lost"), self._sharing),
            (("tensorrt",), self._tensorrt),
            (("tensorflow", "tensorflow fp16"), self._tensorflow),
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

    def _load(
        self, request: ScoringRequest, callers: int, during: AbstractContextManager[None] | None = None
    ) -> LoadFigures:
        """Load a server; `during` is entered for the seconds in which answers count."""
        say(f"{callers} callers")
        figures = self._generator.run(request, callers, self._options.seconds, during)
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
            # All sizes are captured when they are chosen, while it serves.
            self.found.notes += [line for line in server.log().splitlines() if ": batch_buckets " in line]
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
        ceiling, callers = self._ceiling(model, 64), _IMAGE_CALLERS * self._options.frontends
        cores: list[float] = []
        with self._server(model, image_size=(224, 224)) as server:
            answers = self._load(server.image_request(_photo()), callers, server.count_cores(cores))
        self.found.values["images"] = answers.requests_per_s / ceiling.rows_per_s
        (self.found.values["image cores"],) = cores
        self.found.notes.append(f"JPEGs: {figure(answers.requests_per_s)}/s")

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
        ceiling = self._ceiling(model, *_BERT_ROWS)
        self.found.alone += fastest_ways(ceiling, _BERT_ROWS)
        self.found.notes += [f"BERT by ONNX Runtime alone, {failure}" for failure in ceiling.failures]
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

    def _sizes_memory(self) -> None:
        """Compare a session for each size with a session of one size; a process's own memory is that of an MLP's."""
        quick = self._options.quick
        bert = self._maker.make_counting_bert("tiny" if quick else "base", "fp32" if quick else "fp16")
        mlp = self._maker.make("mlp", "fp32", "float32")
        largest = _MEMORY_SIZES[-1:]
        process, one, each = (
            self._memory_bytes(model, sizes)
            for model, sizes in ((mlp, largest), (bert, largest), (bert, _MEMORY_SIZES))
        )
        self.found.values["sizes memory"] = (each - process) / max(1, one - process)
        named = " and ".join(f"{figures >> 20} MiB" for figures in (one, each))
        sizes = ", ".join(map(str, _MEMORY_SIZES))
        self.found.notes.append(
            f"{bert.name}: {named} with batches of {largest[0]} and of {sizes} rows, "
            f"and {process >> 20} MiB for a process with an MLP"
        )

    def _memory_bytes(self, model: GpuModel, sizes: Sequence[int]) -> int:
        """Serve a model with these sizes of batches; returns how much more of the GPU's memory is used."""
        before_bytes = used_bytes()
        with self._server(model, sizes[-1], settings={"batch_buckets": list(sizes)}) as server:
            server.check()
            taken_bytes = used_bytes() - before_bytes
            if (
                model.network == "bert"
                and self._options.device != "cpu"
                and _OWN_SESSIONS not in server.log()
            ):
                raise BenchedServerError("the model was not captured in a session for each size")
        return taken_bytes

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
        if not figures.memory_bytes:
            raise BenchedServerError("there is no GPU whose memory could be read")
        values["demand memory"] = max(figures.memory_bytes) / (_DEMAND_MB << 20)

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
        mlp = self._maker.make("mlp", "tf32", "float32")
        in_fp16 = replace(mlp, precision="fp16")
        device, seconds = self._options.device, self._options.seconds
        for key, model, xla in (("tensorflow", mlp, {"xla": True}), ("tensorflow fp16", in_fp16, {})):
            folder = self._folder / key.replace(" ", "-")
            alone = measure_tensorflow(folder, device, self._maker.seed, 64, seconds, fp16=not xla)
            saved = replace(model, path=folder, reference=mlp.path)
            with self._server(saved, 64, settings={**xla, "batch_buckets": [1, 8, 64]}) as server:
                server.check()
                self.found.values[key] = self._load_row(server, 256).requests_per_s / alone

    def _how_to(self) -> None:
        if self._options.quick:
            self._require_gpu()
        if find_spec("tensorflow") is None:
            raise BenchedServerError(NO_TENSORFLOW)
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

    def _pytorch(self, sizes: str, exported: Path) -> Sequence[Alone]:
        """Measure the same network in PyTorch and export it, or take the figures that were measured before."""
        say("BERT, PyTorch alone")
        seconds = 0.02 if self._options.quick else 0.7
        device, seed = self._options.device, self._maker.seed
        try:
            return measure_pytorch(sizes, exported, device, seed, _BERT_ROWS, seconds)
        except OperatorError as error:
            self.found.notes.append(f"BERT is compared with figures of 2026-11-26: {error}")
            return PYTORCH

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
