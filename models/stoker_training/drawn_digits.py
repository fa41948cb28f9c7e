"""Digits drawn by a program, as a person with a pen might write them, in MNIST's form: for where MNIST cannot be had.

Each way to write a digit is a few arcs and lines. A sample bends, slants, turns and stretches them, and draws them
with a pen of some width, fitted into a box of 20 × 20 pixels and centred by mass in 28 × 28, as MNIST's images are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

SIDE: Final = 28
_BOX: Final = 20.0
_STROKE_POINTS: Final = 32
_CHUNK: Final = 64


class _Arc(NamedTuple):
    """A part of an ellipse in a box, from an angle to another in degrees, clockwise from the right."""

    left: float
    top: float
    right: float
    bottom: float
    begin: float
    end: float


_Line = tuple[tuple[float, float], ...]
"""Corners, x to the right and y down, about 0 to 1."""

_WAYS: Final[tuple[tuple[tuple[_Arc | _Line, ...], ...], ...]] = (
    ((_Arc(0, 0, 1, 1, 0, 360),), (_Arc(0.1, 0, 0.9, 1, -100, 290),)),
    ((((0.5, 0), (0.5, 1)),), (((0.25, 0.25), (0.55, 0), (0.55, 1)),)),
    (
        (_Arc(0.05, 0, 0.85, 0.6, 190, 385), ((0.8, 0.42), (0.05, 1), (0.95, 1))),
        (_Arc(0.1, 0, 0.8, 0.6, 200, 400), ((0.7, 0.5), (0.3, 0.9)), _Arc(0.02, 0.7, 0.4, 1, -40, -320)),
    ),
    (
        (_Arc(0.1, 0, 0.8, 0.48, 200, 450), _Arc(0, 0.48, 0.85, 1, 270, 520)),
        (((0.1, 0.05), (0.8, 0.05), (0.45, 0.4)), _Arc(0, 0.4, 0.85, 1, 270, 520)),
    ),
    (
        (((0.25, 0), (0.08, 0.55), (0.95, 0.52)), ((0.75, 0.05), (0.68, 1))),
        (((0.65, 1), (0.7, 0), (0, 0.68), (1, 0.68)),),
        (_Arc(0.1, -0.4, 0.85, 0.5, 180, 10), ((0.85, 0), (0.75, 1))),
    ),
    (
        (((0.85, 0.02), (0.2, 0.02), (0.15, 0.42)), _Arc(0, 0.35, 0.88, 1, 230, 510)),
        (((0.9, 0), (0.25, 0.05), (0.2, 0.4)), _Arc(-0.4, 0.4, 0.8, 1, -95, 110)),
    ),
    (
        (_Arc(0.15, 0, 1.5, 1.4, 180, 265), _Arc(0.15, 0.5, 0.8, 1, 0, 360)),
        (((0.6, 0), (0.2, 0.7)), _Arc(0.15, 0.5, 0.8, 1, 160, 520)),
    ),
    (
        (((0.05, 0.05), (0.9, 0.03), (0.45, 1)),),
        (((0.05, 0.05), (0.9, 0.03), (0.45, 1)), ((0.3, 0.5), (0.85, 0.48))),
    ),
    (
        (_Arc(0.15, 0, 0.8, 0.47, 0, 360), _Arc(0.1, 0.47, 0.9, 1, 0, 360)),
        (((0.85, 0.05), (0.4, 0), (0.15, 0.15), (0.8, 0.75), (0.4, 1), (0.1, 0.85), (0.9, 0.05)),),
    ),
    (
        (_Arc(0.15, 0, 0.8, 0.47, 0, 360), ((0.8, 0.2), (0.7, 1))),
        (_Arc(0.15, 0, 0.8, 0.47, 0, 360), _Arc(-0.6, -0.7, 0.8, 1, 0, 80)),
    ),
)
"""The ways to write each digit."""


def draw_digits(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Draw digits, as many of each class, in random order.

    Returns:
        Images, float32 [count, 784] in 0..1, light on dark, and their classes, int64 [count].
    """
    chance = np.random.default_rng(seed)
    classes = chance.permutation(np.arange(count) % len(_WAYS))
    images = np.empty((count, SIDE * SIDE), np.float32)
    for digit, ways in enumerate(_WAYS):
        (places,) = np.nonzero(classes == digit)
        for number, way in enumerate(ways):
            points = np.concatenate([_points_of(stroke) for stroke in way]) - 0.5
            mine = places[number :: len(ways)]
            for part in np.array_split(mine, -(-len(mine) // _CHUNK)):
                images[part] = _draw(points, len(part), chance)
    return images, classes.astype(np.int64)


def _points_of(stroke: _Arc | _Line) -> NDArray[np.float64]:
    """Points along a stroke: [points, 2]."""
    if isinstance(stroke, _Arc):
        turn = np.radians(np.linspace(stroke.begin, stroke.end, _STROKE_POINTS))
        across, down = (stroke.right - stroke.left) / 2, (stroke.bottom - stroke.top) / 2
        return np.stack(
            [stroke.left + across * (1 + np.cos(turn)), stroke.top + down * (1 + np.sin(turn))], 1
        )
    corners = np.array(stroke)
    along = np.concatenate([[0], np.linalg.norm(np.diff(corners, axis=0), axis=1).cumsum()])
    at = np.linspace(0, along[-1], _STROKE_POINTS)
    return np.stack([np.interp(at, along, corners[:, axis]) for axis in (0, 1)], 1)


def _draw(way: NDArray[np.float64], count: int, chance: np.random.Generator) -> NDArray[np.float32]:
    """Samples of one way to write a digit: float32 [count, 784]."""
    points = _bend(np.repeat(way[None], count, axis=0), chance)
    radius = chance.uniform(0.8, 1.9, (count, 1, 1))
    # Into the box, ink included, with the longer side as long as the box.
    low, high = points.min(axis=1, keepdims=True), points.max(axis=1, keepdims=True)
    points = (points - (low + high) / 2) * (_BOX - 1 - 2 * radius) / (high - low).max(axis=2, keepdims=True)
    images = _ink((points + (SIDE - 1) / 2).astype(np.float32), radius.astype(np.float32)[:, 0], chance)
    return _centred(images.reshape(-1, SIDE, SIDE)).reshape(count, -1)


def _bend(points: NDArray[np.float64], chance: np.random.Generator) -> NDArray[np.float64]:
    """Bend, stretch, slant and turn digits [count, points, 2], each in its own way."""
    count = len(points)
    for axis in (0, 1):
        # Makes one half larger than the other: loops of all sizes.
        points[:, :, axis] += chance.normal(0, 0.1, (count, 1)) * np.cos(np.pi * points[:, :, axis])
        for other, size in ((1 - axis, 0.07), (1 - axis, 0.05), (axis, 0.05)):
            waves = chance.uniform(2, 7, (count, 1)) * points[:, :, other] + chance.uniform(
                0, 6.3, (count, 1)
            )
            points[:, :, axis] += chance.normal(0, size, (count, 1)) * np.sin(waves)
    width, slant, turn = (
        chance.uniform(0.5, 1.15, count),
        chance.normal(0.15, 0.3, count),
        chance.normal(0, 0.15, count),
    )
    one, none = np.ones(count), np.zeros(count)
    stretch = np.array([[width, -slant], [none, one]])
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    moved: NDArray[np.float64] = np.einsum("ijc,jkc,cpk->cpi", rotation, stretch, points)
    return moved


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
