"""Data: simulated, bundled, or from a CSV file, always as a `Dataset`."""

from ._csv import BUNDLED as BUNDLED, load as load, read_csv as read_csv
from ._dataset import Dataset as Dataset
from ._synthetic import (
    heteroskedastic as heteroskedastic,
    heteroskedastic_mean as heteroskedastic_mean,
    heteroskedastic_sd as heteroskedastic_sd,
)
