"""Data sets for regression: simulated, bundled, or read from a CSV file."""

from ._bundled import BUNDLED as BUNDLED, load as load
from ._columns import DAYS_SINCE
from ._csv import read_csv as read_csv
from ._dataset import (
    Dataset as Dataset,
    heteroskedastic as heteroskedastic,
    heteroskedastic_mean as heteroskedastic_mean,
    heteroskedastic_sd as heteroskedastic_sd,
)
from ._formula import columns_of_formula, frame_by_formula, parse_formula
