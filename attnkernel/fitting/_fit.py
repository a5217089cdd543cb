"""`fit`: any model, any objective, any optax optimiser or the default search; `fit_many`: several
fits in one compiled program, each as `fit` would do it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from .._core.arrays import as_real_array, index_on_host, to_jax
from .._core.rows import parse_rows
from .._core.validation import require_choice, require_instance, require_key
from ..data import frame_by_formula
from ..kernels import number_columns, of_columns
from ..models import DensityModel, KernelRegression
from ..objectives import BY_NAME, Objective, Sample, at_distinct_inputs, compare_determined_rows
from ._checkpoints import Checkpoints
from ._fit_warnings import CostWarning, cost_warnings
from ._minimise import loss_at, minimise, search_sample
from ._options import Callback, Options
from ._problem import History, Problem, repeat, require_fittable
from ._result import Fit
from ._train import train


def fit(
    model: Any,
    x: ArrayLike | Any,
    y: ArrayLike | Any = None,
    *,
    objective: Objective | str | None = None,
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
    one parameter, starts that lead to the same minimum on a grid between them share one search.
    With several the starts are the given model and the lowest of many points of the box, and every
    20 steps the higher half of the searches is stopped, until two go on. With many rows
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
    - A formula names the columns of a frame: `ak.fit(frame, "wage ~ age + sex")`, or `"wage ~ ."`
      for all other columns, is a local linear regression with the kernel
      `ak.kernels.of_columns(frame[["age", "sex"]])`, in which words are categories;
      `ak.fit(model, "wage ~ age + sex", frame)` is another model of these columns.
    - `objective`: `LeaveOneOut()` (default), `HoldOut(h)`, your own `Objective`, or a name:
      "leave_one_out", "gcv", "aicc". A model may have another default: `AdditiveRegression` is
      fitted by AICc.
    - `optimizer`: any optax optimiser. Default: the search, for deterministic objectives only.
    - `steps`: the number of steps, at most. Required with `optimizer`. Default of the search: 100,
      and 40 for each further parameter.
    - `key`: a PRNG key; required by stochastic objectives.
    - `bounds`: (lower, upper), two models of the structure of `model`: each leaf is the bound on
      that leaf. Default: `model.search_box(x)` for the search, none for an optimiser.
    - `starts`: the number of starts: `model` itself (at least 1 % of the half-width inside the
      bounds) and points spread over them. Default: 10
      for the search, 1 for an optimiser. With `starts=1` the search goes to the minimum near
      `model`, which may be a rule of thumb: `KernelRegression(Gaussian(normal_reference(x)))`.
    - `trainable`: which leaves to fit, as in `equinox.partition`. Default: every inexact array.
    - `record`: from the model to a dictionary of arrays, recorded at every step beside the loss.
    - `callback`: called as `callback(steps_done, history_of_chunk)` between chunks. The losses of a
      search are those after each step, of a training before it.
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
    if isinstance(x, str):
        is_default = y is None  # of `fit(frame, formula)`
        frame, y = frame_by_formula(x, model if is_default else y)
        if is_default:  # local linear, with a kernel for each kind of column
            rows = frame.dropna() if na == "drop" else frame
            model = KernelRegression(of_columns(rows), order=1)
        x = frame
    objective = as_objective(objective, model)
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
        silent, sampled = options._replace(callback=None), search_sample(model, merged, options)

        def loss(model: Any, data: Sample) -> float:
            return loss_at(model, at_distinct_inputs(model, data), silent)

        if sampled is not None:
            data = compare_determined_rows(sampled.model, data, loss)
        outcome = minimise(model, at_distinct_inputs(model, data), options, sampled=sampled)
        compared = compare_determined_rows(outcome.model, data, loss)
        if compared is not data:
            data = compared
            outcome = minimise(model, at_distinct_inputs(model, data), silent, sampled=sampled)
    else:
        outcome = train(model, data, options)
    outcome = outcome._replace(objective=data.objective)  # weights in the order of rows
    return Fit(*outcome, data.x, data.y, *names).warned()


def as_objective(objective: Any, model: Any) -> Objective:
    """Returns `objective` itself, that of its name, or for None the default of the model.

    `LeaveOneOut` is the default of a model without `default_objective`.

    **Raises:** `ValueError` for anything else.
    """
    if objective is None:
        objective = getattr(model, "default_objective", "leave_one_out")
    if isinstance(objective, str):
        require_choice("objective", objective, tuple(BY_NAME))
        return BY_NAME[objective]()
    require_instance("objective", objective, Objective, "ak.HoldOut(10) or ak.LeaveOneOut()")
    return objective


def fit_many(
    model: Any,
    x: ArrayLike,
    y: ArrayLike,
    *,
    objective: Objective | None = None,
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
    """Fits several models, data sets or objectives in one compiled program.

    ```python
    data = ak.data.load("mcycle")
    sizes = ak.HoldOut(jnp.array([1, 10, 50]), at_most=50)
    fits = ak.fit_many(
        ak.KernelRegression(ak.Gaussian(1.0)), data.x, data.y, objective=sizes,
        in_axes=(None, None, 0), optimizer=optax.adam(0.1), steps=20,
        key=jax.random.split(jax.random.PRNGKey(0), 3),
    )
    fits.model.kernel.lengthscale, fits.member(0)
    ```

    **Arguments:** as for `fit`, but no `weights` and no `na`, and

    - `in_axes`: for (model, data, objective), 0 where every array leaf has a leading axis of
      fits, None where all fits share it. Default: models and objectives differ, data are shared.
    - `key`: one key per fit, shape (fits, ...), as from `jax.random.split(key, fits)`.

    **Returns:** one `Fit` whose arrays have a leading axis of fits; `member(i)` is the i-th.

    **Raises:** `ValueError` as `fit`, and if leading axes differ, or nothing differs between fits.
    """
    if key is not None:
        require_key("key", key, axes=1)
    objective = as_objective(objective, model)
    listed = list(in_axes) if isinstance(in_axes, tuple | list) else []
    if len(listed) != 3 or not all(axis is None or axis == 0 for axis in listed):
        raise ValueError(
            f"in_axes must be three, of model, data and objective, each 0 or None; got {in_axes!r}."
        )
    if listed == [None, None, None] and key is None:
        raise ValueError("fit_many needs something that differs: a 0 in in_axes, or keys, key=.")
    known = Options(
        optimizer, steps, key, bounds, starts, trainable, record, callback, chunk, checkpoints
    ).with_defaults(model, objective)
    x, y = _validated_data(model, x, y, objective, is_batched=listed[1] == 0)
    fits = _count_fits(tuple(listed), model=model, data=(x, y), objective=objective, key=key)
    if key is None:
        known = known._replace(key=jax.device_put(np.zeros((fits, 2), np.uint32)))
    of_model, of_data, of_objective = (eqx.if_array(0) if axis == 0 else None for axis in listed)
    axes = Problem._make((of_model, of_data, of_data, of_objective, eqx.if_array(0)))
    driver = minimise if known.optimizer is None else train
    outcome = driver(model, Sample(x, y, objective), known, axes)
    if listed[2] is None:
        objective = to_jax(repeat(objective, fits))
    return Fit(*outcome._replace(objective=objective), x, y).warned()


def _validated_data(
    model: Any, x: Any, y: Any, objective: Objective, *, is_batched: bool
) -> tuple[Array, Array]:
    """Returns x and y as arrays; raises `ValueError` unless the model can be fitted to them.

    `is_batched`: whether x and y have a leading axis, one data set per fit.
    """
    if not is_batched:
        x, y, _, _ = parse_rows(x, y, None)
        require_fittable(model, Sample(x, y, objective))
        return x, y
    x, y = as_real_array("x", x), as_real_array("y", y)
    if x.ndim != 3 or y.ndim < 2 or len(x) != len(y):
        raise ValueError(
            f"Batched data must have shapes (fits, n, dim) and (fits, n); got x {x.shape} "
            f"and y {y.shape}."
        )
    for member in range(len(x)):
        member_x, member_y = index_on_host(x, member), index_on_host(y, member)
        require_fittable(model, Sample(member_x, member_y, objective))
    return x, y


def _count_fits(in_axes: tuple[int | None, ...], **parts: Any) -> int:
    """Returns the number of fits: the common length of the leading axes of all batched arrays.

    `in_axes`: of model, data and objective; `parts`: these three by name, then the keys. Raises
    `ValueError` if lengths differ, or nothing is batched.
    """
    leading = {
        name: sorted({leaf.shape[:1] for leaf in jax.tree.leaves(eqx.filter(part, eqx.is_array))})
        for (name, part), axis in zip(parts.items(), (*in_axes, 0), strict=True)
        if axis == 0 and part is not None
    }
    counts = {shape for shapes in leading.values() for shape in shapes or [()]}
    if len(counts) != 1 or counts == {()}:
        found = "; ".join(f"{name} {shapes or 'no array'}" for name, shapes in leading.items())
        raise ValueError(
            f"With in_axes={in_axes}, every batched array, and key, must have the same leading "
            f"axis of fits; got leading axes {found}. Say None for what all fits share."
        )
    ((fits,),) = counts
    return fits
