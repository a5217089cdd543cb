"""The minimisation problem of a fit: free variables, constants, data, an objective, a box."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .._core.arrays import is_on_one_device
from .._core.validation import require_shape
from ..objectives._objective import Objective
from ..objectives._rows import pad_data, sorted_by_input
from ._bounds import Box
from ._options import Options, Space


class Data(NamedTuple):
    """Labelled rows and the objective that is minimised on them."""

    x: Float[Array, "*batch n dim"]
    y: Float[Array, "*rows"]
    objective: Objective


class Problem(NamedTuple):
    r"""$\min_z L(f_{\theta(z)}, x, y)$, the parameters $\theta(z)$ in a box, all else constant."""

    frozen: PyTree  # the leaves of the model that are not trained
    x: Float[Array, "*batch n dim"]
    y: Float[Array, "*rows"]
    objective: Objective
    box: Box | None

    def model(self, z: PyTree) -> Any:
        """Returns the model at free variables z."""
        return eqx.combine(z if self.box is None else self.box.inside(z), self.frozen)

    def loss(self, z: PyTree, key: PRNGKeyArray | None = None) -> Float[Array, ""]:
        """Returns the objective at free variables z."""
        found = self.objective(self.model(z), self.x, self.y, key=key)
        name, hint = type(self.objective).__name__, "Take the mean over the rows."
        return require_shape(name, found, (), "one number", hint)


def build_problem(
    model: Any,
    data: Data,
    options: Options,
    start: Callable[[PyTree, PRNGKeyArray | None], Any],
    axes: Problem | None,
) -> tuple[Any, Problem]:
    """Returns the states of all starts (of all fits), and the problem that they minimise.

    `start` makes the state of one start from its free variables and the key. `axes` gives the
    batched axes of several fits; None: there is one fit. Its rows are sorted by input, and padded
    where model and objective allow it.
    """
    weights = None
    if axes is None:
        if not data.objective.is_stochastic:
            data = Data(*sorted_by_input(*data))
        if is_on_one_device(options.key, options.bounds):
            data = Data(*pad_data(model, *data))
        weights = data.objective.weights
    of_model = (model, data.x, weights)
    state, frozen, box = _start_all(of_model, options.key, options.space, start, axes)
    return state, Problem(frozen, *data, box)


@eqx.filter_jit
def _start_all(
    of_model: tuple[Any, Array, Array | None],
    key: Array | None,
    space: Space,
    start: Callable[[PyTree, PRNGKeyArray | None], Any],
    axes: Problem | None,
) -> tuple[Any, PyTree, Box | None]:
    """Returns the states of all starts, the constant leaves of the model, and the bounds.

    `of_model`: the model, inputs x and weights of rows, None for equal ones or several fits;
    `space`: bounds, number of starts and trainable leaves; `start`: makes a state from free
    variables and a key; `axes`: the batched axes of several fits, None for one fit.
    """
    model, x, weights = of_model

    def begin(model: Any, x: Array, key: PRNGKeyArray | None) -> tuple[Any, Box | None]:
        z, box = _spread_starts(model, x, weights, space)
        return jax.vmap(lambda z: start(z, key))(z), box

    if axes is not None:
        begin = eqx.filter_vmap(begin, in_axes=(axes.frozen, axes.x, eqx.if_array(0)))
    state, box = begin(model, x, key)
    return state, eqx.partition(model, space.trainable)[1], box


def _spread_starts(
    model: Any, x: Array, weights: Array | None, space: Space
) -> tuple[PyTree, Box | None]:
    """Returns the free variables of all starts, stacked along a leading axis, and their box."""
    params = eqx.filter(model, space.trainable)
    bounds = space.bounds
    if bounds == "default":
        bounds = model.search_box(x) if weights is None else model.search_box(x, weights)
    if bounds is None:
        return jax.tree.map(lambda leaf: leaf[None], params), None
    box = Box(*(eqx.filter(side, space.trainable) for side in bounds))
    points = box.starts(params, space.starts, jax.random.PRNGKey(0))
    return jax.vmap(box.free)(points), box


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


def flat_rows(tree: Any, axes: int = 1, xp: Any = np) -> Any:
    """Returns the leaves of a tree as one array, concatenated behind the leading axes.

    `xp` is `jax.numpy` for traced arrays.
    """
    leaves = map(xp.asarray, jax.tree.leaves(tree))
    return xp.concatenate([leaf.reshape(*leaf.shape[:axes], -1) for leaf in leaves], axis=axes)
