// The last failures, and the slowest requests of the last minutes with what went on around each.
import { html, useEffect, useState } from "./libraries.js";
import { follow } from "./server.js";
import { STAGES, stagesOf, Waterfall } from "./timing.js";
import { clock, count, milliseconds } from "./words.js";

const LOOK_MS = 3000;

export function Requests({ onRefused }) {
  const [found, setFound] = useState(null);
  const [held, setHeld] = useState(false);
  useEffect(() => {
    if (held) return undefined;
    return follow(() => "console/requests", LOOK_MS, setFound, onRefused);
  }, [held]);
  if (!found) return html`<p class="empty">Reading…</p>`;
  return html`
    <div class="bar"><button aria-pressed=${held} onClick=${() => setHeld(!held)}>Hold the lists</button></div>
    <div class="columns">
      <section class="panel">
        <h2>Slowest requests of the last five minutes</h2>
        ${found.slow.length === 0 && html`<p class="empty">There were none.</p>`}
        ${found.slow.map((one) => html`<${Slow} key=${one.id} one=${one} />`)}
      </section>
      <section class="panel">
        <h2>Last failures</h2>
        ${found.failed.length === 0
          ? html`<p class="empty">There were none.</p>`
          : html`<${Failures} failed=${found.failed} />`}
        <p class="empty">At most ten a second of each version; those that were refused before they were taken, for want of a
          key for instance, are only counted.</p>
      </section>
    </div>`;
}

function stages(one) {
  const told = [...STAGES, "total"].filter((name) => `${name}_ms` in one);
  return stagesOf(Object.fromEntries(told.map((name) => [name, one[`${name}_ms`]])), null);
}

function Slow({ one }) {
  return html`<details>
    <summary><span class="number">${milliseconds(one.total_ms)}</span> ${one.model} version ${one.version}, ${one.rows} row${one.rows === 1 ? "" : "s"},
      ${" "}${clock(one.at_ms)}: ${cause(one)}</summary>
    <p class="empty">request ${one.id}</p>
    <${Waterfall} stages=${stages(one)} label=${`Where the time of request ${one.id} went`} />
    ${one.batch && html`<${Batch} one=${one} />`}
    ${one.around && html`<${Around} around=${one.around} />`}
  </details>`;
}

/** The stage that took longest, in words. */
function cause(one) {
  const longest = stages(one).reduce((most, stage) => (stage.lasts > most.lasts ? stage : most));
  const words = {
    parse: "its body took long to read",
    queue: "it waited for the device",
    turn: "its batch waited for other models of the device",
    compute: "its batch took long to compute",
    answer: "its answer had to wait for the frontend",
  };
  return `${words[longest.name]} (${milliseconds(longest.lasts)})`;
}

// Why a batch left; the words of the settings' documentation, and what its rows waited for until then.
const LEFT = {
  full: "it was full, and the batch before it done",
  idle: "the device was free: until then it was busy with batches before",
  delay: "company had been waited for long enough",
  deadline: "a deadline pressed",
  largest: "it was the largest that could be in time",
  order: "it was the largest that the first target allowed",
  turn: "its turn of the device had come",
};

/** The batch that a request was in; one of several batches tells the last. */
function Batch({ one }) {
  const { rows, padding_rows, requests, left } = one.batch;
  return html`<h3>Its batch</h3>
    <dl class="facts">
      <dt>rows</dt><dd>${count(rows)}, of ${requests} request${requests === 1 ? "" : "s"}${padding_rows > 0 && `, filled up with ${padding_rows} row${padding_rows === 1 ? "" : "s"}`}</dd>
      <dt>it left because</dt><dd>${LEFT[left] ?? left}</dd>
      ${"turn_ms" in one && html`<dt>for its turn</dt><dd>it waited ${milliseconds(one.turn_ms)}, while other models had the device</dd>`}
    </dl>`;
}

function Around({ around }) {
  const left = Object.entries(around.left).map(([reason, number]) => `${reason} ${number}`).join(", ");
  const means = Object.entries(around.stages_ms).map(([stage, mean]) => `${stage} ${milliseconds(mean)}`).join(", ");
  return html`<h3>In that second</h3>
    <dl class="facts">
      <dt>requests</dt><dd>${around.requests}; means: ${means}</dd>
      <dt>batches</dt><dd>${around.batches}, of ${count(around.rows_a_batch)} rows on the mean${around.padding_rows > 0 && `, filled up with ${around.padding_rows} rows`}</dd>
      <dt>they left</dt><dd>${left || "none did"}</dd>
      <dt>at its end</dt><dd>${around.queued_rows} rows queued, ${around.in_flight_rows} in flight</dd>
    </dl>`;
}

function Failures({ failed }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Last failures">
    <table>
      <thead><tr><th scope="col">time</th><th scope="col">model</th><th scope="col">status</th><th scope="col">what</th></tr></thead>
      <tbody>${failed.map((one) => html`<tr key=${one.id}>
        <td class="number">${clock(one.at_ms)}</td>
        <td>${one.model} version ${one.version}</td>
        <td class="number">${one.status}</td>
        <td>${one.message} <span class="empty">${one.code}${one.error_id && `, error id ${one.error_id}`}, request ${one.id}</span></td>
      </tr>`)}</tbody>
    </table>
  </div>`;
}
