// A request to a model: its form, its answer, where the time went, and the same request as code.
import { Digit } from "./digit.js";
import { html, useEffect, useMemo, useRef, useState } from "./libraries.js";
import { bodyOf, digitInput, pathOf, saidOf, scoresOf } from "./sample.js";
import { keys, send } from "./server.js";
import { snippets } from "./snippets.js";
import { stagesOf, timingOf, Waterfall } from "./timing.js";
import { tensors } from "./words.js";

const SHOWN_CHARS = 20_000;

function choices(models) {
  return models.flatMap((model) => model.versions.filter((version) => version.framework !== undefined).map((version) => (
    { id: `${model.name}/${version.version}`, model, version }
  )));
}

export function Try({ models, known }) {
  const all = choices(models);
  const [id, setId] = useState(decodeURIComponent(location.hash.slice(1).split("/").slice(1).join("/")));
  const chosen = all.find((one) => one.id === id) ?? all[0];
  if (!chosen) return html`<p class="empty">No model is loaded.</p>`;
  return html`
    <div class="bar">
      <label>Model and version
        <select value=${chosen.id} onChange=${(event) => setId(event.target.value)}>
          ${all.map((one) => html`<option key=${one.id} value=${one.id}>${one.model.name} version ${one.version.version}</option>`)}
        </select>
      </label>
    </div>
    <${Form} key=${chosen.id} model=${chosen.model} version=${chosen.version} keyless=${known.keyless} />`;
}

/** Send a body, and return its answer. */
async function request(model, version, body, type, sequence) {
  const begun = performance.now();
  const headers = { "content-type": type, ...(sequence && { "stoker-sequence": saidOf(sequence) }) };
  try {
    const answer = await send(pathOf(model, version), { method: "POST", body, headers }, keys.of(model.name));
    const text = await answer.text();
    const took_ms = performance.now() - begun;
    let content = null;
    try { content = JSON.parse(text); } catch { /* It is shown as it is. */ }
    const timing = timingOf(answer.headers.get("server-timing"));
    return {
      status: answer.status, ok: answer.ok, text, content, stages: stagesOf(timing, took_ms),
      id: answer.headers.get("x-request-id"),
    };
  } catch (error) {
    return { status: 0, ok: false, text: `${error.message}`, content: null, stages: [], id: "" };
  }
}

function Form({ model, version, keyless }) {
  const sample = useMemo(() => JSON.stringify(bodyOf(version)), []);
  const [text, setText] = useState(sample);
  const [image, setImage] = useState(null);
  const [answer, setAnswer] = useState(null);
  const [sequence, setSequence] = useState(version.sequences ? { id: "console", start: true, end: false } : null);
  const busy = useRef(false);
  const waiting = useRef(null);
  const digit = digitInput(version);
  const run = async (body, type = "application/json") => {
    // One at a time: what the pen has drawn meanwhile goes next.
    if (busy.current) {
      // The next request of a sequence says something else than this one.
      if (!sequence) waiting.current = [body, type];
      return;
    }
    busy.current = true;
    const found = await request(model, version, body, type, sequence);
    setAnswer(found);
    // The next request goes on; behind the last one it begins anew.
    if (sequence && found.ok) setSequence((now) => ({ ...now, start: sequence.end, end: false }));
    busy.current = false;
    if (waiting.current) {
      const next = waiting.current;
      waiting.current = null;
      run(...next);
    }
  };
  const onDrawn = (pixels) => {
    if (!pixels) return;
    const body = JSON.stringify(bodyOf(version, pixels));
    setText(body);
    run(body);
  };
  const submit = (event) => {
    event.preventDefault();
    if (image) run(image, image.type);
    else run(text);
  };
  return html`<div class="columns">
    <section class="panel">
      <h2>Request</h2>
      ${digit && html`<${Digit} onDrawn=${onDrawn} />`}
      <form onSubmit=${submit}>
        ${version.images && html`<p><label for="image">An image (JPEG, PNG or WebP)</label>
          <input id="image" type="file" accept="image/jpeg,image/png,image/webp" onChange=${(event) => setImage(event.target.files[0] ?? null)} /></p>`}
        ${version.texts && html`<label for="texts">Texts, one on each line</label>
          <textarea id="texts" defaultValue="How far is it?" onInput=${(event) => setText(JSON.stringify({ data: event.target.value.split("\n") }))}></textarea>`}
        ${!image && html`<label for="body">Body, as JSON</label>
          <textarea id="body" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>`}
        ${sequence && html`<${Sequence} sequence=${sequence} onChange=${setSequence} />`}
        <p><button class="main">Send</button>
          ${" "}<button type="button" onClick=${() => setText(sample)}>Sample input</button></p>
      </form>
      <${Signature} version=${version} />
    </section>
    <section class="panel" aria-live="polite">
      <h2>Answer</h2>
      ${answer ? html`<${Answer} answer=${answer} version=${version} />` : html`<p class="empty">Send a request to see its answer.</p>`}
    </section>
    <${Code} model=${model} version=${version} text=${text} keyless=${keyless} sequence=${sequence} type=${image ? image.type : undefined} />
  </div>`;
}

