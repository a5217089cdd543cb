"""The arguments of a fit: their types, how they go together, and their defaults."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import Array

from .._core.arrays import is_concrete, value_text
from .._core.validation import as_integer, require_function, require_instance
from ..objectives import Objective
from ._bounds import Box
from ._checkpoints import Checkpoints

SEARCH_STEPS, SEARCH_STEPS_PER_PARAMETER = 100, 40  # at most; a search takes about 20 in all

Callback = Callable[[int, dict[str, Any]], None]


class Options(NamedTuple):
    """The keyword arguments of `fit`; `with_defaults` fills in those that are None."""

    optimizer: optax.GradientTransformation | None = None
    steps: Any = None
    key: Array | None = None
    bounds: Any = None
    starts: Any = None
    trainable: Any = eqx.is_inexact_array
    record: Callable[[Any], dict[str, Any]] | None = None
    callback: Callback | None = None
    chunk: Any = 100
    checkpoints: Checkpoints | None = None

    def with_defaults(self, model: Any, objective: Objective) -> "Options":
        """Returns the options with their defaults.

        For a search, `bounds` becomes "default" if it is None and the model has a `search_box`.

        **Raises:** `ValueError` if the model or an option is invalid, or if options conflict.
        """
        _require_types(model, self)
        steps, starts = (
            None if value is None else as_integer(name, value, 1)
            for name, value in (("steps", self.steps), ("starts", self.starts))
        )
        chunk = as_integer("chunk", self.chunk, 1)
        max_starts = 10**6
        if starts is not None and starts > max_starts:
            raise ValueError(f"starts must be at most {max_starts}; got {starts}.")
        params = jax.tree.leaves(eqx.filter(model, self.trainable))
        if not params:
            raise ValueError(
                "model has nothing to fit: every number is fixed, by ak.fixed or by trainable=."
            )
        if self.bounds is not None:
            _require_bounds(model, self.bounds, self.trainable)
        _require_compatible(objective, self, starts)
        bounds = self.bounds
        if self.optimizer is None:
            if bounds is None and hasattr(model, "search_box"):
                bounds = "default"
            starts = starts or (10 if bounds else 1)
            size = sum(leaf.size for leaf in params)
            steps = steps or SEARCH_STEPS + SEARCH_STEPS_PER_PARAMETER * (size - 1)
        return self._replace(steps=steps, starts=starts or 1, chunk=chunk, bounds=bounds)


def _require_types(model: Any, options: Options) -> None:
    """Raises `ValueError` if the model or an option of a fit has a wrong type."""
    if isinstance(model, type) or not callable(model):
        raise ValueError(
            f"model must be called as model(x_new, x, y, prior=...), such as "
            f"ak.KernelRegression(ak.Gaussian(0.3)), and comes first, ak.fit(model, x, y); a frame "
            f'has a formula in place of a model, ak.fit(frame, "y ~ x"); got {value_text(model)}.'
        )
    optimizer, bounds = options.optimizer, options.bounds
    if optimizer is not None and not all(hasattr(optimizer, part) for part in ("init", "update")):
        raise ValueError(
            f"optimizer must be one of optax, such as optax.adam(0.1); got {optimizer!r}."
        )
    if bounds is not None and not (isinstance(bounds, tuple | list) and len(bounds) == 2):
        raise ValueError(f"bounds must be two models, (lower, upper); got {bounds!r}.")
    if not _is_trainable_filter(options.trainable, model):
        raise ValueError(
            f"trainable must be a function of a leaf, such as eqx.is_inexact_array, or a model "
            f"of Booleans; got {options.trainable!r}."
        )
    for name, function in (("record", options.record), ("callback", options.callback)):
        if function is not None:
            require_function(name, function)
    if options.checkpoints is not None:
        example = 'ak.fitting.Checkpoints("results/fit")'
        require_instance("checkpoints", options.checkpoints, Checkpoints, example)


def _is_trainable_filter(trainable: Any, model: Any) -> bool:
    """Whether `equinox.partition` accepts `trainable` for this model: a tree of Booleans, or a
    function that returns a Boolean for each leaf."""
    try:
        eqx.filter(model, trainable)
        is_function = callable(trainable) and not isinstance(trainable, eqx.Module)
        leaves = jax.tree.leaves(model) if is_function else []
        found = [trainable(leaf) for leaf in leaves]  # pyright: ignore[reportCallIssue]
    except (TypeError, ValueError):
        return False
    return all(isinstance(each, bool | np.bool_) for each in found)


def _require_bounds(model: Any, bounds: tuple[Any, Any], trainable: Any) -> None:
    """Raises `ValueError` unless the bounds have the structure of the model and contain it.

    `trainable`: which leaves are compared, as in `equinox.partition`. Traced values are not
    compared.
    """
    if any(jax.tree.structure(side) != jax.tree.structure(model) for side in bounds):
        raise ValueError(
            f"bounds must be two models of the same structure as the model to fit, for "
            f"example (ak.KernelRegression(ak.Gaussian(0.01)), "
            f"ak.KernelRegression(ak.Gaussian(10.0))); got {bounds} for {model}."
        )
    box = Box(*(eqx.filter(side, trainable) for side in bounds))
    params = eqx.filter(model, trainable)
    box.check()
    if is_concrete(*jax.tree.leaves(params)) and not box.contains(params):
        raise ValueError(f"The model starts outside its bounds: {model}, bounds {bounds}.")


def _require_compatible(objective: Objective, options: Options, starts: int | None) -> None:
    """Raises `ValueError` if options contradict each other or the objective.

    `starts`: the number of starts that the user gave, checked; None: not given.
    """
    name = type(objective).__name__
    if objective.is_stochastic and options.key is None:
        raise ValueError(f"{name} draws rows at random: pass key=jax.random.PRNGKey(0).")
    if options.optimizer is None:
        if objective.is_stochastic:
            raise ValueError(
                f"{name} is stochastic: say which optimiser and how many steps, for example "
                f"optimizer=optax.adam(0.1), steps=200. LeaveOneOut() needs neither."
            )
        if options.checkpoints is not None:
            raise ValueError(
                "checkpoints= resume a training, which takes an optimizer=. The search of a "
                "deterministic objective is short: leave checkpoints= out."
            )
        return
    if options.steps is None:
        raise ValueError("With an optimizer, say how many steps: for example steps=200.")
    if options.bounds is None and starts not in (None, 1):
        raise ValueError("Several starts are spread over bounds: pass bounds= too.")
