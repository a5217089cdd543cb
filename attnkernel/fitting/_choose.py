"""Choosing among models, such as kernels and orders: each is fitted by one criterion."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.typing import ArrayLike

from .._core.arrays import is_concrete
from ..models import LinearSmoother
from ..objectives._objective import Objective
from ._fit import fit as fit_model
from ._result import Fit, FitWarning


class Choice(NamedTuple):
    """Fits of all candidates in the order given, their criteria, and the fit of the least; printed,
    a table of them."""

    best: Fit
    fits: tuple[Fit, ...]
    criteria: tuple[float, ...]

    def __str__(self) -> str:
        least = min(self.criteria)
        rows = [("", "model", type(self.best.objective).__name__, "above the least")]
        for fit, criterion in zip(self.fits, self.criteria, strict=True):
            mark = "*" if fit is self.best else ""
            rows.append((mark, _named(fit.model), f"{criterion:.6g}", f"{criterion - least:.3g}"))
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ("  ".join(map(str.ljust, row, wide)).rstrip() for row in rows)
        return "\n".join(table)


def choose(
    models: Sequence[Any], x: ArrayLike, y: ArrayLike, *, objective: Objective, **options: Any
) -> Choice:
    r"""Fits every candidate by the same criterion; the least is best.

    $$ \hat m = \arg\min_m \min_{\theta \in \Theta_m} L(f_{m, \theta}, x, y) $$

    The criterion of the best of many is too low a guess of its error: ask rows that it has not
    seen.

    **Arguments:** `models`: the candidates, such as
    `[ak.KernelRegression(ak.Gaussian(1.0), order=p) for p in (0, 1, 2)]`; the rest as for `fit`.

    **Returns:** a `Choice`: `best`, `fits`, `criteria`. Of equals the first.

    **Raises:** `ValueError` for no candidate, a stochastic objective, whose values are of other
    rows each, or a criterion that is not finite; what `fit` raises; inside `jit`.
    """
    is_list = isinstance(models, Sequence) and bool(models)
    if not is_list or any(isinstance(model, type) or not callable(model) for model in models):
        raise ValueError(
            f"models must be a list of at least one model, such as "
            f"[ak.KernelRegression(ak.Gaussian(1.0))]; got {models!r}."
        )
    if isinstance(objective, Objective) and objective.is_stochastic:
        raise ValueError(
            f"{type(objective).__name__} draws rows at random, and candidates would be compared by "
            f"the luck of their draws. Try ak.LeaveOneOut() or ak.KFold(10)."
        )
    fits = []
    for number, model in enumerate(models):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fits.append(fit_model(model, x, y, objective=objective, **options))
        for warning in caught:
            category = warning.category
            said = f"candidate {number}, {_named(model)}: {warning.message}"
            warnings.warn(said if category is FitWarning else warning.message, category, 2)
    losses = [fit.loss for fit in fits]
    if not is_concrete(*losses):
        raise ValueError(
            "Which candidate is best decides what comes back, and inside jit no value is known: "
            "choose outside, or fit each inside."
        )
    criteria = tuple(map(float, losses))
    for number, (model, criterion) in enumerate(zip(models, criteria, strict=True)):
        if not math.isfinite(criterion):
            raise ValueError(
                f"Candidate {number}, {_named(model)}, has a criterion of {criterion}, which "
                f"compares with none: a row has no estimate, or no degree of freedom is left. Try "
                f'a larger lengthscale to begin with, on_empty="mean", or leave it out.'
            )
    return Choice(fits[criteria.index(min(criteria))], tuple(fits), criteria)


def _named(model: Any) -> str:
    """A model in one line."""
    kernel = getattr(model, "kernel", None)
    if not isinstance(model, LinearSmoother) or kernel is None:
        return " ".join(repr(model).split())
    return f"{model.description}, {' '.join(repr(kernel).split())}"