function Sequence({ sequence, onChange }) {
  const change = (name, value) => onChange({ ...sequence, [name]: value });
  return html`<div class="bar">
    <label>Sequence
      <input type="text" required maxlength="128" pattern="[!-:<-~]+" title="letters, digits and signs, without blanks and semicolons"
        spellcheck="false" autocomplete="off" value=${sequence.id} onInput=${(event) => change("id", event.target.value)} /></label>
    <label><input type="checkbox" checked=${sequence.start} onChange=${(event) => change("start", event.target.checked)} /> begins here</label>
    <label><input type="checkbox" checked=${sequence.end} onChange=${(event) => change("end", event.target.checked)} /> ends here</label>
  </div>`;
}

function Signature({ version }) {
  return html`<dl class="facts">
    <dt>Inputs</dt><dd>${tensors(version.inputs) || "a body that the entry script reads"}</dd>
    ${version.outputs.length > 0 && html`<dt>Outputs</dt><dd>${tensors(version.outputs)}</dd>`}
  </dl>`;
}

function Answer({ answer, version }) {
  const scores = answer.ok ? scoresOf(answer.content, version) : null;
  return html`
    <p class=${answer.ok ? "good" : "error"}>${answer.status ? `Status ${answer.status}` : "No answer"}
      ${answer.id && html`<span class="empty"> request ${answer.id}</span>`}</p>
    ${scores && html`<${Scores} scores=${scores} />`}
    ${answer.stages.length > 0 && html`<h3>Where the time went</h3><${Waterfall} stages=${answer.stages} />`}
    <h3>Body</h3>
    <pre tabindex="0">${answer.text.length > SHOWN_CHARS ? `${answer.text.slice(0, SHOWN_CHARS)}…` : answer.text}</pre>`;
}

function Scores({ scores }) {
  return html`<p>The class is <strong class="best-class">${scores.label}</strong>
      ${scores.note && html`<span class="empty"> (${scores.note})</span>`}</p>
    ${scores.classes.length > 0 && html`<table class="scores">
      <caption class="hidden">Score of each class</caption>
      <tbody>${scores.classes.map((one, index) => html`<tr key=${one.label} class=${index === scores.best ? "best" : ""}>
        <th scope="row">${one.label}</th>
        <td><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
          <rect width=${100 * one.value} y="1" height="8" fill=${index === scores.best ? "var(--c1)" : "var(--c0)"} /></svg></td>
        <td class="number">${(100 * one.value).toFixed(1)} %</td>
      </tr>`)}</tbody>
    </table>`}`;
}

function Code({ model, version, text, keyless, sequence, type }) {
  const [language, setLanguage] = useState("curl");
  const [copied, setCopied] = useState("");
  const { code, file } = snippets(model, version, text, keyless, sequence, type);
  const shown = code[language] ?? code.curl;
  useEffect(() => setCopied(""), [shown]);
  const copy = async () => {
    await navigator.clipboard.writeText(shown);
    setCopied("Copied.");
  };
  return html`<section class="panel wide">
    <h2>This request as code</h2>
    <div class="bar">
      <label>Language
        <select value=${language in code ? language : "curl"} onChange=${(event) => setLanguage(event.target.value)}>
          ${Object.keys(code).map((name) => html`<option key=${name}>${name}</option>`)}
        </select>
      </label>
      <button onClick=${copy}>Copy</button>
      ${file && html`<a download=${file} href=${`data:application/json,${encodeURIComponent(text)}`}>Save ${file}</a>`}
      <span role="status">${copied}</span>
    </div>
    <pre tabindex="0">${shown}</pre>
    ${!keyless && html`<p class="empty">Set the variable <code>STOKER_KEY</code> to a key before you run the code.</p>`}
  </section>`;
}
