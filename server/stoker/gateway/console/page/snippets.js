// The same request as code to copy; the key is that of the environment.
import { formOf, pathOf, saidOf, sizes } from "./sample.js";

const LONG = 1500;
const NUMPY = {
  BOOL: "bool", INT8: "int8", INT16: "int16", INT32: "int32", INT64: "int64", UINT8: "uint8", UINT16: "uint16",
  UINT32: "uint32", UINT64: "uint64", FP16: "float16", FP32: "float32", FP64: "float64", BYTES: "object",
};

function root() {
  return new URL("..", document.baseURI).href.replace(/\/$/, "");
}

/** Names of languages with code that sends `text`; what is long is read from `request.json`. */
export function snippets(model, version, text, keyless, sequence, type = "application/json") {
  const url = `${root()}/${pathOf(model, version)}`;
  const long = text.length > LONG || type !== "application/json";
  const file = type === "application/json" ? "request.json" : "image";
  const found = {
    curl: curl(url, text, keyless, sequence, long, file, type),
    Python: python(url, text, keyless, sequence, long, file, type),
  };
  if (formOf(version) === "infer" && type === "application/json") found.tritonclient = triton(model, version, keyless, sequence);
  return { file: long && type === "application/json" ? file : "", code: found };
}

function curl(url, text, keyless, sequence, long, file, type) {
  const key = keyless ? "" : ' \\\n  -H "Authorization: Bearer $STOKER_KEY"';
  const said = sequence ? ` \\\n  -H ${quoted(`Stoker-Sequence: ${saidOf(sequence)}`)}` : "";
  const data = long ? `--data-binary @${file}` : `-d ${quoted(text)}`;
  return `curl -si${key}${said} \\\n  -H "Content-Type: ${type}" \\\n  ${data} \\\n  '${url}'`;
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function python(url, text, keyless, sequence, long, file, type) {
  const key = keyless ? "" : '\n        "Authorization": "Bearer " + os.environ["STOKER_KEY"],';
  const said = sequence ? `\n        "Stoker-Sequence": ${JSON.stringify(saidOf(sequence))},` : "";
  const body = long ? `Path("${file}").read_bytes()` : `json.dumps(${asPython(text)}).encode()`;
  return `import json
import os
from pathlib import Path
from urllib.request import Request, urlopen

request = Request(
    "${url}",
    data=${body},
    headers={
        "Content-Type": "${type}",${key}${said}
    },
)
with urlopen(request) as answer:
    print(answer.headers["Server-Timing"])
    print(json.load(answer))
`;
}

function asPython(text) {
  return text.replace(/"(?:[^"\\]|\\.)*"|\b(?:true|false|null)\b/g, (word) => (
    { true: "True", false: "False", null: "None" }[word] ?? word
  ));
}

function triton(model, version, keyless, sequence) {
  const inputs = version.inputs.map((input, at) => {
    const shape = `(${sizes(input).join(", ")}${sizes(input).length === 1 ? "," : ""})`;
    const values = input.datatype === "BYTES" ? `np.full(${shape}, b"text", object)` : `np.zeros(${shape}, np.${numpy(input)})`;
    return `inputs.append(httpclient.InferInput("${input.name}", ${shape}, "${input.datatype}"))\n`
      + `inputs[${at}].set_data_from_numpy(${values})`;
  }).join("\n");
  const headers = keyless ? "" : ',\n    headers={"Authorization": "Bearer " + os.environ["STOKER_KEY"]}';
  const said = sequence ? `,\n    ${steps(sequence)}` : "";
  const address = root();
  const [scheme, host] = address.split("://");
  return `import os

import numpy as np
import tritonclient.http as httpclient

client = httpclient.InferenceServerClient("${host}"${scheme === "https" ? ", ssl=True" : ""})
inputs = []
${inputs}
answer = client.infer(
    "${model.name}", inputs, model_version="${version.version}"${headers}${said},
)
print(answer.as_numpy("${version.outputs[0]?.name ?? ""}"))
`;
}

function steps({ id, start, end }) {
  const name = /^[0-9]+$/.test(id) ? BigInt(id) : JSON.stringify(id);
  return `sequence_id=${name}${start ? ", sequence_start=True" : ""}${end ? ", sequence_end=True" : ""}`;
}

function numpy(input) {
  return NUMPY[input.datatype] === "bool" ? "bool_" : NUMPY[input.datatype] ?? "float32";
}
