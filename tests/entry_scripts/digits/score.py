import json
import os
import time

import numpy as np
import onnxruntime as rt

CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def init():
    global sess
    path = os.path.join(os.environ["AZUREML_MODEL_DIR"], "model.onnx")
    sess = rt.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(raw_data):
    start = time.time()
    inputs = np.array(json.loads(raw_data)["data"], dtype=np.float32).reshape(-1, 784)
    logits = sess.run(["y"], {"x": inputs})[0]
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs = exp / exp.sum(axis=1, keepdims=True)
    best = probs.argmax(axis=1)
    print("scored %d rows in %.1f ms" % (len(inputs), 1000 * (time.time() - start)))
    return json.dumps(
        {
            "labels": [CLASSES[i] for i in best],
            "probabilities": probs.round(6).tolist(),
            "model": "mnist-mlp",
        }
    )
