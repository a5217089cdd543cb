"""`fit` and `fit_many`: any model, any objective, any optax optimiser."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from .._core.arrays import as_points, as_real_array, is_concrete
from .._core.pandas_frames import frame_to_numbers, is_frame, labels_to_numbers
from .._core.regression_data import (
    as_weights,
    require_category_codes,
    require_regression_data,
    require_regression_shapes,
)
from .._core.validation import as_integer, require_function, require_instance, require_key
from ..models import LinearSmoother
from ..objectives._objective import Objective
from ..objectives._rows import drop_zero_weight_rows
from ._checkpoints import Checkpoints
from ._multistart import make_plan, solve
from ._result import Fit, FitWarning
from ._train import Callback, History, Problem

_MOST_STARTS = 10**6


def fit(
    model: Any,
    x: ArrayLike | Any,
    y: ArrayLike | Any,
    *,
    objective: Objective,
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
    checkpoints: Checkpoints | None = None,
) -> Fit:
    r"""Fits the parameters of a model by minimising an objective.

    $$ \hat\theta = \arg\min_{\theta \in \Theta} L(f_\theta, x, y) $$

    Stochastic objectives (`HoldOut`) take an optax optimiser, a number of steps and a key, and
    draw anew at every step. Deterministic ones (`LeaveOneOut`) by default run BFGS from
    several starts inside bounds, all starts in one program, and keep the best end. Where the
    objective has a sample (`Objective.subsample`; of `LeaveOneOut`, from 1024 rows, or 131 072 for
    a single start), outside transformations, starts first go to its minima; from each different
    one of them one start goes on with the objective itself, and `history` and `starts` tell of
    that.

    **Arguments:**

    - `model`: any Equinox module called as `model(x_new, x, y, prior=...)`.
    - `x`: inputs, shape (n, dim) or (n,); `y`: labels, shape (n,) or (n, out). n at least 3. Or
      frames of pandas, with the same index: the fit knows the names of their columns, and takes
      frames. Columns of categories are fitted as their codes, from 0.
    - `objective`: `HoldOut(h)`, `LeaveOneOut()`, or your own `Objective`.
    - `optimizer`: any optax optimiser. Default: BFGS, for deterministic objectives only. Reuse
      one object over several calls: each new one compiles anew.
    - `steps`: how many steps, at most. Required with `optimizer`; 100 for the default.
    - `key`: a PRNG key; required by stochastic objectives.
    - `bounds`: (lower, upper), two models of the structure of `model`: each leaf is the bound on
      that leaf. Default: `model.search_box(x)` for the default optimiser, none for a given one.
    - `starts`: how many starts: `model` itself and points spread over the bounds. Default: 10 for
      the default optimiser, 1 for a given one. `model` may begin at a rule of thumb, as in
      `KernelRegression(Gaussian(normal_reference(x)))`, and `starts=1` goes to the minimum nearby.
    - `trainable`: which leaves to fit, as in `equinox.partition`. Default: every inexact array.
    - `record`: from the model to a dictionary of arrays, recorded at every step beside the loss.
    - `callback`: called as `callback(steps_done, history_of_chunk)` between chunks.
    - `chunk`: steps per call of the compiled program; of the default search at most 20.
    - `weights`: of each row, shape (n,), from 0; for models that take `weights`. Inverse variances
      of the labels up to a factor, $1/\sigma_i^2$, as in R's `loess`: the estimate and the errors
      of the criterion are weighted means. They are no counts: a row of weight 2 is one row, to
      leave-one-out, to the n of AICc and to `bands`. A row of weight 0 is left out,
      whatever its label (inside `jit` or `vmap`, where weights have no value, it stays
      and carries no weight). Default: 1.
    - `checkpoints`: `ak.Checkpoints("results/fit")`: with an optimizer, the fit goes on from there
      if it was stopped before, and `callback` is first told of all that was done. Default: none.

    **Returns:** a `Fit`: `model`, `history["loss"]`, `starts`, `minima()`, `warnings()`.

    **Raises:** `ValueError` if the data cannot be fitted (fewer than 3 rows, shapes that differ,
    constant or non-finite numbers) or the arguments do not go together.

    Can be jitted, vmapped and differentiated; all steps are then one scan. Derivatives go through
    every step of a given optimiser; those of the default search are of its minimum, by the implicit
    function theorem, to first order.
    """
    _require_options(model, objective, optimizer, bounds, trainable, record, callback, checkpoints)
    if key is not None:
        require_key("key", key)
    steps, starts, chunk = _counts(steps, starts, chunk)
    x, y, weights, names = _from_frames(x, y, weights)
    x, y = as_points("x", x), as_real_array("y", y)
    require_regression_shapes(x, y)
    if weights is not None:
        objective = objective.with_weights(as_weights(weights, len(x)))
    x, y, objective = drop_zero_weight_rows(x, y, objective)
    _require(model, x, y)
    plan = make_plan(
        model, objective, optimizer, steps, starts, bounds, trainable, key, chunk, x.shape[0]
    )
    found = solve(model, x, y, objective, key, plan, None, record, callback, chunk, checkpoints)
    return _reported(dataclasses.replace(found, **names) if names else found)


def fit_many(
    model: Any,
    x: ArrayLike,
    y: ArrayLike,
    *,
    objective: Objective,
    in_axes: tuple[int | None, int | None, int | None] = (0, None, 0),
    optimizer: optax.GradientTransformation | None = None,
    steps: int | None = None,
    key: Array | None = None,
    bounds: tuple[Any, Any] | None = None,
    starts: int | None = None,
    trainable: Any = eqx.is_inexact_array,
    record: Callable[[Any], History] | None = None,
    callback: Callback | None = None,
    chunk: int = 100,
    checkpoints: Checkpoints | None = None,
) -> Fit:
    """Many fits at once in one compiled program, each as `fit` would do it.

    **Arguments:** as for `fit`, and

    - `in_axes`: for (model, data, objective), 0 where every array leaf has a leading axis of
      fits, None where all fits share it. Default: models and objectives differ, data are shared.
    - `key`: one key per fit, shape (fits, ...), as from `jax.random.split(key, fits)`.

    **Returns:** one `Fit` whose arrays have a leading axis of fits; `member(i)` is the i-th.
    """
    _require_options(model, objective, optimizer, bounds, trainable, record, callback, checkpoints)
    if key is not None:
        require_key("key", key, axes=1)
    steps, starts, chunk = _counts(steps, starts, chunk)
    in_axes = _axes(in_axes)
    model_axis, data_axis, objective_axis = (
        eqx.if_array(0) if axis == 0 else None for axis in in_axes
    )
    if in_axes == (None, None, None) and key is None:
        raise ValueError("fit_many needs something that differs: a 0 in in_axes, or keys, key=.")
    if data_axis is None:
        x, y = as_points("x", x), as_real_array("y", y)
        _require(model, x, y)
    else:
        x, y = as_real_array("x", x), as_real_array("y", y)
        if x.ndim != 3 or y.ndim < 2 or len(x) != len(y):
            raise ValueError(
                f"Batched data must have shapes (fits, n, dim) and (fits, n); got x {x.shape} "
                f"and y {y.shape}."
            )
        for member in range(len(x)):
            _require(model, x[member], y[member])
    plan = make_plan(
        model, objective, optimizer, steps, starts, bounds, trainable, key, chunk, x.shape[-2]
    )
    fits = _count_fits(in_axes, model=model, data=(x, y), objective=objective, key=key)
    axes = Problem._make((model_axis, data_axis, data_axis, objective_axis, eqx.if_array(0)))
    if key is None:
        key = jnp.broadcast_to(jax.random.PRNGKey(0), (fits, 2))
    found = solve(model, x, y, objective, key, plan, axes, record, callback, chunk, checkpoints)
    return _reported(found)


def _require_options(
    model: Any,
    objective: Any,
    optimizer: Any,
    bounds: Any,
    trainable: Any,
    record: Any,
    callback: Any,
    checkpoints: Any,
) -> None:
    """Raise `ValueError` unless each argument of a fit is what it should be."""
    if isinstance(model, type) or not callable(model):
        raise ValueError(
            f"model must be called as model(x_new, x, y, prior=...), such as "
            f"ak.KernelRegression(ak.Gaussian(0.3)); got {model!r}."
        )
    require_instance("objective", objective, Objective, "ak.HoldOut(10) or ak.LeaveOneOut()")
    if optimizer is not None and not all(hasattr(optimizer, part) for part in ("init", "update")):
        raise ValueError(
            f"optimizer must be one of optax, such as optax.adam(0.1); got {optimizer!r}."
        )
    if bounds is not None and not (isinstance(bounds, tuple | list) and len(bounds) == 2):
        raise ValueError(f"bounds must be two models, (lower, upper); got {bounds!r}.")
    try:
        eqx.filter(model, trainable)
        is_function = callable(trainable) and not isinstance(trainable, eqx.Module)
        leaves = jax.tree.leaves(model) if is_function else []
        found = [trainable(leaf) for leaf in leaves]  # pyright: ignore[reportCallIssue]
        is_filter = all(isinstance(each, bool | np.bool_) for each in found)
    except (TypeError, ValueError):
        is_filter = False
    if not is_filter:
        raise ValueError(
            f"trainable must be a function of a leaf, such as eqx.is_inexact_array, or a model "
            f"of Booleans; got {trainable!r}."
        )
    for name, function in (("record", record), ("callback", callback)):
        if function is not None:
            require_function(name, function)
    if checkpoints is not None:
        require_instance("checkpoints", checkpoints, Checkpoints, 'ak.Checkpoints("results/fit")')


def _counts(steps: Any, starts: Any, chunk: Any) -> tuple[int | None, int | None, int]:
    """Whole numbers from 1, the first two as they are where they are None."""
    steps, starts = (
        None if value is None else as_integer(name, value, 1)
        for name, value in (("steps", steps), ("starts", starts))
    )
    if starts is not None and starts > _MOST_STARTS:
        raise ValueError(f"starts must be at most {_MOST_STARTS}; got {starts}.")
    return steps, starts, as_integer("chunk", chunk, 1)


def _axes(in_axes: Any) -> tuple[int | None, int | None, int | None]:
    """Those of the model, the data and the objective."""
    listed = list(in_axes) if isinstance(in_axes, tuple | list) else []
    if len(listed) != 3 or not all(axis is None or axis == 0 for axis in listed):
        raise ValueError(
            f"in_axes must be three, of model, data and objective, each 0 or None; got {in_axes!r}."
        )
    model, data, objective = listed
    return model, data, objective


def _require(model: Any, x: Array, y: Array) -> None:
    """Raise `ValueError` unless the model can be fitted to the data, as far as they are known."""
    require_regression_data(x, y)
    if isinstance(model, LinearSmoother):
        require_category_codes("x", x, model.categories(x.shape[1]))


def _count_fits(in_axes: tuple[int | None, ...], **parts: Any) -> int:
    """The common leading axis of all that is batched."""
    leading = {
        name: sorted({leaf.shape[:1] for leaf in jax.tree.leaves(eqx.filter(part, eqx.is_array))})
        for (name, part), axis in zip(parts.items(), (*in_axes, 0), strict=True)
        if axis == 0 and part is not None
    }
    counts = {shape for shapes in leading.values() for shape in shapes or [()]}
    if len(counts) != 1 or counts == {()}:
        found = "; ".join(f"{name} {shapes or 'no array'}" for name, shapes in leading.items())
        raise ValueError(
            f"With in_axes={in_axes}, every array of what is batched, and key, must have the same "
            f"leading axis of fits; got leading axes {found}. Say None for what all fits share."
        )
    ((fits,),) = counts
    return fits


def _from_frames(x: Any, y: Any, weights: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """What is in frames as numbers, and their names as the fields of a `Fit`."""
    names = {}
    if is_frame(weights):
        weights, _ = labels_to_numbers("weights", weights, x)
    if is_frame(y):
        y, names["y_name"] = labels_to_numbers("y", y, x)
    if is_frame(x):
        x, names["x_names"], names["x_categories"] = frame_to_numbers("x", x)
    return x, y, weights, names


def _reported(fit: Fit) -> Fit:
    """The fit, with a warning of ends that are no optimum, where they can be seen."""
    if is_concrete(fit.starts.loss):
        for sentence in fit.warnings():
            warnings.warn(sentence, FitWarning, stacklevel=3)
    return fit
