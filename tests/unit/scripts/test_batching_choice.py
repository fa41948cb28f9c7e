"""The choice of a script's batching and its reason; and scripts of users, unchanged."""

import argparse
import base64
import dataclasses
import importlib.util
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import simdjson
from tests.puppets import BODIES
from tests.puppets import ROWS as ROWS_OF_TWO
from tests.tiny_models import write_mlp, write_pictures, write_script
from tests.unit.scripts.deploying import deployment

from stoker.commands import serve
from stoker.deployment import Device
from stoker.errors import InvalidSettings
from stoker.models.deployments import resolve
from stoker.runtimes.base import Runtime
from stoker.runtimes.script import load_script
from stoker.script_form import ScriptForm
from stoker.scripts.batching_choice import BatchedCalls, choose_batching
from stoker.scripts.call_watchdog import Watchdog
from stoker.scripts.gathered_calls import MAX_THREADS, GatheredCalls
from stoker.scripts.interception import Interception
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.script_sample import Sample
from stoker.settings.loading import load_settings
from stoker.settings.workspace import Workspace
from stoker.supervisor.reports import ModelReport
from stoker.supervisor.summary import batching_lines
from stoker.tensors import Signature
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest, script_row

SCRIPTS = Path(__file__).parents[2] / "entry_scripts"
ROWS = Sample(b'{"data": [[1.0, 2.0], [3.0, 4.0]]}', "application/json", "rows.json")


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo the changes that loading a script makes to its process."""
    environ = {name: value for name, value in os.environ.items() if name != "AML_APP_ROOT"}
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(Watchdog, "start", lambda self: None)
    made: list[GatheredCalls] = []

    class Closed(GatheredCalls):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            made.append(self)

    monkeypatch.setattr("stoker.scripts.batching_choice.GatheredCalls", Closed)
    yield
    for calls in made:
        calls.close()
    sys.modules.pop("entry_module", None)


def chosen(
    run: Callable[..., Any], sample: Sample | None = ROWS, raw: bool = False, **settings: Any
) -> BatchedCalls:
    """The batching that is chosen for a `run`."""
    return choose_batching(ScriptCalls(run, raw=raw), deployment(**settings), sample)


def by_rows(raw_data: str) -> Any:
    """A script that scores row by row."""
    return [sum(row) for row in json.loads(raw_data)["data"]]


def over_all(raw_data: str) -> Any:
    """A script whose answer depends on all rows."""
    return float(np.mean(json.loads(raw_data)["data"]))


def choice(calls: BatchedCalls) -> tuple[str, int, str]:
    """The way of batching, the most requests at once, and the reason."""
    return calls.form.batching, calls.form.max_requests, calls.form.batching_reason


def test_merging_is_tried_first() -> None:
    """The reason names the sample that proved it."""
    assert choice(chosen(by_rows)) == (
        "merge",
        32,
        "bodies made from rows.json got the same answers merged as alone",
    )


def test_without_a_proof_requests_run_one_by_one() -> None:
    """The reason says for both ways why they are not used."""
    way, most, reason = choice(chosen(over_all))
    assert (way, most) == ("none", 1)
    assert reason == (
        "not by merge: a call with 3 rows failed: the result is float, which has no entry for each row; "
        "not by handle: run() calls no model that is known (ONNX Runtime, Keras, SavedModel, TensorFlow session) on "
        "its thread"
    )


def test_without_a_sample_requests_run_one_by_one() -> None:
    """The reason says how to give a sample."""
    way, most, reason = choice(chosen(by_rows, None))
    assert (way, most) == ("none", 1)
    assert "put sample_input.json beside the script" in reason


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"batching": "none"}, "asked for"), ({"max_batch_rows": 1}, "max_batch_rows is 1")],
)
def test_batching_can_be_switched_off(settings: dict[str, Any], reason: str) -> None:
    """Then the script is not called for a check."""

    def run(raw_data: str) -> None:
        raise AssertionError("called")

    assert choice(chosen(run, **settings)) == ("none", 1, reason)


def test_a_chosen_way_must_be_proved_too(caplog: pytest.LogCaptureFixture) -> None:
    """If the sample disproves the way, the log has a warning with the difference."""
    assert choice(chosen(by_rows, batching="merge"))[0] == "merge"
    assert not caplog.records
    way, _, reason = choice(chosen(over_all, batching="merge"))
    assert way == "none"
    assert reason.startswith("not by merge: ")
    assert "handle" not in reason
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("WARNING", f"batching of digits: none, {reason}")
    assert choice(chosen(by_rows, batching="handle"))[0] == "none"


@pytest.mark.parametrize(("way", "most"), [("merge", 200), ("handle", MAX_THREADS)])
def test_a_way_may_be_chosen_without_a_sample(way: str, most: int) -> None:
    """The reason says that the operator chose it unchecked."""
    calls = chosen(by_rows, None, batching=way, max_batch_rows=200)
    assert choice(calls)[:2] == (way, most)
    assert calls.form.batching_reason.startswith("asked for, unchecked: there is no sample input")
    bodies = [b'{"data": [[1, 2]]}', b'{"data": [[3, 4], [5, 6]]}']
    assert [
        answer.body
        for answer in calls.answers([ScriptRequest(b"id", body, 1 + n) for n, body in enumerate(bodies)])
    ] == [b"[3]", b"[7, 11]"]


def test_raw_requests_are_never_merged() -> None:
    """They are not merged even if the operator chooses it."""
    way, _, reason = choice(chosen(lambda request: 1, None, raw=True, batching="merge"))
    assert (way, reason) == ("none", "not by merge: a @rawhttp script gets each request as it came")


def test_the_form_has_the_key_of_the_sample() -> None:
    """Frontends count the rows under this key."""
    calls = chosen(
        lambda raw_data: [sum(row) for row in json.loads(raw_data)["instances"]],
        msgspec.structs.replace(ROWS, body=ROWS.body.replace(b"data", b"instances")),
    )
    assert (calls.form.batching, calls.form.merge_key) == ("merge", "instances")
    assert msgspec.json.decode(msgspec.json.encode(calls.form), type=ScriptForm) == calls.form


def test_a_refused_way_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The methods of libraries are restored, and no thread is left."""
    removed: list[Interception] = []
    remove = Interception.remove
    monkeypatch.setattr(Interception, "remove", lambda self: (removed.append(self), remove(self)))
    before = threading.active_count()
    chosen(over_all)
    assert len(removed) == 2, "once after its calls were recorded, once after gathering was refused"
    assert threading.active_count() == before


