"""A regression of any table: the fit with its band, the effect of each column, and a report."""

import warnings
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from jaxtyping import PRNGKeyArray
from pydantic import AfterValidator, Field

import attnkernel as ak
from attnkernel.data._csv import NewRows
from attnkernel.kernels._of_columns import product_of_columns
from attnkernel.objectives import BY_NAME

from ..config import (
    BUILT_IN,
    KERNELS,
    Column,
    CsvWithNewRows,
    DataWithNewRows,
    FieldError,
    Part,
    Positive,
    require_known,
)
from ..reports.dependence import blocked_objective, time_column
from ..reports.new_rows import inputs_of, require_free_names
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study, errors_at, load

if TYPE_CHECKING:
    from ..reports.regression import Results

FAMILIES = {"binomial": ak.Binomial, "poisson": ak.Poisson, "gamma": ak.Gamma}


class ColumnModel(Part):
    """Local polynomial regression by a product of kernels, one of each column; of another family
    than the Gaussian, a local likelihood."""

    kernel: Annotated[str, AfterValidator(lambda name: require_known(name, "auto"))] = Field(
        default="auto",
        description="of quantities, auto is gaussian; columns of words have kernels of categories",
        json_schema_extra={"anyOf": [{"enum": ["auto", *BUILT_IN]}, {"type": "string"}]},
    )
    order: Literal[0, 1, 2] = Field(
        default=1, description="of the local polynomial: 0 constant, 1 linear, 2 quadratic"
    )
    periods: dict[Column, Positive] = Field(
        default={}, description="of columns on a circle, such as {hour: 24}"
    )
    family: Literal["gaussian", "binomial", "poisson", "gamma"] = Field(
        default="gaussian",
        description="of the label: binomial of 0 and 1, poisson of counts, gamma of positive ones",
    )

    def make(self, data: ak.data.Dataset) -> ak.KernelRegression | ak.LocalLikelihood:
        """The model where its search starts: at lengthscales of 0.3 standard deviations."""
        kind = KERNELS["gaussian" if self.kernel == "auto" else self.kernel]
        periods = {data.x_names.index(name): period for name, period in self.periods.items()}
        kernel = product_of_columns(data.x, kind, periods, data.categories, data.ordered)
        if self.family == "gaussian":
            return ak.KernelRegression(kernel, order=self.order)
        return ak.LocalLikelihood(kernel, family=FAMILIES[self.family](), order=self.order)


Objective: Any = Literal[(*BY_NAME, "blocked")]


class Regression(Study):
    """The mean of y given columns of quantities, dates and categories, and how certain it is."""

    study: Literal["regression"]
    precision: Literal["float32", "float64"] = "float64"
    data: DataWithNewRows
    model: ColumnModel = ColumnModel()
    objective: Objective = Field(  # pyright: ignore[reportInvalidTypeForm]
        default="leave_one_out",
        description="blocked: each row is predicted from those some time away, for a column of "
        "dates or of evenly spaced numbers along which errors are correlated",
    )
    level: float = Field(default=0.95, gt=0, lt=1, description="of the pointwise bands")
    tests: int = Field(
        default=0, ge=0, description="bootstraps for the p-value of each column; 0: no tests"
    )

    def check(self) -> None:
        data = load(self.data, self.keys().next(), with_words=True)
        levels = data.categories or (None,) * len(data.x_names)
        known = [name for name, words in zip(data.x_names, levels, strict=True) if words is None]
        if unknown := set(self.model.periods) - set(known):
            listed = ", ".join(map(repr, known)) or "none"
            raise FieldError(
                ("model", "periods"),
                f"expected columns of quantities among the inputs, {listed}; got "
                f"{', '.join(map(repr, sorted(unknown)))}",
            )
        if data.clusters is not None:
            self._check_clusters(np.asarray(data.clusters))
        if self.model.family != "gaussian":
            if self.objective not in ("leave_one_out", "blocked"):
                raise FieldError(
                    ("objective",),
                    f"{self.objective} is of squared errors: expected leave_one_out or blocked for "
                    f"the family {self.model.family}",
                )
            with errors_at("model", "family"):
                FAMILIES[self.model.family]().check(data.y)
        if self.tests and (self.model.family != "gaussian" or data.clusters is not None):
            raise FieldError(
                ("tests",),
                "p-values are of the family gaussian and of independent rows: leave them out with "
                "another family, and with clusters",
            )
        with errors_at("data", "predict"):
            if (new := self._new_rows()) is not None:
                require_free_names(new)
        if self.objective == "blocked" and time_column(data) is None:
            raise FieldError(
                ("objective",),
                "blocked needs an input of dates or of evenly spaced numbers in which no value "
                "comes twice; none of the inputs is one",
            )
        constant = np.ptp(np.asarray(data.x), axis=0) == 0
        if np.any(constant):
            names = [data.x_names[c] for c in np.flatnonzero(constant)]
            without = " - ".join(["'y ~ .", *names])
            raise FieldError(
                ("data", "x"),
                f"one value in all rows of {', '.join(map(repr, names))}, which says nothing about "
                f"y: leave it out of x, or in a formula as in {without}'",
            )

    def _check_clusters(self, clusters: np.ndarray) -> None:
        """Raises `FieldError` unless there are two clusters, and the fit can be by cluster."""
        if self.model.family != "gaussian":
            raise FieldError(
                ("model", "family"),
                f"clusters are for the family gaussian, whose weights of labels are known; got "
                f"{self.model.family}",
            )
        if self.objective != "leave_one_out":
            raise FieldError(
                ("objective",),
                f"with clusters it leaves out one cluster after the other: expected "
                f"leave_one_out; got {self.objective}",
            )
        if np.all(clusters == clusters[0]):
            raise FieldError(("data", "clusters"), "expected two clusters or more; got one")

    def _new_rows(self) -> NewRows | None:
        """Returns the rows to predict, if a file of them is given."""
        return self.data.read_new() if isinstance(self.data, CsvWithNewRows) else None

    def _objective_of(self, data: ak.data.Dataset) -> ak.objectives.Objective:
        """Returns what the search minimises: with clusters, each of them is left out."""
        if data.clusters is not None:
            return ak.objectives.GroupKFold(data.clusters, folds=None)
        return blocked_objective(data) if self.objective == "blocked" else BY_NAME[self.objective]()

    def run(self, run: Run) -> None:
        # the notes and the table of numbers say it in their words
        with warnings.catch_warnings(action="ignore", category=ak.local.ExtrapolationWarning):
            super().run(run)

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> "Results":
        from ..reports import effects, regression  # noqa: PLC0415  figures

        keys = Keys(key)
        data, new = load(self.data, keys.next(), with_words=True), self._new_rows()
        with monitor.timed("fit"):
            monitor.print(f"{len(data.y)} rows are read; the search for lengthscales begins")
            options = {"objective": self._objective_of(data), "weights": data.weights}
            fit = ak.fit(self.model.make(data), data.x, data.y, **options)
        fit = fit.named(data.x_names, data.y_name, data.categories or None)
        monitor.print("lengthscales are found; bands and left-out predictions follow")
        at_new = inputs_of(new, data.x.shape[1])
        estimates = effects.estimates_of(fit, self.level, at_new)
        tests = []
        if self.tests:
            monitor.print(f"p-values of columns follow, by {self.tests} bootstraps each")
            tests = effects.p_values_of(fit, self.tests, keys.next())
        return regression.Results(data, fit, estimates, new, tests)

    def report(self, results: "Results", run: Run) -> None:
        from ..reports import regression  # noqa: PLC0415  figures

        regression.write(self, results, run)
