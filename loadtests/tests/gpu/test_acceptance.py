"""The steps that measure the bounds for a GPU, and peers on the same device."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stoker_bench.contestants.servers import post
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import GeneratorError
from stoker_bench.gpu import acceptance, alone, used_memory
from stoker_bench.gpu.acceptance import AcceptanceBench, AcceptanceOptions, quick
from stoker_bench.gpu.aims import AIMS
from stoker_bench.gpu.ceiling import measure_ceiling
from stoker_bench.gpu.models import ModelMaker
from stoker_bench.gpu.peers import PEERS, GpuPeer


def test_a_failure_leaves_the_other_bounds_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that a failed step lacks are noted with the reason; those that it has measured stay."""

    def half(bench: AcceptanceBench) -> None:
        bench.found.values["closed 512"] = 1.0
        raise BenchedServerError("the server ended")

    def whole(bench: AcceptanceBench) -> None:
        bench.found.values["lone mlp"] = 2.0

    others = ("_sizes_memory", "_on_demand", "_sharing", "_tensorrt", "_tensorflow", "_how_to", "_tests")
    for name in ("_resnet50", "_images", "_large_rows", "_bert", *others):
        monkeypatch.setattr(AcceptanceBench, name, half)
    monkeypatch.setattr(AcceptanceBench, "_mlp", whole)
    found = AcceptanceBench(AcceptanceOptions("cpu"), tmp_path).run()
    assert found.values == {"closed 512": 1.0, "lone mlp": 2.0}
    assert set(found.reasons) == set(AIMS) - set(found.values)
    assert found.reasons["poisson"] == "the server ended"


def test_photograph_has_its_own_size() -> None:
    """500 × 375 pixels, and not the size of the model's images."""
    image = Image.open(io.BytesIO(acceptance._photo()))
    assert (image.format, image.size, image.mode) == ("JPEG", (500, 375), "RGB")


@pytest.mark.parametrize(("frontends", "callers"), [(1, 64), (8, 512)])
def test_no_more_photographs_wait_than_the_frontends_let_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frontends: int, callers: int
) -> None:
    """512 callers of one frontend were refused, and the bound was not measured."""
    loads: list[tuple[bytes, int]] = []

    def load(_: AcceptanceBench, request: bytes, callers: int, during: list[float]) -> SimpleNamespace:
        loads.append((request, callers))
        during.append(7.5)
        return SimpleNamespace(requests_per_s=7000.0)

    server = SimpleNamespace(image_request=lambda image: image, count_cores=lambda cores: cores)
    ceiling = SimpleNamespace(rows_per_s=7500.0)
    monkeypatch.setattr(AcceptanceBench, "_server", lambda *_, **__: contextlib.nullcontext(server))
    monkeypatch.setattr(AcceptanceBench, "_ceiling", lambda *_: ceiling)
    monkeypatch.setattr(AcceptanceBench, "_load", load)
    options = dataclasses.replace(quick(AcceptanceOptions("cpu")), frontends=frontends)
    bench = AcceptanceBench(options, tmp_path)
    bench._images()
    assert set(loads) == {(acceptance._photo(), callers)}
    assert bench.found.is_met("images")
    assert bench.found.is_met("image cores")


def test_a_small_bert_is_measured_alone_in_the_form_that_is_fused(tmp_path: Path) -> None:
    """Each batch size runs as exported and, in a session of its own, fused; requests hold token ids."""
    model = ModelMaker(tmp_path).make_bert("tiny", "fp32")
    ceiling = measure_ceiling(model, "cpu", (1, 4), 0.001)
    assert ceiling.failures == ()
    assert [(each.way, each.rows) for each in ceiling.batches] == [
        *[("bound", 1), ("bound", 4), ("fused", 1), ("fused", 4)]
    ]
    assert model.outputs()(np.full((3, 16), 0.5, np.float32)).shape == (3, 2)


@pytest.mark.parametrize(("is_installed", "note"), [(False, "PyTorch is not installed"), (True, "no CUDA")])
def test_without_pytorch_bert_is_compared_with_earlier_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool, note: str
) -> None:
    """This holds for a failing PyTorch too; the table names the earlier figures."""

    def fail(*_: object) -> str:
        raise GeneratorError("no CUDA")

    monkeypatch.setattr(alone, "find_spec", lambda _: object() if is_installed else None)
    monkeypatch.setattr(alone, "output_of", fail)
    bench = AcceptanceBench(AcceptanceOptions("cpu"), tmp_path)
    figures = bench._pytorch("base", tmp_path / "bert.pt2")
    assert [(each.rows, round(each.rows_per_s), round(each.ms, 2)) for each in figures] == [
        *[(1, 1562, 0.64), (64, 15225, 4.2)]
    ]
    bench.found.alone += figures
    lines = bench.found.table().splitlines()
    assert f"BERT is compared with figures of 2026-11-26: {note}" in lines
    assert lines[-1].split()[-3:] == ["64", "15,225", "4.20"]


