// The theme that was chosen in this browser. It is no module: those run after the page is drawn in the system's theme.
try {
  document.documentElement.dataset.theme = localStorage.getItem("stoker.theme") ?? "auto";
} catch { /* This browser keeps nothing: the page has the system's theme. */ }
