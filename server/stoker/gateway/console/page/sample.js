// Requests for a model, made from its signature: a row of it, as text that can be changed.

const SIDE = 28;
const WHOLE = /^(U?INT)/;

/** The sizes of one request: one row, and 1 where a size is free. */
export function sizes(input) {
  return input.shape.map((size) => (size < 0 ? 1 : size));
}

function elements(shape) {
  return shape.reduce((product, size) => product * size, 1);
}

/** Something quiet that fits: a slow wave, which shows more than zeros. */
function values(input) {
  const number = elements(sizes(input));
  if (input.datatype === "BYTES") return Array(number).fill("text");
  if (input.datatype === "BOOL") return Array(number).fill(true);
  if (WHOLE.test(input.datatype)) return Array.from({ length: number }, (_, at) => at % 10);
  return Array.from({ length: number }, (_, at) => Math.round(1000 * (0.5 + 0.5 * Math.sin(at / 9))) / 1000);
}

/** How a version is asked: by its tensors, or by a body of its own form. */
export function formOf(version) {
  return version.inputs.length && version.takes !== "body" && !version.texts ? "infer" : "score";
}

/** The input that a drawn digit of 28 × 28 fits into; null if none does. */
export function digitInput(version) {
  if (formOf(version) === "infer" && version.inputs.length === 1) {
    const [input] = version.inputs;
    const row = elements(sizes(input));
    const square = input.shape.filter((size) => size === SIDE).length === 2 || input.shape.at(-1) === SIDE * SIDE;
    return row === SIDE * SIDE && square && input.datatype !== "BYTES" ? input : null;
  }
  const row = version.example?.data?.[0];
  return Array.isArray(row) && row.flat(4).length === SIDE * SIDE ? { name: "data", example: row } : null;
}

/** The body of a request with one row, and with these numbers in it where they are given. */
export function bodyOf(version, pixels = null) {
  if (version.texts) return { data: ["How far is it?"] };
  if (formOf(version) === "infer") {
    return {
      inputs: version.inputs.map((input) => ({
        name: input.name,
        shape: sizes(input),
        datatype: input.datatype,
        data: pixels ? pixels.map((value) => fitted(value, input.datatype)) : values(input),
      })),
    };
  }
  if (pixels) return { data: [shapedLike(version.example.data[0], [...pixels])] };
  return version.example ?? { data: [[0, 0]] };
}

function fitted(value, datatype) {
  if (WHOLE.test(datatype)) return Math.round(value * 255);
  return Math.round(value * 1000) / 1000;
}

function shapedLike(form, numbers) {
  return form.map((part) => (Array.isArray(part) ? shapedLike(part, numbers) : numbers.shift()));
}

/** Where a request goes, below the server's root. */
export function pathOf(model, version) {
  if (formOf(version) === "infer") {
    return `v2/models/${encodeURIComponent(model.name)}/versions/${version.version}/infer`;
  }
  return model.path.replace(/^\//, "");
}

/** What the header says of which sequence a request is. */
export function saidOf({ id, start, end }) {
  return `${id}${start ? "; start" : ""}${end ? "; end" : ""}`;
}

/** The class in an answer, and the scores of all classes where the answer has them; null if it has neither. */
export function scoresOf(answer, version) {
  const output = answer?.outputs?.[0];
  const labels = version.outputs[0]?.labels ?? [];
  const numbers = output ? output.data : firstRow(answer);
  // The numbers of an embedding are no classes.
  if (version.texts && !labels.length) return null;
  if (!Array.isArray(numbers) || !numbers.every((value) => typeof value === "number")) return null;
  if (numbers.length === 1 && Number.isInteger(numbers[0]) && numbers[0] >= 0 && numbers[0] < 10) {
    return { note: "the model answers the class alone", label: labels[numbers[0]] ?? `${numbers[0]}`, classes: [] };
  }
  if (numbers.length < 2 || numbers.length > 100) return null;
  const sum = numbers.reduce((all, value) => all + value, 0);
  const likely = numbers.every((value) => value >= 0) && Math.abs(sum - 1) < 0.01;
  return likely ? named(numbers, labels, "") : named(softmax(numbers), labels, "softmax of the scores");
}

function firstRow(answer) {
  const lists = Array.isArray(answer) ? [answer] : Object.values(answer ?? {}).filter(Array.isArray);
  const rows = lists.map((list) => (Array.isArray(list[0]) ? list[0] : list));
  return rows.find((row) => row.length > 1 && row.every((value) => typeof value === "number"))
    ?? rows.find((row) => row.every((value) => typeof value === "number"));
}

function softmax(numbers) {
  const most = Math.max(...numbers);
  const powers = numbers.map((value) => Math.exp(value - most));
  const sum = powers.reduce((all, value) => all + value, 0);
  return powers.map((value) => value / sum);
}

function named(numbers, labels, note) {
  const best = numbers.indexOf(Math.max(...numbers));
  const classes = numbers.map((value, at) => ({ label: labels[at] ?? `${at}`, value }));
  return { note, best, label: classes[best].label, classes };
}
