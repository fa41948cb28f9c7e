// What is served: each version of each model, and with the admin key what changes that.
import { html, useState } from "./libraries.js";
import { ask, keys } from "./server.js";
import { tensors } from "./words.js";

export function Models({ models, known, onChanged }) {
  const [told, setTold] = useState({ text: "", failed: false });
  const [busy, setBusy] = useState("");
  const [admin, setAdmin] = useState(keys.admin);
  const may = known.admin_key && !known.changes;
  /** Ask for a change, and say what came of it. */
  const change = async (what, path, body = {}) => {
    setBusy(what);
    setTold({ text: `${what}…`, failed: false });
    try {
      await ask(`v2/repository/models/${path}`, {
        method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" },
      }, keys.admin);
      setTold({ text: `${what}: done.`, failed: false });
    } catch (error) {
      setTold({ text: `${what}: ${error.message}`, failed: true });
    }
    setBusy("");
    onChanged();
  };
  const keep = (event) => {
    keys.admin = event.target.value.trim();
    setAdmin(keys.admin);
  };
  return html`
    <div class="bar">
      ${may
        ? html`<label>Admin key, for changes
            <input type="password" autocomplete="off" value=${admin} onInput=${keep} /></label>`
        : html`<p class="empty">${known.changes
          || "Pages may not change what a server without keys serves: start it with STOKER_ADMIN_KEY."}</p>`}
      <span role="status" class=${told.failed ? "error" : ""}>${told.text}</span>
    </div>
    ${models.length === 0 && html`<p class="empty">No model is loaded.</p>`}
    ${models.map((model) => html`<${Model} key=${model.name} model=${model} change=${may && admin ? change : null} busy=${busy} />`)}
    ${may && admin && html`<${Another} change=${change} busy=${busy} />`}`;
}

function pathTo(name, version) {
  return encodeURIComponent(name) + (version ? `/versions/${version}` : "");
}

function Model({ model, change, busy }) {
  const labels = Object.entries(model.labels);
  return html`<section class="panel model">
    <h2>${model.name}</h2>
    <dl class="facts">
      <dt>default</dt><dd>${model.default ?? "none"}</dd>
      ${labels.length > 0 && html`<dt>labels</dt><dd>${labels.map(([label, number]) => `${label} → ${number}`).join(", ")}</dd>`}
      <dt>scoring</dt><dd><code>${model.path}</code></dd>
    </dl>
    ${change && html`<p>
      <button disabled=${busy} onClick=${() => change(`Load ${model.name}`, `${pathTo(model.name)}/load`)}>Load what is new</button>
      ${" "}<button disabled=${busy} onClick=${() => confirm(`Unload all versions of ${model.name}?`)
        && change(`Unload ${model.name}`, `${pathTo(model.name)}/unload`)}>Unload</button></p>`}
    ${change && labels.length > 1 && html`<${Weights} model=${model} change=${change} busy=${busy} />`}
    ${[...model.versions].reverse().map((version) => html`<${Version} key=${version.version} model=${model} version=${version} change=${change} busy=${busy} />`)}
  </section>`;
}

function Version({ model, version, change, busy }) {
  const name = `${model.name} version ${version.version}`;
  const loaded = version.framework !== undefined;
  return html`<div>
    <h3>Version ${version.version} <span class=${`state ${version.state === "AVAILABLE" ? "good" : ""}`}>${version.state}</span></h3>
    ${version.reason && html`<p class=${version.error ? "error" : "empty"}>${version.reason}</p>`}
    ${loaded && html`<dl class="facts">
      <dt>framework</dt><dd>${version.framework}</dd>
      <dt>takes</dt><dd>${tensors(version.inputs) || "a body of its own form"}${version.images && ", or an image"}</dd>
      ${version.outputs.length > 0 && html`<dt>gives</dt><dd>${tensors(version.outputs)}</dd>`}
      <dt>devices</dt><dd>${version.devices.join(", ") || "auto"}; replicas ready: ${version.replicas};
        ${" "}instances: ${version.instances ?? "as suits the device"}</dd>
      <dt>batches</dt><dd>at most ${version.batch_cap_rows || version.max_batch_rows} rows, after at most ${version.max_delay_ms} ms;
        ${" "}buckets: ${version.buckets ? version.buckets.join(", ") : "as suits the device"}</dd>
      ${version.precision && version.devices.some((device) => device !== "cpu") && html`<dt>precision on GPUs</dt><dd>${version.precision}</dd>`}
      ${Object.keys(version.origin).length > 0 && html`<dt>origin</dt><dd>${Object.entries(version.origin)
        .map(([name, value]) => `${name} ${value}`).join(", ")}</dd>`}
      ${version.batching && html`<dt>batching</dt><dd>${describeBatching(version.batching)}</dd>`}
      ${version.description && html`<dt>description</dt><dd>${version.description}</dd>`}
    </dl>`}
    ${change && html`<p>${loaded
      ? html`<button disabled=${busy} onClick=${() => confirm(`Unload ${name}?`)
          && change(`Unload ${name}`, `${pathTo(model.name, version.version)}/unload`)}>Unload version ${version.version}</button>`
      : html`<button disabled=${busy} onClick=${() => change(`Load ${name}`, `${pathTo(model.name, version.version)}/load`)}>Load version ${version.version}</button>`}</p>`}
    ${loaded && html`<p><a href=${`#try/${encodeURIComponent(`${model.name}/${version.version}`)}`}>Try ${name}</a></p>`}
  </div>`;
}

function describeBatching(batching) {
  if (batching.batched === undefined) return `${batching.how}: ${batching.reason}`;
  const told = `${batching.batched ? "yes" : "no"}, ${batching.how}: ${batching.reason}`;
  return batching.setting ? `${told} (${batching.setting} changes that)` : told;
}

/** Shares of the requests that name no version, by labels. */
function Weights({ model, change, busy }) {
  const [weights, setWeights] = useState(() => Object.fromEntries(
    Object.entries(model.labels).map(([label, number]) => [label, model.weights[number] ?? (number === model.default ? 100 : 0)]),
  ));
  const submit = (event) => {
    event.preventDefault();
    change(`Weights of ${model.name}`, `${pathTo(model.name)}/canary`, { weights });
  };
  return html`<form class="bar" onSubmit=${submit}>
    ${Object.keys(weights).map((label) => html`<label key=${label}>Weight of ${label}
      <input type="number" min="0" max="100" value=${weights[label]}
        onInput=${(event) => setWeights({ ...weights, [label]: Number(event.target.value) })} /></label>`)}
    <button disabled=${busy}>Set the weights</button>
  </form>`;
}

/** A model of the settings or of the repository that is not served yet. */
function Another({ change, busy }) {
  const [name, setName] = useState("");
  const submit = (event) => {
    event.preventDefault();
    change(`Load ${name}`, `${pathTo(name.trim())}/load`);
  };
  return html`<form class="bar panel" onSubmit=${submit}>
    <label>Load a model by its name <input required value=${name} onInput=${(event) => setName(event.target.value)} /></label>
    <button disabled=${busy}>Load</button>
  </form>`;
}
