"""The exported models, each read by its own runtime without the training module's help."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow


def onnx_session(folder):
    import onnxruntime

    return onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


def test_the_saved_model_has_the_serving_signature(trained):
    """serving_default takes x float32[n, 784] and gives logits float32[n, 10]."""
    import tensorflow as tf

    result, _ = trained
    signature = tf.saved_model.load(str(result.folder / "saved_model")).signatures["serving_default"]
    (x,) = signature.structured_input_signature[1].values()
    assert (x.name, x.shape.as_list(), x.dtype) == ("x", [None, 784], tf.float32)
    (name,) = signature.structured_outputs
    logits = signature.structured_outputs[name]
    assert (name, logits.shape.as_list(), logits.dtype) == ("logits", [None, 10], tf.float32)


def test_the_onnx_model_has_the_same_names_and_a_dynamic_batch(trained):
    """The ONNX model differs from the SavedModel in nothing that a caller sees."""
    result, _ = trained
    session = onnx_session(result.folder)
    assert [(i.name, i.shape, i.type) for i in session.get_inputs()] == [
        ("x", ["batch", 784], "tensor(float)")
    ]
    assert [(o.name, o.shape, o.type) for o in session.get_outputs()] == [
        ("logits", ["batch", 10], "tensor(float)")
    ]


def azure_how_to_score(folder, raw_data):
    """Score as the how-to's score.py does in init() and run(), in a graph of its own."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        saver = v1.train.import_meta_graph(str(folder / "model" / "mnist-tf.model.meta"))
        x = graph.get_tensor_by_name("network/X:0")
        output = graph.get_tensor_by_name("network/output/MatMul:0")
        with v1.Session() as session:
            saver.restore(session, str(folder / "model" / "mnist-tf.model"))
            data = np.array(json.loads(raw_data)["data"])
            return output.eval(session=session, feed_dict={x: data})


def test_all_exports_give_the_same_logits(trained, test_rows):
    """SavedModel, ONNX and TensorFlow 1 checkpoint agree on the same rows, and the model has learned."""
    import tensorflow as tf

    result, _ = trained
    serve = tf.saved_model.load(str(result.folder / "saved_model")).signatures["serving_default"]
    reference = serve(x=tf.constant(test_rows))["logits"].numpy()
    (onnx,) = onnx_session(result.folder).run(["logits"], {"x": test_rows})
    restored = azure_how_to_score(result.folder, json.dumps({"data": test_rows.tolist()}))
    np.testing.assert_allclose(onnx, reference, atol=1e-4)
    np.testing.assert_allclose(restored, reference, atol=1e-4)
    assert np.mean(reference.argmax(axis=1) == np.arange(60) % 10) == pytest.approx(result.accuracy)
    assert result.largest_logits_difference == pytest.approx(np.abs(onnx - reference).max(), abs=1e-5)


@pytest.mark.parametrize("network", ["softmax", "cnn"])
def test_every_kind_of_layer_survives_all_exports(network, tmp_path, test_rows):
    """The other networks too come out of each format with the logits that Keras gives, biases included."""
    from stoker_training import exports
    from stoker_training.fitting import build
    from stoker_training.frameworks import keras

    keras.utils.set_random_seed(1)
    model = build(network)
    rng = np.random.default_rng(1)
    model.set_weights(
        [rng.normal(0, 0.05, weight.shape).astype(np.float32) for weight in model.get_weights()]
    )
    exports.write_saved_model(model, tmp_path / "saved_model")
    exports.write_onnx(model, tmp_path / "model.onnx")
    exports.write_checkpoint(model, tmp_path / "model" / "mnist-tf.model")
    agreed = exports.measure(
        tmp_path / "saved_model", tmp_path / "model.onnx", tmp_path / "model" / "mnist-tf.model", test_rows
    )
    np.testing.assert_allclose(agreed.logits, model(test_rows, training=False), atol=1e-5)
    assert agreed.onnx.largest < 1e-5
    assert agreed.checkpoint.largest < 1e-5


def test_the_entry_script_returns_probabilities(trained, test_rows, monkeypatch):
    """The copied score.py, loaded as the server loads it, gives the softmax of the ONNX model's logits."""
    from stoker.batch_mark import batched_input

    result, _ = trained
    monkeypatch.setenv("AZUREML_MODEL_DIR", str(result.folder))
    monkeypatch.setenv("STOKER_DEVICE", "cpu")
    monkeypatch.setenv("STOKER_INTRA_OP_THREADS", "1")
    spec = importlib.util.spec_from_file_location("score", result.folder / "score.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.init()
    taken = batched_input(script.run)
    assert (taken.shape, taken.dtype) == ((784,), "float32")
    probabilities = script.run(test_rows)
    (logits,) = onnx_session(result.folder).run(["logits"], {"x": test_rows})
    assert probabilities.dtype == np.float32
    powers = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(probabilities, powers / powers.sum(axis=1, keepdims=True), atol=1e-4)
