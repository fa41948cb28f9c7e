// Lines, stacked areas and the heat strip. What a chart shows is also said in words: its legend has the latest values,
// and its label names them, so nobody has to see colours.
import "./language.js";
import uPlot from "./libraries/uplot.js";
import { html, useEffect, useRef } from "./libraries.js";
import { latest } from "./past.js";
import { clock, count } from "./words.js";

const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
const HEIGHT = 190;
const AXIS_FONT = "12px system-ui, sans-serif";

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Call `redraw` whenever the theme changes; returns what ends that. */
function onTheme(redraw) {
  dark.addEventListener("change", redraw);
  return () => dark.removeEventListener("change", redraw);
}

function summed(lines) {
  let sum = null;
  return lines.map((line) => {
    sum = line.map((value, index) => (value ?? 0) + (sum ? sum[index] : 0));
    return sum;
  });
}

function options(series, stacked, format, width) {
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid") }, ticks: { stroke: colour("--grid") }, font: AXIS_FONT };
  const drawn = series.map((one, index) => ({
    label: one.label,
    stroke: colour(`--c${one.colour ?? index % 7}`),
    // Not to be seen through: areas stand before those that are taller.
    fill: stacked ? `color-mix(in srgb, ${colour(`--c${one.colour ?? index % 7}`)} 45%, ${colour("--panel")})` : undefined,
    width: 1.75,
    dash: stacked ? undefined : DASHES[Math.floor((one.colour ?? index) / 2) % DASHES.length],
    points: { show: false },
  }));
  // The tallest sum first: what is drawn later stands before it.
  if (stacked) drawn.reverse();
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: true, y: false } },
    scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    axes: [{ ...axis, space: 90, values: (_, times) => times.map((time_s) => clock(1000 * time_s)) }, { ...axis, size: 68, values: (_, values) => values.map(format) }],
    series: [{}, ...drawn],
  };
}

function rows(time_ms, series, stacked) {
  const lines = series.map((one) => one.values);
  const shown = stacked ? summed(lines).reverse() : lines;
  return [time_ms.map((time) => time / 1000), ...shown];
}

/** A chart of series over time: `{label, values, colour}`. */
export function Chart({ title, time_ms, series, stacked = false, format = count, note = "" }) {
  const place = useRef(null);
  const plot = useRef(null);
  const names = series.map((one) => `${one.label}:${one.colour ?? ""}`).join("|");
  useEffect(() => {
    const element = place.current;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(
        options(series, stacked, format, element.clientWidth || 400), rows(time_ms, series, stacked), element,
      );
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
  }, [names, stacked]);
  useEffect(() => plot.current?.setData(rows(time_ms, series, stacked)));
  const said = series.map((one) => `${one.label} ${format(latest(one.values))}`).join(", ");
  return html`<section class="panel">
    <h2>${title}</h2>
    <div class="plot" ref=${place} role="img" aria-label=${`${title}, now: ${said || "nothing"}`}></div>
    <ul class="legend">
      ${series.map((one, index) => html`<li key=${one.label}>
        <${Swatch} index=${one.colour ?? index % 7} stacked=${stacked} />${one.label}
        <span class="number">${format(latest(one.values))}</span>
      </li>`)}
    </ul>
    ${note && html`<p class="empty">${note}</p>`}
  </section>`;
}

function Swatch({ index, stacked }) {
  const dash = stacked ? "" : DASHES[Math.floor(index / 2) % DASHES.length].join(" ");
  return html`<svg viewBox="0 0 20 10" aria-hidden="true">
    <line x1="0" x2="20" y1="5" y2="5" stroke=${`var(--c${index})`} stroke-width=${stacked ? 9 : 3} stroke-dasharray=${dash} />
  </svg>`;
}

/** Sizes of batches over time: the more of a size, the stronger its cell. */
export function HeatStrip({ title, time_ms, bounds, counts }) {
  const canvas = useRef(null);
  const used = counts.map((line, index) => (line.some(Boolean) ? index : -1)).filter((index) => index >= 0);
  const shown = counts.slice(0, Math.max(4, (used.at(-1) ?? 0) + 1));
  const name = (index) => (index < bounds.length ? `≤ ${bounds[index]}` : `> ${bounds.at(-1)}`);
  useEffect(() => {
    const draw = () => drawHeat(canvas.current, shown, name);
    draw();
    return onTheme(draw);
  });
  const said = used.map((index) => `${name(index)} rows: ${counts[index].slice(-60).reduce((sum, one) => sum + one, 0)}`);
  return html`<section class="panel">
    <h2>${title}</h2>
    <canvas class="heat" ref=${canvas} role="img"
      aria-label=${`${title}, batches of the last ${Math.min(60, time_ms.length)} s: ${said.join(", ") || "none"}`}></canvas>
    <p class="empty">Rows of a batch over the same time; the stronger, the more batches.</p>
  </section>`;
}

function drawHeat(canvas, counts, name) {
  const scale = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = AXIS_FONT;
  pen.fillStyle = colour("--quiet");
  const left = 56;
  const row = height / counts.length;
  const most = Math.max(1, ...counts.map((line) => Math.max(0, ...line)));
  const cell = (width - left) / Math.max(60, counts[0].length);
  counts.forEach((line, index) => {
    const top = height - (index + 1) * row;
    pen.fillStyle = colour("--quiet");
    pen.fillText(name(index), 2, top + row / 2 + 4);
    line.forEach((value, step) => {
      if (!value) return;
      // Of many and few both are to be seen, so the logarithm is shown.
      pen.fillStyle = `rgb(${colour("--heat")} / ${0.15 + (0.85 * Math.log1p(value)) / Math.log1p(most)})`;
      pen.fillRect(width - (line.length - step) * cell, top + 1, Math.max(1, cell), row - 2);
    });
  });
}
