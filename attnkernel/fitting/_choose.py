"""Selection among models, such as kernels and orders: each is fitted by one criterion."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.typing import ArrayLike

from .._core.arrays import is_concrete
from .._core.text_tables import align_columns
from ..models import Smoother
from ..objectives import Objective
from ._fit import as_objective, fit as fit_model
from ._fit_warnings import FitWarning
from ._result import Fit


class Choice(NamedTuple):
    """The fit with the least criterion, and the fits and criteria of all candidates, in order.

    Printed, a table of them.

    ```python
    data = ak.data.load("mcycle")
    models = [ak.KernelRegression(ak.Gaussian(1.0), order=p) for p in (0, 1)]
    choice = ak.choose(models, data.x, data.y, objective=ak.AICc())
    assert choice.best is choice.fits[choice.criteria.index(min(choice.criteria))]
    ```
    """

    best: Fit
    fits: tuple[Fit, ...]
    criteria: tuple[float, ...]

    def __str__(self) -> str:
        least = min(self.criteria)
        rows = [("", "model", type(self.best.objective).__name__, "above the least")]
        for fit, criterion in zip(self.fits, self.criteria, strict=True):
            mark = "*" if fit is self.best else ""
            rows.append(
                (mark, _flat_repr(fit.model), f"{criterion:.6g}", f"{criterion - least:.3g}")
            )
        return "\n".join(align_columns(rows))


def choose(
    models: Sequence[Any],
    x: ArrayLike,
    y: ArrayLike,
    *,
    objective: Objective | None = None,
    **options: Any,
) -> Choice:
    r"""Fits every candidate by the same criterion; the least is best.

    $$ \hat m = \arg\min_m \min_{\theta \in \Theta_m} L(f_{m, \theta}, x, y) $$

    ```python
    data = ak.data.load("mcycle")
    models = [ak.KernelRegression(ak.Gaussian(1.0), order=p) for p in (0, 1)]
    print(ak.choose(models, data.x, data.y, objective=ak.AICc()))
    ```

    The criterion of the best of several candidates is biased downwards: estimate its error on rows
    that the choice has not seen.

    **Arguments:** `models`: the candidates; the rest as for `fit`. The default
    objective is that of the first.

    **Returns:** a `Choice`: `best`, `fits`, `criteria`. Among equals the first is best.

    **Raises:** `ValueError` for no candidate, a stochastic objective (each candidate would be
    scored on other rows), or a criterion that is not finite; as `fit`; inside `jit`.
    """
    is_list = isinstance(models, Sequence) and bool(models)
    if not is_list or any(isinstance(model, type) or not callable(model) for model in models):
        raise ValueError(
            f"models must be a list of at least one model, such as "
            f"[ak.KernelRegression(ak.Gaussian(1.0))]; got {models!r}."
        )
    if isinstance(objective, Objective) and objective.is_stochastic:
        raise ValueError(
            f"{type(objective).__name__} draws rows at random, and candidates would be compared on "
            f"different rows. Try ak.LeaveOneOut() or ak.KFold(10)."
        )
    objective = as_objective(objective, models[0])
    fits = []
    for number, model in enumerate(models):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fits.append(fit_model(model, x, y, objective=objective, **options))
        for warning in caught:
            category = warning.category
            said = f"candidate {number}, {_flat_repr(model)}: {warning.message}"
            warnings.warn(said if category is FitWarning else warning.message, category, 2)
    losses = [fit.loss for fit in fits]
    if not is_concrete(*losses):
        raise ValueError(
            "choose compares values, and inside jit none is known: call it outside, or fit each "
            "candidate inside."
        )
    criteria = tuple(map(float, losses))
    for number, (model, criterion) in enumerate(zip(models, criteria, strict=True)):
        if not math.isfinite(criterion):
            raise ValueError(
                f"Candidate {number}, {_flat_repr(model)}, has a criterion of {criterion}, which "
                f"cannot be compared: a row has no estimate, or no degree of freedom is left. Try "
                f'a larger initial lengthscale, on_empty="mean", or leave it out.'
            )
    return Choice(fits[criteria.index(min(criteria))], tuple(fits), criteria)


def _flat_repr(model: Any) -> str:
    """Returns one line of text about a model: its `repr`, or for a smoother with a kernel its
    `description` and the `repr` of the kernel."""
    kernel = getattr(model, "kernel", None)
    if not isinstance(model, Smoother) or kernel is None:
        return " ".join(repr(model).split())
    return f"{model.description}, {' '.join(repr(kernel).split())}"
