"""The CSV files that come with the package, with their usual columns and units."""

from collections.abc import Sequence
from importlib import resources

from .._core.validation import as_names, require_choice
from ._csv import read_csv
from ._dataset import Dataset

# the input columns and the label column of each file
COLUMNS = {
    "cps71": (("age",), "logwage"),
    "ethanol": (("E",), "NOx"),
    "faithful": (("eruptions",), "waiting"),
    "geyser": (("waiting",), "duration"),
    "mcycle": (("times",), "accel"),
    "wage1": (("educ", "exper", "tenure"), "lwage"),
}
AXIS_LABELS = {
    "age": "age (years)",
    "logwage": "log of wage",
    "E": "equivalence ratio",
    "C": "compression ratio",
    "NOx": "NOx (µg/J)",
    "eruptions": "eruption (min)",
    "waiting": "waiting (min)",
    "duration": "duration (min)",
    "times": "time after impact (ms)",
    "accel": "head acceleration (g)",
    "educ": "education (years)",
    "exper": "experience (years)",
    "tenure": "tenure (years)",
    "lwage": "log of wage",
}
CATEGORIES = ("female", "married")  # columns of words, in wage1

BUNDLED: tuple[str, ...] = tuple(COLUMNS)


def load(name: str, *, x: str | Sequence[str] | None = None, y: str | None = None) -> Dataset:
    """Returns a data set that comes with the package.

    ```python
    >>> ak.data.load("mcycle").x.shape
    (133, 1)
    >>> ak.data.load("wage1", x=("educ", "female")).x_names
    ('education (years)', 'female')
    ```

    **Arguments:** `name`: one of `BUNDLED`; `x`, `y`: other columns than the usual ones.

    **Raises:** `ValueError` for an unknown name or column.

    **Source:** see the README beside the files.
    """
    require_choice("name", name, BUNDLED)
    inputs, label = COLUMNS[name]
    wanted = inputs if x is None else as_names("x", x)
    words = tuple(column for column in wanted if name == "wage1" and column in CATEGORIES)
    with resources.as_file(resources.files("attnkernel.data") / "csv" / f"{name}.csv") as path:
        return read_csv(
            path, x=wanted, y=label if y is None else y, names=AXIS_LABELS, categories=words
        )
