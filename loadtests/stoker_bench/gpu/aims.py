"""The bounds for a GPU, and what a measurement found of each, as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from stoker_bench.gpu.alone import Alone
from stoker_bench.reports import aligned, figure


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
    "bert lone": Aim("the same, lone caller, the faster runtime, of PyTorch's rate with 1 row", 0.8, "0.29"),
    "bert torch": Aim("the same, 256 callers, served by the PyTorch runtime", 0.97, "-"),
    "poisson 100": Aim("Poisson arrivals, p99 ≤ 100 ms, of the ceiling", 0.99, "-"),
    "load": Aim("load of ResNet-50, s", 4.0, "14.5", at_least=False),
    "load again": Aim("the same, from the workspace's cache, s", 1.5, "-", at_least=False),
    "images": Aim("JPEG 500 × 375 to an answer, of the ceiling", 0.9, "0.23"),
    "image cores": Aim("the same, busy cores of the server", 8, "-", at_least=False),
    "sizes memory": Aim("BERT, a session for each of 4 sizes, memory, × one size", 1.3, "-", at_least=False),
    "tensorflow": Aim("SavedModel with XLA, 256 callers, of TensorFlow alone", 0.9, "-"),
    "tensorflow fp16": Aim("the same in FP16, without XLA", 0.9, "-"),
    "how-to": Aim("TensorFlow 1 script of Azure's how-to, wrong answers", 0, "-", at_least=False),
    "tensorrt": Aim("ResNet-50 FP16 by TensorRT, 64 callers, of ONNX Runtime's CUDA provider", 1.0, "-"),
    "demand wrong": Aim("200 models on demand, answers of another model", 0, "-", at_least=False),
    "demand memory": Aim("the same, memory at each second, of the budget", 1.0, "-", at_least=False),
    "demand p99": Aim("the same, p99 of a loaded model beside loads, × without", 1.5, "-", at_least=False),
    "sharing": Aim("8 models that share the card, lowest rate of the mean", 0.5, "-"),
    "lost": Aim("a killed device process, seconds until its callers have an error", 2.0, "-", at_least=False),
    "tests": Aim("tests/gpu, tests that failed", 0, "-", at_least=False),
}


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
