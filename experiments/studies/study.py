"""A study: the fields of a config, `compute` for numbers, `report` for tables and figures."""

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from pydantic import Field, model_validator

import attnkernel as ak
from attnkernel._core.rows import require_regression_data
from attnkernel._core.validation import OptionError

from ..config import FieldError, Name, Part, Seed
from ..runs import NO_MONITOR, Monitor, Run


class Task(NamedTuple):
    """Labelled rows, other inputs, and the function there."""

    x: Float[Array, "rows dim"]
    y: Float[Array, "rows *out"]
    at: Float[Array, "targets dim"]
    truth: Float[Array, "targets *out"]


class Study(Part, abc.ABC):
    """What every config has. A study is a subclass: its fields, `check`, `compute` and `report`.

    Where `varying` names fields, members of a sweep that differ in these alone are one program: it
    calls `compute` of a copy whose fields are traced, and takes `numbers` and `diverged` of the
    results.
    """

    name: Name = Field(default="", description="of the directory of a run; default: the study")
    seed: Seed = 2024
    precision: Literal["float32", "float64"] = "float32"
    legacy_prng: bool = Field(default=False, description="JAX's random numbers before 2025")
    style: Literal["light", "dark"] = Field(default="light", description="of the figures")
    is_benchmark: ClassVar[bool] = False
    distributed: ClassVar[bool] = False  # whether several processes can share the work
    varying: ClassVar[tuple[str, ...]] = ()  # dotted names of numbers

    @model_validator(mode="before")
    @classmethod
    def _name_by_study(cls, fields: Any) -> Any:
        return {"name": fields.get("study"), **fields} if isinstance(fields, dict) else fields

    def check(self) -> None:
        """Raise `FieldError` for issues that need the data, or the devices, to be seen."""
        batch, devices = getattr(self, "batch", 0), jax.device_count()
        if self.distributed and batch % devices:
            raise FieldError(
                ("batch",),
                f"{batch} members are split over the {devices} devices of this run: "
                f"expected a multiple of {devices}",
            )

    @abc.abstractmethod
    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Any:
        """Computes the results, arrays and plain numbers; draws and prints nothing."""

    @abc.abstractmethod
    def report(self, results: Any, run: Run) -> None:
        """Writes summary, tables and figures of the results."""

    def run(self, run: Run) -> None:
        """Computes and reports."""
        self.report(self.compute(self.key(), run), run)

    def key(self) -> PRNGKeyArray:
        """The key of the seed."""
        return jax.random.PRNGKey(self.seed)

    def keys(self) -> "Keys":
        """The chain of keys of the seed; data are drawn with the first."""
        return Keys(self.key())

    def resolved(self) -> Self:
        """The same study with every varying field a number or `HoldOutSizes`, whatever the data."""
        return self


class SimulationStudy(Study):
    """A study of many simulated data sets: `simulate` draws and fits one, in each case."""

    precision: Literal["float32", "float64"] = "float64"
    data_sets: int = Field(default=100, ge=2, le=100_000)
    batch: int = Field(default=25, ge=1, description="data sets per call of the program")
    # from a key and a case to arrays of one data set; traced
    simulate: ClassVar[Callable[..., Any]]

    def cases(self) -> Iterable[tuple[Any, ...]]:
        """The arguments of `simulate` in each case, after the key."""
        return [()]

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> dict[Any, Any]:
        """The arrays of all data sets along a first axis, by case."""
        keys, programs = Keys(key), {}
        for case in self.cases():
            simulate = jax.vmap(lambda key, case=case: self.simulate(key, *case))
            programs[case] = jax.jit(simulate), keys.stack(self.data_sets)
        return monitor.simulate(programs, self.batch)


class Fits(NamedTuple):
    """Fits of a data set, and the numbers that a summary and a sweep take from them."""

    data: ak.data.Dataset
    fits: ak.Fit
    numbers: dict[str, Any]
    diverged: Array


class HoldOutStudy(Study):
    """A study of fits with the fields `data`, `model` and `hold_out`."""

    def check(self) -> None:
        study: Any = self
        study.model.require_slope()
        self.resolved()

    def resolved(self) -> Self:
        study: Any = self
        n = len(load(study.data, self.keys().next()).y)
        return self.model_copy(update={"hold_out": HoldOutSizes.from_config(study.hold_out, n)})


