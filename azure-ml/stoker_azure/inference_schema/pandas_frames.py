"""Arguments that are pandas data frames."""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from stoker_azure.inference_schema.standard import AbstractParameterType, schema_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PandasParameterType"]

_ORIENTS: Final = ("split", "records", "index", "columns", "values", "table")
_ZONE_MISSING: Final = "Cannot use .astype to convert from timezone-naive dtype to timezone-aware dtype"


class PandasParameterType(AbstractParameterType):
    """A data frame with the columns of the sample: as many, and of the same dtypes."""

    def __init__(
        self,
        sample_input: pd.DataFrame,
        enforce_column_type: bool = True,
        enforce_shape: bool = True,
        apply_column_names: bool = False,
        orient: str = "records",
    ) -> None:
        """Describe a data frame.

        Args:
            enforce_column_type: Convert columns to the dtypes of those of the same name in the sample.
            enforce_shape: Refuse another number of columns.
            apply_column_names: Give the columns the names of the sample, in order. Deprecated.
            orient: How JSON holds the frame; the word is that of `pandas.read_json`.

        Raises:
            TypeError: The sample is no data frame.
            ValueError: `orient` is no word of `pandas.read_json`.
        """
        # A data frame exists only where pandas has been imported.
        pandas = sys.modules.get("pandas")
        if pandas is None or not isinstance(sample_input, pandas.DataFrame):
            raise TypeError("Invalid sample input provided, must provide a sample Pandas Dataframe.")
        if orient not in _ORIENTS:
            raise ValueError(
                "Invalid orient provided, must be one of "
                "('split', 'records', 'index', 'columns', 'values', or 'table')"
            )
        if apply_column_names:
            warnings.warn(
                "apply_column_names is a deprecated parameter and will be removed in a future update",
                DeprecationWarning,
                stacklevel=2,
            )
        super().__init__(sample_input)
        self.enforce_column_type = enforce_column_type
        self.enforce_shape = enforce_shape
        self.apply_column_names = apply_column_names
        self.orient = orient

    def deserialize_input(self, input_data: Any) -> pd.DataFrame:
        """Return the data frame that lists and dictionaries describe; a data frame is returned as it is.

        Raises:
            ValueError: They do not describe one, or one with other columns.
        """
        import pandas as pd

        if isinstance(input_data, pd.DataFrame):
            return input_data
        if not isinstance(input_data, list | dict):
            raise ValueError(
                f"Error, unable to convert input of type {type(input_data)} into Pandas Dataframe"
            )
        # By way of text: read_json has the rules by which scripts expect dates and labels to be recognised.
        frame = pd.read_json(io.StringIO(json.dumps(input_data)), orient=self.orient, dtype=False)
        if self.apply_column_names:
            frame.columns = self.sample_input.columns.copy()
        if self.enforce_column_type:
            frame = self._with_sample_types(frame)
        if self.enforce_shape and frame.shape[1] != self.sample_input.shape[1]:
            raise ValueError(
                f"Invalid input data frame: data frame has size {frame.shape[1]} on dimension #1, "
                f"while expected value is {self.sample_input.shape[1]}"
            )
        return frame

    def _with_sample_types(self, frame: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        expected = self.sample_input.dtypes.to_dict()
        dtypes = {column: expected.get(column, object) for column in frame.columns}
        for column, dtype in dtypes.items():
            if str(dtype).startswith("timedelta"):
                frame[column] = pd.to_timedelta(frame[column])
        try:
            return frame.astype(dtypes)
        except TypeError as error:
            if _ZONE_MISSING not in str(error):
                raise
            raise ValueError(
                "As of pandas 2.0, can no longer convert from timezone-naive dtype to timezone-aware dtype. Please "
                "make sure that the provided input data matches the expected timezone handling of the provided "
                "deployment sample."
            ) from error

    def input_to_swagger(self) -> dict[str, Any]:
        """Return the schema of the sample's JSON, with the formats of columns of times."""
        sample = json.loads(self.sample_input.to_json(orient=self.orient, date_format="iso"))
        schema = schema_of(sample)
        dtypes = {str(column): str(dtype) for column, dtype in self.sample_input.dtypes.items()}
        for column, cell in _cells(schema, self.orient):
            dtype = dtypes.get(column, "")
            if dtype.startswith("datetime"):
                cell["format"] = "date-time"
            elif dtype.startswith("timedelta"):
                cell["format"] = "timedelta"
        return {**schema, "format": f"pandas.DataFrame:{self.orient}"}


def _cells(schema: dict[str, Any], orient: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas of single values by column (or index); none where `orient` leaves the names out."""
    if orient == "records":
        yield from schema["items"].get("properties", {}).items()
    elif orient == "table":
        yield from schema["properties"]["data"]["items"].get("properties", {}).items()
    elif orient == "index":
        for row in schema["properties"].values():
            yield from row["properties"].items()
    elif orient == "columns":
        for name, column in schema["properties"].items():
            yield from ((name, cell) for cell in column["properties"].values())