def test_pytorch_measures_the_network_that_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sizes, weights and batch sizes, on the same device; its figures are taken."""
    commands: list[list[str]] = []

    def measure(command: list[str], _: float) -> str:
        commands.append(command)
        figures = [{"rows": 1, "rows_per_s": 1000, "ms": 1.0}, {"rows": 64, "rows_per_s": 9000, "ms": 7.1}]
        return f"a warning\n{json.dumps(figures)}\n"

    monkeypatch.setattr(alone, "find_spec", lambda _: object())
    monkeypatch.setattr(alone, "output_of", measure)
    figures = AcceptanceBench(AcceptanceOptions("cuda:1"), tmp_path)._pytorch("base", tmp_path / "bert.pt2")
    assert [(each.rows, each.rows_per_s, each.ms) for each in figures] == [(1, 1000, 1.0), (64, 9000, 7.1)]
    (words,) = map(" ".join, commands)
    assert "--device cuda:1 --sizes base --seed 7" in words
    assert words.endswith("bert.pt2 --batches 1 64")


def test_load_time_is_read_from_the_log() -> None:
    """Loading and warming up together."""
    assert acceptance._load_s("x\n  loaded in 2.25 s, warm after 0.50 s, batches of") == 2.75
    with pytest.raises(BenchedServerError, match="how long"):
        acceptance._load_s("nothing")


def test_a_peer_answers_rows_as_bytes(tmp_path: Path) -> None:
    """The hand-written service starts on the CPU, its answer is checked, and it is gone afterwards."""
    model = ModelMaker(tmp_path).make("mlp", "fp32", "float32")
    with PEERS[0].start(model, "cpu", tmp_path) as request:
        status, body = post(request.host, request.port, request.path, request.body, request.headers)
        assert (status, len(np.frombuffer(body, np.float32))) == (200, 10)
    assert post(request.host, request.port, request.path, request.body, request.headers)[0] != 200


def test_a_peer_that_is_not_installed_is_named(tmp_path: Path) -> None:
    """It costs nothing but its line."""
    model = ModelMaker(tmp_path).make("mlp", "fp32", "float32")
    peer = GpuPeer("none", "none.py", "no_such_package")
    with pytest.raises(BenchedServerError, match="no_such_package is not installed"):
        peer.start(model, "cpu", tmp_path).__enter__()


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("_tensorflow", "TensorFlow"),
        ("_how_to", "TensorFlow"),
        ("_tensorrt", "TensorRT"),
        ("_tests", "pytest"),
    ],
)
def test_missing_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, why: str
) -> None:
    """A row without what it needs has its reason; nothing is started."""
    for module in (acceptance, alone):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    bench = AcceptanceBench(AcceptanceOptions("cuda:0"), tmp_path)
    with pytest.raises(BenchedServerError, match=why):
        getattr(bench, step)()
    with pytest.raises(BenchedServerError, match="on a GPU"):
        getattr(AcceptanceBench(quick(AcceptanceOptions("cuda:0")), tmp_path), step)()


def test_failed_tests_are_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both failures and errors count; a run without tests is no figure."""
    output = "FAILED tests/gpu/a.py::b\nERROR tests/gpu/c.py::d\nx FAILED\n"
    ended = SimpleNamespace(returncode=1, stdout=output)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    bench = AcceptanceBench(AcceptanceOptions("cuda:0"), tmp_path)
    bench._tests()
    assert bench.found.values["tests"] == 2
    assert bench.found.notes == output.splitlines()[:2]
    ended.returncode = 5
    with pytest.raises(BenchedServerError, match="ended with 5"):
        bench._tests()


def use_memory(monkeypatch: pytest.MonkeyPatch, readings: Iterable[int]) -> None:
    """Let a GPU have these bytes in use, one after the other."""
    used = iter(readings)
    monkeypatch.setattr(used_memory, "gpus", lambda: [SimpleNamespace(uuid="GPU-1")])
    monkeypatch.setattr(
        used_memory, "read_memory", lambda _: {"GPU-1": SimpleNamespace(used_bytes=next(used))}
    )


