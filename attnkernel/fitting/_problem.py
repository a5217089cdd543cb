"""The minimisation problem of a fit: free variables, constants, data, an objective, a box."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .._core.arrays import is_concrete
from .._core.validation import require_shape
from ..objectives._objective import Objective
from ._bounds import Box
from ._options import Space

History = dict[str, Any]


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


def spread_starts(model: Any, x: Array, space: Space) -> tuple[PyTree, Box | None]:
    """Returns the free variables of all starts, stacked along a leading axis, and their box."""
    params = eqx.filter(model, space.trainable)
    bounds = model.search_box(x) if space.bounds == "default" else space.bounds
    if bounds is None:
        return jax.tree.map(lambda leaf: leaf[None], params), None
    box = Box(*(eqx.filter(side, space.trainable) for side in bounds))
    points = box.starts(params, space.starts, jax.random.PRNGKey(0))
    return jax.vmap(box.free)(points), box


def vmap_over_fits(function: Callable, axes: Problem | None, batched: int) -> Callable:
    """Maps a function over fits: its first `batched` arguments, then the problem.

    `axes` gives the batched axes of the problem; None: there is one fit.
    """
    if axes is None:
        return function
    return eqx.filter_vmap(function, in_axes=(eqx.if_array(0),) * batched + (axes,))


def is_on_host(*arguments: Any) -> bool:
    """Whether all arrays are concrete, and no `jit` surrounds the call."""
    return is_concrete(jnp.zeros(()), *filter(eqx.is_array, jax.tree.leaves(arguments)))


def take(i: Any, tree: Any) -> Any:
    """Returns entry i along the leading axis of every array of a tree."""
    return jax.tree.map(lambda leaf: leaf[i] if eqx.is_array(leaf) else leaf, tree)
