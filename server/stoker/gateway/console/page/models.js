// The versions of each model, and with the admin key what changes them.
import { html, useState } from "./libraries.js";
import { ask, keys } from "./server.js";
import { bytes, tensors } from "./words.js";

const PAGE = 20;
// More than these are closed until somebody opens one.
const MOST_OPEN = 5;

export function Models({ models, known, onChanged }) {
  const [search, setSearch] = useState("");
  const [state, setState] = useState("");
  const [from, setFrom] = useState(0);
  const named = models.filter((model) => model.name.toLowerCase().includes(search.trim().toLowerCase()));
  const found = named.filter((model) => !state || stateOf(model) === state);
  const start = from < found.length ? from : 0;
  const [told, setTold] = useState({ text: "", failed: false });
  const [busy, setBusy] = useState("");
  const [admin, setAdmin] = useState(keys.admin);
  const may = known.admin_key && !known.changes;
  /** Ask for a change, and show its result. */
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
          || "This server has no keys, so the console cannot change it. Start the server with STOKER_ADMIN_KEY to allow changes."}</p>`}
      <span role="status" class=${told.failed ? "error" : ""}>${told.text}</span>
    </div>
    ${models.length === 0 && html`<p class="empty">No model is loaded.</p>`}
    ${models.length > 1 && html`<div class="bar" role="search">
      <label>Name <input type="search" value=${search} onInput=${(event) => { setSearch(event.target.value); setFrom(0); }} /></label>
      <label>State <select value=${state} onChange=${(event) => { setState(event.target.value); setFrom(0); }}>
        <option value="">all (${named.length})</option>
        ${countStates(named, state).map(([name, number]) => html`<option key=${name} value=${name}>${name} (${number})</option>`)}
      </select></label>
      ${known.memory.budget_bytes > 0 && html`<label>${known.memory.on_gpus ? "GPU memory" : "Memory"} of models: ${bytes(known.memory.used_bytes)} of ${bytes(known.memory.budget_bytes)}
        <meter max=${known.memory.budget_bytes} high=${known.memory.budget_bytes} value=${known.memory.used_bytes} /></label>`}
      <span role="status">${found.length > PAGE ? `${start + 1} to ${Math.min(start + PAGE, found.length)} of ${found.length} models` : `${found.length} of ${models.length} models`}</span>
      ${found.length > PAGE && html`<button disabled=${start === 0} onClick=${() => setFrom(start - PAGE)}>Previous</button>
        <button disabled=${start + PAGE >= found.length} onClick=${() => setFrom(start + PAGE)}>Next</button>`}
    </div>`}
    ${found.slice(start, start + PAGE).map((model) => html`<${Model} key=${model.name} model=${model} open=${found.length <= MOST_OPEN}
      gpus=${known.gpus} change=${may && admin ? change : null} busy=${busy} />`)}
    ${may && admin && html`<${Another} change=${change} busy=${busy} />`}`;
}

function pathTo(name, version) {
  return encodeURIComponent(name) + (version ? `/versions/${version}` : "");
}

/** The state of the version that requests get which name none. */
function stateOf(model) {
  const version = model.versions.find((one) => one.version === model.default) ?? model.versions.at(-1);
  return version?.state ?? "END";
}

/** How many models are in each state; the chosen one is there even if none is. */
function countStates(models, chosen) {
  const counts = chosen ? { [chosen]: 0 } : {};
  for (const model of models) counts[stateOf(model)] = (counts[stateOf(model)] ?? 0) + 1;
  return Object.entries(counts).sort();
}

function State({ name }) {
  return html`<span class=${`state ${name === "AVAILABLE" ? "good" : ""}`}>${name}</span>`;
}

function Model({ model, open, gpus, change, busy }) {
  const labels = Object.entries(model.labels);
  return html`<details class="panel model" open=${open}>
    <summary><h2>${model.name}</h2> ${!open && html`<${State} name=${stateOf(model)} />`}</summary>
    <dl class="facts">
      <dt>Default version</dt><dd>${model.default ?? "none"}</dd>
      ${labels.length > 0 && html`<dt>Labels</dt><dd>${labels.map(([label, number]) => `${label} is version ${number}`).join(", ")}</dd>`}
      ${model.endpoint && html`<dt>Endpoint</dt><dd>${model.endpoint.share_percent} % of the requests to ${model.endpoint.name}</dd>`}
      <dt>Scoring path</dt><dd><code>${model.path}</code></dd>
    </dl>
    ${change && html`<p>
      <button disabled=${busy} onClick=${() => change(`Load ${model.name}`, `${pathTo(model.name)}/load`)}>Load new versions</button>
      ${" "}<button disabled=${busy} onClick=${() => confirm(`Unload all versions of ${model.name}?`)
        && change(`Unload ${model.name}`, `${pathTo(model.name)}/unload`)}>Unload</button></p>`}
    ${change && labels.length > 1 && html`<${Weights} model=${model} change=${change} busy=${busy} />`}
    <div class="versions">${[...model.versions].reverse().map((version) => html`<${Version} key=${version.version} model=${model} version=${version} gpus=${gpus} change=${change} busy=${busy} />`)}</div>
  </details>`;
}

