// What the server does now, and has done in the last fifteen minutes.
import { Chart, HeatStrip } from "./charts.js";
import { html, useEffect, useState } from "./libraries.js";
import { latest, merged, rates, recent } from "./past.js";
import { follow } from "./server.js";
import { bytes, count, milliseconds, percent, watts } from "./words.js";

const STEP_MS = 1000;
const STATUS_COLOURS = { 200: 2, 400: 4, 422: 4, 499: 6, 500: 1, 503: 3, 504: 5 };

/** The past of the server or of one model, which grows while somebody looks. */
function usePast(model, onRefused) {
  const [past, setPast] = useState(null);
  useEffect(() => {
    const named = model ? `&model=${encodeURIComponent(model)}` : "";
    let kept = null;
    setPast(null);
    return follow(() => `console/figures?since=${kept?.step ?? 0}${named}`, STEP_MS, (answer) => {
      kept = merged(kept, answer);
      setPast(kept);
    }, onRefused);
  }, [model]);
  return past;
}

function lines(past, named, order = Object.keys(named)) {
  return order.filter((name) => named[name]).map((name) => ({ label: name, values: rates(past, named[name]) }));
}

export function Live({ models, onRefused }) {
  const [model, setModel] = useState("");
  const past = usePast(model, onRefused);
  return html`
    <div class="bar">
      <label>Model
        <select value=${model} onChange=${(event) => setModel(event.target.value)}>
          <option value="">all models</option>
          ${models.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
        </select>
      </label>
    </div>
    ${past ? html`<${Figures} past=${past} />` : html`<p class="empty">Reading the last fifteen minutes…</p>`}`;
}

function Figures({ past }) {
  const time_ms = past.time_ms;
  const statuses = Object.entries(past.requests).map(([status, counts]) => ({
    label: status, values: rates(past, counts), colour: STATUS_COLOURS[status] ?? 0,
  }));
  const cpus = past.processes.map((one, index) => ({ label: one.name, values: one.cpu_percent, colour: index % 7 }));
  return html`
    <${Tiles} past=${past} />
    <div class="grid">
      <${Chart} title="Requests a second, by status" time_ms=${time_ms} series=${statuses} stacked />
      <${Chart} title="Latency" time_ms=${time_ms} format=${milliseconds}
        series=${Object.entries(past.latency_ms).map(([label, values], index) => ({ label, values, colour: index * 2 }))} />
      <${Chart} title="Where the time goes" time_ms=${time_ms} format=${milliseconds} stacked
        series=${Object.entries(past.stages_ms).map(([label, values]) => ({ label, values }))}
        note="Mean of a request; queue and compute of its rows." />
      <${HeatStrip} title="Batch sizes" time_ms=${time_ms} bounds=${past.batches.bounds} counts=${past.batches.counts} />
      <${Chart} title="Why batches left, batches a second" time_ms=${time_ms} stacked series=${lines(past, past.left)} />
      <${Chart} title="Rows in queue and in flight" time_ms=${time_ms} series=${[
        { label: "in flight", values: past.rows.in_flight, colour: 0 },
        { label: "queued", values: past.rows.queued, colour: 2 },
      ]} />
      <${Chart} title="Rejections a second, by reason" time_ms=${time_ms} stacked series=${lines(past, past.rejections)} />
      <${Chart} title="CPU of processes" time_ms=${time_ms} format=${percent} series=${cpus} note="100 % is one core." />
      <${Gpus} past=${past} />
      <${Processes} past=${past} />
    </div>`;
}

function Tiles({ past }) {
  const sum = (counts) => (counts ? recent(rates(past, counts)) : 0);
  const failed = Object.entries(past.requests).filter(([status]) => Number(status) >= 500 || status === "other");
  const tiles = [
    ["Requests a second", count(Object.values(past.requests).reduce((all, counts) => all + sum(counts), 0))],
    ["Rows a second", count(sum(past.rows.answered))],
    ["p99", milliseconds(latest(past.latency_ms.p99))],
    ["Failures a second", count(failed.reduce((all, [, counts]) => all + sum(counts), 0))],
    ["Rows queued", count(latest(past.rows.queued))],
    ["CPU", percent(past.processes.reduce((all, one) => all + (recent(one.cpu_percent) ?? 0), 0))],
  ];
  return html`<dl class="tiles">
    ${tiles.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

function Gpus({ past }) {
  if (!past.gpus.length) {
    return html`<section class="panel"><h2>GPUs</h2><p class="empty">This machine shows no NVIDIA GPU.</p></section>`;
  }
  return past.gpus.map((gpu) => html`<${Chart} key=${gpu.index} title=${`GPU ${gpu.index}`} time_ms=${past.time_ms}
    format=${percent}
    series=${[
      { label: "utilisation", values: gpu.utilization_percent, colour: 0 },
      { label: "memory", values: share(gpu.memory_used_bytes, gpu.memory_total_bytes), colour: 2 },
      { label: "power", values: share(gpu.power_mw, gpu.power_limit_mw), colour: 4 },
    ]}
    note=${`${bytes(latest(gpu.memory_used_bytes))} of ${bytes(latest(gpu.memory_total_bytes))}, `
      + `${watts(latest(gpu.power_mw))}, ${latest(gpu.temperature_c) ?? "–"} °C`} />`);
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
    <p class="empty">Restarts in the last 15 minutes: ${restarts("device")} of device processes,
      ${" "}${restarts("frontend")} of frontends.</p>
  </section>`;
}
