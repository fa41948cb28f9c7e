"""Digits drawn by a program, as a person with a pen might write them, in MNIST's form: for where MNIST cannot be had.

Each way to write a digit is a few strokes through control points. A sample moves the points, bends, slants, turns and
stretches the strokes, and draws them with a pen of some width, fitted into a box of 20 × 20 pixels and centred by
mass in 28 × 28, as MNIST's images are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

SIDE: Final = 28
_BOX: Final = 20.0
_INK_POINTS: Final = 48
"""Points along the strokes of a digit, where the ink lies."""
_CHUNK: Final = 64

_Stroke = NDArray[np.float64]
"""Control points, [points, 2], x to the right and y down, about 0 to 1; a point that comes twice is a corner."""

_WAYS: Final = [
    [
        "50,0 15,15 0,50 15,85 50,100 85,85 100,50 85,15 50,0",
        "70,5 25,10 5,50 30,95 70,90 90,50 70,10 40,10",
    ],
    [
        "50,0 50,50 50,100",
        "55,0 50,50 45,100",
        "25,25 55,0 55,0 55,50 55,100",
        "25,25 50,0 50,0 50,50 50,100  20,100 80,100",
    ],
    [
        "5,25 30,2 75,5 85,35 50,70 5,100 5,100 50,100 95,100",
        "10,20 45,0 80,20 70,50 30,90 5,90 20,75 50,92 95,95",
        "10,15 50,0 85,20 60,60 10,95 10,95 50,90 95,98",
        "20,10 60,0 80,30 55,75 20,100 0,85 20,68 60,85 100,95",
    ],
    [
        "10,12 45,0 80,15 70,40 35,48 35,48 75,55 85,80 50,100 5,88",
        "10,5 50,2 80,5 80,5 45,40 45,40 80,55 80,85 45,100 5,90",
    ],
    [
        "25,0 15,30 8,55 8,55 50,57 95,52  75,5 70,50 68,100",
        "65,100 68,50 70,0 70,0 35,35 0,68 0,68 50,68 100,68",
        "10,5 5,35 20,50 55,48 80,35  85,0 80,50 75,100",
    ],
    [
        "85,2 50,2 20,3 20,3 15,42 15,42 55,38 88,60 75,92 40,100 5,88",
        "25,5 20,40 20,40 60,40 80,65 60,95 30,100 5,90  25,5 60,5 95,0",
    ],
    [
        "75,0 40,20 15,55 20,90 50,100 80,85 75,60 50,52 20,70",
        "50,0 20,30 10,70 35,100 75,90 85,65 60,50 30,60 15,78",
    ],
    [
        "5,5 50,5 90,3 90,3 65,45 45,100",
        "5,5 50,5 90,3 90,3 65,45 45,100  30,50 85,48",
        "5,20 10,5 10,5 50,8 90,5 90,5 75,50 65,100",
    ],
    [
        "75,12 45,0 20,20 45,45 80,70 70,95 40,100 15,80 40,52 75,30 75,10",
        "90,5 50,0 15,12 30,40 70,65 75,90 40,100 10,85 30,60 70,35 95,10",
        "50,46 20,35 20,10 50,0 80,10 80,35 50,46  50,46 10,60 10,90 50,100 90,90 90,60 50,46",
    ],
    [
        "80,15 50,0 15,15 20,42 55,45 80,15 80,15 78,55 70,100",
        "80,20 50,2 15,20 30,48 70,42 82,15 82,15 80,70 55,100 15,92",
    ],
]
"""The ways to write each digit, with coordinates in hundredths; two spaces part strokes."""


def draw_digits(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Draw digits, as many of each class, in random order.

    Returns:
        Images, float32 [count, 784] in 0..1, light on dark, and their classes, int64 [count].
    """
    chance = np.random.default_rng(seed)
    classes = chance.permutation(np.arange(count) % len(_WAYS))
    ways = np.array([chance.integers(len(_WAYS[digit])) for digit in classes])
    images = np.empty((count, SIDE * SIDE), np.float32)
    for digit, each in enumerate(_WAYS):
        for way, text in enumerate(each):
            strokes = [_read_stroke(stroke) for stroke in text.split("  ")]
            (places,) = np.nonzero((classes == digit) & (ways == way))
            for begin in range(0, len(places), _CHUNK):
                part = places[begin : begin + _CHUNK]
                images[part] = _draw(strokes, len(part), chance)
    return images, classes.astype(np.int64)


def _read_stroke(text: str) -> _Stroke:
    return np.array([point.split(",") for point in text.split()], float) / 100


