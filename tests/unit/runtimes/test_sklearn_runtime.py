"""Models of scikit-learn: files, methods, rows, and refusals."""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn
import sklearn.base
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.estimators import COLUMNS, classifier, regression, save

from stoker.deployment import Deployment, Device
from stoker.device import loading
from stoker.errors import InvalidInput, InvalidSettings, LoadFailed
from stoker.gpu.probes import probe
from stoker.runtimes.base import ForkingRuntime, RowFailure, Runtime
from stoker.runtimes.rows_runtime import RowsRuntime
from stoker.runtimes.sklearn import load_sklearn
from stoker.settings.choices import Acceleration, check_acceleration
from stoker.tensors import Signature
from stoker.wire.packed import pack, unpack

CENTRED = '''
class Centred:
    """Its answers depend on the other rows of the batch."""

    n_features_in_ = 2

    def predict(self, rows):
        return rows.sum(axis=1) - rows.mean()


class Pairs:
    """Its answers are no array."""

    n_features_in_ = 2

    def predict(self, rows):
        return [1]


class Numbers:
    """Its numbers are objects of Python."""

    n_features_in_ = 2

    def predict(self, rows):
        return rows[:, 0].astype(object)


class Rounded:
    """Its whole numbers are integers."""

    n_features_in_ = 2

    def predict(self, rows):
        import numpy as np

        return np.array([int(row[0]) if row[0] == int(row[0]) else row[0] for row in rows], object)


class Mixture:
    """It answers with texts and numbers."""

    n_features_in_ = 2

    def predict(self, rows):
        import numpy as np

        return np.array([["text", 1.5]] * len(rows), object)


class Shrinking:
    """It leaves out rows of large numbers."""

    n_features_in_ = 2

    def predict(self, rows):
        return rows[rows[:, 0] < 100]


class Nothing:
    """It has no method."""
'''


@pytest.fixture(autouse=True)
def restore_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the folders that loading adds to the import path, and the module that it imports from there."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("homes_of_tests", None)


def load(path: Path, **settings: Any) -> Runtime:
    deployment = Deployment("homes", 1, "sklearn", path, path.parent, 8, 1000, **settings)
    return load_sklearn(deployment, Device("cpu", 0, "a processor"), os.cpu_count() or 1)


def save_instance(folder: Path, name: str) -> Path:
    """Save an instance of a class in a module beside the file."""
    (folder / "homes_of_tests.py").write_text(CENTRED)
    file = folder / "model.pkl"
    file.write_bytes(b"\x80\x02chomes_of_tests\n%b\n)\x81." % name.encode())
    return file


def test_a_regression_is_rows_of_numbers(tmp_path: Path) -> None:
    """The width is the estimator's. One method is served without packing, and each instance answers alike."""
    runtime = load(save(regression(), tmp_path / "model.pkl"))
    assert isinstance(runtime, RowsRuntime)
    assert isinstance(runtime, ForkingRuntime)
    assert str(runtime.signature) == "data float64[n,2] -> predict float64[n]"
    assert runtime.signature.method == "predict"
    assert runtime.signature.isolation is not None
    assert (runtime.signature.isolation.batched, runtime.signature.isolation.how) == (True, "tested")
    for one in (runtime, runtime.fork()):
        (given,) = one.run([np.array([[2, 30.5], [1, 0]])])
        assert np.allclose(np.asarray(given), [261, 100])


def test_device_process_loads_an_estimator_with_its_sample(tmp_path: Path) -> None:
    """The framework `sklearn` selects the runtime; the sample beside the file is read, and requests are batched."""
    save(regression(), tmp_path / "model.pkl")
    (tmp_path / "sample_input.json").write_text('{"data": [[1, 2], [3, 4]], "method": "predict"}')
    deployment = Deployment("homes", 1, "sklearn", tmp_path / "model.pkl", tmp_path, 8, 1000)
    loaded = loading.load(deployment, Device("cpu", 0, "a processor"))
    assert (loaded.max_batch_rows, loaded.instances, loaded.canary) == (8, 1, None)
    assert loaded.sample is not None
    assert loaded.sample["data"].tolist() == [[1, 2], [3, 4]]


