import json
import logging
import os

import azureml.automl.core
import joblib
import numpy as np
import pandas as pd
from azureml.automl.core.shared import log_server, logging_utilities
from azureml.telemetry import INSTRUMENTATION_KEY
from inference_schema.parameter_types.numpy_parameter_type import NumpyParameterType
from inference_schema.parameter_types.pandas_parameter_type import PandasParameterType
from inference_schema.parameter_types.standard_py_parameter_type import StandardPythonParameterType
from inference_schema.schema_decorators import input_schema, output_schema

rows = pd.DataFrame({"age": pd.Series([0.0], dtype="float64"), "visits": pd.Series([0], dtype="int64")})

try:
    log_server.enable_telemetry(INSTRUMENTATION_KEY)
    log_server.set_verbosity("INFO")
    logger = logging.getLogger("azureml.automl.core.scoring_script")
except:
    pass


def init():
    global model
    file = os.path.join(os.getenv("AZUREML_MODEL_DIR"), "model.pkl")
    parts = os.path.normpath(file).split(os.sep)
    log_server.update_custom_dimensions({"model_name": parts[-3], "model_version": parts[-2]})
    try:
        model = joblib.load(file)
        logger.info("Loading successful.")
    except Exception as error:
        logging_utilities.log_traceback(error, logger)
        raise


@input_schema("method", StandardPythonParameterType("predict"), convert_to_provided_type=False)
@input_schema("data", PandasParameterType(rows))
@output_schema(NumpyParameterType(np.array([0])))
def run(data, method="predict"):
    try:
        if method not in ("predict", "predict_proba"):
            raise Exception("no such method")
        return json.dumps({"result": getattr(model, method)(data).tolist()})
    except Exception as error:
        return json.dumps({"error": str(error)})
