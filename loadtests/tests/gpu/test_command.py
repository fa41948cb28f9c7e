"""The command line of the bench on a GPU."""

import dataclasses
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from stoker.errors import InvalidSettings
from stoker.settings.loading import load_settings
from stoker_bench.gpu import pinned_memory as pinning
from stoker_bench.gpu.bench import PARTS, GpuBenchOptions
from stoker_bench.gpu.command import main, options_of, parser
from stoker_bench.gpu.models import GpuModel
from stoker_bench.gpu.server import ServingOptions, deployment, takes


def options(*words: str) -> GpuBenchOptions:
    return options_of(parser().parse_args(words))


def test_given_options_replace_the_usual_ones() -> None:
    """A part is that part, `all` is all; other options keep their defaults."""
    assert options("all") == GpuBenchOptions(parts=PARTS)
    assert options("offline", "--batches", "1", "64") == GpuBenchOptions(parts=("offline",), batches=(1, 64))
    given = options("poisson", "--limit-ms", "20", "--poisson-seconds", "2", "--input", "float16")
    assert given.wire_dtype == "float16"
    assert (given.poisson.limit_ms, given.poisson.seconds, given.poisson.confirm_seconds) == (20, 2, 4)


def test_the_commands_of_the_documentation_are_understood() -> None:
    """Every call that the README of the bench shows can be parsed and is one of the bench's."""
    page = (Path(__file__).parents[3] / "loadtests" / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\$ .*loadtests/gpu_bench\.py (.+)$", page, re.MULTILINE)
    assert len(shown) > 4
    for line in shown:
        assert options(*shlex.split(line, comments=True)).parts


def test_given_options_win_over_quick() -> None:
    """Quick settings are those of one small model; an option wins over them."""
    quick = options("all", "--quick", "--device", "cpu", "--callers", "3")
    assert (quick.networks, quick.precisions, quick.callers, quick.device) == (
        ("mlp",),
        ("fp32",),
        (3,),
        "cpu",
    )


@pytest.mark.parametrize(
    "words",
    [("offline", "--callers", "3"), ("serve", "--callers", "0"), ("all", "--models", "vgg"), ()],
)
def test_option_of_another_part_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Options of other parts, bad numbers and unknown models end with usage."""
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_bad_settings_end_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An option of the provider without a value, and a folder that no training made, are errors with their reason."""
    with pytest.raises(InvalidSettings, match="NAME=VALUE, got prefer_nhwc"):
        options("offline", "--provider-option", "prefer_nhwc")
    assert main(["offline", "--device", "cpu", "--mnist", str(tmp_path)]) == 1
    assert "no run folder" in capsys.readouterr().err


def test_the_deployment_file_is_one(tmp_path: Path) -> None:
    """The server can read it; it has the model's precision and the other options."""
    model = GpuModel("resnet50", "fp16", "float16", tmp_path / "model.onnx", "images", (2, 2, 3), "random")
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(deployment(model, ServingOptions("cuda:0", 64, 2, 4, "graph"))))
    settings = load_settings({}, {}, file, ())
    assert (settings.device, settings.frontends) == (("cuda:0",), 4)
    (served,) = settings.models
    assert (served.name, served.max_batch_rows, served.instances) == ("bench", 64, 2)
    assert (served.precision, served.execution) == ("fp16", "graph")
    # Its rows cannot be told in JSON.
    assert takes(model, "binary")
    assert not takes(model, "json")


def test_a_file_of_pytorch_has_the_precision_of_its_weights(tmp_path: Path) -> None:
    """It sets no precision, which the server would refuse; other files have the model's."""
    path = tmp_path / "bert.pt2"
    model = GpuModel("bert", "fp16", "int64", path, "input_ids", (16,), "random", reference=tmp_path)
    assert deployment(model, ServingOptions("cuda:0"))["models"][0].get("precision") is None
    onnx = dataclasses.replace(model, path=path.with_suffix(".onnx"))
    assert deployment(onnx, ServingOptions("cuda:0"))["models"][0]["precision"] == "fp16"


def test_host_memory_is_pinned_where_cuda_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the rows lies in CUDA's memory and is given back; without CUDA there is none."""
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    place = np.zeros(6, np.float32)
    freed: list[int] = []

    class Puppet:
        def host_alloc(self, size_bytes: int) -> int:
            assert size_bytes == rows.nbytes
            return place.ctypes.data

        def host_free(self, address: int) -> None:
            freed.append(address)

    with pinning.pinned(rows, Puppet) as copy:
        assert (copy == rows).all()
        assert copy.ctypes.data == place.ctypes.data
    assert freed == [place.ctypes.data]
    with pinning.pinned(rows) as copy:
        assert copy is None
