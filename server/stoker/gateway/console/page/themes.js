// Colours as the stylesheet has them in the current theme, and the choice of the theme.
import { html, useState } from "./libraries.js";

const KEY = "stoker.theme";
const CHANGED = "stoker-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const probe = document.createElement("i");
probe.hidden = true;

/** A colour of the stylesheet, by its name, as a canvas takes it. */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** Call `redraw` whenever the theme changes; returns what ends that. */
export function onTheme(redraw) {
  dark.addEventListener("change", redraw);
  addEventListener(CHANGED, redraw);
  return () => {
    dark.removeEventListener("change", redraw);
    removeEventListener(CHANGED, redraw);
  };
}

export function ThemeChoice() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme || "auto");
  const choose = (event) => {
    const chosen = event.target.value;
    document.documentElement.dataset.theme = chosen;
    setTheme(chosen);
    try {
      if (chosen === "auto") localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, chosen);
    } catch { /* This browser keeps nothing: the choice lasts until the page is left. */ }
    dispatchEvent(new Event(CHANGED));
  };
  return html`<label class="theme">Theme
    <select value=${theme} onChange=${choose}>
      ${["auto", "light", "dark"].map((name) => html`<option key=${name}>${name}</option>`)}
    </select>
  </label>`;
}
