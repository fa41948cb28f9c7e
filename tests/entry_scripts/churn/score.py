import json
import os

import joblib
import pandas as pd


def init():
    global model
    model = joblib.load(os.path.join(os.environ["AZUREML_MODEL_DIR"], "churn.pkl"))


def run(data):
    try:
        df = pd.DataFrame(json.loads(data)["data"])
        df["charges_per_month"] = df["total_charges"] / df["tenure"].clip(lower=1)
        df["contract"] = df["contract"].str.lower()
        result = model.predict(df)
        # You can return any data type, as long as it is JSON serializable.
        return result.tolist()
    except Exception as e:
        return str(e)
