// What the server does now, and has done before.
import { Chart, HeatStrip } from "./charts.js";
import { html, useEffect, useMemo, useState } from "./libraries.js";
import { latest, merged, rates, recent, within } from "./past.js";
import { statusStyles } from "./patterns.js";
import { follow } from "./server.js";
import { bytes, count, milliseconds, percent, watts } from "./words.js";

/** What can be shown: how far back, the length of its steps, and how many of these the server keeps. */
const RANGES = {
  "5 minutes": { span_s: 300, step_s: 1, most: 900 },
  "15 minutes": { span_s: 900, step_s: 1, most: 900 },
  "1 hour": { span_s: 3600, step_s: 20, most: 1080 },
  "6 hours": { span_s: 21_600, step_s: 20, most: 1080 },
};
const LONGEST_LOOK_MS = 5000;
// While the page is open, also when another place of it was visited.
let lastRange = "15 minutes";

/** The past of the server or of one model, in steps of one length, which grows while somebody looks. */
function usePast(model, { step_s, most }, onRefused) {
  const [past, setPast] = useState(null);
  useEffect(() => {
    const named = model ? `&model=${encodeURIComponent(model)}` : "";
    let kept = null;
    setPast(null);
    return follow(() => `console/figures?step_s=${step_s}&since=${kept?.step ?? 0}${named}`, Math.min(1000 * step_s, LONGEST_LOOK_MS), (answer) => {
      kept = merged(kept, answer, most);
      setPast(kept);
    }, onRefused);
  }, [model, step_s]);
  return past;
}

function lines(past, named) {
  return Object.keys(named).map((name) => ({ label: name, values: rates(past, named[name]) }));
}

export function Live({ models, onRefused }) {
  const [model, setModel] = useState("");
  const [range, setRange] = useState(lastRange);
  const past = usePast(model, RANGES[range], onRefused);
  const shown = useMemo(() => past && within(past, RANGES[range].span_s), [past, range]);
  lastRange = range;
  return html`
    <div class="bar">
      <label>Model
        <select value=${model} onChange=${(event) => setModel(event.target.value)}>
          <option value="">all models</option>
          ${models.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
        </select>
      </label>
      <fieldset><legend>Range</legend>
        ${Object.keys(RANGES).map((name) => html`<label key=${name}>
          <input type="radio" name="range" checked=${name === range} onChange=${() => setRange(name)} /><span>${name}</span></label>`)}
      </fieldset>
    </div>
    ${shown ? html`<${Figures} past=${shown} step_s=${RANGES[range].step_s} />` : html`<p class="empty">Loading…</p>`}`;
}

/** Whether a chart would show anything but zeros. */
function hasData(series) {
  return series.some((one) => one.values.some(Boolean));
}

