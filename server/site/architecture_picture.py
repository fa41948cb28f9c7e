"""Draws the path of a request, the picture of server/docs/architecture.md: `make pictures`.

The picture is a list of boxes and arrows. Attributes give the colours, for every reader of SVG; in a
dark theme, browsers take those of the style.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

FILE: Final = Path(__file__).parents[1] / "docs" / "images" / "architecture.svg"
WIDTH: Final = 1045
HEIGHT: Final = 560
LIGHT: Final = {
    "paper": "#ffffff",
    "room": "#f3f5f8",
    "step": "#ffffff",
    "shared": "#fff6df",
    "line": "#5b6675",
    "text": "#1b2330",
    "note": "#4a5564",
    "refused": "#b3261e",
}
DARK: Final = {
    "paper": "#14181f",
    "room": "#1d232d",
    "step": "#28303c",
    "shared": "#3a3220",
    "line": "#9aa7b8",
    "text": "#eef2f7",
    "note": "#c2ccd9",
    "refused": "#ff8a80",
}


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and a line below it; a room has its title at its top."""

    x: int
    y: int
    width: int
    height: int
    kind: str
    title: str
    note: str = ""


@dataclass(frozen=True)
class Arrow:
    """A line through points, with its head at the last one; a refusal is dashed."""

    points: tuple[tuple[int, int], ...]
    label: str = ""
    label_at: tuple[int, int] = (0, 0)
    kind: str = "line"


BOXES: Final = (
    Box(190, 30, 380, 510, "room", "frontend (one of F)"),
    Box(822, 30, 210, 510, "room", "device process"),
    Box(15, 80, 95, 434, "step", "caller"),
    Box(210, 80, 340, 54, "step", "1 fast path or ASGI app", "plain requests, or everything else"),
    Box(210, 170, 340, 54, "step", "Service", "checks key and limits, makes a Call"),
    Box(210, 260, 340, 54, "step", "2 Dialect", "decodes the body"),
    Box(210, 350, 340, 54, "step", "3 Exchange", "leases rows, writes them, rings"),
    Box(210, 460, 340, 54, "step", "6 Exchange, Dialect, Call", "encode the answer, free the rows"),
    Box(632, 80, 130, 54, "shared", "doorbell", "queued rows"),
    Box(632, 240, 130, 190, "shared", "arena", "shared memory"),
    Box(632, 460, 130, 54, "shared", "doorbell", "done rows"),
    Box(837, 80, 180, 54, "step", "Worker, RowQueue", "rows of all frontends"),
    Box(837, 170, 180, 54, "step", "4 plan", "which rows leave, and why"),
    Box(837, 260, 180, 54, "step", "5 gather", "rows into one batch"),
    Box(837, 350, 180, 54, "step", "Runtime.run", "the model computes"),
    Box(837, 460, 180, 54, "step", "scatter", "outputs into their rows"),
)
ARROWS: Final = (
    Arrow(((110, 107), (210, 107)), "POST /score", (150, 99)),
    Arrow(((210, 197), (110, 197)), "4xx", (150, 189), "refused"),
    Arrow(((210, 287), (110, 287)), "400, 422", (150, 279), "refused"),
    Arrow(((210, 377), (110, 377)), "503", (150, 369), "refused"),
    Arrow(((210, 487), (110, 487)), "200", (150, 479)),
    Arrow(((380, 134), (380, 170))),
    Arrow(((380, 224), (380, 260))),
    Arrow(((380, 314), (380, 350))),
    Arrow(((550, 365), (588, 365), (588, 107), (632, 107))),
    Arrow(((550, 390), (632, 390)), "inputs", (603, 383)),
    Arrow(((632, 415), (603, 415), (603, 475), (550, 475)), "outputs", (601, 409)),
    Arrow(((632, 497), (550, 497))),
    Arrow(((762, 107), (837, 107))),
    Arrow(((927, 134), (927, 170))),
    Arrow(((927, 224), (927, 260))),
    Arrow(((762, 287), (837, 287)), "inputs", (792, 280)),
    Arrow(((927, 314), (927, 350))),
    Arrow(((927, 404), (927, 460))),
    Arrow(((837, 475), (792, 475), (792, 400), (762, 400)), "outputs", (792, 393)),
    Arrow(((837, 497), (762, 497))),
)


def draw_text(x: float, y: float, size: int, kind: str, text: str, weight: str = "normal") -> str:
    """Return a line of text, centred at x, on a baseline at y."""
    return (
        f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="middle" fill="{LIGHT[kind]}">{escape(text)}</text>'
    )


def draw_box(box: Box) -> list[str]:
    """Return a rectangle, and its texts in the middle, or those of a room at its top."""
    middle = box.x + box.width / 2
    rectangle = (
        f'<rect class="{box.kind} edge" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6" '
        f'fill="{LIGHT[box.kind]}" stroke="{LIGHT["line"]}"/>'
    )
    centre = box.y + box.height / 2
    if box.kind == "room":
        return [rectangle, draw_text(middle, box.y + 28, 15, "text", box.title, "bold")]
    if not box.note:
        return [rectangle, draw_text(middle, centre, 14, "text", box.title, "bold")]
    return [
        rectangle,
        draw_text(middle, centre - 4, 14, "text", box.title, "bold"),
        draw_text(middle, centre + 15, 12, "note", box.note),
    ]


def draw_arrow(arrow: Arrow) -> list[str]:
    """Return a line with a head, and its label."""
    (x0, y0), (x, y) = arrow.points[-2:]
    right, down = (x > x0) - (x < x0), (y > y0) - (y < y0)
    corners = (
        (x, y),
        *((x - 8 * right + 4 * side * down, y - 8 * down + 4 * side * right) for side in (1, -1)),
    )
    dashes = ' stroke-dasharray="5 3"' if arrow.kind == "refused" else ""
    colour = LIGHT[arrow.kind]
    drawn = [
        f'<polyline class="{arrow.kind}-stroke" points="{" ".join(f"{a},{b}" for a, b in arrow.points)}" fill="none" '
        f'stroke="{colour}" stroke-width="1.5"{dashes}/>',
        f'<polygon class="{arrow.kind}" points="{" ".join(f"{a},{b}" for a, b in corners)}" fill="{colour}"/>',
    ]
    if arrow.label:
        drawn.append(draw_text(*arrow.label_at, 12, "refused" if dashes else "note", arrow.label))
    return drawn


def draw() -> str:
    """Return the picture."""
    dark = [f".{kind} {{ fill: {colour} }}" for kind, colour in DARK.items()]
    dark += [f".{kind}-stroke {{ stroke: {DARK[kind]} }}" for kind in ("line", "refused")]
    dark.append(f".edge {{ stroke: {DARK['line']} }}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" role="img">',
        "<title>The path of a request</title>",
        "<style>@media (prefers-color-scheme: dark) {",
        *dark,
        "}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{LIGHT["paper"]}"/>',
        *(line for box in BOXES for line in draw_box(box)),
        *(line for arrow in ARROWS for line in draw_arrow(arrow)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(draw(), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
