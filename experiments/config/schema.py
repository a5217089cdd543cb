"""The parts of configs: data, model and training, and what each of them makes."""

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pydantic
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field

import attnkernel as ak
from attnkernel.data._csv import CsvFile, NewRows, Options, read_file
from attnkernel.kernels import LETTERS

from .kernels import BUILT_IN, KERNELS, Scaled, require_known
from .loading import FieldError


def _require_hold_out_size(value: int | float) -> int | float:
    """Returns a number of rows or a fraction of them; `ValueError` for other numbers."""
    if (isinstance(value, int) and value >= 1) or (isinstance(value, float) and 0 < value < 1):
        return value
    raise ValueError(
        f"expected a number of rows from 1, or a fraction of them between 0 and 1; got {value!r}"
    )


Item = TypeVar("Item")
NonEmpty = Annotated[list[Item], Field(min_length=1)]
Several = Annotated[list[Item], Field(min_length=2)]
# not 0 or infinite in float32
Positive = Annotated[float, Field(ge=1e-30, le=1e30, allow_inf_nan=False)]
HoldOutSize = Annotated[int | float, pydantic.AfterValidator(_require_hold_out_size)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Column = Annotated[str, Field(min_length=1)]
Columns = Column | Annotated[list[Column], Field(min_length=1)]
Convention = Literal["standard", "unhalved"]
KernelName = Annotated[
    str,
    pydantic.AfterValidator(require_known),
    pydantic.WithJsonSchema({"anyOf": [{"enum": list(BUILT_IN)}, {"type": "string"}]}),
]


class Part(pydantic.BaseModel):
    """A group of fields: nothing unknown, nothing converted, nothing changed later."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)


class Heteroskedastic(Part):
    """Simulated: y = f(x) + s(x) ε on [-3, 3]."""

    source: Literal["heteroskedastic"]
    n: int = Field(default=150, ge=3, le=10_000_000)
    rounded_to: Literal["float32", "none"] = Field(
        default="none", description="round the data to this precision, whatever the run's own"
    )

    def load(self, key: PRNGKeyArray) -> ak.data.Dataset:
        data = ak.data.heteroskedastic(key=key, n=self.n)
        if self.rounded_to == "none":
            return data
        return jax.tree.map(lambda leaf: leaf.astype(self.rounded_to).astype(leaf.dtype), data)


class Bundled(Part):
    """A data set that comes with attnkernel."""

    source: Literal["bundled"]
    name: Literal["cps71", "ethanol", "faithful", "geyser", "mcycle", "wage1"]
    x: Columns | None = None
    y: Column | None = None

    def load(self, key: PRNGKeyArray) -> ak.data.Dataset:
        with jax.ensure_compile_time_eval():  # numbers, in a program that is being traced too
            return ak.data.load(self.name, x=self.x, y=self.y)


class Csv(Part):
    """Named columns of a CSV file; its path counts from the current directory."""

    source: Literal["csv"]
    path: str
    x: Columns
    y: Column
    delimiter: str = ","
    decimal: Literal[".", ","] = "."
    thousands: Literal["", " ", ",", ".", "'", "’"] = Field(
        default="", description="the mark between thousands"
    )
    encoding: str = Field(default="utf-8", description="such as cp1252 or utf-16")
    missing: Literal["error", "drop"] = Field(
        default="error", description="drop: leave out rows with an empty cell, NA or the like"
    )
    categories: list[Column] | dict[Column, list[str | int] | None] = Field(
        default=[],
        description="columns of words are found; these too, or {column: [words, in, order]}",
    )
    dates: list[Column] | dict[Column, str | None] = Field(
        default=[], description='ISO dates are found; others as {column: "%d.%m.%Y"}'
    )

    def load(self, key: PRNGKeyArray) -> ak.data.Dataset:
        data = self.read().data
        inputs = tuple(map(printable, data.x_names))
        words = tuple(levels and tuple(map(printable, levels)) for levels in data.categories)
        label = printable(data.y_name)
        return dataclasses.replace(data, x_names=inputs, y_name=label, categories=words)

    def read(self) -> CsvFile:
        """Returns the file; it is read once, as long as it does not change."""
        return _read_csv(*self._read_from())

    def _read_from(self) -> tuple[str, Any, str]:
        """Returns what a read file depends on: fields, the state of the file and the precision."""
        fields = self.model_dump_json(exclude={"source", "predict"})
        return fields, file_stamp(self.path), str(jax.dtypes.canonicalize_dtype(float))


class CsvWithNewRows(Csv):
    """A CSV file, with what its columns say of the rows, and a file of rows to predict."""

    weights: Column | None = Field(default=None, description="inverse variances of the rows")
    clusters: Column | None = Field(
        default=None, description="errors are dependent among rows of one value; each is left out"
    )
    predict: str | None = Field(
        default=None, description="a file with the columns of x, for predictions.csv"
    )

    def read_new(self) -> NewRows | None:
        """Returns the rows to predict, if there are any; their file is read once."""
        if self.predict is None:
            return None
        return _read_new(self._read_from(), self.predict, file_stamp(self.predict))


@functools.lru_cache(maxsize=1)
def _read_new(read_from: tuple[str, Any, str], path: str, _: Any) -> NewRows:
    """Returns the rows of a file, read as a file that is fitted; from a cache unless a stamp is
    new."""
    return _read_csv(*read_from).read_new(Path(path))


@functools.lru_cache(maxsize=1)
def _read_csv(fields: str, *_: Any) -> CsvFile:
    """Returns the file of a `Csv`, given its fields; from a cache unless an argument is new."""
    given = json.loads(fields)
    path, categories = given.pop("path"), given["categories"]
    if isinstance(categories, dict):
        given["categories"] = {c: of and list(map(str, of)) for c, of in categories.items()}
    with jax.ensure_compile_time_eval():
        return read_file(Path(path), Options(**given, find_categories=True), {})


def file_stamp(path: str) -> tuple[int, int] | None:
    """Returns the time of the last change of a file, in ns, and its bytes; None without a file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # ValueError: no name of a file
        return None
    return found.st_mtime_ns, found.st_size


def printable(text: str) -> str:
    """Returns a name of a file as a terminal and a page may show it: control characters, and those
    that change the direction of writing, as their codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


Data = Annotated[Heteroskedastic | Bundled | Csv, Field(discriminator="source")]
DataWithNewRows = Annotated[
    Heteroskedastic | Bundled | CsvWithNewRows, Field(discriminator="source")
]


class Model(Part):
    """Kernel regression with one kernel of one lengthscale."""

    kernel: KernelName = Field(
        default="gaussian", description="a built-in one, or one of --kernels FILE.py"
    )
    lengthscale: Positive = Field(default=1.0, description="where the fit starts")
    convention: Convention = Field(
        default="standard",
        description="what a lengthscale of a gaussian is, here and in the results: standard, ℓ of "
        "exp(−d²/2ℓ²), or unhalved, √2 ℓ, as in exp(−(d/lengthscale)²)",
    )
    sink_mass: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="divide by (sum of weights + this); 0 is exact",
    )
    on_empty: Literal["nan", "nearest", "mean"] = Field(
        default="nan", description="the prediction where a compact kernel reaches no label"
    )

    @pydantic.field_validator("convention")
    @classmethod
    def _require_gaussian(cls, convention: str, info: pydantic.ValidationInfo) -> str:
        """Raises `ValueError` for a lengthscale convention other than "standard" with a kernel that
        is not Gaussian.
        """
        kernel = info.data.get("kernel", "gaussian")  # an unknown name has an error of its own
        if convention != "standard" and kernel != "gaussian":
            raise ValueError(
                f"{convention} is a convention of the gaussian alone; with kernel {kernel} leave "
                f"it out, or say standard"
            )
        return convention

    def make(self, lengthscale: Any = None) -> ak.KernelRegression:
        """The model at a lengthscale of this convention (default: the start)."""
        return self.with_kernel(self.kernel_at(lengthscale))

    def with_kernel(self, kernel: Any) -> ak.KernelRegression:
        """The model with a kernel as it is."""
        return ak.KernelRegression(kernel, rule=self.rule(), on_empty=self.on_empty)

    def kernel_at(self, lengthscale: Any = None) -> Scaled:
        value = self.lengthscale if lengthscale is None else lengthscale
        length = ak.kernels.convert_lengthscale(value, source=self.convention)
        return KERNELS[self.kernel](length)

    def rule(self) -> ak.Softmax:
        return ak.Softmax(sink_mass=ak.fixed(self.sink_mass))

    def shown(self, lengthscale: ArrayLike) -> Array:
        """Lengthscales of this package, in the convention of this config."""
        factor = ak.kernels.convert_lengthscale(1.0, target=self.convention)
        return jnp.asarray(lengthscale) * factor

    def parameters(self, kernel: Any) -> dict[str, Array]:
        """All that was fitted of a kernel, or of a stack of them: the lengthscale as shown."""
        found = {"lengthscale": self.shown(kernel.lengthscale)}
        leaves, _ = jax.tree.flatten_with_path(eqx.filter(kernel, eqx.is_inexact_array))
        for path, leaf in leaves:
            name, natural, _ = jax.tree_util.keystr(path).lstrip(".").partition("_parameter.z")
            found.setdefault(name, getattr(kernel, name) if natural else leaf)
        return found

    def words(self) -> str:
        """The kernel, in the title of a table."""
        return "exp(−d²/2ℓ²)" if self.kernel == "gaussian" else self.kernel

    def letter(self) -> str:
        """What a lengthscale of this convention is, where ℓ is that of attnkernel."""
        return LETTERS[self.convention]

    def label(self) -> str:
        """What the curve of a figure is."""
        return "prediction" if self.kernel == "gaussian" else f"prediction, kernel {self.kernel}"

    def named(self) -> dict[str, str]:
        """The kernel, in a summary."""
        return {"kernel": self.kernel, "convention": self.convention}

    def require_slope(self) -> None:
        """Raise `FieldError` for a kernel whose gradient in the lengthscale is 0."""
        if self.kernel == "boxcar":
            raise FieldError(
                ("model", "kernel"),
                "boxcar has no slope in its lengthscale, so that no fit moves it: take another, "
                "such as epanechnikov, or the study lengthscales",
            )


class Training(Part):
    """Stochastic training: an optax optimiser, over a number of steps."""

    optimizer: Literal["adam", "rmsprop", "sgd"] = "adam"
    learning_rate: Positive = 0.2
    steps: int = Field(default=100, ge=1)
    float32_bias_correction: bool = Field(
        default=False,
        description="Adam with 1 − β^t rounded to float32, as it is in float32 programs",
    )

    @pydantic.model_validator(mode="after")
    def _require_adam(self) -> "Training":
        """Raises `ValueError` if `float32_bias_correction` is set with another optimiser."""
        if self.float32_bias_correction and self.optimizer != "adam":
            raise ValueError("float32_bias_correction is of adam; leave it out, or use adam")
        return self

    def make(self) -> optax.GradientTransformation:
        """The optimiser; its learning rate may be traced."""
        rate: Any = self.learning_rate
        if self.float32_bias_correction:
            rate = functools.partial(_float32_adam_rate, rate)
        return getattr(optax, self.optimizer)(rate)

    def options(self, key: PRNGKeyArray) -> dict[str, Any]:
        """The arguments of `ak.fit` and `ak.fit_many` for this training."""
        return {"optimizer": self.make(), "steps": self.steps, "key": key}


def _float32_adam_rate(rate: float, count: Array) -> Array:
    r"""Returns the learning rate after `count` steps with which exact Adam equals Adam whose bias
    correction is rounded to float32.

    Adam divides its moments by $1 - \beta_1^t$ and $1 - \beta_2^t$ ($\beta$ = 0.9, 0.999). In
    float32 the second loses half of its digits at small t (5e-5 of its value at t = 1); all other
    roundings of float32 are random, this one is the same in every program. Multiplying the rate by

    $$ \sqrt{\frac{1 - \beta_2^t|_{32}}{1 - \beta_2^t}} \Big/
       \frac{1 - \beta_1^t|_{32}}{1 - \beta_1^t} $$

    puts it into arithmetic that is otherwise exact.
    """
    step = count + 1

    def rounding(beta: float) -> Array:
        power = jnp.asarray(beta, jnp.float32) ** step.astype(jnp.float32)
        exact = 1.0 - jnp.asarray(beta, float) ** step
        return (1.0 - power).astype(exact.dtype) / exact

    return rate * jnp.sqrt(rounding(0.999)) / rounding(0.9)


def outside_bounds(lengthscales: Array, data: ak.data.Dataset, model: Model, who: str) -> list[str]:
    """Returns a warning if a fitted lengthscale is outside the bounds that x identifies."""
    bounds = model.kernel_at().search_box(np.asarray(data.x))  # of NumPy: nothing is compiled
    lower, upper = (float(side.lengthscale) for side in bounds)
    found = [float(length) for length in np.ravel(lengthscales) if not lower <= length <= upper]
    if not found:
        return []
    ends = [f"{float(model.shown(length)):.4g}" for length in (*found, lower, upper)]
    compact = issubclass(KERNELS[model.kernel], ak.kernels.Compact)
    below = "rows have no neighbour" if compact else "is the nearest neighbour"
    return [
        f"{who}: {model.letter()} = {', '.join(ends[:-2])} is outside {ends[-2]} to {ends[-1]}, "
        f"where these inputs can tell lengthscales apart (below {below}, above is the mean): "
        f"start nearer, or take more steps."
    ]


OPTIMIZERS = get_args(Training.model_fields["optimizer"].annotation)
SOURCES = tuple(
    get_args(kind.model_fields["source"].annotation)[0] for kind in (Heteroskedastic, Bundled, Csv)
)
