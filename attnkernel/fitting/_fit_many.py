"""`fit_many`: several fits in one compiled program, each as `fit` would do it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array

from .._core.arrays import as_numpy_if_concrete, as_real_array, index_on_host, namespace_of, to_jax
from .._core.rows import parse_rows
from .._core.validation import require_key
from ..objectives import Objective, Sample
from ._checkpoints import Checkpoints
from ._chunks import History
from ._fit import as_objective
from ._minimise import minimise
from ._options import Callback, Options
from ._problem import Problem, require_fittable
from ._result import Fit
from ._train import train


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

    **Arguments:** as for `fit`, and

    - `in_axes`: for (model, data, objective), 0 where every array leaf has a leading axis of
      fits, None where all fits share it. Default: models and objectives differ, data are shared.
    - `key`: one key per fit, shape (fits, ...), as from `jax.random.split(key, fits)`.

    **Returns:** one `Fit` whose arrays have a leading axis of fits; `member(i)` is the i-th.

    **Raises:** `ValueError` as `fit`, and if leading axes differ, or nothing differs between fits.
    """
    options = Options(
        optimizer, steps, key, bounds, starts, trainable, record, callback, chunk, checkpoints
    )
    if key is not None:
        require_key("key", key, axes=1)
    objective = as_objective(objective)
    listed = list(in_axes) if isinstance(in_axes, tuple | list) else []
    if len(listed) != 3 or not all(axis is None or axis == 0 for axis in listed):
        raise ValueError(
            f"in_axes must be three, of model, data and objective, each 0 or None; got {in_axes!r}."
        )
    if listed == [None, None, None] and key is None:
        raise ValueError("fit_many needs something that differs: a 0 in in_axes, or keys, key=.")
    options = options.with_defaults(model, objective)
    x, y = _validated_data(model, x, y, objective, is_batched=listed[1] == 0)
    fits = _count_fits(tuple(listed), model=model, data=(x, y), objective=objective, key=key)
    if key is None:
        options = options._replace(key=jax.device_put(np.zeros((fits, 2), np.uint32)))
    of_model, of_data, of_objective = (eqx.if_array(0) if axis == 0 else None for axis in listed)
    axes = Problem._make((of_model, of_data, of_data, of_objective, eqx.if_array(0)))
    driver = minimise if optimizer is None else train
    outcome = driver(model, Sample(x, y, objective), options, axes)
    if listed[2] is None:
        objective = _repeated(objective, fits)
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


def _repeated(objective: Objective, fits: int) -> Objective:
    """Returns an objective whose arrays have a leading axis of fits, all of them equal."""
    arrays, rest = eqx.partition(objective, eqx.is_array)
    repeated = jax.tree.map(
        lambda leaf: namespace_of(leaf).broadcast_to(leaf, (fits, *leaf.shape)),
        as_numpy_if_concrete(arrays),
    )
    return eqx.combine(to_jax(repeated), rest)


def _count_fits(in_axes: tuple[int | None, ...], **parts: Any) -> int:
    """Returns the number of fits: the common length of the leading axes of all batched arrays.

    `in_axes`: of model, data and objective; `parts`: these three by name, then the keys.
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
