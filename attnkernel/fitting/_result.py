"""What came of a fit: the model, how it was reached, and what a reader of it must know."""

import dataclasses
import textwrap
from collections.abc import Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import as_points, as_real_array, is_concrete
from .._core.pandas_frames import Categories, Names, as_pandas, is_frame, query_to_numbers
from ..objectives._objective import Objective
from ._train import History


class FitWarning(UserWarning):
    """A fit ended at no optimum: it diverged, hit a bound, or ran out of steps."""


class Starts(eqx.Module):
    """Where each start of a fit began and ended; every leaf has a leading axis of starts."""

    begin: Any  # models
    end: Any  # models
    loss: Float[Array, "*fits starts"]
    steps: Int[Array, "*fits starts"]
    converged: Bool[Array, "*fits starts"]
    diverged: Bool[Array, "*fits starts"]
    at_bound: Bool[Array, "*fits starts"]
    edges: Any = None  # of each parameter, whether it is on a bound: a model of them
    # of each parameter, whether the objective has no slope in it, at any start: a model of them
    without_slope: Any = None


class Fit(eqx.Module):
    """A fitted model, and the record of how it was fitted.

    `fit(x_new)` predicts: a frame of pandas for a frame. `x_names`, `x_categories` and `y_name` are
    those of the frames that were fitted, or of `named`; None of arrays. After `fit_many` every
    array has a leading axis of fits, and `fit.member(i)` is one of them.
    """

    model: Any
    loss: Float[Array, "*fits"]  # the objective's last value at the best start
    history: History = eqx.field(repr=False)  # "loss", shape (*fits, steps), and what was recorded
    starts: Starts = eqx.field(repr=False)
    objective: Objective
    x: Float[Array, "*batch n dim"] = eqx.field(repr=False)
    y: Float[Array, "*rows"] = eqx.field(repr=False)
    # by the default search, which says whether it converged; a given optimiser takes all its steps
    is_search: bool = eqx.field(static=True, repr=False)
    x_names: Names | None = eqx.field(static=True, repr=False, default=None)
    x_categories: Categories | None = eqx.field(static=True, repr=False, default=None)
    y_name: Hashable = eqx.field(static=True, repr=False, default=None)  # of several, a tuple

    def __call__(self, x_new: ArrayLike | Any) -> Any:
        """What the model says at new inputs, shape (m, dim) or (m,), from the fitted data.

        Of a frame, with the columns that were fitted: a `Series` with its index and the name of
        the label, of several labels a `DataFrame`.
        """
        if self.loss.ndim:
            raise ValueError("This is a batch of fits: ask one of them, fit.member(i)(x_new).")
        at = self.inputs(x_new) if is_frame(x_new) else x_new
        out = self.model(at, self.x, self.y, **self.objective.weight_kwargs())
        return jax.tree.map(lambda part: as_pandas(part, x_new, self.y_name), out)

    def inputs(self, x_new: ArrayLike | Any) -> Float[Array, "m dim"]:
        """New inputs as numbers: of a frame its columns, categories as their codes.

        **Raises:** `ValueError` if its columns are not those of the fit, in their order; if a value
        is missing, or a category is none of the fit's.
        """
        if is_frame(x_new):
            x_new = query_to_numbers(x_new, self.x_names, self.x_categories)
            return as_real_array("x_new", x_new).astype(self.x.dtype)
        return as_points("x_new", x_new)

    def named(self, x_names: Sequence[Hashable], y_name: Hashable = None) -> "Fit":
        """The fit with names, as those of a `Dataset`, for plots, reports and frames."""
        dim = self.x.shape[-1]
        if isinstance(x_names, str) or not isinstance(x_names, Sequence) or len(x_names) != dim:
            raise ValueError(f"x_names must be {dim}, one for each column; got {x_names!r}.")
        return dataclasses.replace(self, x_names=tuple(x_names), y_name=y_name)

    def __repr__(self) -> str:
        loss = self.loss
        shown = f"an array of shape {loss.shape}"
        if isinstance(loss, jax.Array) and is_concrete(loss) and not loss.ndim:
            shown = f"{float(loss):.6g}"
        model = textwrap.indent(repr(self.model), "  ").lstrip()
        return f"Fit(\n  model={model},\n  loss={shown},\n  objective={self.objective!r}\n)"

    def member(self, i: int) -> "Fit":
        """The i-th of many fits."""
        if not self.loss.ndim:
            raise ValueError("This is one fit, not a batch: it has no members.")
        if not -len(self.loss) <= i < len(self.loss):
            raise IndexError(f"There are {len(self.loss)} fits; got member {i}.")
        x, y = (self.x[i], self.y[i]) if self.x.ndim == 3 else (self.x, self.y)
        parts = (self.model, self.loss, self.history, self.starts, self.objective)
        model, loss, history, starts, objective = take(i, parts)
        parts = {"model": model, "loss": loss, "history": history, "starts": starts}
        return dataclasses.replace(self, **parts, objective=objective, x=x, y=y)

    def best(self) -> Any:
        """Which start ended lowest: its number, or that of each of many fits."""
        loss = np.asarray(self.starts.loss)
        return np.argmin(np.where(np.isfinite(loss), loss, np.inf), axis=-1)

    def minima(self, tolerance: float = 1e-3) -> list[tuple[Any, float]]:
        """The distinct minima that the starts reached inside the bounds, best first.

        A list of (model, loss). Two ends count as one minimum where no parameter (a lengthscale
        by its logarithm) differs by more than `tolerance`. Left out are ends where the objective
        is flat, as far as its precision tells, and those that are further than `tolerance` from a
        minimum, by the length of a Newton step.
        """
        if self.loss.ndim:
            raise ValueError("This is a batch of fits: ask one of them, fit.member(i).minima().")
        found: list[tuple[Any, float]] = []
        for i in np.argsort(np.asarray(self.starts.loss)):
            if self.starts.at_bound[i] or self.starts.diverged[i]:
                continue
            model = take(i, self.starts.end)
            if any(apart(model, other) <= tolerance for other, _ in found):
                continue
            curvature, distance = around(model, self.objective, self.x, self.y)
            if is_bowl(curvature) and distance <= tolerance:
                found.append((model, float(self.starts.loss[i])))
        return found

    def warnings(self) -> list[str]:
        """Why the result may be no optimum: divergence, a bound hit, too few steps."""
        starts = self.starts
        of_all = np.stack((starts.diverged, starts.at_bound, starts.converged, starts.steps))
        of_best = np.take_along_axis(of_all, self.best()[None, ..., None], axis=-1)[..., 0]
        diverged, at_bound, converged = of_best[:3] > 0
        steps = of_best[3]
        searched = self.is_search
        flat = self._without_slope()
        kinds = (
            (
                diverged,
                "diverged at step {step}: the loss or its gradient was not finite; the last "
                "parameters for which they were are kept. Likely causes: (a) a learning rate "
                "too large, (b) a query without neighbours, (c) as many parameters as rows, (d) "
                f"numbers too large for {self.y.dtype}.",
            ),
            (
                at_bound,
                f"the best value found lies on a bound{self._of_bounds()}: the objective may go on "
                f"falling beyond it. Widen bounds=, or ask whether x says anything of y.",
            ),
            (
                searched & ~converged & ~diverged & (not flat),
                "the best start had not converged after {step} steps: raise steps=.",
            ),
        )
        found = []
        for flags, sentence in kinds:
            if not np.any(flags):
                continue
            first = int(np.argmax(flags))
            sentence = sentence.format(step=int(np.ravel(steps)[first]))
            if flags.ndim:
                sentence = f"{np.sum(flags)} of {flags.size} fits, first fit {first}: {sentence}"
            found.append(sentence)
        if flat:
            compared = (
                "the best value of a grid, finer around its best, was taken"
                if not self.loss.ndim
                else "the starts were compared, and nothing between them: ak.fit, of one, compares "
                "a grid"
            )
            found.append(
                f"the objective has no slope in {' and '.join(flat)}, as with weights of 0 and 1: "
                f"{compared}."
            )
        return found

    def on_bounds(self) -> list[str]:
        """The parameters of the best start that are on a bound: kernel.lengthscale, or [i] of it.

        One for each column of x is named by the column, where the fit knows its name.
        """
        found, (edges, names) = [], (self.starts.edges, self.x_names or ())
        for path, leaf in jax.tree_util.tree_leaves_with_path(take(self.best(), edges)):
            name = jax.tree_util.keystr(path).removeprefix(".").replace("log_", "")
            for at in np.argwhere(np.asarray(leaf)):
                of_column = len(names) > 1 and np.shape(leaf) == (len(names),)
                place = f" of {names[at[0]]}" if of_column else f"{list(map(int, at)) or ''}"
                found.append(f"{name}{place}")
        return found

    def _of_bounds(self) -> str:
        if self.loss.ndim:
            return ""
        found = self.on_bounds()
        return f" in {', '.join(found)}" if found else ""

    def _without_slope(self) -> list[str]:
        """The names of parameters in which the objective has no slope."""
        leaves = jax.tree_util.tree_leaves_with_path(self.starts.without_slope)
        return [
            jax.tree_util.keystr(path).lstrip(".")
            for path, leaf in leaves
            if np.any(np.asarray(leaf))
        ]