function Version({ model, version, gpus, change, busy }) {
  const name = `${model.name} version ${version.version}`;
  const loaded = version.framework !== undefined;
  // A pipeline runs on the devices of its models.
  const runs = version.devices !== undefined;
  const onGpu = runs && version.devices.some((device) => device !== "cpu");
  const labels = Object.entries(model.labels).filter(([, number]) => number === version.version).map(([label]) => label);
  return html`<div>
    <h3>Version ${version.version} <${State} name=${version.state} />
      ${labels.map((label) => html`${" "}<span class="state" key=${label}>${label}</span>`)}
      ${loaded && html`${" "}<span class="state">${version.share_percent} % of traffic</span>`}</h3>
    ${version.reason && html`<p class=${version.error ? "error" : "empty"}>${version.reason}</p>`}
    ${loaded && html`<dl class="facts">
      <dt>Framework</dt><dd>${version.framework}</dd>
      <dt>Inputs</dt><dd>${tensors(version.inputs) || "a body that the entry script reads"}${version.images && ", or an image"}</dd>
      ${version.outputs.length > 0 && html`<dt>Outputs</dt><dd>${tensors(version.outputs)}</dd>`}
      ${runs && html`<dt>Devices</dt><dd>${version.devices.join(", ") || "auto"}; ${version.replicas} replica${version.replicas === 1 ? "" : "s"} ready;
        ${" "}${version.instances ?? "automatic number of"} instance${version.instances === 1 ? "" : "s"}</dd>`}
      ${onGpu && gpus.length > 0 && html`<dt>GPU memory</dt><dd>${gpuMemory(version, gpus)}</dd>`}
      ${runs && html`<dt>Batches</dt><dd>up to ${rowsOf(version.batch_cap_rows || version.max_batch_rows)}, after at most ${version.max_delay_ms} ms;
        ${" "}buckets: ${version.buckets ? version.buckets.join(", ") : "automatic"}</dd>`}
      ${version.batching && html`<dt>Shared batches</dt><dd>${describeBatching(version.batching)}</dd>`}
      ${version.precision && onGpu && html`<dt>Precision on GPUs</dt><dd>${version.precision}</dd>`}
      ${runs && Object.keys(version.origin).length > 0 && html`<dt>Origin</dt><dd>${Object.entries(version.origin)
        .map(([name, value]) => `${name} ${value}`).join(", ")}</dd>`}
      ${version.description && html`<dt>Description</dt><dd>${version.description}</dd>`}
    </dl>`}
    ${change && html`<p>${loaded && version.state !== "START"
      ? html`<button disabled=${busy} onClick=${() => confirm(`Unload ${name}?`)
          && change(`Unload ${name}`, `${pathTo(model.name, version.version)}/unload`)}>Unload version ${version.version}</button>`
      : html`<button disabled=${busy} onClick=${() => change(`Load ${name}`, `${pathTo(model.name, version.version)}/load`)}>Load version ${version.version}</button>`}</p>`}
    ${loaded && html`<p><a href=${`#try/${encodeURIComponent(`${model.name}/${version.version}`)}`}>Try ${name}</a></p>`}
  </div>`;
}

function rowsOf(number) {
  return `${number} row${number === 1 ? "" : "s"}`;
}

// How it was found out whether rows of several requests may share a batch.
const FOUND = {
  read: "read from the graph", tested: "tested", said: "set by the operator", declared: "declared by the model", watched: "observed while serving",
};

/** Whether rows of several requests share a batch, and why. */
function describeBatching(batching) {
  if (batching.batched === undefined) return `${batching.how}: ${batching.reason}`;
  const verdict = `${batching.batched ? "yes" : "no"}, ${FOUND[batching.how] ?? batching.how}: ${batching.reason}`;
  return batching.setting ? `${verdict} (${batching.setting} changes this)` : verdict;
}

/** The memory of the GPUs that a version may use, which other models and programs share. */
function gpuMemory(version, gpus) {
  const named = gpus.filter((gpu) => version.devices.some((device) => device === `cuda:${gpu.index}` || device === gpu.uuid));
  const used = (named.length ? named : gpus).map(
    (gpu) => `GPU ${gpu.index}: ${bytes(gpu.memory_used_bytes)} of ${bytes(gpu.memory_total_bytes)} in use by all`,
  );
  return [...used, version.gpu_memory_mb ? `limit of this model: ${version.gpu_memory_mb} MiB` : ""].filter(Boolean).join("; ");
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
    <button disabled=${busy}>Set weights</button>
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
