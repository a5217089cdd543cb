"""What a config may say: its fields, how it is read, and its errors."""
# ruff: noqa: F401  names for the rooms above

from .errors import build, config_error, nearest
from .kernels import BUILT_IN, KERNELS, require_known, source_of_kernel, user_kernel
from .loading import FieldError, Source, read
from .plain_yaml import ConfigError, FieldPath, dump, shortened
from .schema import (
    Bundled,
    Column,
    CsvWithNewRows,
    Data,
    DataWithNewRows,
    Heteroskedastic,
    HoldOutSize,
    Model,
    Name,
    NonEmpty,
    Part,
    Positive,
    Seed,
    Several,
    Training,
    file_stamp,
    outside_bounds,
)