@pytest.mark.long
def test_memory_of_sessions_is_compared_without_that_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An MLP, then a model with one size and with four; each is served, and read before and after."""
    use_memory(monkeypatch, (mib << 20 for mib in (50, 550, 60, 960, 70, 1170)))
    bench = AcceptanceBench(quick(AcceptanceOptions("cpu")), tmp_path)
    bench._sizes_memory()
    assert bench.found.values["sizes memory"] == (1100 - 500) / (900 - 500)
    assert not bench.found.is_met("sizes memory")
    assert bench.found.notes == [
        "bert fp32, int64 input: 900 MiB and 1100 MiB with batches of 64 and of 1, 8, 32, 64 rows, "
        "and 500 MiB for a process with an MLP"
    ]


@pytest.mark.parametrize("kind", ["a session for each size with shared weights", "one session for all sizes"])
def test_memory_of_sessions_needs_a_model_with_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """If a GPU runs all sizes in one session, there is nothing to compare."""
    use_memory(monkeypatch, range(6))
    log = f"bench: execution graph, {kind}, 2 batches in flight; graph fused"
    server = SimpleNamespace(check=lambda: None, log=lambda: log)
    monkeypatch.setattr(AcceptanceBench, "_server", lambda *_, **__: contextlib.nullcontext(server))
    bench = AcceptanceBench(quick(AcceptanceOptions("cuda:0")), tmp_path)
    if kind.startswith("one"):
        with pytest.raises(BenchedServerError, match="not captured in a session for each size"):
            bench._sizes_memory()
    else:
        bench._sizes_memory()
        assert "sizes memory" in bench.found.values


@pytest.mark.long
def test_models_on_demand_are_measured_beside_a_loaded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of another model is counted as wrong, and the memory is read each second."""
    use_memory(monkeypatch, range(0, 10_000, 100))
    bench = AcceptanceBench(quick(AcceptanceOptions("cpu")), tmp_path)
    bench._on_demand()
    values = bench.found.values
    assert values["demand wrong"] == 0
    assert values["demand p99"] > 0
    (note,) = bench.found.notes
    assert note.startswith("4 models on demand: ")


@pytest.mark.long
def test_models_that_share_a_device_are_compared_and_its_loss_is_noticed(tmp_path: Path) -> None:
    """On the CPU, with two models."""
    bench = AcceptanceBench(quick(AcceptanceOptions("cpu")), tmp_path)
    bench._sharing()
    assert 0 < bench.found.values["sharing"] <= 1
    assert bench.found.is_met("lost")


def serve_rates(monkeypatch: pytest.MonkeyPatch, *rates: float) -> list[dict[str, Any]]:
    """Let servers answer so many rows a second, one after the other; returns the list of their settings."""
    settings: list[dict[str, Any]] = []
    left = iter(rates)

    def start(*_: object, **options: Any) -> Any:
        settings.append(options["settings"])
        return contextlib.nullcontext(SimpleNamespace(check=lambda: None))

    monkeypatch.setattr(AcceptanceBench, "_server", start)
    monkeypatch.setattr(AcceptanceBench, "_load_row", lambda *_: SimpleNamespace(requests_per_s=next(left)))
    for module in (acceptance, alone):
        monkeypatch.setattr(module, "find_spec", lambda _: object())
    return settings


def test_tensorrt_is_compared_with_the_provider_that_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same model, load and server, with one setting changed."""
    settings = serve_rates(monkeypatch, 8000.0, 9000.0)
    monkeypatch.setattr(ModelMaker, "make", lambda *_: None)
    bench = AcceptanceBench(AcceptanceOptions("cuda:0"), tmp_path)
    bench._tensorrt()
    assert settings == [{"provider": "cuda"}, {"provider": "tensorrt"}]
    assert bench.found.values["tensorrt"] == 9000 / 8000


def test_a_saved_model_is_compared_with_tensorflow_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow writes and measures it in a process of its own: by XLA, then in FP16 without."""
    settings = serve_rates(monkeypatch, 90_000.0, 120_000.0)
    commands: list[list[str]] = []

    def measure(command: list[str], _: float) -> str:
        commands.append(command)
        return 'a warning\n{"rows_per_s": 100000}\n'

    monkeypatch.setattr(alone, "output_of", measure)
    bench = AcceptanceBench(AcceptanceOptions("cuda:0"), tmp_path)
    bench._tensorflow()
    assert settings == [{"xla": True, "batch_buckets": [1, 8, 64]}, {"batch_buckets": [1, 8, 64]}]
    assert ["--fp16" in command for command in commands] == [False, True]
    assert bench.found.values == {"tensorflow": 0.9, "tensorflow fp16": 1.2}


@pytest.mark.long
@pytest.mark.tensorflow
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_the_tensorflow_1_script_is_served_and_its_classes_are_compared(tmp_path: Path) -> None:
    """On the CPU too, it gives the classes of its model."""
    options = AcceptanceOptions("cpu", seconds=0.3, processes=1, frontends=1)
    bench = AcceptanceBench(options, tmp_path)
    bench._how_to()
    assert bench.found.values["how-to"] == 0
    assert bench.found.is_met("how-to")
    (note,) = bench.found.notes
    assert note.startswith("TensorFlow 1 script, 64 callers: ")
