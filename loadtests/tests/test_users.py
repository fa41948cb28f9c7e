"""The users of load tests: their bodies, and how they check answers."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from stoker.errors import OperatorError
from stoker_bench.networks.onnx_graphs import seeded_mlp
from stoker_bench.users import RowExam, TextExam, classes_in_answer


@pytest.mark.parametrize(
    ("answer", "classes"),
    [([7, 2], [7, 2]), ([[0.1, 0.9], [0.8, 0.2]], [1, 0]), ({"logits": [[0.1, 0.9], [0.8, 0.2]]}, [1, 0])],
)
def test_classes_are_read_from_answers(answer: object, classes: list[int]) -> None:
    """An answer may be classes, outputs by row, or an object that holds either."""
    assert classes_in_answer(answer, 2).tolist() == classes


@pytest.mark.parametrize("answer", [[7], "7", None, {}, [[1, 2], [3]], 7])
def test_other_answers_hold_no_classes(answer: object) -> None:
    """Wrong lengths and types raise ValueError and nothing else."""
    with pytest.raises(ValueError):  # noqa: PT011 - numpy words some of these itself
        classes_in_answer(answer, 2)


def test_classes_of_rows_must_be_those_of_the_runtime(tmp_path: Path) -> None:
    """With the served model each class is compared; without one, any class will do."""
    mlp, file = seeded_mlp(), tmp_path / "mlp.onnx"
    mlp.save(file)
    exam = RowExam(file, 2)
    rows = np.array(orjson.loads(exam.bodies[3])["data"], np.float32)
    classes = mlp.logits(rows).argmax(axis=1).tolist()
    others = orjson.dumps([(one + 1) % 10 for one in classes])
    assert rows.shape == (2, 784)
    assert exam.complaint(3, orjson.dumps(classes)) is None
    assert exam.complaint(3, others) == "not the class that the runtime gives offline"
    assert RowExam(None, 2).complaint(3, others) is None
    with pytest.raises(OperatorError, match="there is no model file"):
        RowExam(tmp_path / "missing.onnx", 1)


def test_texts_must_have_the_same_answer_every_time(tmp_path: Path) -> None:
    """Rounding may differ by what else is in a batch; a file that is none is the operator's error."""
    file = tmp_path / "texts.txt"
    file.write_text("how far\n\nis it\n")
    exam = TextExam(file)
    assert exam.bodies == [b'{"data":["how far"]}', b'{"data":["is it"]}']
    assert exam.complaint(0, b"[[1, 2]]") is None
    assert exam.complaint(0, b"[[1.00001, 2]]") is None
    assert exam.complaint(1, b"[[3, 4]]") is None
    assert exam.complaint(0, b"[[3, 4]]") == "not the answer that this text had before"
    assert exam.complaint(0, b"[[1, 2, 3]]") is not None
    with pytest.raises(OperatorError, match="is no text that could be sent"):
        TextExam(tmp_path / "missing")