class HoldOutSizes(eqx.Module):
    """Numbers of rows to hold out, which may be traced, and the largest: it fixes shapes."""

    sizes: Any
    largest: int = eqx.field(static=True)

    @classmethod
    def from_config(cls, hold_out: Any, n: int) -> "HoldOutSizes":
        """From the field `hold_out`: numbers or fractions of n rows, or sizes as they are."""
        if isinstance(hold_out, cls):
            return hold_out
        if isinstance(hold_out, list):
            sizes = [rows_held_out(size, n, "hold_out", i) for i, size in enumerate(hold_out)]
            return cls(np.array(sizes), max(sizes))
        size = rows_held_out(hold_out, n, "hold_out")
        return cls(size, size)

    def objective(self) -> ak.HoldOut:
        """The masked hold-out of these sizes."""
        sizes = self.sizes if isinstance(self.sizes, int) else jnp.asarray(self.sizes)
        return ak.HoldOut(sizes, at_most=self.largest)


class Keys:
    """The chain `key, sub = split(key)`: one sub-key after the other."""

    def __init__(self, key: PRNGKeyArray):
        self._key = key

    def next(self) -> PRNGKeyArray:
        self._key, key = jax.random.split(self._key)
        return key

    def stack(self, number: int) -> PRNGKeyArray:
        """The next sub-keys, stacked."""
        return jnp.stack([self.next() for _ in range(number)])


def load(part: Any, key: PRNGKeyArray, *, with_words: bool = False) -> ak.data.Dataset:
    """The data of a config, valid for regression.

    `with_words`: whether columns of words, which a kernel of categories takes, are valid.

    **Raises:** `FieldError` at the field `data`.
    """
    with errors_at("data"):
        data = part.load(key)
        require_regression_data(data.x, data.y)
    if any(data.categories) and not with_words:
        named = zip(data.x_names, data.categories, strict=True)
        words = ", ".join(repr(name) for name, levels in named if levels)
        raise FieldError(
            ("data", "x"),
            f"this study takes the codes of words for quantities: leave {words} out, or use "
            f"study: regression, which has kernels of categories",
        )
    return data


@contextlib.contextmanager
def errors_at(*field: str) -> Iterator[None]:
    """Raises a `ValueError` of the block as a `FieldError` at a field."""
    try:
        yield
    except OptionError as error:
        advice = {f"data.{name}": value for name, value in error.options.items()}
        raise FieldError(field, error.sentence, advice) from None
    except ValueError as error:
        raise FieldError(field, str(error)) from None


def require_one_input(study: Any) -> None:
    """Raise `FieldError` if the data of a study have several inputs."""
    if load(study.data, study.keys().next()).x.shape[1] != 1:
        raise FieldError(("data",), "this study draws one input; name one column in data.x")


def rows_held_out(size: int | float, n: int, *field: str | int) -> int:
    """A number of rows, or a fraction of n as one; it must leave a row to predict from."""
    rows = size if isinstance(size, int) else max(1, round(size * n))
    if rows >= n:
        raise FieldError(
            field,
            f"holding out {rows} rows leaves none to predict from: the data have {n}. "
            f"Expected 1 to {n - 1}, or a fraction such as 0.5",
        )
    return rows


@eqx.filter_jit
def leave_one_out_errors(models: Any, x: Array, y: Array) -> Array:
    """The leave-one-out error of each of a stack of models."""
    arrays, rest = eqx.partition(models, eqx.is_array)
    return jax.lax.map(lambda each: ak.LeaveOneOut()(eqx.combine(each, rest), x, y), arrays)


def fit_by_leave_one_out(kernel: Any, order: int, x: Any, y: Array, starts: int) -> ak.Fit:
    """Fits local polynomials of degree `order` to one of many data sets."""
    model = ak.KernelRegression(kernel, order=order)
    return ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=starts, steps=30)


def lengthscale_of(model: Any) -> dict[str, Array]:
    """The lengthscale of a model, which each step of a training or search records."""
    return {"lengthscale": model.kernel.lengthscale}


def describe(data: ak.data.Dataset) -> dict[str, Any]:
    """The entry `data` of a summary."""
    rows = {"rows": data.x.shape[0]} | ({"dropped": data.dropped} if data.dropped else {})
    return {**rows, "inputs": list(data.x_names), "label": data.y_name}


def tables_as_rows(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers for a summary: each table, which is a mapping of columns, as a list of rows."""
    tables = dict(numbers)
    for name, columns in numbers.items():
        if isinstance(columns, Mapping):
            arrays = [np.atleast_1d(np.asarray(column)) for column in columns.values()]
            rows = zip(*arrays, strict=True)
            tables[name] = [dict(zip(columns, row, strict=True)) for row in rows]
    return tables


def with_fields(part: Any, values: Mapping[str, Any]) -> Any:
    """A copy with fields, by dotted names, replaced as they are: by traced numbers too."""
    for name, value in values.items():
        first, _, rest = name.partition(".")
        inner = with_fields(getattr(part, first), {rest: value}) if rest else value
        part = part.model_copy(update={first: inner})
    return part
