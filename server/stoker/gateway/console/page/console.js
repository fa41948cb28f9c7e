// The shell of the page: the key, the places, and what is known of the models.
import { html, render, useEffect, useState } from "./libraries.js";
import { Live } from "./live.js";
import { Models } from "./models.js";
import { Requests } from "./requests.js";
import { Try } from "./try.js";
import { ask, keys } from "./server.js";

const PLACES = { live: "Live", try: "Try it", models: "Models", requests: "Requests" };

function place() {
  const name = location.hash.slice(1).split("/")[0];
  return name in PLACES ? name : "live";
}

function Console() {
  const [shown, setShown] = useState(place());
  const [known, setKnown] = useState(null);
  const [refusal, setRefusal] = useState("");
  const [asks, setAsks] = useState(false);
  const look = async () => {
    try {
      setKnown(await ask("console/models"));
      setAsks(false);
      setRefusal("");
    } catch (error) {
      onRefused(error);
    }
  };
  /** Whether a key has to be asked for before anything else is tried. */
  const onRefused = (error) => {
    const needsKey = error.status === 401 || error.status === 403;
    if (needsKey) {
      setRefusal(keys.service ? error.message : "");
      setAsks(true);
    } else {
      setRefusal(`The server does not answer: ${error.message}`);
    }
    return needsKey;
  };
  useEffect(() => {
    const onHash = () => setShown(place());
    addEventListener("hashchange", onHash);
    look();
    const timer = setInterval(() => document.hidden || look(), 10_000);
    return () => {
      removeEventListener("hashchange", onHash);
      clearInterval(timer);
    };
  }, []);
  if (asks) return html`<${Gate} refusal=${refusal} onKey=${look} />`;
  const views = { live: Live, try: Try, models: Models, requests: Requests };
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header>
      <h1><img src="files/icon.svg" alt="" />Stoker</h1>
      <nav aria-label="Places">
        ${Object.entries(PLACES).map(([name, title]) => html`<a key=${name} href=${`#${name}`}
          aria-current=${name === shown ? "page" : undefined}>${title}</a>`)}
      </nav>
      <div class="end">
        ${known && html`<span>version ${known.server}</span>`}
        ${known && !known.keyless && html`<button onClick=${forget}>Forget the key</button>`}
      </div>
    </header>
    <main id="main" tabindex="-1">
      <p class="error" role="status">${refusal}</p>
      ${known && html`<${views[shown]} key=${shown} models=${known.models} known=${known} onRefused=${onRefused} onChanged=${look} />`}
    </main>`;
}

function forget() {
  keys.service = "";
  keys.admin = "";
  location.reload();
}

function Gate({ refusal, onKey }) {
  const [key, setKey] = useState("");
  const open = (event) => {
    event.preventDefault();
    keys.service = key.trim();
    onKey();
  };
  return html`<main class="gate panel">
    <h1>Stoker console</h1>
    <p>What the server does needs a key of one of its services. This tab keeps it until it is closed.</p>
    <form onSubmit=${open}>
      <label for="key">Key</label>
      <input id="key" type="password" autocomplete="off" required value=${key} onInput=${(event) => setKey(event.target.value)} />
      <button class="main">Open</button>
    </form>
    <p class="error" role="alert">${refusal}</p>
  </main>`;
}

render(html`<${Console} />`, document.getElementById("console"));
