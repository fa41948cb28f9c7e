// Numbers, times and tensors as people read them.

export function clock(time_ms) {
  return new Date(time_ms).toTimeString().slice(0, 8);
}

/** The tensors of one side of a signature. */
export function tensors(side) {
  return side.map((one) => `${one.name} ${one.datatype} [${one.shape.map((size) => (size < 0 ? "?" : size)).join(", ")}]`).join("; ");
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return Number.isInteger(value) ? `${value}` : value.toFixed(value < 10 ? 2 : 0);
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  if (value === 0) return "0 ms";
  return `${value.toFixed(value < 1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0)} ms`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  return value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${(value / 2 ** 20).toFixed(0)} MiB`;
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${value.toFixed(0)} %`;
}

export function watts(value) {
  return value === null || value === undefined ? "–" : `${(value / 1000).toFixed(0)} W`;
}
