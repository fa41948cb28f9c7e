"""The users of load tests: shapes, stages and digits."""

from pathlib import Path

import numpy as np
import pytest

from stoker.errors import OperatorError
from stoker_bench import users
from stoker_bench.users import (
    SHAPES,
    Shape,
    TextExam,
    classes_in_answer,
    read_digits,
    stage_times_ms,
    users_at,
)


def test_ramp_rises_in_equal_steps_to_the_peak() -> None:
    """A ramp of 100 s has ten steps of 10 s; the last one has all users."""
    users = [users_at("ramp", elapsed_s, 100, 50) for elapsed_s in range(0, 100, 10)]
    assert users == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]


def test_spike_is_the_middle_third() -> None:
    """A tenth of the users, then all, then a tenth again."""
    assert [users_at("spike", elapsed_s, 90, 50) for elapsed_s in (0, 29, 30, 59, 60, 89)] == [
        5,
        5,
        50,
        50,
        5,
        5,
    ]


def test_steady_has_all_users_at_once() -> None:
    """From the first second to the last."""
    assert {users_at("steady", elapsed_s, 60, 7) for elapsed_s in (0, 30, 59.9)} == {7}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_ends_and_never_starves(shape: Shape) -> None:
    """No shape goes on after its time, and one user is the least."""
    assert users_at(shape, 60, 60, 32) is None
    assert users_at(shape, 0, 60, 1) == 1


def test_stages_are_read_from_server_timing() -> None:
    """Durations are milliseconds by name; descriptions and unreadable durations are passed over."""
    header = 'parse;dur=0.125, queue;desc="in line";dur=1.5,compute; dur="2", cache, bad;dur=x'
    assert stage_times_ms(header) == {"parse": 0.125, "queue": 1.5, "compute": 2.0}
    assert stage_times_ms("") == {}


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


def test_drawn_digits_look_like_mnist_rows(monkeypatch) -> None:
    """Without MNIST, users send rows of 784 values in 0..1, named as drawn."""
    monkeypatch.setattr(users, "DRAWN_ROWS", 50)
    drawn = read_digits(None)
    assert drawn.rows.shape == (len(drawn.labels), 784) == (50, 784)
    assert drawn.rows.dtype == np.float32
    assert 0 <= drawn.rows.min() < 0.9 < drawn.rows.max() <= 1
    assert "not MNIST" in drawn.source


def test_folder_without_mnist_is_refused(tmp_path) -> None:
    """A chosen folder is never replaced by other digits."""
    with pytest.raises(OperatorError, match="t10k-images"):
        read_digits(tmp_path)


def test_digits_without_the_training_module_are_one_sentence(monkeypatch) -> None:
    """Their reader belongs to another distribution; the sentence says how to install it."""
    monkeypatch.setattr(users, "find_spec", lambda _: None)
    with pytest.raises(OperatorError, match=r"^the users' digits are read by stoker-training; install "):
        read_digits(None)


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
