"""A training as a whole: its output, its repetition, its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stoker.errors import InvalidSettings, OperatorError
from stoker_training import TrainingSpec, train

pytestmark = pytest.mark.tensorflow


def entries(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_training_says_devices_data_epochs_and_result(trained):
    """The first line has the devices, the last one the result."""
    result, lines = trained
    assert lines[0].startswith("Device")
    assert "MNIST (IDX files), 240 training and 60 test images" in "\n".join(lines)
    assert any(line.startswith("epoch  1/1: loss ") for line in lines)
    assert f"largest difference of logits {result.largest_logits_difference:.2g}" in lines[-2]
    assert lines[-1] == (
        f"Test accuracy {result.accuracy:.2%}, loss {result.loss:.4f}. Run folder: {result.folder}"
    )


def test_measured_metrics_are_logged(trained, logged):
    """Metrics of each epoch and of the test are logged, and the outputs name their run."""
    result, _ = trained
    assert [(name, epoch) for name, _, epoch in logged] == [
        *((name, 1) for name in ("accuracy", "loss", "val_accuracy", "val_loss")),
        *(("test_accuracy", None), ("test_loss", None)),
    ]
    assert logged[-2][1] == result.accuracy
    assert json.loads((result.folder / "metrics.json").read_text())["run"] == "mnist_1_0000000a"


def test_the_same_seed_gives_the_same_weights(trained, tiny_mnist):
    """A second training of one spec gives the first one's weights bit for bit; another seed does not."""
    from stoker_training.digits import load_digits
    from stoker_training.fitting import fit
    from stoker_training.frameworks import tf

    result, _ = trained
    digits = load_digits(tiny_mnist, print)
    same, other = (
        fit(TrainingSpec(network="mlp", epochs=1, seed=seed), digits, tf.distribute.get_strategy(), str).model
        for seed in (7, 8)
    )
    written = tf.train.load_checkpoint(str(result.folder / "model" / "mnist-tf.model"))
    for layer in ("hidden1", "hidden2"):
        for number, name in enumerate(("kernel", "bias")):
            weight = written.get_tensor(f"network/{layer}/{name}")
            np.testing.assert_array_equal(same.get_layer(layer).get_weights()[number], weight)
            assert not np.array_equal(other.get_layer(layer).get_weights()[number], weight)


@pytest.mark.parametrize("offset", [2e-3, float("nan")], ids=["above the tolerance", "not a number"])
@pytest.mark.parametrize("export", ["onnx_logits", "checkpoint_logits"])
def test_exports_that_disagree_are_refused(tmp_path, monkeypatch, export, offset):
    """A difference above 1e-3, or one that is no number, is an error that says how large it is."""
    from stoker_training import exports

    reference = np.zeros((2, 10), np.float32)
    for name in ("saved_model_logits", "onnx_logits", "checkpoint_logits"):
        monkeypatch.setattr(exports, name, lambda *_: reference)
    rows = np.zeros((2, 784), np.float32)
    exports.require(exports.measure(tmp_path, tmp_path, tmp_path, rows))
    shifted = reference.copy()
    shifted[1, 3] += offset
    monkeypatch.setattr(exports, export, lambda *_: shifted)
    with pytest.raises(
        OperatorError, match=r"disagrees with the SavedModel: .* is (0\.002|nan), at most 0\.001"
    ):
        exports.require(exports.measure(tmp_path, tmp_path, tmp_path, rows))


def test_a_refused_training_leaves_nothing_behind(tiny_mnist, tmp_path, monkeypatch):
    """When the exports disagree no folder appears, not even an unfinished one."""
    from stoker_training import exports

    monkeypatch.setattr(exports, "onnx_logits", lambda _, rows: np.full((len(rows), 10), 5, np.float32))
    spec = TrainingSpec(network="softmax", epochs=1, output=tmp_path / "outputs", data=tiny_mnist)
    with pytest.raises(OperatorError, match="the ONNX model disagrees"):
        train(spec, say=lambda _: None)
    assert entries(tmp_path) == []


def test_invalid_output_is_refused_before_training(tiny_mnist, tmp_path, monkeypatch):
    """An output folder that is in use or not writable is refused before the training."""
    from stoker_training import fitting

    monkeypatch.setattr(fitting, "fit", None)
    (tmp_path / "notes.txt").write_text("")
    for output in (tmp_path, Path("/proc/outputs")):
        with pytest.raises(OperatorError, match="choose another one with --output"):
            train(TrainingSpec(output=output, data=tiny_mnist))


def test_training_under_a_strategy_exports_plain_weights(tiny_mnist):
    """A model trained with mirrored variables comes back as an ordinary one, trained alike."""
    from stoker_training.digits import load_digits
    from stoker_training.fitting import fit
    from stoker_training.frameworks import tf

    digits = load_digits(tiny_mnist, print)
    spec = TrainingSpec(network="softmax", epochs=1, data=tiny_mnist)
    mirrored = fit(spec, digits, tf.distribute.MirroredStrategy(["/cpu:0"]), lambda _: None)
    plain = fit(spec, digits, tf.distribute.get_strategy(), lambda _: None)
    assert mirrored.batch_rows == plain.batch_rows == 4
    for left, right in zip(mirrored.model.get_weights(), plain.model.get_weights(), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"network": "transformer"}, "network must be one of softmax, mlp, cnn, got 'transformer'"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"seed": -1}, "seed must be between 0 and 4294967295, got -1"),
    ],
)
def test_a_spec_out_of_range_is_refused(wrong, reason):
    """A wrong value is named with the range that it should be in."""
    with pytest.raises(InvalidSettings, match=reason):
        TrainingSpec(**wrong)
