// The last failures and the slowest requests in one table; each row opens where its time went.
import { Fragment, html, useEffect, useState } from "./libraries.js";
import { follow } from "./server.js";
import { STAGES, stagesOf, Waterfall } from "./timing.js";
import { clock, count, milliseconds } from "./words.js";

const LOOK_MS = 3000;
/** The columns: what a row is sorted by, and what its cell shows. */
const COLUMNS = {
  time: { of: (one) => one.at_ms, shown: (one) => clock(one.at_ms) },
  model: { of: nameOf, shown: nameOf },
  status: { of: (one) => one.status, shown: (one) => html`<span class=${one.status < 400 ? "good" : "error"}>${one.status}</span>`, number: true },
  ms: { of: (one) => one.total_ms ?? -1, shown: (one) => one.total_ms?.toFixed(one.total_ms < 10 ? 2 : 1) ?? "–", number: true },
  "longest stage": { of: longest, shown: longest },
  key: { of: (one) => one.key, shown: (one) => one.key },
};
const AGES_S = { "any time": Infinity, "last minute": 60, "last 5 minutes": 300, "last 15 minutes": 900 };
const NO_FILTER = { time: "any time", model: "", status: "", ms: "", "longest stage": "", key: "" };

function nameOf(one) {
  return `${one.model} version ${one.version}`;
}

function stages(one) {
  const known = [...STAGES, "total"].filter((name) => `${name}_ms` in one);
  const all = stagesOf(Object.fromEntries(known.map((name) => [name, one[`${name}_ms`]])), null);
  // A request that failed earlier has no time for its answer.
  return all.filter((stage) => stage.name !== "answer" || stage.lasts > 0);
}

/** The stage that dominated a request. */
function longest(one) {
  const all = stages(one);
  return all.length ? all.reduce((most, stage) => (stage.lasts > most.lasts ? stage : most)).name : "–";
}

function passes(one, filter, newest_ms) {
  return one.at_ms >= newest_ms - 1000 * AGES_S[filter.time]
    && (!filter.ms || (one.total_ms ?? 0) >= Number(filter.ms))
    && ["model", "status", "longest stage", "key"].every((name) => !filter[name] || `${COLUMNS[name].of(one)}` === filter[name]);
}

export function Requests({ onRefused }) {
  const [found, setFound] = useState(null);
  const [paused, setPaused] = useState(false);
  const [filter, setFilter] = useState(NO_FILTER);
  const [sort, setSort] = useState({ by: "time", down: true });
  const [opened, setOpened] = useState("");
  useEffect(() => {
    if (paused) return undefined;
    return follow(() => "console/requests", LOOK_MS, setFound, onRefused);
  }, [paused]);
  if (!found) return html`<p class="empty">Loading…</p>`;
  const all = [...found.failed, ...found.slow];
  const newest_ms = Math.max(0, ...all.map((one) => one.at_ms));
  const { of } = COLUMNS[sort.by];
  const order = (a, b) => (of(a) < of(b) ? -1 : of(a) > of(b) ? 1 : a.at_ms - b.at_ms);
  const shown = all.filter((one) => passes(one, filter, newest_ms)).sort((a, b) => (sort.down ? -1 : 1) * order(a, b));
  return html`
    <${Filters} all=${all} filter=${filter} onChange=${setFilter}>
      <button aria-pressed=${paused} onClick=${() => setPaused(!paused)}>Pause</button>
    <//>
    <section class="panel">
      <h2>Failures and slowest requests</h2>
      ${all.length === 0
        ? html`<p class="empty">No requests yet. <a href="#try">Send one</a>.</p>`
        : html`<${Table} shown=${shown} sort=${sort} onSort=${setSort} opened=${opened} onOpen=${setOpened} />`}
      ${all.length > 0 && shown.length === 0 && html`<p class="empty">No request matches these filters.</p>`}
      <p class="empty">${shown.length} of ${all.length} requests. The server records up to ten failures per second of each version, and
        the 16 slowest requests of each half minute. It only counts requests that it refuses before it reads them.</p>
    </section>`;
}

