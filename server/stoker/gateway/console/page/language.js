// A browser that was started with the locale C or POSIX can call its language "en-US@posix", which Intl refuses. uPlot asks
// Intl for that language as soon as it is loaded, and the page would stay empty; import this file before it.
try {
  Intl.getCanonicalLocales(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}