def load(folder: Path, **settings: Any) -> Runtime:
    """Load the script in a folder."""
    return load_script(deployment(folder / "score.py", **settings), Device("cpu", 0, "a processor"), 1)


def scored(runtime: Runtime, bodies: Sequence[bytes]) -> list[ScriptAnswer]:
    """The answers to bodies that wait together, packed as a frontend packs them."""
    form = runtime.signature.script
    assert form is not None
    packed = [script_row(simdjson.Parser(), form, b"id", body, None) for body in bodies]
    return [ScriptAnswer.unpack(answer) for answer in runtime.run([packed])[0]]


def user_script(name: str, folder: Path) -> Path:
    """Write a script of a user into its own folder."""
    script = (SCRIPTS / name / "score.py").read_text()
    return write_script(folder, script).parent


def check_against_single_answers(folder: Path, bodies: Sequence[bytes], expected: str) -> list[Any]:
    """Check that a script gives the same answers batched in the expected way as unbatched; return the answers."""
    single = scored(load(folder, batching="none"), bodies)
    runtime = load(folder)
    assert runtime.signature.script is not None
    assert runtime.signature.script.batching == expected, runtime.signature.script.batching_reason
    batched = scored(runtime, bodies)
    assert [answer.status for answer in batched] == [answer.status for answer in single]
    for mine, theirs in zip(single, batched, strict=True):
        if mine.failed:
            assert theirs.failed
            continue
        leaves, others = flattened(json.loads(mine.body)), flattened(json.loads(theirs.body))
        assert list(leaves) == list(others)
        for path, leaf in leaves.items():
            assert others[path] == (pytest.approx(leaf, rel=1e-5, abs=2e-6) if type(leaf) is float else leaf)
    return [json.loads(answer.body) for answer in batched]


