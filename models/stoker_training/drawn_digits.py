"""Digits drawn by a program, as a person with a pen might write them, in MNIST's form: for where MNIST cannot be had.

Each way to write a digit is a few strokes through control points. A sample moves the points, bends, slants, turns and
stretches the strokes, and draws them with a pen of some width, fitted into a box of 20 × 20 pixels and centred by
mass in 28 × 28, as MNIST's images are.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

SIDE: Final = 28
_BOX: Final = 20.0
_INK_POINTS: Final = 48
"""Points along the strokes of a digit, where the ink lies."""
_CHUNK: Final = 64

_Stroke = tuple[tuple[float, float], ...]
"""Control points, x to the right and y down, about 0 to 1; a point that comes twice is a corner."""

# The ways to write each digit.
_WAYS: Final[tuple[tuple[tuple[_Stroke, ...], ...], ...]] = (
    (  # 0
        (
            (
                (0.5, 0),
                (0.15, 0.15),
                (0, 0.5),
                (0.15, 0.85),
                (0.5, 1),
                (0.85, 0.85),
                (1, 0.5),
                (0.85, 0.15),
                (0.5, 0),
            ),
        ),
        (
            (
                (0.7, 0.05),
                (0.25, 0.1),
                (0.05, 0.5),
                (0.3, 0.95),
                (0.7, 0.9),
                (0.9, 0.5),
                (0.7, 0.1),
                (0.4, 0.1),
            ),
        ),
    ),
    (  # 1
        (((0.5, 0), (0.5, 0.5), (0.5, 1)),),
        (((0.55, 0), (0.5, 0.5), (0.45, 1)),),
        (((0.25, 0.25), (0.55, 0), (0.55, 0), (0.55, 0.5), (0.55, 1)),),
        (((0.25, 0.25), (0.5, 0), (0.5, 0), (0.5, 0.5), (0.5, 1)), ((0.2, 1), (0.8, 1))),
    ),
    (  # 2
        (
            (
                *((0.05, 0.25), (0.3, 0.02), (0.75, 0.05), (0.85, 0.35), (0.5, 0.7), (0.05, 1), (0.05, 1)),
                *((0.5, 1), (0.95, 1)),
            ),
        ),
        (
            (
                *((0.1, 0.2), (0.45, 0), (0.8, 0.2), (0.7, 0.5), (0.3, 0.9), (0.05, 0.9), (0.2, 0.75)),
                *((0.5, 0.92), (0.95, 0.95)),
            ),
        ),
        (
            (
                (0.1, 0.15),
                (0.5, 0),
                (0.85, 0.2),
                (0.6, 0.6),
                (0.1, 0.95),
                (0.1, 0.95),
                (0.5, 0.9),
                (0.95, 0.98),
            ),
        ),
        (
            (
                *((0.2, 0.1), (0.6, 0), (0.8, 0.3), (0.55, 0.75), (0.2, 1), (0, 0.85), (0.2, 0.68)),
                *((0.6, 0.85), (1, 0.95)),
            ),
        ),
    ),
    (  # 3
        (
            (
                *((0.1, 0.12), (0.45, 0), (0.8, 0.15), (0.7, 0.4), (0.35, 0.48), (0.35, 0.48), (0.75, 0.55)),
                *((0.85, 0.8), (0.5, 1), (0.05, 0.88)),
            ),
        ),
        (
            (
                *((0.1, 0.05), (0.5, 0.02), (0.8, 0.05), (0.8, 0.05), (0.45, 0.4), (0.45, 0.4), (0.8, 0.55)),
                *((0.8, 0.85), (0.45, 1), (0.05, 0.9)),
            ),
        ),
    ),
    (  # 4
        (
            ((0.25, 0), (0.15, 0.3), (0.08, 0.55), (0.08, 0.55), (0.5, 0.57), (0.95, 0.52)),
            ((0.75, 0.05), (0.7, 0.5), (0.68, 1)),
        ),
        (
            (
                (0.65, 1),
                (0.68, 0.5),
                (0.7, 0),
                (0.7, 0),
                (0.35, 0.35),
                (0, 0.68),
                (0, 0.68),
                (0.5, 0.68),
                (1, 0.68),
            ),
        ),
        (
            ((0.1, 0.05), (0.05, 0.35), (0.2, 0.5), (0.55, 0.48), (0.8, 0.35)),
            ((0.85, 0), (0.8, 0.5), (0.75, 1)),
        ),
    ),
    (  # 5
        (
            (
                *(
                    (0.85, 0.02),
                    (0.5, 0.02),
                    (0.2, 0.03),
                    (0.2, 0.03),
                    (0.15, 0.42),
                    (0.15, 0.42),
                    (0.55, 0.38),
                ),
                *((0.88, 0.6), (0.75, 0.92), (0.4, 1), (0.05, 0.88)),
            ),
        ),
        (
            (
                *((0.25, 0.05), (0.2, 0.4), (0.2, 0.4), (0.6, 0.4), (0.8, 0.65), (0.6, 0.95), (0.3, 1)),
                *((0.05, 0.9),),
            ),
            ((0.25, 0.05), (0.6, 0.05), (0.95, 0)),
        ),
    ),
    (  # 6
        (
            (
                *((0.75, 0), (0.4, 0.2), (0.15, 0.55), (0.2, 0.9), (0.5, 1), (0.8, 0.85), (0.75, 0.6)),
                *((0.5, 0.52), (0.2, 0.7)),
            ),
        ),
        (
            (
                *((0.5, 0), (0.2, 0.3), (0.1, 0.7), (0.35, 1), (0.75, 0.9), (0.85, 0.65), (0.6, 0.5)),
                *((0.3, 0.6), (0.15, 0.78)),
            ),
        ),
    ),
    (  # 7
        (((0.05, 0.05), (0.5, 0.05), (0.9, 0.03), (0.9, 0.03), (0.65, 0.45), (0.45, 1)),),
        (
            ((0.05, 0.05), (0.5, 0.05), (0.9, 0.03), (0.9, 0.03), (0.65, 0.45), (0.45, 1)),
            ((0.3, 0.5), (0.85, 0.48)),
        ),
        (
            (
                (0.05, 0.2),
                (0.1, 0.05),
                (0.1, 0.05),
                (0.5, 0.08),
                (0.9, 0.05),
                (0.9, 0.05),
                (0.75, 0.5),
                (0.65, 1),
            ),
        ),
    ),
    (  # 8
        (
            (
                *((0.75, 0.12), (0.45, 0), (0.2, 0.2), (0.45, 0.45), (0.8, 0.7), (0.7, 0.95), (0.4, 1)),
                *((0.15, 0.8), (0.4, 0.52), (0.75, 0.3), (0.75, 0.1)),
            ),
        ),
        (
            (
                *((0.9, 0.05), (0.5, 0), (0.15, 0.12), (0.3, 0.4), (0.7, 0.65), (0.75, 0.9), (0.4, 1)),
                *((0.1, 0.85), (0.3, 0.6), (0.7, 0.35), (0.95, 0.1)),
            ),
        ),
        (
            ((0.5, 0.46), (0.2, 0.35), (0.2, 0.1), (0.5, 0), (0.8, 0.1), (0.8, 0.35), (0.5, 0.46)),
            ((0.5, 0.46), (0.1, 0.6), (0.1, 0.9), (0.5, 1), (0.9, 0.9), (0.9, 0.6), (0.5, 0.46)),
        ),
    ),
    (  # 9
        (
            (
                *((0.8, 0.15), (0.5, 0), (0.15, 0.15), (0.2, 0.42), (0.55, 0.45), (0.8, 0.15), (0.8, 0.15)),
                *((0.78, 0.55), (0.7, 1)),
            ),
        ),
        (
            (
                *((0.8, 0.2), (0.5, 0.02), (0.15, 0.2), (0.3, 0.48), (0.7, 0.42), (0.82, 0.15), (0.82, 0.15)),
                *((0.8, 0.7), (0.55, 1), (0.15, 0.92)),
            ),
        ),
    ),
)


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
        for way, strokes in enumerate(each):
            (places,) = np.nonzero((classes == digit) & (ways == way))
            for begin in range(0, len(places), _CHUNK):
                part = places[begin : begin + _CHUNK]
                images[part] = _draw(strokes, len(part), chance)
    return images, classes.astype(np.int64)


def _draw(strokes: tuple[_Stroke, ...], count: int, chance: np.random.Generator) -> NDArray[np.float32]:
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
    return float(np.linalg.norm(np.diff(np.array(stroke), axis=0), axis=1).sum())


def _curve(stroke: _Stroke, number: int, count: int, chance: np.random.Generator) -> NDArray[np.float64]:
    """Points along a stroke whose control points are moved: [count, number, 2]."""
    control = np.array(stroke)
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
