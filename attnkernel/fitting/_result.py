"""The result of a fit: the model, its loss and history, and how every start ended."""

import dataclasses
import textwrap
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core import hints
from .._core.arrays import index_on_host, is_concrete
from .._core.pandas_frames import (
    Categories,
    FrameNames,
    Names,
    as_pandas,
    is_frame,
    rows_to_frame,
)
from .._core.rows import Rows
from .._core.validation import as_integer
from ..models import LinearSmoother, Smoother, votes_of_predictions
from ..objectives import Objective, Sample, at_distinct_inputs
from ._fit_warnings import (
    FitWarning,
    category_warnings,
    comparison_warnings,
    find_best_start,
    parameters_on_bounds,
    result_warnings,
)
from ._minimise import prepare_searches
from ._options import Options
from ._outcome import Result, Starts
from ._problem import History, flat_rows
from ._search import Searches


class Fit(eqx.Module):
    """A fitted model, and the record of how it was fitted.

    ```python
    data = ak.data.load("mcycle")
    fit = ak.fit(ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y)
    fit(jnp.array([10.0, 20.0])), fit.model.kernel.lengthscale, fit.starts.result
    fit.best(), fit.minima(), fit.on_bounds(), fit.warnings(), fit.named(["ms"], "g").x_names
    ```

    `fit(x_new)` predicts: for a frame of pandas it returns a frame. `fit(fit.x)` are the fitted
    values, and `fit.y - fit(fit.x)` the residuals; `ak.summarise(fit)` is a report. `x_names`,
    `x_categories` and `y_name` are those of the frames that were fitted, or of `named`; for arrays
    they are None. After `fit_many` every array has a leading axis of fits, and `fit.member(i)` is
    one of them.
    """

    model: Any
    loss: Float[Array, "*fits"]  # the objective's last value at the best start
    history: History = eqx.field(repr=False)  # "loss", shape (*fits, steps), and what was recorded
    starts: Starts = eqx.field(repr=False)
    objective: Objective
    x: Float[Array, "*batch n dim"] = eqx.field(repr=False)
    y: Float[Array, "*rows"] = eqx.field(repr=False)
    x_names: Names | None = eqx.field(static=True, repr=False, default=None)
    x_categories: Categories | None = eqx.field(static=True, repr=False, default=None)
    y_name: Hashable = eqx.field(static=True, repr=False, default=None)  # several: a tuple
    dropped_rows: int = eqx.field(static=True, repr=False, default=0)  # by na="drop" of `fit`

    @property
    def rows(self) -> Rows:
        """The fitted rows, with the weights of the objective; of one fit."""
        labels = index_on_host(self.y, np.s_[:, None]) if self.y.ndim == 1 else self.y
        rows = Rows(self.x, labels, None, self.y.ndim == 1)
        return rows.with_weights(self.objective.weights)

    def __call__(self, x_new: ArrayLike | Any) -> Any:
        """Predicts at new inputs, shape (m, dim) or (m,), from the fitted data.

        For a frame with the fitted columns: a `Series` with its index and the name of the label;
        a `DataFrame` if there are several labels.

        **Raises:** `ValueError` for a batch of fits, and as `inputs`.
        """
        self._require_one("(x_new)")
        at = self.inputs(x_new) if is_frame(x_new) else x_new
        out = self.model(at, self.x, self.y, **self.objective.weight_kwargs())
        return jax.tree.map(lambda part: as_pandas(part, x_new, self.y_name), out)

    def votes(self, x_new: Any, k_largest: int = 10) -> Any:
        r"""Returns the rows whose labels weigh most in the predictions at new inputs.

        $$ \hat f(x) = \sum_{j=1}^{n} L_j(x)\, y_j $$

        An `ak.methods.Votes` of the $L_j$, m queries by `k_largest` rows of `fit.x`; for a frame, a
        `DataFrame` with the inputs, the label and the weight of each, by query and row. Order 0 has
        them as `ak.votes`; other linear smoothers in O(m n) memory, where they may be negative.

        **Raises:** `ValueError` for a model that is not linear in its labels, and as the call.
        """
        self._require_one(".votes(x_new)")
        if not isinstance(self.model, LinearSmoother):
            raise ValueError(
                f"Only predictions that are linear in the labels are votes of them; got "
                f"{type(self.model).__name__}."
            )
        count = as_integer("k_largest", k_largest, 1)
        found = votes_of_predictions(self.model, self.inputs(x_new), self.rows, count)
        if not is_frame(x_new):
            return found
        labelled = (self.x, self.x_names, self.x_categories), (self.y, self.y_name)
        return rows_to_frame(x_new.index, found.indices, found.weights, *labelled)

    def inputs(self, x_new: ArrayLike | Any) -> Float[Array, "m dim"]:
        """Returns new inputs as numbers: the columns of a frame, categories as their codes.

        **Raises:** `ValueError` if its columns are not those of the fit, in their order; if a value
        is missing or not finite, or a category is not among those of the fit.
        """
        names = FrameNames(self.x_names, self.x_categories)
        if not isinstance(self.model, Smoother):
            return self.rows.queries(x_new, {}, names)
        at = self.rows.queries(x_new, self.model.category_counts(self.x.shape[-1]), names)
        self.model.check_widths(at, self.x)
        return at.astype(self.x.dtype) if is_frame(x_new) else at

    def named(
        self,
        x_names: Sequence[Hashable],
        y_name: Hashable = None,
        x_categories: Sequence[Sequence[Hashable] | None] | None = None,
    ) -> "Fit":
        """Returns the fit with names, as those of a `Dataset`, for plots, reports and frames.

        `x_categories`: for each column the categories of its codes, None for a numeric column.

        **Raises:** `ValueError` unless there is one name, and one entry, for each column of x.
        """
        dim = self.x.shape[-1]
        if isinstance(x_names, str) or not isinstance(x_names, Sequence) or len(x_names) != dim:
            raise ValueError(f"x_names must be {dim}, one for each column; got {x_names!r}.")
        if x_categories is not None and not (
            isinstance(x_categories, Sequence)
            and len(x_categories) == dim
            and all(isinstance(each, tuple | list | None) for each in x_categories)
        ):
            raise ValueError(
                f"x_categories must be {dim}, a list or None for each column; got {x_categories!r}."
            )
        categories = x_categories and tuple(each and tuple(each) for each in x_categories)
        parts: dict[str, Any] = {"x_names": tuple(x_names), "x_categories": categories}
        return dataclasses.replace(self, **parts, y_name=y_name)

    def __getattr__(self, name: str):
        """Raises `AttributeError`, with a hint for names that other libraries have."""
        hint = f": {hints.ATTRIBUTES[name]}" if name in hints.ATTRIBUTES else ""
        raise AttributeError(f"Fit has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        loss = self.loss
        shown = f"an array of shape {loss.shape}"
        if isinstance(loss, jax.Array) and is_concrete(loss) and not loss.ndim:
            shown = f"{float(loss):.6g}"
        model = textwrap.indent(repr(self.model), "  ").lstrip()
        return f"Fit(\n  model={model},\n  loss={shown},\n  objective={self.objective!r}\n)"

    def member(self, i: int) -> "Fit":
        """Returns the i-th of several fits; `ValueError` for one fit, `IndexError` out of range."""
        if not self.loss.ndim:
            raise ValueError("This is one fit, not a batch: it has no members.")
        if not -len(self.loss) <= i < len(self.loss):
            raise IndexError(f"There are {len(self.loss)} fits; got member {i}.")
        names = ["model", "loss", "history", "starts", "objective"]
        names += ["x", "y"] if self.x.ndim == 3 else []
        parts = {name: _entry_on_host(getattr(self, name), i) for name in names}
        return dataclasses.replace(self, **parts)

    def best(self) -> Any:
        """Returns the index of the start that ended lowest, for each fit."""
        return find_best_start(self.starts)

    def minima(self, tolerance: float = 1e-3, *, others: bool = False) -> list[tuple[Any, float]]:
        """Returns the distinct minima that starts reached inside the bounds, best first.

        A list of (model, loss). Two ends count as one minimum if no parameter (of a lengthscale:
        its logarithm) differs by more than `tolerance`. Ends are left out where the objective is
        flat to its precision, or where a Newton step is longer than `tolerance`. With `others`,
        the minimum at the fitted model is left out too. `ValueError` for a batch of fits.
        """
        self._require_one(".minima()")
        as_stored = lambda model: flat_rows(eqx.filter(model, eqx.is_inexact_array), 0)  # noqa: E731
        found = [(self.model, float(self.loss))] if others else []
        searches, losses = None, np.asarray(self.starts.loss)
        diverged = np.asarray(self.starts.result) == Result.DIVERGED
        outside = np.asarray(self.starts.at_bound) | diverged
        for i in np.argsort(losses):
            model = _entry_on_host(self.starts.end, int(i))
            away = [np.abs(as_stored(model) - as_stored(other)) for other, _ in found]
            if outside[i] or any(np.max(of) <= tolerance for of in away):
                continue
            searches = searches or self._searches()
            if searches.has_minimum(eqx.filter(model, searches.options.trainable), tolerance):
                found.append((model, float(losses[i])))
        return found[others:]

    def _searches(self) -> Searches:
        """Returns the searches of a fit of this model with the default options.

        They share the compiled program of such a fit. The same parameters are trained if the fit
        had bounds; else every inexact array.
        """
        bounds = None if self.starts.edges is None else "default"
        options = Options(starts=len(self.starts.loss))
        if (edges := self.starts.edges) is not None:  # of the parameters that were fitted
            is_none = lambda of: of is None  # noqa: E731
            fitted = jax.tree.map(lambda of: not is_none(of), edges, is_leaf=is_none)
            options = options._replace(trainable=fitted)
        options = options.with_defaults(self.model, self.objective)
        data = at_distinct_inputs(self.model, Sample(self.x, self.y, self.objective))
        return prepare_searches(self.model, data, options._replace(bounds=bounds))

    def warned(self) -> "Fit":
        """Returns the fit itself. Outside `jit`, issues a `FitWarning` for each of `warnings()` and
        for a kernel that measures distances between codes of categories."""
        if is_concrete(self.loss):
            of_kernel = category_warnings(self.model, self.x_names, self.x_categories)
            for sentence in of_kernel + self.warnings():
                warnings.warn(sentence, FitWarning, stacklevel=3)
        return self

    def warnings(self) -> list[str]:
        """Returns a sentence for each reason why the best end may be no optimum (`fitting.Result`),
        and for rows that cross-validation does not compare; else an empty list."""
        return result_warnings(self.starts, self.x_names) + comparison_warnings(self.objective)

    def on_bounds(self) -> list[str]:
        """Returns the names of the parameters of the best start that are on a bound.

        Such as `kernel.lengthscale[0]`; named by the column of x, if the fit has names.
        `ValueError` for a batch of fits.
        """
        self._require_one(".on_bounds()")
        return [name for name, _ in parameters_on_bounds(self.starts, self.x_names)]

    def _require_one(self, call: str) -> None:
        """Raises `ValueError` for a batch of fits. `call`: what the user wrote after the fit."""
        if self.loss.ndim:
            raise ValueError(f"This is a batch of fits: ask one of them, fit.member(i){call}.")


def _entry_on_host(tree: Any, i: int) -> Any:
    """Returns entry i along the leading axis of every array of a tree; compiles nothing."""
    return jax.tree.map(lambda leaf: index_on_host(leaf, i) if eqx.is_array(leaf) else leaf, tree)
