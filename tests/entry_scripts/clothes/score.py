import base64
import io
import json
import logging
import os

import numpy as np
import onnxruntime
from PIL import Image

SIZE = (8, 8)
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def init():
    global session, input_name, labels
    model_path = os.path.join(os.getenv("AZUREML_MODEL_DIR"), "model.onnx")
    session = onnxruntime.InferenceSession(model_path, providers=["CPUExecutionProvider"])
    input_name = session.get_inputs()[0].name
    with open(os.path.join(os.getenv("AZUREML_MODEL_DIR"), "labels.txt")) as f:
        labels = [line.strip() for line in f]
    logging.info("Init complete")


def preprocess(image):
    image = image.convert("RGB").resize(SIZE)
    pixels = np.asarray(image, dtype=np.float32) / 255.0
    pixels = (pixels - MEAN) / STD
    return np.expand_dims(pixels.transpose(2, 0, 1), axis=0)


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


def run(raw_data):
    logging.info("Request received")
    try:
        request = json.loads(raw_data)
        image = Image.open(io.BytesIO(base64.b64decode(request["image"])))
        scores = session.run(None, {input_name: preprocess(image)})[0]
        probabilities = softmax(scores[0])
        top = np.argsort(probabilities)[::-1][: request.get("top", 2)]
        return {"predictions": [{"label": labels[i], "probability": float(probabilities[i])} for i in top]}
    except Exception as e:
        logging.exception("Could not score the image")
        return {"error": str(e)}
