// What the page asks of the server, with the keys of this tab.

const KEY = "stoker.key";
const MODEL_KEYS = "stoker.model-keys";
const ADMIN_KEY = "stoker.admin-key";

/** An answer that is no success, with its status. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const keys = {
  get service() { return sessionStorage.getItem(KEY) ?? ""; },
  set service(key) { store(KEY, key); },
  /** The key of a model: that of the sign-in link, else the one that was typed. */
  of(model) { return JSON.parse(sessionStorage.getItem(MODEL_KEYS) ?? "{}")[model] ?? (keys.service || keys.admin); },
  set models(byName) { store(MODEL_KEYS, byName && JSON.stringify(byName)); },
  get admin() { return sessionStorage.getItem(ADMIN_KEY) ?? ""; },
  set admin(key) { store(ADMIN_KEY, key); },
};

function store(name, key) {
  if (key) sessionStorage.setItem(name, key);
  else sessionStorage.removeItem(name);
}

function bearer(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Ask for JSON below the server's root; `path` is relative to that. */
export async function ask(path, options = {}, key = keys.service || keys.admin) {
  let answer = await send(path, options, key);
  // While no model is loaded, no service has a key.
  if (answer.status === 401 && keys.admin && key !== keys.admin) answer = await send(path, options, keys.admin);
  const text = await answer.text();
  if (!answer.ok) throw new Refused(answer.status, said(text) || `${answer.status} ${answer.statusText}`);
  return text ? JSON.parse(text) : null;
}

/** Take the keys for the token of the link that the server has printed. */
export async function signIn(token) {
  const { keys: byModel } = await ask("console/sign-in", { method: "POST" }, token);
  keys.models = byModel;
  keys.service = Object.values(byModel)[0] ?? "";
}

export function signOut() {
  keys.service = "";
  keys.models = null;
  keys.admin = "";
}

/** Ask now and again after each answer while the page is seen; returns what ends it. `pathNow` makes the path anew. */
export function follow(pathNow, every_ms, onAnswer, onRefused) {
  let timer = 0;
  let ended = false;
  const look = async () => {
    if (!document.hidden) {
      try {
        const answer = await ask(pathNow());
        if (ended) return;
        onAnswer(answer);
      } catch (error) {
        if (ended || onRefused(error)) return;
      }
    }
    timer = setTimeout(look, every_ms);
  };
  look();
  return () => {
    ended = true;
    clearTimeout(timer);
  };
}

/** Send a request and return the whole answer. The page is one folder below the server's root. */
export function send(path, options = {}, key = keys.service || keys.admin) {
  return fetch(new URL(`../${path}`, document.baseURI), {
    cache: "no-store",
    ...options,
    headers: { ...bearer(key), ...options.headers },
  });
}

function said(text) {
  try {
    const content = JSON.parse(text);
    return content.error?.message ?? content.error ?? content.message ?? "";
  } catch {
    return text.slice(0, 300);
  }
}
