// The shell of the page: the key, the places, and what is known of the models.
import { html, render, useEffect, useState } from "./libraries.js";
import { Live } from "./live.js";
import { Models } from "./models.js";
import { Requests } from "./requests.js";
import { Try } from "./try.js";
import { ask, keys, signIn, signOut } from "./server.js";
import { ThemeChoice } from "./themes.js";

const PLACES = { live: "Live", try: "Try it", models: "Models", requests: "Requests" };

const TOKEN = "#token=";

/** The token of the link that the server has printed, once: it leaves the address, and so the browser's history. */
function takeToken() {
  if (!location.hash.startsWith(TOKEN)) return "";
  const token = location.hash.slice(TOKEN.length);
  history.replaceState(null, "", location.pathname + location.search);
  return token;
}

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
    const token = takeToken();
    let failure = "";
    try {
      if (token) await signIn(token).catch((error) => { failure = error.message; });
      setKnown(await ask("console/models"));
      setAsks(false);
      setRefusal("");
    } catch (error) {
      onRefused(error);
      if (failure) setRefusal(failure);
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
    const onHash = () => {
      if (location.hash.startsWith(TOKEN)) look();
      setShown(place());
    };
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
        ${known && html`<span class="version">version ${known.server}</span>`}
        <${ThemeChoice} />
        ${known && !known.keyless && html`<button onClick=${leave}>Sign out</button>`}
      </div>
    </header>
    <main id="main" tabindex="-1">
      <p class="error" role="status">${refusal}</p>
      ${known && html`<${views[shown]} key=${shown} models=${known.models} known=${known} onRefused=${onRefused} onChanged=${look} />`}
    </main>`;
}

function leave() {
  signOut();
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
    <p>Sign in with a key of any service. To print one, run:</p>
    <pre tabindex="0">stoker keys show primary</pre>
    <p>Where several services have keys, add <code>--name SERVICE</code>.</p>
    <form onSubmit=${open}>
      <label for="key">Key</label>
      <input id="key" type="password" autocomplete="off" required value=${key} onInput=${(event) => setKey(event.target.value)} />
      <button class="main">Sign in</button>
    </form>
    <p class="empty">The browser keeps the key until you close this tab.</p>
    <p class="error" role="alert">${refusal}</p>
  </main>`;
}

render(html`<${Console} />`, document.getElementById("console"));
