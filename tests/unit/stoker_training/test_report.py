"""The numbers of a run folder, checked by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow


def test_the_confusion_matrix_counts_true_by_predicted():
    """Rows are true classes, columns predicted ones."""
    from stoker_training.run_folder import confusion_matrix

    matrix = np.array(confusion_matrix(np.array([0, 0, 3, 9]), np.array([0, 1, 3, 3])))
    assert (matrix[0, 0], matrix[0, 1], matrix[3, 3], matrix[9, 3]) == (1, 1, 1, 1)
    assert matrix.shape == (10, 10)
    assert matrix.sum() == 4


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        (np.zeros((3, 10)), math.log(10)),
        (np.full((3, 10), 1000.0), math.log(10)),
        (np.eye(10)[[4, 4, 4]] * math.log(11), math.log(20) - math.log(11)),
    ],
    ids=["equal", "equal and large", "eleven times as likely"],
)
def test_the_loss_is_the_mean_cross_entropy(logits, expected):
    """Known distributions have known losses, without overflow for large logits."""
    from stoker_training.run_folder import mean_cross_entropy

    loss = mean_cross_entropy(logits.astype(np.float32), np.array([4, 4, 4]))
    assert loss == pytest.approx(expected, rel=1e-6)


def test_numbers_that_are_not_finite_are_no_json(tmp_path):
    """NaN in the metrics is an error, not a file that strict readers refuse."""
    from stoker_training.run_folder import write_json

    with pytest.raises(ValueError, match="JSON"):
        write_json({"loss": float("nan")}, tmp_path / "metrics.json")


def test_the_metrics_tell_the_whole_run(trained):
    """Accuracy, loss, confusion matrix, data, seed, epochs, agreement, durations and versions are all there."""
    result, _ = trained
    metrics = json.loads((result.folder / "metrics.json").read_text())
    assert (metrics["network"], metrics["seed"], metrics["dataset"]) == ("mlp", 7, "MNIST (IDX files)")
    assert metrics["parameters"] == 784 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10
    assert metrics["rows"] == {"training": 220, "validation": 20, "test": 60}
    matrix = np.array(metrics["confusion_matrix"])
    assert matrix.sum(axis=1).tolist() == [6] * 10
    assert metrics["accuracy"] == pytest.approx(np.trace(matrix) / 60) == pytest.approx(result.accuracy)
    assert metrics["loss"] == result.loss
    assert (metrics["epochs"], metrics["best_epoch"], metrics["batch_rows"]) == (1, 1, 4)
    agreement = metrics["agreement_with_saved_model"]
    assert agreement["onnx_largest_logits_difference"] == result.largest_logits_difference < 1e-4
    assert agreement["tf1_checkpoint_largest_logits_difference"] < 1e-4
    assert metrics["durations_s"]["fit"] > 0 < metrics["durations_s"]["export"]
    assert {"python", "tensorflow", "keras", "onnx", "onnxruntime", "numpy", "stoker"} <= metrics[
        "versions"
    ].keys()


def test_the_history_is_kept_as_numbers_and_as_a_picture(trained):
    """One value an epoch for each curve, and a PNG."""
    result, _ = trained
    history = json.loads((result.folder / "history.json").read_text())
    assert history.keys() == {"epochs", "best_epoch", "loss", "accuracy", "val_loss", "val_accuracy"}
    assert [len(history[curve]) for curve in ("loss", "accuracy", "val_loss", "val_accuracy")] == [1] * 4
    assert (result.folder / "history.png").read_bytes().startswith(b"\x89PNG")


def test_the_sample_is_a_scoring_request(trained, test_rows):
    """The sample holds the first test image in the body that the service takes, rounded to four places."""
    result, _ = trained
    sample = json.loads((result.folder / "sample_input.json").read_text())
    assert sample.keys() == {"data"}
    np.testing.assert_allclose(sample["data"], test_rows[:1], atol=5.1e-5)
    assert all(value == round(value, 4) for value in sample["data"][0])
