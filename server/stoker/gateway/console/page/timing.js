// Where the time of one request went: the Server-Timing of its answer, as a waterfall.
import { html } from "./libraries.js";
import { milliseconds } from "./words.js";

/** The server's stages in order; not every request has all of them. */
export const STAGES = ["parse", "queue", "turn", "compute"];

/** Milliseconds by the names of a Server-Timing header. */
export function timingOf(header) {
  return Object.fromEntries((header ?? "").split(",").map((entry) => {
    const [name, ...rest] = entry.trim().split(";");
    const duration = rest.map((one) => one.trim()).find((one) => one.startsWith("dur="));
    return [name, duration ? Number(duration.slice(4)) : 0];
  }).filter(([name]) => name));
}

/** Stages with where each begins: those of the server, what it needed beside them, and the way there and back if
 * it is known how long the caller has waited. */
export function stagesOf(timing, took_ms) {
  const stages = [];
  let begins = 0;
  const add = (name, lasts) => {
    if (!(lasts >= 0)) return;
    stages.push({ name, begins, lasts });
    begins += lasts;
  };
  for (const name of STAGES) if (name in timing) add(name, timing[name]);
  if ("total" in timing) add("answer", Math.max(0, timing.total - begins));
  if (took_ms !== null) add("network and browser", Math.max(0, took_ms - begins));
  return stages;
}

export function Waterfall({ stages, label = "Where the time went" }) {
  const all = Math.max(1e-6, ...stages.map((stage) => stage.begins + stage.lasts));
  return html`<table class="fall">
    <caption class="hidden">${label}</caption>
    <thead class="hidden"><tr><th scope="col">stage</th><th scope="col">when</th><th scope="col">time</th></tr></thead>
    <tbody>${stages.map((stage, index) => html`<tr key=${stage.name}>
      <th scope="row">${stage.name}</th>
      <td><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
        <rect x=${(100 * stage.begins) / all} width=${Math.max(0.4, (100 * stage.lasts) / all)} y="1" height="8" fill=${`var(--c${index % 7})`} />
      </svg></td>
      <td class="number">${milliseconds(stage.lasts)}</td>
    </tr>`)}</tbody>
  </table>`;
}
