// Lines, stacked areas and the heat strip. What a chart shows is also said in words: its legend has the values of the
// moment under the pointer, or the latest ones, and its label names these, so nobody has to see colours.
import "./language.js";
import uPlot from "./libraries/uplot.js";
import { html, useEffect, useRef, useState } from "./libraries.js";
import { latest } from "./past.js";
import { filling, TILE } from "./patterns.js";
import { colour, onTheme } from "./themes.js";
import { clock, count } from "./words.js";

const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
const HEIGHT = 190;
const TIMES_HEIGHT = 34;
const VALUES_WIDTH = 62;
const AXIS_FONT = "12px system-ui, sans-serif";
// From this many seconds on, an axis shows no seconds.
const LONG_S = 1800;
// All charts of the page point at the same moment.
const SYNC = { key: "stoker", setSeries: false };

function nameOf(one, index) {
  return one.colour ?? `--c${index % 7}`;
}

function dashOf(index) {
  return DASHES[Math.floor((index % 7) / 2) % DASHES.length];
}

function summed(lines) {
  let sum = null;
  return lines.map((line) => {
    sum = line.map((value, index) => (value ?? 0) + (sum ? sum[index] : 0));
    return sum;
  });
}

function timeAxis(axis) {
  const shown = (plot, times) => {
    const long = times.length > 1 && times.at(-1) - times[0] >= LONG_S;
    return times.map((time_s) => clock(1000 * time_s).slice(0, long ? 5 : 8));
  };
  return { ...axis, space: 90, size: TIMES_HEIGHT, values: shown };
}

/** What all charts have in common; `onPoint` is told the index of the moment under the pointer, or null. */
function common(width, onPoint) {
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid") }, ticks: { stroke: colour("--grid") }, font: AXIS_FONT };
  return {
    axis,
    shared: {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: SYNC, points: { size: 7 } },
      hooks: { setCursor: [(plot) => onPoint(plot.cursor.idx ?? null)] },
    },
  };
}

function lineOptions(series, stacked, format, width, onPoint) {
  const { axis, shared } = common(width, onPoint);
  const drawn = series.map((one, index) => {
    const stroke = colour(nameOf(one, index));
    // Not to be seen through: areas stand before those that are taller.
    const ground = `color-mix(in srgb, ${stroke} ${one.pattern ? 25 : 45}%, ${colour("--panel")})`;
    return {
      label: one.label,
      stroke,
      fill: stacked ? () => filling(one.pattern, stroke, ground) : undefined,
      width: 1.75,
      dash: stacked ? undefined : dashOf(one.dash ?? index),
      points: { show: false, fill: stroke, stroke },
    };
  });
  // The tallest sum first: what is drawn later stands before it.
  if (stacked) drawn.reverse();
  return {
    ...shared,
    scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    axes: [timeAxis(axis), { ...axis, size: VALUES_WIDTH, values: (_, values) => values.map(format) }],
    series: [{}, ...drawn],
  };
}

function lineData(time_ms, series, stacked) {
  const lines = series.map((one) => one.values);
  return [time_ms.map((time) => time / 1000), ...(stacked ? summed(lines).reverse() : lines)];
}

/** A uPlot that fits its element, follows the theme, and points where the arrow keys say. */
function usePlot(options, data, names, changes) {
  const place = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null);
  useEffect(() => {
    const element = place.current;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(element.clientWidth || 400, setAt), data(), element);
    };
    draw();
    const sizes = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    sizes.observe(element);
    const end = onTheme(draw);
    return () => {
      end();
      sizes.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names]);
  useEffect(() => plot.current?.setData(data()), changes);
  const point = (left) => plot.current.setCursor({ left, top: left < 0 ? -10 : 1 }, true, true);
  const onKeyDown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const times = plot.current?.data[0] ?? [];
    if (event.key === "Escape") point(-10);
    if (!step || !times.length) return;
    event.preventDefault();
    const to = Math.min(times.length - 1, Math.max(0, (at ?? times.length) + step));
    point(plot.current.valToPos(times[to], "x"));
  };
  return { at, plot: { ref: place, tabindex: 0, onKeyDown, onBlur: () => plot.current && point(-10) } };
}

/** The frame of a chart: title, moment, plot and legend. */
function Frame({ title, moment, plot, label, note, children }) {
  return html`<section class="panel">
    <h2>${title}<time class="number">${moment}</time></h2>
    <div class="plot" role="img" aria-label=${label} ...${plot}></div>
    <ul class="legend">${children}</ul>
    ${note && html`<p class="empty">${note}</p>`}
  </section>`;
}

