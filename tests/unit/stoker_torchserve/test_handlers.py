"""Handlers of TorchServe that need no PyTorch: found, initialised, called with the rows of several requests."""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.torchserve_archives import ECHO_HANDLER, loaded_handler, manifest_of, write_folder

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.scripts.request_batch_choice import choose_request_batches
from stoker.scripts.request_batches import RequestBatches
from stoker.wire.script_requests import RequestHead, ScriptAnswer, ScriptRequest
from stoker_torchserve.examples import make_examples
from stoker_torchserve.handlers import HandlerRun
from stoker_torchserve.ts.context import Context
from stoker_torchserve.ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from stoker_torchserve.ts.torch_handler.vision_handler import VisionHandler
from stoker_torchserve.ts.utils.util import PredictionException
from stoker_torchserve.ts_imports import install, uninstall

Load = Callable[..., HandlerRun]

CLASS_HANDLER = """
from ts.torch_handler.base_handler import BaseHandler
import helper


class Steps(BaseHandler):
    def initialize(self, context):
        self.context = context
        self.steps = ["initialize"]
        self.factor = context.model_yaml_config["factor"]

    def preprocess(self, data):
        self.steps.append(f"preprocess {len(data)}")
        return [int(row["body"]) for row in data]

    def inference(self, data):
        self.steps.append("inference")
        return [self.factor * number + helper.ADDED for number in data]

    def postprocess(self, data):
        self.steps.append("postprocess")
        return [{"number": number, "steps": list(self.steps)} for number in data]
"""
STEPS = manifest_of("steps", "steps.py", configFile="c.yaml")
STEPS_FILES: dict[str, str | bytes] = {
    "steps.py": CLASS_HANDLER,
    "helper.py": "ADDED = 1",
    "c.yaml": "factor: 10",
}


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Load a handler, as its process does."""
    with ExitStack() as loaded:

        def load(manifest: dict[str, Any], files: dict[str, str | bytes], device: str = "cpu") -> HandlerRun:
            return loaded.enter_context(loaded_handler(write_folder(tmp_path, manifest, files), device))

        yield load


def make_request(body: bytes, kind: str = "text/plain") -> ScriptRequest:
    head = RequestHead("POST", "/score", "", [("content-type", kind), ("X-Mine", "1")], "127.0.0.1")
    return ScriptRequest(b"id-7", body, head=head)


def answers_of(run: HandlerRun, *bodies: bytes) -> list[ScriptAnswer]:
    return RequestBatches(run).answers([make_request(body) for body in bodies])


def one_module(handler: str, code: str, **fields: Any) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    return manifest_of("m", handler, **fields), {handler.partition(":")[0]: code}


def test_a_function_is_initialised_by_a_call_without_rows(load: Load) -> None:
    """And then gets the rows of several requests."""
    run = load(*one_module("echo_handler.py", ECHO_HANDLER))
    found = [json.loads(answer.body) for answer in answers_of(run, b"a", b"b")]
    assert found == [{"model": "m", "got": name, "kind": "str"} for name in ("a", "b")]


def test_a_class_is_called_in_the_documented_order(load: Load) -> None:
    """One call for all rows; modules beside it are imported, and its configuration is read."""
    run = load(STEPS, STEPS_FILES)
    first, second = (json.loads(answer.body) for answer in answers_of(run, b"1", b"2"))
    assert (first["number"], second["number"]) == (11, 21)
    assert first["steps"] == ["initialize", "preprocess 2", "inference", "postprocess"]


def test_one_bad_request_costs_the_others_nothing(load: Load) -> None:
    """Its caller gets the handler's own status, or 500 if the handler raises."""
    run = load(*one_module("echo_handler.py", ECHO_HANDLER))
    answers = answers_of(run, b"a", b"refuse", b"b", b"fail", b"teapot", b"c")
    assert [answer.status for answer in answers] == [200, 404, 200, 500, 418, 200]
    assert json.loads(answers[1].body)["message"] == "no such word"
    assert "error_id" in json.loads(answers[3].body)
    assert answers[4].body == b"tea"
    assert b"x-pot: tea\r\n" in answers[4].lines
    assert json.loads(answers[5].body)["got"] == "c"


