// What was counted as columns, to which each answer of the server adds its steps.

/** Return `past` with the steps of an answer behind it; what one of them does not name is 0 there. The oldest of more
 * than `most` steps go. */
export function merged(past, answer, most) {
  if (!past || answer.step < past.step) return { ...answer, span_s: spans(answer) };
  const had = past.time_ms.length;
  const came = answer.time_ms.length;
  const line = (old, fresh, nothing = 0) => [
    ...(old ?? Array(had).fill(nothing)),
    ...(fresh ?? Array(came).fill(nothing)),
  ].slice(-most);
  const lines = (old, fresh, nothing) => Object.fromEntries(
    [...new Set([...Object.keys(old), ...Object.keys(fresh)])].map(
      (name) => [name, line(old[name], fresh[name], nothing)],
    ),
  );
  const things = (old, fresh, key, columns) => fresh.map((thing) => {
    const before = old.find((other) => other[key] === thing[key]) ?? {};
    return { ...thing, ...Object.fromEntries(columns.map((name) => [name, line(before[name], thing[name])])) };
  });
  if (!came) return past;
  return {
    step: answer.step,
    time_ms: line(past.time_ms, answer.time_ms),
    span_ms: line(past.span_ms, answer.span_ms),
    span_s: line(past.span_s, spans(answer)),
    requests: lines(past.requests, answer.requests),
    rejections: lines(past.rejections, answer.rejections),
    left: lines(past.left, answer.left),
    rows: lines(past.rows, answer.rows),
    latency_ms: lines(past.latency_ms, answer.latency_ms, null),
    stages_ms: lines(past.stages_ms, answer.stages_ms, null),
    restarts: lines(past.restarts, answer.restarts),
    batches: {
      bounds: answer.batches.bounds,
      counts: answer.batches.counts.map((counts, index) => line(past.batches.counts[index], counts)),
    },
    processes: things(past.processes, answer.processes, "name", ["cpu_percent", "memory_bytes"]),
    gpus: things(past.gpus, answer.gpus, "index", [
      "utilization_percent", "memory_used_bytes", "memory_total_bytes", "power_mw", "power_limit_mw", "temperature_c",
    ]),
  };
}

/** The last `span_s` seconds of `past`. */
export function within(past, span_s) {
  const from_ms = (past.time_ms.at(-1) ?? 0) - 1000 * span_s;
  const start = past.time_ms.findIndex((time) => time > from_ms);
  const cut = (value, name) => {
    if (Array.isArray(value)) {
      if (name === "bounds") return value;
      const isColumn = value.every((one) => one === null || typeof one === "number");
      return isColumn ? value.slice(start) : value.map((one) => cut(one));
    }
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, cut(one, key)]));
  };
  return start > 0 ? cut(past) : past;
}

function spans(answer) {
  return answer.span_ms.map((span) => Math.max(span, 1) / 1000);
}

/** Counts of steps as counts a second. */
export function rates(past, counts) {
  return counts.map((count, index) => count / past.span_s[index]);
}

export function latest(values) {
  for (let at = values.length - 1; at >= Math.max(0, values.length - 5); at -= 1) {
    if (values[at] !== null && values[at] !== undefined) return values[at];
  }
  return null;
}

/** The mean of the last values, which is steadier to read than one of them. */
export function recent(values, count = 5) {
  const last = values.slice(-count).filter((value) => value !== null);
  return last.length ? last.reduce((sum, value) => sum + value, 0) / last.length : null;
}