/** A chart of series over time: `{label, values, colour, dash, pattern}`. */
export function Chart({ title, time_ms, series, stacked = false, format = count, note = "" }) {
  const names = series.map((one) => [one.label, one.colour, one.pattern].join(":")).join("|");
  const { at, plot } = usePlot(
    (width, onPoint) => lineOptions(series, stacked, format, width, onPoint),
    () => lineData(time_ms, series, stacked), names, [time_ms, series],
  );
  const pointed = at !== null && at < time_ms.length;
  const value = (one) => format(pointed ? one.values[at] : latest(one.values));
  const said = series.map((one) => `${one.label} ${format(latest(one.values))}`).join(", ");
  return html`<${Frame} title=${title} moment=${pointed ? clock(time_ms[at]) : ""} plot=${plot} note=${note}
    label=${`${title}, now: ${said || "nothing"}`}>
    ${series.map((one, index) => html`<li key=${one.label}>
      <${Swatch} one=${one} index=${index} stacked=${stacked} />${one.label} <span class="number">${value(one)}</span>
    </li>`)}
  <//>`;
}

function Swatch({ one, index, stacked }) {
  const stroke = `var(${nameOf(one, index)})`;
  if (!stacked) {
    return html`<svg viewBox="0 0 20 10" aria-hidden="true">
      <line x1="0" x2="20" y1="5" y2="5" stroke=${stroke} stroke-width="3" stroke-dasharray=${dashOf(one.dash ?? index).join(" ")} /></svg>`;
  }
  const tiles = one.pattern ? [0, 1, 2].flatMap((x) => [0, 1].map((y) => [x * TILE, y * TILE])) : [];
  return html`<svg viewBox="0 0 20 10" aria-hidden="true">
    <rect width="20" height="10" fill=${stroke} fill-opacity=${one.pattern ? 0.25 : 0.6} />
    ${tiles.map(([x, y]) => html`<path d=${one.pattern} transform=${`translate(${x} ${y})`} stroke=${stroke} stroke-width="1.2" fill="none" />`)}
    <rect x=".5" y=".5" width="19" height="9" fill="none" stroke=${stroke} />
  </svg>`;
}

/** Sizes of batches over time: the more of a size, the stronger its cell. */
export function HeatStrip({ title, time_ms, bounds, counts }) {
  const used = counts.map((line, index) => (line.some(Boolean) ? index : -1)).filter((index) => index >= 0);
  const shown = counts.slice(0, Math.max(4, (used.at(-1) ?? 0) + 1));
  const name = (index) => (index < bounds.length ? `≤ ${bounds[index]}` : `> ${bounds.at(-1)}`);
  // Cells are painted when the chart is drawn, from what is known then.
  const cells = useRef(shown);
  cells.current = shown;
  const { at, plot } = usePlot(
    (width, onPoint) => heatOptions(cells, name, width, onPoint),
    () => [time_ms.map((time) => time / 1000), time_ms.map(() => null)], `${shown.length}`, [time_ms, counts],
  );
  const pointed = at !== null && at < time_ms.length;
  const number = (index) => (pointed ? counts[index][at] : counts[index].at(-1)) ?? 0;
  const said = used.map((index) => `${name(index)} rows: ${counts[index].slice(-60).reduce((sum, one) => sum + one, 0)}`);
  return html`<${Frame} title=${title} moment=${pointed ? clock(time_ms[at]) : ""} plot=${plot}
    label=${`${title}, batches of the last ${Math.min(60, time_ms.length)} steps: ${said.join(", ") || "none"}`}
    note="Rows per batch. A stronger cell stands for more batches.">
    ${used.map((index) => html`<li key=${index}>${name(index)} <span class="number">${count(number(index))}</span></li>`)}
  <//>`;
}

function heatOptions(cells, name, width, onPoint) {
  const { axis, shared } = common(width, onPoint);
  const rows = cells.current.length;
  const middles = Array.from({ length: rows }, (_, index) => index + 0.5);
  return {
    ...shared,
    hooks: { ...shared.hooks, draw: [(plot) => drawHeat(plot, cells.current)] },
    scales: { y: { range: [0, rows] } },
    axes: [timeAxis(axis), {
      ...axis, size: VALUES_WIDTH, grid: { show: false }, splits: middles, values: (_, places) => places.map((place) => name(place - 0.5)),
    }],
    series: [{}, { show: true }],
  };
}

function drawHeat(plot, counts) {
  const { ctx: pen, data: [times], bbox } = plot;
  if (!times.length) return;
  const most = Math.max(1, ...counts.map((line) => Math.max(0, ...line)));
  const step_s = times.length > 1 ? times[1] - times[0] : 1;
  const fallback = plot.valToPos(times[0] + step_s, "x", true) - plot.valToPos(times[0], "x", true);
  pen.save();
  pen.beginPath();
  pen.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  pen.clip();
  pen.fillStyle = colour("--heat");
  counts.forEach((line, index) => {
    const top = plot.valToPos(index + 1, "y", true);
    const height = plot.valToPos(index, "y", true) - top;
    line.forEach((value, step) => {
      if (!value) return;
      const right = plot.valToPos(times[step], "x", true);
      const left = step ? plot.valToPos(times[step - 1], "x", true) : right - fallback;
      // Of many and few both are to be seen, so the logarithm is shown.
      pen.globalAlpha = 0.15 + (0.85 * Math.log1p(value)) / Math.log1p(most);
      pen.fillRect(left, top + 1, Math.max(1, right - left), height - 2);
    });
  });
  pen.restore();
}
