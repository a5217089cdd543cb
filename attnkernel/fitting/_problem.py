"""The minimisation problem of a fit: free variables, constants, data, an objective, a box.

Steps are taken in chunks: one call of one compiled program each, the host in between.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .._core.arrays import (
    AnyArray,
    as_numpy_if_concrete,
    can_use_numpy,
    is_outside_jit,
    namespace_of,
)
from .._core.rows import require_regression_data
from .._core.validation import require_shape
from ..models import DensityModel, Smoother
from ..objectives import Objective, Sample
from ._bounds import Box
from ._options import Options

History = dict[str, Any]
Record = Callable[[Any], History]  # of a model, for the history: `record` of `fit`


def run_chunks(
    advance: Callable[[Any, int], tuple[Any, History]],
    state: Any,
    options: Options,
    is_finished: Callable[[Any], bool],
    done: int = 0,
    histories: Sequence[History] = (),
    save: Callable[..., None] | None = None,
) -> tuple[Any, History]:
    """Returns the state after all steps, or once it is finished, and its history in NumPy arrays.

    `advance`: takes a state and a number of steps, at most those of a chunk; `is_finished`:
    whether a state needs no further step; `done`, `histories`: steps already taken; `save`: takes
    steps, state and history after each chunk, and whether it is the `last`.
    """
    histories, axis = list(histories), state.steps.ndim  # steps follow the axes of fits and starts
    join = lambda *parts: np.concatenate(parts, axis=axis)  # noqa: E731
    while done < options.steps and not is_finished(state):
        taken = min(options.chunk, options.steps - done)
        state, history = advance(state, taken)
        done += taken
        histories.append(jax.tree.map(np.asarray, history))
        if options.callback is not None:
            options.callback(done, histories[-1])
        if save is not None:
            histories = [jax.tree.map(join, *histories)]
            save(done, state, histories[0], last=done >= options.steps or is_finished(state))
    return state, jax.tree.map(join, *histories)


class Problem(NamedTuple):
    r"""$\min_z L(f_{\theta(z)}, x, y)$, the parameters $\theta(z)$ in a box, all else constant.

    z are the free variables of `Box`, any real numbers; without a box they are θ itself.
    """

    frozen: PyTree  # the leaves of the model that are not trained
    x: Float[Array, "*batch n dim"]
    y: Float[Array, "*rows"]
    objective: Objective
    box: Box | None

    def model(self, z: PyTree) -> Any:
        """Returns the model at free variables z."""
        return eqx.combine(z if self.box is None else self.box.constrain(z), self.frozen)

    def models(self, z: PyTree) -> Any:
        """Returns the models at free variables that are stacked along a leading axis."""
        return self._replace(frozen=repeat(self.frozen, len(jax.tree.leaves(z)[0]))).model(z)

    def loss(self, z: PyTree, key: PRNGKeyArray | None = None) -> Float[Array, ""]:
        """Returns the objective at free variables z; `ValueError` unless it is one number."""
        found = self.objective(self.model(z), self.x, self.y, key=key)
        name, hint = type(self.objective).__name__, "Take the mean over the rows."
        return require_shape(name, found, (), "one number", hint)


def require_fittable(model: Any, data: Sample, advice_for_nan: str = "") -> None:
    """Raises `ValueError` unless the model can be fitted to the data.

    Traced values are not checked. `advice_for_nan`: added to the error where numbers are NaN.
    """
    x, y, objective = data
    objective.check(x.shape[0])
    is_smoother = isinstance(model, Smoother)
    categories = model.category_counts(x.shape[1]) if is_smoother else {}
    require_regression_data(x, y, categories, advice_for_nan)
    if isinstance(model, DensityModel):
        model.check_points(x, x)
    if is_smoother:
        model.check_labels(y)


def build_problem(
    model: Any, data: Sample, options: Options, axes: Problem | None
) -> tuple[PyTree, Problem]:
    """Returns the free variables of all starts (of all fits), and the problem to minimise.

    `axes` gives the batched axes of several fits; None: there is one fit. Rows are padded as by
    `Sample.padded`. For one fit, rows are sorted by input unless the objective is stochastic.
    Outside `jit`, free variables and box of one fit are NumPy arrays; nothing is compiled.
    """
    objectives = None
    # where the parameters move: programs do not depend on the other options
    start_options = Options(
        bounds=options.bounds, starts=options.starts, trainable=options.trainable
    )
    if axes is None and not data.objective.is_stochastic:
        data = data.sorted_by_input()
    if axes is not None and axes.objective is not None:
        assert options.key is not None
        objectives = len(options.key)
    if can_use_numpy(options.key, options.bounds):
        data = data.padded(model, objectives)
    x, weights = data.x, data.objective.weights
    if axes is not None:
        z, box = _spread_starts_of_fits(model, x, weights, options.key, start_options, axes)
    else:
        params = eqx.filter(model, start_options.trainable)
        if is_outside_jit(model, x, weights, options.bounds):
            x, weights, params = as_numpy_if_concrete((x, weights, params))
        z, box = _spread_starts(model, params, x, weights, start_options)
    return z, Problem(eqx.partition(model, start_options.trainable)[1], *data, box)


@eqx.filter_jit
def _spread_starts_of_fits(
    model: Any, x: Array, weights: Array | None, keys: Any, options: Options, axes: Problem
) -> tuple[PyTree, Box | None]:
    """Returns the free variables of all starts of all fits, and the boxes of the fits.

    `weights`: of rows; `keys`: one for each fit, which tell how many there are; `options`: bounds,
    number of starts and trainable leaves; `axes`: the batched axes of the fits.
    """

    def spread(model: Any, x: Array, weights: Array | None, _: Array) -> tuple[PyTree, Box | None]:
        return _spread_starts(model, eqx.filter(model, options.trainable), x, weights, options)

    in_axes = (axes.frozen, axes.x, axes.objective, 0)
    return eqx.filter_vmap(spread, in_axes=in_axes)(model, x, weights, keys)


def _spread_starts(
    model: Any, params: PyTree, x: AnyArray, weights: AnyArray | None, options: Options
) -> tuple[PyTree, Box | None]:
    """Returns the free variables of all starts, stacked along a leading axis, and their box.

    `params`: the trainable parameters of the model. The result is NumPy if these and x are. Without
    bounds there is one start, at `params`, and the box is None.
    """
    bounds = options.bounds
    if bounds == "default":
        bounds = model.search_box(x) if weights is None else model.search_box(x, weights)
    if bounds is None:
        return jax.tree.map(lambda leaf: leaf[None], params), None
    box = Box(*(eqx.filter(side, options.trainable) for side in bounds))
    if isinstance(x, np.ndarray):
        box = as_numpy_if_concrete(box)
    return box.unconstrain(box.starts(params, options.starts)), box


def vmap_over_fits(function: Callable, axes: Problem | None, batched: int) -> Callable:
    """Returns a function vmapped over fits; None for `axes` returns it unchanged.

    Its first `batched` arguments have a leading axis of fits; the last is the problem.
    `axes` gives the batched axes of the problem; None: there is one fit.
    """
    if axes is None:
        return function
    return eqx.filter_vmap(function, in_axes=(eqx.if_array(0),) * batched + (axes,))


def take(i: Any, tree: Any) -> Any:
    """Returns entry i along the leading axis of every array of a tree."""
    return jax.tree.map(lambda leaf: leaf[i] if eqx.is_array(leaf) else leaf, tree)


def repeat(tree: Any, number: int) -> Any:
    """Returns the tree with each array repeated `number` times along a new leading axis.

    Arrays that are concrete become NumPy arrays.
    """
    arrays, rest = eqx.partition(tree, eqx.is_array)
    many = lambda leaf: namespace_of(leaf).broadcast_to(leaf, (number, *leaf.shape))  # noqa: E731
    return eqx.combine(jax.tree.map(many, as_numpy_if_concrete(arrays)), rest)


def flat_rows(tree: Any, axes: int = 1, xp: Any = np) -> Any:
    """Returns the leaves of a tree as one array, flattened and joined along its last axis.

    `axes`: the number of leading axes, which stay. `xp` is `jax.numpy` for traced arrays.
    """
    leaves = map(xp.asarray, jax.tree.leaves(tree))
    return xp.concatenate([leaf.reshape(*leaf.shape[:axes], -1) for leaf in leaves], axis=axes)


def unravel_rows(rows: Any, like: PyTree, xp: Any = np) -> PyTree:
    """Returns vectors as a tree of the structure of `like`, stacked along a leading axis.

    The inverse of `flat_rows`. `rows`: an array of the vectors, shape (vectors, entries of `like`),
    not a `Rows`.
    """
    leaves, structure = jax.tree.flatten(like)
    parts = xp.split(rows, np.cumsum([leaf.size for leaf in leaves])[:-1], axis=1)
    shaped = [part.reshape(-1, *leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)
