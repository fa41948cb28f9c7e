"""The parts of `triton_python_backend_utils` that a `model.py` gets, and those that are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.scripts import triton_python_backend_utils as pb_utils


def test_tensors_share_memory_by_dlpack() -> None:
    """Tensors share memory with exporting objects and with capsules; strings are arrays of numpy."""
    array = np.arange(4, dtype=np.float32)
    tensor = pb_utils.Tensor("x", array)
    for given in (tensor, tensor.to_dlpack(), array):
        taken = pb_utils.Tensor.from_dlpack("y", given)
        assert taken.name() == "y"
        assert np.shares_memory(taken.as_numpy(), array)
    assert (tensor.is_cpu(), tensor.shape()) == (True, [4])
    with pytest.raises(pb_utils.TritonModelException, match="'z' cannot be taken by DLPack"):
        pb_utils.Tensor.from_dlpack("z", [1, 2])
    with pytest.raises(pb_utils.TritonModelException, match="must be a numpy array, not list"):
        pb_utils.Tensor("z", [1, 2])  # type: ignore[arg-type]


def test_texts_become_bytes() -> None:
    """Each kind of array that numpy has for texts is converted."""
    for array in (np.array([["a", "ü"]]), np.array([["a", "ü"]], object), np.array([[b"a", "ü".encode()]])):
        assert pb_utils.with_bytes(array).tolist() == [[b"a", "ü".encode()]]


@pytest.mark.parametrize(
    ("use", "refused"),
    [
        (lambda: pb_utils.MetricFamily, "MetricFamily is not offered"),
        (lambda: pb_utils.load_model, "load_model is not offered"),
        (lambda: pb_utils.InferenceRequest().get_response_sender(), "get_response_sender is not offered"),
        (lambda: pb_utils.InferenceRequest().set_release_flags(1), "set_release_flags is not offered"),
        (lambda: pb_utils.InferenceRequest().exec(decoupled=True), r"exec\(decoupled=True\) is not offered"),
        (lambda: pb_utils.InferenceRequest().exec(), "needs its model_name"),
        (lambda: pb_utils.PreferredMemory(1, 0), "TRITONSERVER_MEMORY_GPU is not offered"),
        (
            lambda: pb_utils.ModelConfig({}).set_model_transaction_policy({"decoupled": True}),
            "set_model_transaction_policy is not offered",
        ),
    ],
)
def test_unsupported_function_is_named_in_the_error(use: object, refused: str) -> None:
    """An unsupported name raises an error that is an AttributeError too."""
    assert callable(use)
    with pytest.raises(pb_utils.TritonModelException, match=refused):
        use()
    assert not hasattr(pb_utils, "MetricFamily")
    assert not hasattr(pb_utils, "unheard_of")


def test_a_call_without_a_server_returns_an_error() -> None:
    """The response has the error."""
    response = pb_utils.InferenceRequest(model_name="net", inputs=[]).exec()
    assert response.has_error()
    error = response.error()
    assert error is not None
    assert (error.code(), "no server here" in error.message()) == ("UNAVAILABLE", True)