function Filters({ all, filter, onChange, children }) {
  const change = (name) => (event) => onChange({ ...filter, [name]: event.target.value });
  const values = (name) => [...new Set(all.map((one) => `${COLUMNS[name].of(one)}`))].sort();
  const choice = (name, title) => html`<label>${title}
    <select value=${filter[name]} onChange=${change(name)}>
      <option value="">all</option>
      ${values(name).map((value) => html`<option key=${value} value=${value}>${value}</option>`)}
    </select></label>`;
  return html`<div class="bar" role="search" aria-label="Filters">
    <label>Time
      <select value=${filter.time} onChange=${change("time")}>
        ${Object.keys(AGES_S).map((name) => html`<option key=${name}>${name}</option>`)}
      </select></label>
    ${choice("model", "Model")} ${choice("status", "Status")}
    <label>At least, in ms <input type="number" min="0" value=${filter.ms} onInput=${change("ms")} /></label>
    ${choice("longest stage", "Longest stage")} ${choice("key", "Key")}
    ${children}
  </div>`;
}

function Table({ shown, sort, onSort, opened, onOpen }) {
  const head = (name) => {
    const sorted = sort.by === name;
    return html`<th key=${name} scope="col" class=${COLUMNS[name].number ? "number" : ""}
      aria-sort=${sorted ? (sort.down ? "descending" : "ascending") : undefined}>
      <button class="plain" onClick=${() => onSort({ by: name, down: sorted ? !sort.down : true })}>${name}<span aria-hidden="true">${sorted ? (sort.down ? " ▼" : " ▲") : ""}</span></button></th>`;
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Requests">
    <table class="requests">
      <thead><tr>${Object.keys(COLUMNS).map(head)}</tr></thead>
      <tbody>${shown.map((one) => {
        const id = `${one.at_ms} ${one.id}`;
        const open = id === opened;
        return html`<${Fragment} key=${id}>
          <tr class="row" onClick=${() => onOpen(open ? "" : id)}>
            ${Object.entries(COLUMNS).map(([name, column], index) => html`<td key=${name} class=${column.number ? "number" : ""}>
              ${index === 0 ? html`<button class="plain" aria-expanded=${open}>${column.shown(one)}</button>` : column.shown(one)}</td>`)}
          </tr>
          ${open && html`<tr class="detail"><td colspan=${Object.keys(COLUMNS).length}><${Detail} one=${one} /></td></tr>`}
        <//>`;
      })}</tbody>
    </table>
  </div>`;
}

function Detail({ one }) {
  const known = stages(one);
  return html`<div class="inner">
    ${one.message && html`<p class="error">${one.message} (${one.code})</p>`}
    <p class="empty">Request ${one.id}${one.error_id && `, error id ${one.error_id}`}</p>
    ${known.length > 0 && html`<${Waterfall} stages=${known} label=${`Where the time of request ${one.id} went`} />`}
    ${one.batch && html`<${Batch} one=${one} />`}
    ${one.around && html`<${Around} around=${one.around} />`}
  </div>`;
}

// Why a batch left, as the documentation of batching says.
const LEFT = {
  full: "it was full",
  idle: "the device was free",
  delay: "the maximum delay had passed",
  deadline: "a deadline was near",
  largest: "a larger batch would have missed its target",
  order: "a larger batch would have missed the first request's target",
  turn: "the model's turn on the device had come",
};

/** The batch that a request was in: the last one of several. */
function Batch({ one }) {
  const { rows, padding_rows, requests, left } = one.batch;
  return html`<h3>Its batch</h3>
    <dl class="facts">
      <dt>Rows</dt><dd>${count(rows)}, of ${requests} request${requests === 1 ? "" : "s"}${padding_rows > 0 && `, and ${padding_rows} of padding`}</dd>
      <dt>Left because</dt><dd>${LEFT[left] ?? left}</dd>
      ${"turn_ms" in one && html`<dt>Turn</dt><dd>waited ${milliseconds(one.turn_ms)} for other models on the device</dd>`}
    </dl>`;
}

function Around({ around }) {
  const left = Object.entries(around.left).map(([reason, number]) => `${number} ${reason}`).join(", ");
  const means = Object.entries(around.stages_ms).map(([stage, mean]) => `${stage} ${milliseconds(mean)}`).join(", ");
  return html`<h3>The model in that second</h3>
    <dl class="facts">
      <dt>Requests</dt><dd>${around.requests}; means: ${means}</dd>
      <dt>Batches</dt><dd>${around.batches}${left && ` (${left})`}, ${count(around.rows_a_batch)} rows on average${around.padding_rows > 0 && `, ${around.padding_rows} rows of padding`}</dd>
      <dt>At its end</dt><dd>${around.queued_rows} rows queued, ${around.in_flight_rows} in flight</dd>
    </dl>`;
}