def _draw(strokes: Sequence[_Stroke], count: int, chance: np.random.Generator) -> NDArray[np.float32]:
    """Samples of one way to write a digit: float32 [count, 784]."""
    shares = np.array([_length(stroke) for stroke in strokes])
    numbers = np.maximum(4, np.round(_INK_POINTS * shares / shares.sum())).astype(int)
    ink = [_curve(stroke, number, count, chance) for stroke, number in zip(strokes, numbers, strict=True)]
    points = _bend(np.concatenate(ink, axis=1) - 0.5, chance)
    radius = chance.uniform(0.8, 1.9, (count, 1, 1))
    # Into the box, ink included, with the longer side as long as the box.
    low, high = points.min(axis=1, keepdims=True), points.max(axis=1, keepdims=True)
    points = (points - (low + high) / 2) * (_BOX - 1 - 2 * radius) / (high - low).max(axis=2, keepdims=True)
    images = _ink((points + (SIDE - 1) / 2).astype(np.float32), radius.astype(np.float32)[:, 0], chance)
    return _centred(images.reshape(-1, SIDE, SIDE)).reshape(count, -1)


def _centred(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Move the centre of mass of images [count, 28, 28] to the pixel (14, 14), by whole pixels as MNIST does."""
    places = np.arange(SIDE)
    mass = images.sum(axis=(1, 2))
    down, right = (
        np.round(SIDE / 2 - images.sum(axis=axis) @ places / mass).astype(int)[:, None] for axis in (2, 1)
    )
    rows, columns = (places - down) % SIDE, (places - right) % SIDE
    moved: NDArray[np.float32] = images[
        np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]
    ]
    return moved


def _bend(points: NDArray[np.float64], chance: np.random.Generator) -> NDArray[np.float64]:
    """Bend, stretch, slant and turn digits [count, points, 2], each in its own way."""
    count = len(points)
    for axis in (0, 1):
        # Makes one half larger than the other: loops of all sizes.
        points[:, :, axis] += chance.normal(0, 0.1, (count, 1)) * np.cos(np.pi * points[:, :, axis])
        waves = chance.normal(0, 0.06, (count, 1)) * np.sin(
            chance.uniform(2, 6, (count, 1)) * points[:, :, 1 - axis] + chance.uniform(0, 6.3, (count, 1))
        )
        points[:, :, axis] += waves
    width, slant, turn = (
        chance.uniform(0.5, 1.15, count),
        chance.normal(0.15, 0.3, count),
        chance.normal(0, 0.15, count),
    )
    one, none = np.ones(count), np.zeros(count)
    stretch = np.stack([np.stack([width, -slant], 1), np.stack([none, one], 1)], 1)
    rotation = np.stack(
        [np.stack([np.cos(turn), -np.sin(turn)], 1), np.stack([np.sin(turn), np.cos(turn)], 1)], 1
    )
    moved: NDArray[np.float64] = points @ (rotation @ stretch).transpose(0, 2, 1)
    return moved


def _length(stroke: _Stroke) -> float:
    return float(np.linalg.norm(np.diff(stroke, axis=0), axis=1).sum())


def _curve(control: _Stroke, number: int, count: int, chance: np.random.Generator) -> NDArray[np.float64]:
    """Points along a stroke whose control points are moved: [count, number, 2]."""
    moves = chance.normal(0, 0.055, (count, *control.shape))
    # Both of a corner move together.
    same = np.flatnonzero((np.diff(control, axis=0) == 0).all(axis=1))
    moves[:, same + 1] = moves[:, same]
    # Equally far from each other, whatever the distances of the control points are.
    at = np.linspace(0, len(control) - 1, 40 * len(control))
    steps = np.linalg.norm(np.diff(_spline(len(control), at) @ control, axis=0), axis=1)
    along = np.concatenate([[0], steps.cumsum()])
    at = np.interp(np.linspace(0, along[-1], number), along, at)
    return np.asarray(_spline(len(control), at) @ (control + moves))


def _spline(controls: int, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights [places, controls] of the control points of a Catmull-Rom spline, in places from 0 to controls - 1."""
    place = np.minimum(at.astype(int), controls - 2)
    t = at - place
    parts = (
        0.5 * (-t + 2 * t**2 - t**3),
        0.5 * (2 - 5 * t**2 + 3 * t**3),
        0.5 * (t + 4 * t**2 - 3 * t**3),
        0.5 * (-(t**2) + t**3),
    )
    weights = np.zeros((len(at), controls))
    for offset, part in enumerate(parts):
        np.add.at(weights, (np.arange(len(at)), np.clip(place + offset - 1, 0, controls - 1)), part)
    return weights


def _ink(
    points: NDArray[np.float32], radius: NDArray[np.float32], chance: np.random.Generator
) -> NDArray[np.float32]:
    """Ink of a round pen along points [count, points, 2] of pixels: float32 [count, 784] in 0..1."""
    rows, columns = np.divmod(np.arange(SIDE * SIDE, dtype=np.float32), SIDE)
    pixels = np.stack([columns, rows])
    squares = (pixels**2).sum(axis=0) - 2 * (points @ pixels)
    squares += (points**2).sum(axis=2, keepdims=True)
    distance = np.sqrt(np.maximum(0, squares.min(axis=1)))
    soft = chance.uniform(0.35, 0.75, (len(points), 1)).astype(np.float32)
    return np.asarray(np.clip((radius - distance) / (2 * soft) + 0.5, 0, 1))