def test_a_classifier_has_both_methods(tmp_path: Path) -> None:
    """Each method is a signature. Protocols of tensors use `predict` by default, Azure's uses the scores."""
    file = tmp_path / "model.joblib"
    joblib.dump(classifier(columns=True), file)
    signature = load(file).signature
    assert [named.name for named in signature.signatures] == ["predict", "predict_proba"]
    assert signature.method == "predict_proba"
    labels, scores = (named.tensors for named in signature.signatures)
    assert [str(info) for info in (*labels.inputs, *labels.outputs)] == [
        "data float64[?,2]",
        "predict string[?]",
    ]
    assert labels.inputs[0].labels == tuple(COLUMNS)
    assert scores.outputs[0].labels == ("flat", "house")
    assert Signature.from_json(signature.to_json()) == signature


def test_requests_of_several_methods_share_a_batch(tmp_path: Path) -> None:
    """The method that a row names answers it, or the first one if it names none."""
    runtime = load(save(classifier(), tmp_path / "model.pkl"))
    small, large = ({"data": np.array([[rooms, 1.0]])} for rooms in (1.0, 4.0))
    (answers,) = runtime.run([[pack(small), pack(large, "predict_proba"), pack(large, "predict")]])
    given = [unpack(bytes(answer)) for answer in answers]
    assert given[0]["predict"].tolist() == [b"flat"]
    assert given[1]["predict_proba"].tolist() == [[0, 1]]
    assert given[2]["predict"].tolist() == [b"house"]


@pytest.mark.parametrize(
    ("wanted", "served", "meant"),
    [
        (("predict_proba",), ["predict_proba"], "predict_proba"),
        (("predict", "*"), ["predict", "predict_proba", "predict_log_proba"], "predict"),
        (("*",), ["predict", "predict_proba", "predict_log_proba"], "predict"),
    ],
)
def test_methods_are_chosen(tmp_path: Path, wanted: tuple[str, ...], served: list[str], meant: str) -> None:
    """The setting names the methods; the first one answers requests that name none."""
    signature = load(save(classifier(), tmp_path / "model.pkl"), signatures=wanted).signature
    assert [named.name for named in signature.signatures] == served
    assert signature.method == meant


def test_a_scaler_is_served_by_its_transform(tmp_path: Path) -> None:
    """An estimator without `predict` has another method; one that writes into its rows gets a copy."""
    scaler = StandardScaler(copy=False).fit([[0.0], [2.0]])
    runtime = load(save(scaler, tmp_path / "model.pkl"))
    batch = np.array([[1.0], [3.0]])
    (given,) = runtime.run([batch])
    assert np.asarray(given).tolist() == [[0], [2]]
    assert batch.tolist() == [[1], [3]]


def test_texts_are_taken(tmp_path: Path) -> None:
    """A pipeline that begins with a vectoriser has no width, and takes a text for each row."""
    words = make_pipeline(CountVectorizer(), MultinomialNB()).fit(["good film", "bad film"], [1, 0])
    runtime = load(save(words, tmp_path / "model.pkl"), signatures=("predict",))
    assert str(runtime.signature) == "data string[?] -> predict int64[?]"
    texts = np.array([b"good", "bäd bad".encode()], object)
    (answers,) = runtime.run([[pack({"data": texts})]])
    assert unpack(bytes(answers[0]))["predict"].tolist() == [1, 0]


def test_rows_that_affect_each_other_share_no_batch(tmp_path: Path) -> None:
    """The load tries the rows of an estimator; a class in a module beside the file is found."""
    isolation = load(save_instance(tmp_path, "Centred")).signature.isolation
    assert isolation is not None
    assert (isolation.batched, isolation.how) == (False, "tested")


