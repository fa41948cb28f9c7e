"""Pipelines joined with the signatures of their models, and steps that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.puppets import BODIES, TEXTS

from stoker.errors import InvalidSettings
from stoker.models.pipelines import join
from stoker.settings.pipelines import Pipeline, Step
from stoker.tensors import ModelTensors, Signature, TensorInfo, TensorSpec

SCALE = Signature((TensorSpec("image", "uint8", (4,)),), (TensorSpec("scaled", "float32", (4,)),))
CLASSIFY = Signature(
    (TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (2,), labels=("cat", "dog")),)
)


def free(dtype: str, *shape: int, name: str = "x", batched: bool = True) -> Signature:
    """A model whose only input and output leave sizes free."""
    row = (TensorSpec("tensors", "uint8", (1000,), variable=True),)
    tensors = ModelTensors((TensorInfo(name, dtype, shape),), (TensorInfo("y", dtype, shape),), batched)
    return Signature(row, row, "tensors", tensors=tensors)


def joined(*steps: tuple[Step, Signature], **more: Any) -> Signature:
    """Return the signature of a pipeline of these steps for callers."""
    pipeline = Pipeline("p", tuple(step for step, _ in steps), **more)
    return join(pipeline, [signature for _, signature in steps]).signature


def test_types_and_shapes_follow_from_the_steps() -> None:
    """Callers send the inputs of the first step, and get the outputs of the last one, under the pipeline's names."""
    signature = joined(
        (Step("scale", "scale", outputs={"scaled": "x"}), SCALE),
        (Step("classify", "classify", outputs={"y": "scores"}), CLASSIFY),
    )
    assert signature == Signature(
        (TensorSpec("image", "uint8", (4,)),),
        (TensorSpec("scores", "float32", (2,), labels=("cat", "dog")),),
    )


def test_one_model_of_free_sizes_makes_requests_of_free_sizes() -> None:
    """A size that one step leaves free and another one fixes is fixed for callers."""
    signature = joined(
        (Step("free", "free", inputs={"x": "i"}, outputs={"y": "o"}), free("float32", -1, -1)),
        (Step("rows", "rows", inputs={"x": "i"}), CLASSIFY),
    )
    assert signature.takes == "tensors"
    assert signature.tensors == ModelTensors(
        (TensorInfo("i", "float32", (-1, 4)),),
        (TensorInfo("o", "float32", (-1, -1)), TensorInfo("y", "float32", (-1, 2), labels=("cat", "dog"))),
        batched=True,
    )


def test_one_model_without_a_batch_axis_makes_a_pipeline_without_one() -> None:
    """Then the first axes of requests to the pipeline are no rows."""
    signature = joined((Step("a", "a"), free("float32", 4, batched=False)))
    assert signature.model_tensors is not None
    assert not signature.model_tensors.batched


def test_json_of_a_script_can_be_the_answer() -> None:
    """An output that is JSON text is one of the pipeline too, if it is the only one."""
    signature = joined((Step("tell", "tell", outputs={"result": "told"}), TEXTS))
    assert signature.outputs == (TensorSpec("told", "uint8", (64,), variable=True),)
    with pytest.raises(InvalidSettings, match="the output 'told' is JSON that a script writes"):
        joined(
            (Step("tell", "tell", outputs={"result": "told"}), TEXTS),
            (Step("classify", "classify", inputs={"x": "z"}), CLASSIFY),
        )


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([(Step("s", "s", outputs={"scaled": "x"}), free("int8", -1, name="i")), (Step("c", "c"), CLASSIFY)],
         "s has no output 'scaled'; it has: y"),
        ([(Step("c", "c", inputs={"z": "image"}), CLASSIFY)], "c has no input 'z'; it has: x"),
        ([(Step("c", "c", inputs={}), CLASSIFY)], "the input 'x' of c has no tensor"),
        ([(Step("s", "s"), SCALE), (Step("c", "c", inputs={"x": "image"}), CLASSIFY)],
         r"the tensor 'image' does not fit: s takes image uint8\[\?,4\], and c takes x float32\[\?,4\]"),
        ([(Step("c", "c", outputs={"y": "z"}), CLASSIFY), (Step("d", "d", inputs={"x": "z"}), CLASSIFY)],
         r"the tensor 'z' does not fit: c gives y float32\[\?,2\], and d takes x float32\[\?,4\]"),
        ([(Step("r", "r"), BODIES)], "r is an entry script that takes whole requests, not tensors; decorate its run"),
    ],
)  # fmt: skip
def test_invalid_pipeline_is_refused_in_one_sentence(
    steps: list[tuple[Step, Signature]], message: str
) -> None:
    """Each fault has a message that names the pipeline, the step and the tensor."""
    with pytest.raises(InvalidSettings, match=f"^the pipeline p: {message}"):
        joined(*steps)