def test_a_malformed_request_does_not_reach_the_handler(load: Load) -> None:
    """Nor has it a part in the others' call."""
    run = load(STEPS, STEPS_FILES)
    answers = RequestBatches(run).answers(
        [make_request(b"1"), make_request(b"--", "multipart/form-data"), make_request(b"2")]
    )
    assert [answer.status for answer in answers] == [200, 400, 200]
    assert json.loads(answers[0].body)["steps"][1] == "preprocess 2"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def handle(data, context):\n    return [] if data else None", "handle() returned 0 for 1 requests"),
        (
            "def handle(data, context):\n    return 'text' if data else None",
            "handle() returned str for 1 requests",
        ),
        ("def handle(data, context):\n    return [object()] if data else None", "not JSON serializable"),
    ],
)
def test_a_wrong_answer_is_the_handlers_fault(
    load: Load, code: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets 500, and the log says why."""
    (answer,) = answers_of(load(*one_module("h.py", code)), b"1")
    assert (answer.status, answer.failed) == (500, True)
    assert message in caplog.text


def test_another_function_or_class_can_be_named(load: Load) -> None:
    """Behind a colon."""
    code = "def score(data, context):\n    return data and ['scored']\n\n\ndef handle(data, context): 1 / 0"
    assert answers_of(load(*one_module("h1.py:score", code)), b"")[0].body == b"scored"
    code = (
        "class A:\n    def initialize(self, context): pass\n    def handle(self, data, context): return ['a']\n\n\n"
        "class B(A):\n    def handle(self, data, context): return ['b']\n"
    )
    assert answers_of(load(*one_module("h2.py:B", code)), b"")[0].body == b"b"


@pytest.mark.parametrize(
    ("handler", "code", "message"),
    [
        ("h3.py", "class A: pass\n\n\nclass B: pass", "its classes: A, B"),
        ("h4.py", "x = 1", "its classes: none"),
        (
            "h5.py",
            "class A:\n    def handle(self, data, context): pass",
            r"class A of the handler has no initialize\(\)",
        ),
        ("h6.py:other", "def handle(data, context): pass", "h6.py has no other"),
        ("json.py", "def handle(data, context): pass", "json.py is called like a module of Python"),
        (
            "h7.py",
            "import ts.torch_handler.dali_image_classifier",
            "a part of TorchServe that Stoker does not provide",
        ),
    ],
)
def test_handler_that_cannot_be_loaded_is_named(load: Load, handler: str, code: str, message: str) -> None:
    """Loading fails with one sentence that names the handler."""
    with pytest.raises((LoadFailed, ImportError), match=message):
        load(*one_module(handler, code))


def test_an_unknown_default_handler_is_refused(load: Load) -> None:
    """With those that there are."""
    with pytest.raises(
        LoadFailed, match=r"the handler vllm_handler is neither .* base_handler, image_classifier"
    ):
        load(manifest_of("m", "vllm_handler"), {})


def test_context_has_the_device_and_the_folder(load: Load) -> None:
    """It has the number of the GPU, none on the CPU; the folder is the working directory."""
    code = "def handle(data, context):\n    return [context.system_properties] if data else None"
    for device, gpu_id in (("cpu", None), ("cuda:0", 0)):
        (answer,) = answers_of(load(*one_module("h8.py", code), device=device), b"")
        found = json.loads(answer.body)
        assert (found["gpu_id"], found["model_dir"], found["batch_size"]) == (gpu_id, str(Path.cwd()), 1)
    assert os.environ.get("OMP_NUM_THREADS") == os.environ.get("STOKER_INTRA_OP_THREADS")


def test_the_context_knows_the_request(load: Load) -> None:
    """Its id and its headers."""
    code = (
        "def handle(data, context):\n"
        "    return data and [[context.get_request_id(i), context.get_request_header(i, 'x-mine')] for i in (0, 1)]"
    )
    answers = answers_of(load(*one_module("h9.py", code)), b"", b"")
    assert [json.loads(answer.body) for answer in answers] == [["id-7", "1"]] * 2


def test_explanations_are_refused(load: Load) -> None:
    """With a sentence, in the handler that has them in TorchServe."""
    handler = importlib.import_module("stoker_torchserve.ts.torch_handler.base_handler").BaseHandler()
    with pytest.raises(NotImplementedError, match="explanations are not offered"):
        handler.explain_handle(None, None)


def test_the_check_lets_requests_share_a_call(load: Load, tmp_path: Path) -> None:
    """With a sample that the handler answers; one that mixes rows is called with one request at a time."""
    sample = tmp_path / "sample_input.json"
    sample.write_text('{"x": [1.0, 2.0, 3.0]}', encoding="ascii")
    for number, (expression, batching) in enumerate(
        [("sum(row['body']['x'])", "requests"), ("sum(row['body']['x']) - len(data)", "none")]
    ):
        code = f"def handle(data, context):\n    return data and [{expression} for row in data]"
        run = load(*one_module(f"c{number}.py", code))
        deployment = Deployment(
            "m", 1, "script", tmp_path, tmp_path, max_batch_rows=8, max_body_bytes=1 << 20
        )
        form = choose_request_batches(run, deployment, RequestBatches(run))
        assert form.batching == batching, form.batching_reason


@pytest.mark.parametrize(
    ("name", "content"), [("s.json", b'{"text": "some good words"}'), ("s.txt", b"a b c d")]
)
def test_examples_are_unlike_the_sample(tmp_path: Path, name: str, content: bytes) -> None:
    """But for the first, which is the sample."""
    (tmp_path / name).write_bytes(content)
    made = make_examples(tmp_path / name, 6, images=False)
    assert made[0].body == content
    assert len({request.body for request in made}) == len(made) >= 4
    assert make_examples(None, 6, images=False) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [("s.json", b"{"), ("s.json", b"[" * 100_000), ("s.txt", b"\xff"), ("s.png", b"no image")],
)
def test_sample_that_contradicts_its_name_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    """It is an error of the operator, without a traceback."""
    pytest.importorskip("PIL.Image")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LoadFailed, match="the sample input cannot be read"):
        make_examples(tmp_path / name, 6, images=False)


@pytest.mark.parametrize("sent", ["no base64", "ü", b"no image"])
def test_an_image_that_cannot_be_read_is_its_callers_fault(sent: str | bytes) -> None:
    """As text or bytes: 400, which is no failure of the model."""
    pytest.importorskip("PIL.Image")
    with pytest.raises(PredictionException, match="image") as refused:
        VisionHandler().preprocess([{"body": sent}])
    assert refused.value.error_code == 400


def test_examples_of_images_are_images(tmp_path: Path) -> None:
    """Of the sample's size and mode; without a sample they are made up."""
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "s.png"
    image.radial_gradient("L").resize((28, 28)).save(path)
    for made, size in ((make_examples(path, 6, images=True), 28), (make_examples(None, 3, images=True), 224)):
        assert len({request.body for request in made}) == len(made) >= 3
        for request in made:
            (tmp_path / "made.png").write_bytes(request.body)
            with image.open(tmp_path / "made.png") as opened:
                assert opened.size == (size, size)


def test_metrics_are_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """With their unit, their dimensions and the request."""
    caplog.set_level(logging.INFO)
    install()
    try:
        Dimension = importlib.import_module("ts.metrics.dimension").Dimension  # noqa: N806
        MetricTypes = importlib.import_module("ts.metrics.metric_type_enum").MetricTypes  # noqa: N806
    finally:
        uninstall()
    metrics = MetricsCacheYamlImpl(None, "m")
    metrics.set_request_ids({0: "id-0", 1: "id-1"})
    metrics.add_counter("Loops", 2, 1, [Dimension("Kind", "a")])
    metrics.add_time("Step", 3.5)
    metrics.add_size("Body", 7, unit="kB")
    metrics.add_percent("Full", 50)
    metrics.add_error("Lost", 1)
    metrics.add_metric_to_cache("Own", "count", ["Kind"], MetricTypes.COUNTER)
    metrics.get_metric("Own").add_or_update(4, ["b"])
    metrics.add_metric("Rows", 3, "count", metric_type=MetricTypes.HISTOGRAM)
    lines = [record.message.removeprefix("[METRICS]").partition("|#hostname:") for record in caplog.records]
    assert [(line, end.partition(",")[2].partition(",")[2]) for line, _, end in lines] == [
        ("Loops.Count:2|#Kind:a,ModelName:m,Level:Model|#type:COUNTER", "id-1"),
        ("Step.Milliseconds:3.5|#ModelName:m,Level:Model|#type:GAUGE", "id-0,id-1"),
        ("Body.Kilobytes:7|#ModelName:m,Level:Model|#type:GAUGE", "id-0,id-1"),
        ("Full.Percent:50|#ModelName:m,Level:Model|#type:GAUGE", "id-0,id-1"),
        ("Lost.unit:1|#Level:Error|#type:COUNTER", ""),
        ("Own.Count:4|#Kind:b|#type:COUNTER", ""),
        ("Rows.Count:3|#ModelName:m,Level:Model|#type:HISTOGRAM", "id-0,id-1"),
    ]
    with pytest.raises(ValueError, match="the unit of Step is one of ms, s, not h"):
        metrics.add_time("Step", 1, unit="h")


def test_metric_that_cannot_have_a_value_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """Other dimensions than the declared ones, and a counter that decreases, are errors of the log."""
    metrics = MetricsCacheYamlImpl(None, "m")
    cached = metrics.add_metric_to_cache("Own", "count", ["Kind"])
    cached.add_or_update(1, [])
    cached.add_or_update(-1, ["a"])
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "its dimensions are ['Kind'], and their values []" in caplog.text
    assert "a counter cannot decrease" in caplog.text


def test_metrics_of_metrics_yaml_are_found_by_type_and_name(tmp_path: Path) -> None:
    """Those of all types are there before the handler is initialised; TorchServe's own where no file is named."""
    file = tmp_path / "metrics.yaml"
    file.write_text(
        "dimensions:\n  - &m ModelName\nts_metrics:\n  counter: []\nmodel_metrics:\n"
        "  counter:\n    - {name: Calls, unit: count, dimensions: [*m]}\n"
        "  gauge:\n    - {name: Rows, unit: count, dimensions: []}\n"
        "  histogram:\n    - {name: Size, unit: kB, dimensions: [*m, Kind]}\n"
    )
    metrics = MetricsCacheYamlImpl(str(file), "m")
    metrics.initialize_cache()
    assert metrics.cache_keys() == ["counter:Calls", "gauge:Rows", "histogram:Size"]
    found = metrics.get_metric("Size", next(kind for kind in metrics.cache if kind.value == "histogram"))
    assert (found.unit, found.dimension_names) == ("Kilobytes", ["ModelName", "Kind"])
    with pytest.raises(KeyError, match="no counter Rows: declare it under model_metrics"):
        metrics.get_metric("Rows")
    own = MetricsCacheYamlImpl(None, "m")
    own.initialize_cache()
    assert own.cache_keys() == ["gauge:HandlerTime", "gauge:PredictionTime"]


def test_classes_get_their_names(tmp_path: Path) -> None:
    """In each of the forms of `index_to_name.json`."""
    util = importlib.import_module("stoker_torchserve.ts.utils.util")
    for content, expected in (
        ({"0": "cat", "1": ["n02", "dog"]}, {"0": "cat", "1": "dog"}),
        ({"object_type_names": ["cat", "dog"]}, {"0": "cat", "1": "dog"}),
    ):
        (tmp_path / "index_to_name.json").write_text(json.dumps(content), encoding="ascii")
        assert util.load_label_mapping(tmp_path / "index_to_name.json") == expected
    assert util.load_label_mapping(tmp_path / "none.json") is None
    mapped = util.map_class_to_label([[0.9, 0.1]], {"0": "cat", "1": "dog"}, [[1, 0]])
    assert mapped == [{"dog": 0.9, "cat": 0.1}]
    assert util.map_class_to_label([[0.9, 0.1]]) == [{"0": 0.9, "1": 0.1}]
    with pytest.raises(TypeError, match="probs has to be a list"):
        util.map_class_to_label((0.5,))
    for bad in ([], {"0": 1}):
        (tmp_path / "bad.json").write_text(json.dumps(bad), encoding="ascii")
        with pytest.raises(ValueError, match=r"bad\.json"):
            util.load_label_mapping(tmp_path / "bad.json")


def test_a_profiled_handler_times_its_steps(caplog: pytest.LogCaptureFixture) -> None:
    """Where its configuration says so."""
    caplog.set_level(logging.INFO)
    timed = importlib.import_module("stoker_torchserve.ts.handler_utils.timer").timed

    class Handler:
        def __init__(self, config: dict[str, Any]) -> None:
            self.context = Context("m", "", {}, 1, None, "1", True, MetricsCacheYamlImpl(None, "m"), config)

        @timed
        def inference(self, data: int) -> int:
            return data + 1

    assert Handler({}).inference(1) == 2
    assert not caplog.records
    assert Handler({"handler": {"profile": True}}).inference(1) == 2
    assert "ts_handler_inference.Milliseconds:" in caplog.text