def test_jobs_of_a_forest_are_the_threads_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forest that was fitted on all cores uses as many jobs as the model has threads."""
    forest = RandomForestClassifier(2, n_jobs=-1).fit([[0.0], [1.0]], [0, 1])
    runtime = load(save(make_pipeline(forest), tmp_path / "model.pkl"), signatures=("predict",))
    predict, jobs = RandomForestClassifier.predict, []

    def predict_and_count(self: RandomForestClassifier, rows: Any) -> Any:
        jobs.append(self.n_jobs)
        return predict(self, rows)

    monkeypatch.setattr(RandomForestClassifier, "predict", predict_and_count)
    runtime.run([np.zeros((2, 1))])
    assert jobs == [os.cpu_count()]


def test_refused_numbers_are_invalid_input(tmp_path: Path) -> None:
    """NaN is refused in scikit-learn's words."""
    runtime = load(save(regression(), tmp_path / "model.pkl"))
    with pytest.raises(InvalidInput, match=r"The model cannot take these tensors: Input X contains NaN"):
        runtime.run([np.array([[np.nan, 1]])])


def test_another_version_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names both versions and what to do, however many estimators the file holds."""
    with monkeypatch.context() as patched:
        patched.setattr(sklearn.base, "__version__", "1.3.0")
        file = save(
            make_pipeline(StandardScaler(), regression()).fit(np.eye(2), [1, 2]), tmp_path / "model.pkl"
        )
    with caplog.at_level(logging.WARNING):
        load(file)
    (line,) = [record.getMessage() for record in caplog.records if "1.3.0" in record.getMessage()]
    assert line.startswith(f"model.pkl was saved with scikit-learn 1.3.0 and runs with {sklearn.__version__}")
    assert "scikit-learn==1.3.0" in line


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nothing", r"holds homes_of_tests\.Nothing, which has none of the methods predict,"),
        ("Pairs", r"predict of .*model\.pkl gives int64\[1\] for 1 row, int64\[1\] for 2 rows, int64\[1\]"),
        (
            "Mixture",
            "gives no array with one entry a row .a value of the type float is among them, which is no text",
        ),
        ("Missing", r"cannot be loaded: its code fails with AttributeError: module 'homes_of_tests' has no"),
    ],
)
def test_file_without_an_estimator_is_refused(tmp_path: Path, name: str, message: str) -> None:
    """The message names the type of the object and the missing method."""
    with pytest.raises(LoadFailed, match=message):
        load(save_instance(tmp_path, name))


def answers_of_batch(runtime: Runtime, parts: list[np.ndarray], method: str) -> list[np.ndarray]:
    """Return the answers to requests of several callers in one batch."""
    (answers,) = runtime.run([[pack({"data": part}, method) for part in parts]])
    return [unpack(bytes(answer))[method] for answer in answers]


@pytest.mark.parametrize("outputs", [2, 3, 5])
@pytest.mark.parametrize("kind", [MultiOutputClassifier, RandomForestClassifier])
def test_scores_of_several_outputs_have_an_entry_for_each_row(
    tmp_path: Path, kind: Any, outputs: int
) -> None:
    """Each caller gets the scores of their rows by output and class, also if there are as many outputs as rows."""
    rows = np.random.default_rng(0).normal(size=(40, 5))
    estimator = kind(LogisticRegression()) if kind is MultiOutputClassifier else kind(3, random_state=0)
    estimator.fit(rows, np.where(rows[:, :outputs] > 0, "yes", "no"))
    runtime = load(save(estimator, tmp_path / "model.pkl"))
    parts = np.split(rows[:11], [1, 3, 6])
    found = answers_of_batch(runtime, parts, "predict_proba")
    for part, answer in zip(parts, found, strict=True):
        assert np.allclose(answer, np.stack(estimator.predict_proba(part), axis=1))
    labels = answers_of_batch(runtime, parts, "predict")
    assert [label.tolist() for label in labels] == [
        np.char.encode(estimator.predict(part).astype(str)).tolist() for part in parts
    ]


def test_scores_of_outputs_with_other_numbers_of_classes_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The labels are served and the log says why the scores are not. A model of the scores alone is refused."""
    rows = np.random.default_rng(0).normal(size=(40, 3))
    classes = np.stack([rows[:, 0] > 0, np.digitize(rows[:, 1], [-0.5, 0.5])], axis=1)
    file = save(MultiOutputClassifier(LogisticRegression()).fit(rows, classes), tmp_path / "model.pkl")
    with caplog.at_level(logging.WARNING):
        signature = load(file).signature
    assert ([one.name for one in signature.signatures], signature.method) == (["predict"], "predict")
    assert "homes is served without predict_proba: " in caplog.text
    reason = "gives no array with one entry a row .its outputs differ in their widths: 2, 3"
    with pytest.raises(LoadFailed, match=reason):
        load(file, signatures=("predict_proba",))


