"""The throughput of a SavedModel in TensorFlow without a server: compiled by XLA, or in mixed precision.

`python -m stoker_bench.gpu.tensorflow_alone FOLDER --device cuda:0 …` writes the bench's MLP as a SavedModel and
measures it in a process of its own. It prints the rows per second as JSON.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import orjson

from stoker.gpu.confinement import enter_device
from stoker_bench.generators.scoring_request import random_rows
from stoker_bench.networks.onnx_graphs import INPUT_NAME, WIDTHS, Mlp, seeded_mlp


def save_mlp(mlp: Mlp, folder: Path, *, xla: bool = True) -> Any:
    """Write a perceptron as a SavedModel with one signature; returns its function, which XLA may compile."""
    import tensorflow as tf

    module = tf.Module()
    module.layers = [
        (tf.Variable(weight), tf.Variable(bias)) for weight, bias in zip(mlp.weights, mlp.biases, strict=True)
    ]

    def logits(images: Any) -> dict[str, Any]:
        activations = images
        for layer, (weight, bias) in enumerate(module.layers):
            activations = tf.nn.relu(activations) if layer else activations
            activations = tf.matmul(activations, weight) + bias
        return {"logits": activations}

    signature = tf.TensorSpec([None, WIDTHS[0]], tf.float32, name=INPUT_NAME)
    module.serve = tf.function(logits, input_signature=[signature])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    return tf.function(logits, jit_compile=xla)


def main() -> None:
    """Save the model, measure it, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", required=True, help="cpu or cuda:N")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--fp16", action="store_true", help="mixed precision instead of XLA")
    args = parser.parse_args()
    enter_device(args.device, {"tensorflow"})
    import tensorflow as tf

    if args.fp16:
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
    run = save_mlp(seeded_mlp(args.seed), args.folder, xla=not args.fp16)
    rows = random_rows(args.rows, WIDTHS[:1])
    run(tf.constant(rows))
    began_s, runs = time.perf_counter(), 0
    while (taken_s := time.perf_counter() - began_s) < args.seconds or not runs:
        # As a server, it copies inputs to the device and outputs back.
        run(tf.constant(rows))["logits"].numpy()
        runs += 1
    print(orjson.dumps({"rows_per_s": args.rows * runs / taken_s}).decode())


if __name__ == "__main__":
    main()
