"""`fit`: any model, any objective, any optax optimiser or the default search."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import optax
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from .._core.rows import parse_rows
from .._core.validation import require_choice, require_instance, require_key
from ..kernels import number_columns
from ..models import DensityModel
from ..objectives import LeaveOneOut, Objective, Sample, at_distinct_inputs
from ._checkpoints import Checkpoints
from ._chunks import History
from ._fit_warnings import CostWarning, cost_warnings
from ._minimise import minimise
from ._options import Callback, Options
from ._problem import require_fittable
from ._result import Fit
from ._train import train


def fit(
    model: Any,
    x: ArrayLike | Any,
    y: ArrayLike | Any = None,
    *,
    objective: Objective | None = None,
    optimizer: optax.GradientTransformation | None = None,
    steps: int | None = None,
    key: PRNGKeyArray | None = None,
    bounds: tuple[Any, Any] | None = None,
    starts: int | None = None,
    trainable: Any = eqx.is_inexact_array,
    record: Callable[[Any], History] | None = None,
    callback: Callback | None = None,
    chunk: int = 100,
    weights: ArrayLike | Any = None,
    na: str = "error",
    checkpoints: Checkpoints | None = None,
) -> Fit:
    r"""Fits the parameters of a model by minimising an objective.

    $$ \hat\theta = \arg\min_{\theta \in \Theta} L(f_\theta, x, y) $$

    ```python
    data = ak.data.load("mcycle")
    model = ak.KernelRegression(ak.Gaussian(1.0))
    fit = ak.fit(model, data.x, data.y)  # minimises LeaveOneOut()
    hold_out = {"objective": ak.HoldOut(10), "key": jax.random.PRNGKey(0)}
    trained = ak.fit(model, data.x, data.y, **hold_out, optimizer=optax.adam(0.1), steps=20)
    ```

    There are two drivers. *With* `optimizer`, training takes `steps` steps; a stochastic objective
    (`HoldOut`) draws new rows at each of them. *Without*, a search minimises a deterministic
    objective: BFGS from several starts inside bounds, in one program; the best end is kept. With
    several parameters the starts are the given model and the lowest of many points of the box, and
    every 20 steps the higher half of the searches is stopped, until two go on. With many rows
    (`Objective.subsample`; for `LeaveOneOut` from 1024, or 131 072 for a single start) the searches
    first go to the minima of a sample; then one per distinct minimum continues on all rows.
    Parameters without a slope, such as the width of a `Boxcar`, are searched on a grid. Where half
    of the inputs repeat others, leave-one-out, `GCV` and `AICc` of a `KernelRegression` are summed
    over the distinct ones, exactly.

    **Arguments:**

    - `model`: any Equinox module called as `model(x_new, x, y, prior=...)`.
    - `x`: inputs, shape (n, dim) or (n,); `y`: labels, shape (n,) or (n, out); n at least 3. Or
      frames of pandas with the same index: the fit then knows the names of their columns, also in
      kernels such as `ak.Gaussian(2.0).on("temperature")`, and predicts for frames. Columns of
      categories are fitted as their codes, from 0. A density, such as `KernelDensity`, has no
      labels: leave y out.
    - `objective`: `LeaveOneOut()` (default), `HoldOut(h)`, or your own `Objective`.
    - `optimizer`: any optax optimiser. Default: the search, for deterministic objectives only.
    - `steps`: the number of steps, at most. Required with `optimizer`. Default of the search: 100,
      and 40 for each further parameter.
    - `key`: a PRNG key; required by stochastic objectives.
    - `bounds`: (lower, upper), two models of the structure of `model`: each leaf is the bound on
      that leaf. Default: `model.search_box(x)` for the search, none for an optimiser.
    - `starts`: the number of starts: `model` itself and points spread over the bounds. Default: 10
      for the search, 1 for an optimiser. With `starts=1` the search goes to the minimum near
      `model`, which may be a rule of thumb: `KernelRegression(Gaussian(normal_reference(x)))`.
    - `trainable`: which leaves to fit, as in `equinox.partition`. Default: every inexact array.
    - `record`: from the model to a dictionary of arrays, recorded at every step beside the loss.
    - `callback`: called as `callback(steps_done, history_of_chunk)` between chunks.
    - `chunk`: steps per call of the compiled program; for the search at most 20.
    - `weights`: one per row, shape (n,), at least 0; for models that take `weights`. Inverse
      variances of the labels up to a factor, $1/\sigma_i^2$, as in R's `loess`: the estimate and
      the errors of the criterion are weighted means. They are no counts: a row of weight 2 is one
      row, to leave-one-out, to the n of AICc and to `bands`. Rows of weight 0 are ignored,
      whatever their label (inside `jit` or `vmap`, where weights have no value, they stay
      and carry no weight). Default: 1.
    - `na`: what becomes of rows in which a value of x or y is missing: in arrays NaN, or masked.
      `"error"` (default): an error counts them and names the first. `"drop"`: they are left out,
      with their weights; `fit.dropped_rows` and `ak.summarise` tell how many.
    - `checkpoints`: `ak.fitting.Checkpoints("results/fit")`: a training resumes from there if it
      was stopped before, and `callback` is first called with all that was done. Default: none.

    **Returns:** a `Fit`: `model`, `history["loss"]`, `starts.result`, `minima()`, `warnings()`.

    **Raises:** `ValueError` if the data cannot be fitted (fewer than 3 rows, shapes that differ,
    constant or non-finite numbers) or the arguments do not go together.

    **Warns:** `FitWarning` if the best end may be no optimum (see `fitting.Result`), if the kernel
    measures distances between codes of categories, or, before the search, if one evaluation sums
    all pairs of rows for more than about 10 s on a CPU.

    Calls of the same shapes share one compiled program if their optimisers compute the same, as two
    `optax.adam(0.1)` do, and their functions (`record`, `trainable`, the score) are the same ones.

    Can be jitted, vmapped and differentiated; all steps are then one scan. Derivatives go through
    every step of a given optimiser; those of the search are of its minimum, by the implicit
    function theorem, to first order.
    """
    if key is not None:
        require_key("key", key)
    require_choice("na", na, ("error", "drop"))
    objective = as_objective(objective)
    options = Options(
        optimizer, steps, key, bounds, starts, trainable, record, callback, chunk, checkpoints
    ).with_defaults(model, objective)
    if y is None:
        if not isinstance(model, DensityModel):
            raise ValueError(f"y must be the labels of x: only a density has none; got {model}.")
        y = x
    x, y, weights, names = parse_rows(x, y, weights, na)
    objective = objective if weights is None else objective.with_weights(weights)
    objective.check_row_fields(len(x))
    data = Sample(x, y, objective).without_weightless_rows()
    if names.x_names is not None:
        model, bounds = number_columns((model, options.bounds), names.x_names)
        options = options._replace(bounds=bounds)
    require_fittable(model, data, '; ak.fit(..., na="drop") leaves them out')
    if optimizer is None:
        merged = at_distinct_inputs(model, data)
        for sentence in cost_warnings(model, merged):
            warnings.warn(sentence, CostWarning, stacklevel=2)
        outcome = minimise(model, merged, options)
    else:
        outcome = train(model, data, options)
    outcome = outcome._replace(objective=data.objective)  # weights in the order of rows
    return Fit(*outcome, data.x, data.y, *names).warned()


def as_objective(objective: Any) -> Objective:
    """Returns the objective, `LeaveOneOut()` for None; `ValueError` for anything else."""
    if objective is None:
        return LeaveOneOut()
    require_instance("objective", objective, Objective, "ak.HoldOut(10) or ak.LeaveOneOut()")
    return objective