def take(i: Any, tree: Any) -> Any:
    """The i-th along the leading axis of every array of a tree."""
    return jax.tree.map(lambda leaf: leaf[i] if eqx.is_array(leaf) else leaf, tree)


def apart(model: Any, other: Any) -> float:
    """The largest difference of any parameter of two models."""
    pairs = zip(
        jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)),
        jax.tree.leaves(eqx.filter(other, eqx.is_inexact_array)),
        strict=True,
    )
    return max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs)


def is_bowl(curvature: Array) -> bool:
    """Whether a curvature, in units of the objective, is more than rounding.

    It falls with the number of rows: what a lengthscale gains in leave-one-out as $n^{-4/(d+4)}$.
    """
    return bool(curvature > jnp.finfo(curvature.dtype).eps ** 0.5)


@eqx.filter_jit
def around(
    model: Any, objective: Objective, x: Array, y: Array
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The objective near a model: its least curvature, in units of the objective; a Newton step.

    The step is the largest change of a parameter by $H^{-1} \\nabla L$.
    """
    params, frozen = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(params)

    def loss(flat: Array) -> Array:
        return objective(eqx.combine(unravel(flat), frozen), x, y)

    value, slope, hessian = loss(flat), jax.grad(loss)(flat), jax.hessian(loss)(flat)
    curvature, axes = jnp.linalg.eigh(hessian)
    step = axes @ ((slope @ axes) / jnp.where(curvature == 0, 1.0, curvature))
    return jnp.min(curvature) / jnp.abs(value), jnp.max(jnp.abs(step))