def flattened(value: Any) -> dict[str, Any]:
    """Return the leaves of a JSON value by their place; texts of JSON are parsed."""
    if isinstance(value, str) and value[:1] in "[{":
        value = json.loads(value)
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {f"{key}/{place}": leaf for key, item in items for place, leaf in flattened(item).items()}
    return {"": value}


def png(seed: int, size: tuple[int, int] = (20, 30)) -> str:
    """A picture in base64."""
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="Pillow is not installed")
def test_pictures_are_decoded_by_the_script_and_scored_together(tmp_path: Path) -> None:
    """Pillow and base64 around an ONNX session: the calls to the model are gathered, whatever the pictures' sizes."""
    folder = user_script("clothes", tmp_path)
    write_pictures(folder / "model.onnx")
    (folder / "labels.txt").write_text("shirt\nshoe\ncoat\n")
    (folder / "sample_input.json").write_text(json.dumps({"image": png(0)}))
    bodies = [
        json.dumps({"image": png(seed, (10 + seed, 40 - seed)), "top": 3}).encode() for seed in range(8)
    ]
    bodies[3] = b'{"image": "abc"}'
    bodies[5] = b"{}"
    answers = check_against_single_answers(folder, bodies, "handle")
    assert answers[3] == {"error": "Incorrect padding"}
    assert answers[5] == {"error": "'image'"}
    good = [answer["predictions"] for n, answer in enumerate(answers) if n not in (3, 5)]
    assert all(len(predictions) == 3 for predictions in good)
    assert len({json.dumps(predictions) for predictions in good}) == len(good), (
        "each picture has its own answer"
    )


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_table_rows_are_merged(tmp_path: Path) -> None:
    """With pandas and scikit-learn, records of all callers become one table; a bad record fails alone."""
    folder = user_script("churn", tmp_path)
    write_churn_model(folder / "churn.pkl")
    records = [
        {
            "tenure": 3 + 5 * n,
            "total_charges": 50.5 * n + 20,
            "contract": ("Monthly", "yearly", "TWO-YEAR")[n % 3],
        }
        for n in range(9)
    ]
    (folder / "sample_input.json").write_text(json.dumps({"data": records[:2]}))
    bodies = [json.dumps({"data": records[n : n + 1 + n % 3]}).encode() for n in range(9)]
    bodies[4] = b'{"data": [{"tenure": 3.5, "contract": "yearly"}]}'
    bodies[6] = b"no json"
    answers = check_against_single_answers(folder, bodies, "merge")
    assert answers[4] == "'total_charges'"
    assert answers[6].startswith("Expecting value")
    for n in (0, 1, 2, 3, 5, 7, 8):
        assert len(answers[n]) == len(records[n : n + 1 + n % 3])
    assert len({label for n, answer in enumerate(answers) if n not in (4, 6) for label in answer}) == 2


def write_churn_model(path: Path) -> None:
    """Train and store a pipeline for the table."""
    import joblib
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    random = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "tenure": random.integers(1, 60, 200),
            "total_charges": random.uniform(10, 900, 200),
            "contract": random.choice(["monthly", "yearly", "two-year"], 200),
        }
    )
    table["charges_per_month"] = table["total_charges"] / table["tenure"]
    columns = ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["tenure", "total_charges", "charges_per_month"]),
            ("words", OneHotEncoder(handle_unknown="ignore"), ["contract"]),
        ]
    )
    labels = np.where(table["tenure"] + 0.02 * table["total_charges"] > 36, "stays", "leaves")
    joblib.dump(make_pipeline(columns, LogisticRegression()).fit(table, labels), path)


