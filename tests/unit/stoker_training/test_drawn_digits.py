"""Digits drawn by a program: their looks, and that a model trained on them knows those of the console."""

from __future__ import annotations

import numpy as np
import pytest

from stoker_training.drawn_digits import draw_digits

# Lines on a pad of 280 x 280, as a person would draw the digits with a mouse; arcs are (box, from, to) in degrees.
PAD = {
    0: [((80, 40, 200, 240), 0, 360)],
    1: [[(140, 50), (140, 230)]],
    2: [((80, 40, 200, 150), 180, 380), [(196, 115), (75, 235), (210, 235)]],
    3: [((85, 40, 195, 140), 200, 450), ((80, 136, 205, 240), 270, 520)],
    4: [[(170, 235), (170, 45), (70, 170), (215, 170)]],
    5: [[(195, 45), (95, 45), (90, 130)], ((70, 115, 200, 240), 240, 510)],
    6: [((85, 45, 260, 330), 180, 265), ((85, 135, 200, 240), 0, 360)],
    7: [[(75, 50), (200, 50), (125, 235)]],
    8: [((95, 40, 185, 135), 0, 360), ((85, 132, 195, 240), 0, 360)],
    9: [((85, 40, 190, 140), 0, 360), [(190, 90), (175, 235)]],
}


def on_the_pad(strokes, pen):
    """Strokes as points of round ink, 0 to 280."""
    points = []
    for stroke in strokes:
        if isinstance(stroke, tuple):
            (left, top, right, bottom), begin, end = stroke
            turn = np.radians(np.linspace(begin, end, 200))
            across, down = (right - left) / 2, (bottom - top) / 2
            points.append(np.stack([left + across * (1 + np.cos(turn)), top + down * (1 + np.sin(turn))], 1))
        else:
            corners = np.array(stroke, float)
            places = np.linspace(0, len(corners) - 1, 200)
            points.append(
                np.stack([np.interp(places, np.arange(len(corners)), corners[:, axis]) for axis in (0, 1)], 1)
            )
    points = np.concatenate(points)
    rows, columns = np.mgrid[0:280, 0:280]
    squares = np.full((280, 280), np.inf)
    for x, y in points:
        np.minimum(squares, (columns - x) ** 2 + (rows - y) ** 2, out=squares)
    return np.where(squares <= (pen / 2) ** 2, 255, 0).astype(np.uint8)


def pixels_of(pad):
    """The pixels that the console sends: the ink in a box of 20, its centre of mass in the middle of 28 x 28."""
    from PIL import Image

    rows, columns = np.nonzero(pad)
    image = Image.fromarray(pad[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1])
    scale = 20 / max(image.size)
    size = [max(1, round(side * scale)) for side in image.size]
    small = np.asarray(image.resize(size, Image.Resampling.BOX), np.float32) / 255
    rows, columns = np.mgrid[0 : small.shape[0], 0 : small.shape[1]]
    top, left = (round(14 - (small * place).sum() / small.sum()) for place in (rows, columns))
    pixels = np.zeros((28, 28), np.float32)
    pixels[top : top + small.shape[0], left : left + small.shape[1]] = small
    return pixels.ravel()


def test_drawn_digits_have_the_form_of_mnist():
    """As many of each class, light ink in a box of 20 x 20, the centre of mass in the middle; a seed repeats them."""
    images, classes = draw_digits(400, seed=3)
    assert (images.shape, images.dtype, classes.dtype) == ((400, 784), np.float32, np.int64)
    assert np.bincount(classes).tolist() == [40] * 10
    assert images.min() == 0
    assert 0.99 < images.max() <= 1
    assert 0.08 < images.mean() < 0.2
    squares = images.reshape(-1, 28, 28)
    ink = squares > 0.5
    assert ink.any(axis=2).sum(axis=1).max() <= 21
    assert ink.any(axis=1).sum(axis=1).max() <= 21
    places = np.arange(28)
    for axis in (1, 2):
        centres = squares.sum(axis=axis) @ places / images.sum(axis=1)
        assert np.abs(centres - 14).max() <= 0.51
    np.testing.assert_array_equal(images, draw_digits(400, seed=3)[0])
    assert not np.array_equal(images, draw_digits(400, seed=4)[0])


@pytest.mark.long
@pytest.mark.tensorflow
def test_model_trained_on_drawn_digits_knows_the_console_s_digits():
    """Clean digits of several pens, drawn on the console's pad: nearly all get their class."""
    from stoker_training import TrainingSpec
    from stoker_training.digits import Digits
    from stoker_training.fitting import fit
    from stoker_training.frameworks import tf

    rows, classes = draw_digits(5000, seed=1)
    digits = Digits(rows, classes, rows[:1], classes[:1], "drawn")
    fitted = fit(TrainingSpec(epochs=4), digits, tf.distribute.get_strategy(), lambda _: None)
    pens = (16, 22, 30)
    drawn = np.stack([pixels_of(on_the_pad(PAD[digit], pen)) for pen in pens for digit in range(10)])
    found = np.asarray(fitted.model(drawn)).argmax(axis=1).reshape(len(pens), 10)
    right = found == np.arange(10)
    assert right.sum() >= 27, found