function Figures({ past, step_s }) {
  const { time_ms } = past;
  if (!time_ms.length) return html`<p class="empty">The first step of ${step_s} s is not complete yet.</p>`;
  const styles = statusStyles(Object.keys(past.requests));
  const statuses = Object.entries(past.requests).map(([status, counts]) => ({
    label: status, values: rates(past, counts), ...styles[status],
  }));
  const charts = [
    { title: "Requests per second, by status", series: statuses, stacked: true },
    {
      title: "Latency", format: milliseconds,
      series: Object.entries(past.latency_ms).map(([label, values], index) => ({ label, values, colour: `--c${2 * index}`, dash: 2 * index })),
    },
    {
      title: "Where the time goes", format: milliseconds, stacked: true, note: "Means: of requests, and of rows for queue and compute.",
      series: Object.entries(past.stages_ms).map(([label, values]) => ({ label, values })),
    },
    { title: "Batches per second, by reason", stacked: true, series: lines(past, past.left) },
    {
      title: "Rows in queue and in flight",
      series: [
        { label: "in flight", values: past.rows.in_flight, colour: "--c0" },
        { label: "queued", values: past.rows.queued, colour: "--c2", dash: 2 },
      ],
    },
    { title: "Rejections per second, by reason", stacked: true, series: lines(past, past.rejections) },
  ].filter((chart) => hasData(chart.series));
  const batches = past.batches.counts.some((line) => line.some(Boolean));
  return html`
    <${Tiles} past=${past} />
    ${!charts.length && html`<p class="empty">No requests in this range. <a href="#try">Send one</a>.</p>`}
    <div class="grid">
      ${charts.slice(0, 3).map((chart) => html`<${Chart} key=${chart.title} time_ms=${time_ms} ...${chart} />`)}
      ${batches && html`<${HeatStrip} title="Batch sizes" time_ms=${time_ms} bounds=${past.batches.bounds} counts=${past.batches.counts} />`}
      ${charts.slice(3).map((chart) => html`<${Chart} key=${chart.title} time_ms=${time_ms} ...${chart} />`)}
      ${past.gpus.map((gpu) => html`<${Gpu} key=${gpu.index} gpu=${gpu} time_ms=${time_ms} />`)}
      <${Chart} title="CPU of processes" time_ms=${time_ms} format=${percent} note="100 % is one core."
        series=${past.processes.map((one) => ({ label: one.name, values: one.cpu_percent }))} />
      <${Processes} past=${past} />
    </div>`;
}

function Tiles({ past }) {
  const sum = (counts) => (counts ? recent(rates(past, counts)) : 0);
  const failed = Object.entries(past.requests).filter(([status]) => Number(status) >= 500 || status === "other");
  const tiles = [
    ["Requests per second", count(Object.values(past.requests).reduce((all, counts) => all + sum(counts), 0))],
    ["Rows per second", count(sum(past.rows.answered))],
    ["p99 latency", milliseconds(latest(past.latency_ms.p99))],
    ["5xx per second", count(failed.reduce((all, [, counts]) => all + sum(counts), 0))],
    ["Rows queued", count(latest(past.rows.queued))],
    ["CPU", percent(past.processes.reduce((all, one) => all + (recent(one.cpu_percent) ?? 0), 0))],
  ];
  return html`<dl class="tiles">
    ${tiles.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

function Gpu({ gpu, time_ms }) {
  return html`<${Chart} title=${`GPU ${gpu.index}`} time_ms=${time_ms} format=${percent}
    series=${[
      { label: "utilization", values: gpu.utilization_percent, colour: "--c0" },
      { label: "memory", values: share(gpu.memory_used_bytes, gpu.memory_total_bytes), colour: "--c2", dash: 2 },
      { label: "power", values: share(gpu.power_mw, gpu.power_limit_mw), colour: "--c4", dash: 4 },
    ]}
    note=${`${bytes(latest(gpu.memory_used_bytes))} of ${bytes(latest(gpu.memory_total_bytes))}, `
      + `${watts(latest(gpu.power_mw))}, ${latest(gpu.temperature_c) ?? "–"} °C`} />`;
}

function share(values, most) {
  return values.map((value, index) => (value === null || !most[index] ? null : (100 * value) / most[index]));
}

function Processes({ past }) {
  const restarts = (kind) => past.restarts[kind].reduce((sum, one) => sum + one, 0);
  return html`<section class="panel">
    <h2>Processes</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="Processes">
      <table>
        <thead><tr><th scope="col">process</th><th scope="col" class="number">pid</th>
          <th scope="col" class="number">CPU</th><th scope="col" class="number">memory</th></tr></thead>
        <tbody>${past.processes.map((one) => html`<tr key=${one.name}>
          <th scope="row">${one.name}</th><td class="number">${one.pid}</td>
          <td class="number">${percent(recent(one.cpu_percent))}</td>
          <td class="number">${bytes(latest(one.memory_bytes))}</td></tr>`)}</tbody>
      </table>
    </div>
    <p class="empty">Restarts in this range: ${restarts("device")} of device processes,
      ${" "}${restarts("frontend")} of frontends.</p>
  </section>`;
}