def test_a_result_written_as_json_is_divided(tmp_path: Path) -> None:
    """Each caller gets the text that it would get alone, with its labels and probabilities."""
    folder = user_script("digits", tmp_path)
    write_mlp(folder / "model.onnx")
    images = np.random.default_rng(2).random((12, 784)).round(3)
    (folder / "sample_input.json").write_text(json.dumps({"data": images[:1].tolist()}))
    counts = [1, 2, 1, 3, 1, 1, 2, 1]
    starts = np.cumsum([0, *counts])
    bodies = [
        json.dumps({"data": images[start : start + count].tolist()}).encode()
        for start, count in zip(starts, counts, strict=False)
    ]
    bodies[2] = b'{"data": [[0.5, 0.5]]}'
    answers = check_against_single_answers(folder, bodies, "merge")
    assert answers[2]["code"] == "model_failed"
    for n, count in enumerate(counts):
        if n != 2:
            result = json.loads(answers[n])
            assert list(result) == ["labels", "probabilities", "model"]
            assert (len(result["labels"]), len(result["probabilities"])) == (count, count)
            assert answers[n] == json.dumps(result)


def test_rows_are_counted_only_for_merging() -> None:
    """The request to the device has the count, which is 0 for a script that is not merged."""

    def rows(form: ScriptForm, body: bytes) -> int:
        return ScriptRequest.unpack(script_row(simdjson.Parser(), form, b"id", body, None)).rows

    merged = ScriptForm(batching="merge")
    assert rows(merged, b'{"data": [[1], [2], [3]]}') == 3
    assert rows(merged, b'{"data": [[1], [2]]}') == 2
    assert rows(merged, b'{"rows": [[1], [2]]}') == 0
    assert rows(msgspec.structs.replace(merged, merge_key="rows"), b'{"rows": [[1], [2]]}') == 2
    assert rows(merged, b"not json") == 0
    assert rows(ScriptForm(batching="handle"), b'{"data": [[1]]}') == 0


def test_the_deployment_file_sets_the_batching_of_a_model(tmp_path: Path) -> None:
    """Paths are relative to the deployment file."""
    (tmp_path / "score.py").write_text("")
    (tmp_path / "sample.json").write_text("")
    file = tmp_path / "deployment.yaml"
    file.write_text(
        "models: [{path: score.py, batching: none, sample_input: sample.json}, {path: score.py, name: b}]"
    )
    settings = load_settings({}, {}, file, ())
    with ExitStack() as leases:
        first, second = (model for model in resolve(settings, Workspace(tmp_path / ".stoker"), leases))
    assert (first.batching, first.sample_input) == ("none", tmp_path / "sample.json")
    assert (second.batching, second.sample_input) == ("auto", None)


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("batching: both", "batching must be auto or merge or handle or rows or none, got 'both'"),
        ("sample_input: nowhere.json", "nowhere.json is not a file"),
    ],
)
def test_bad_settings_stop_the_start(tmp_path: Path, model: str, complaint: str) -> None:
    """The message names the setting and its values."""
    (tmp_path / "score.py").write_text("")
    file = tmp_path / "deployment.yaml"
    file.write_text(f"models: [{{path: score.py, {model}}}]")
    with pytest.raises(InvalidSettings, match=complaint), ExitStack() as leases:
        resolve(load_settings({}, {}, file, ()), Workspace(tmp_path / ".stoker"), leases)


def test_the_command_line_sets_the_batching(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options describe PATH, and are refused without it."""
    monkeypatch.setattr(os, "environ", {})
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)

    def models(*arguments: str) -> list[tuple[str, Path | None]]:
        settings = serve.serve_settings(parser.parse_args(arguments))
        return [(model.batching, model.sample_input) for model in settings.models]

    options = ("--batching", "merge", "--sample-input", "s.json")
    assert models("score.py", *options) == [("merge", Path("s.json"))]
    assert models("score.py") == [("auto", None)]
    with pytest.raises(InvalidSettings, match="--batching and --sample-input describe PATH"):
        models(*options)


def test_the_summary_at_the_start_has_the_batching() -> None:
    """Each script that takes whole requests has one line."""

    def lines(signature: Signature) -> list[str]:
        return batching_lines(ModelReport(deployment(), signature, ["cpu"], 0.5, 0.25, 1))

    form = ScriptForm(batching="handle", batching_reason="it is so")
    assert lines(dataclasses.replace(BODIES, script=form)) == ["           batching: handle, it is so"]
    assert lines(ROWS_OF_TWO) == []