def test_numbers_in_objects_are_numbers(tmp_path: Path) -> None:
    """The values decide the dtype, not their array; numbers of another kind are not rounded."""
    assert (
        str(load(save_instance(tmp_path, "Numbers")).signature) == "data float64[n,2] -> predict float64[n]"
    )
    with pytest.raises(LoadFailed, match="it gives float64, and gave int64 when it was loaded"):
        load(save_instance(tmp_path, "Rounded"))


def test_answer_without_an_entry_for_each_row_fails(tmp_path: Path) -> None:
    """The other request of the batch is answered."""
    runtime = load(save_instance(tmp_path, "Shrinking"), batching="none")
    (answers,) = runtime.run(
        [[pack({"data": np.array([[1.0, 2], [200, 3]])}), pack({"data": np.ones((1, 2))})]]
    )
    assert isinstance(answers[0], RowFailure)
    assert str(answers[0].error) == "predict gives [1, 2] for 2 rows"
    assert unpack(bytes(answers[1]))["predict"].tolist() == [[1, 1]]


def test_missing_method_is_refused(tmp_path: Path) -> None:
    """The message lists the methods of the estimator."""
    with pytest.raises(LoadFailed, match="no signature 'predict_proba', it has: predict"):
        load(save(regression(), tmp_path / "model.pkl"), signatures=("predict_proba",))


def test_code_in_a_pickle_is_logged_before_it_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line names the file before its code runs."""
    file = tmp_path / "model.pkl"
    # The pickle calls logging.warning("the pickle runs").
    file.write_bytes(b"clogging\nwarning\n(Vthe pickle runs\ntR.")
    with caplog.at_level(logging.INFO), pytest.raises(LoadFailed, match=r"holds builtins\.NoneType"):
        load(file)
    lines = [record.getMessage() for record in caplog.records]
    before = "loading homes runs the code that the pickle model.pkl names"
    assert lines.index(before) < lines.index("the pickle runs")


def test_damaged_pickle_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """The sentence names fault and remedy, without the repr of an exception."""
    file = save(regression(), tmp_path / "model.pkl")
    content = file.read_bytes()
    for damaged in (content[:100], content[:-1], b"", b"no pickle", b"<html>" + content):
        file.write_bytes(damaged)
        with pytest.raises(
            LoadFailed, match=r"cannot be loaded: it is damaged, cut short, or no pickle \([^()]*\); copy"
        ):
            load(file)


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("sklearn", "is a model of scikit-learn, which is not installed; install"),
        ("pandas", "pip install pandas"),
    ],
)
def test_missing_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, message: str
) -> None:
    """A pickle needs scikit-learn, and pandas if the estimator was fitted on a table."""
    file = save(regression(columns=True), tmp_path / "model.pkl")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(LoadFailed, match=message):
        load(file)


def test_gpus_and_accelerations_are_refused() -> None:
    """scikit-learn computes on the CPU."""
    assert probe("sklearn") == "scikit-learn computes on the CPU"
    check_acceleration("homes", "sklearn", Acceleration())
    with pytest.raises(InvalidSettings, match="scikit-learn computes on the CPU"):
        check_acceleration("homes", "sklearn", Acceleration(precision="fp16"))


def test_estimator_fitted_on_a_table_gets_a_table(tmp_path: Path) -> None:
    """The table has the names of the columns. Without them scikit-learn would warn, and warnings are errors here."""
    runtime = load(save(regression(columns=True), tmp_path / "model.pkl"))
    (given,) = runtime.run([np.array([[2, 30.5]])])
    assert np.allclose(np.asarray(given), [261])
    assert pickle.loads((tmp_path / "model.pkl").read_bytes()).feature_names_in_.tolist() == COLUMNS
