// Patterns that tell areas of one colour apart: each is a path in a tile of 8 × 8, for a chart and for its legend.

export const TILE = 8;
const SLASH = "M-2 2L2 -2M0 8L8 0M6 10L10 6";
const BACKSLASH = "M-2 6L2 10M0 0L8 8M6 -2L10 2";
/** Of statuses by their first digit; several statuses of one digit take them in turn. */
const PATTERNS = {
  2: [""],
  4: [SLASH, BACKSLASH, "M0 4H8", "M4 0V8"],
  5: [SLASH + BACKSLASH, "M0 4H8M4 0V8", "M2 0L6 4L2 8"],
};
const COLOURS = { 2: "--c0", 4: "--client-error", 5: "--server-error" };

/** Colour and pattern of each status, by its name. */
export function statusStyles(statuses) {
  const seen = {};
  return Object.fromEntries(statuses.map((status) => {
    const digit = status[0];
    const patterns = PATTERNS[digit] ?? [""];
    seen[digit] = (seen[digit] ?? -1) + 1;
    return [status, { colour: COLOURS[digit] ?? "--c6", pattern: patterns[seen[digit] % patterns.length] }];
  }));
}

/** A fill for a canvas: lines of `pattern` in one colour on another. */
export function filling(pattern, line, ground) {
  if (!pattern) return ground;
  const scale = devicePixelRatio || 1;
  const tile = new OffscreenCanvas(Math.round(TILE * scale), Math.round(TILE * scale));
  const pen = tile.getContext("2d");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, tile.width, tile.height);
  pen.scale(tile.width / TILE, tile.height / TILE);
  pen.strokeStyle = line;
  pen.lineWidth = 1.2;
  pen.stroke(new Path2D(pattern));
  return pen.createPattern(tile, "repeat");
}
