"""The variance of the noise, from the residuals of a fit: one for all, a function of x, or each."""

import dataclasses
from typing import Any, Literal, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.pandas_frames import like
from .._core.validation import require_choice
from ..attention._jit import jit_if_pure
from ..fitting._result import Fit
from ..models import KernelRegression
from ..objectives._rows import drop_zero_weight_rows
from ..priors import ExcludeSelf, Mask

Noise = Literal["local", "rows", "constant"]

_LONGER = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # times the lengthscale of the fit


def noise_variance(fit: Fit, x_new: ArrayLike | Any) -> Any:
    r"""The variance of the noise at new inputs: a local mean of the squared residuals.

    $$ \hat\sigma^2(x) = \frac{\sum_j K_j(x)\, w_j r_j^2}
       {\sum_j K_j(x)\, (1 - 2 L_{jj} + w_j \sum_l L_{jl}^2 / w_l)}, \qquad r = y - L y $$

    The denominator is the expectation of $w_j r_j^2$ where the variance of $y_j$ is $1 / w_j$, of
    the weights of the fit (1 without any), and the fit has no bias. $K_j$ is the kernel of the fit
    with 2, 4, ... 64 times its lengthscale, times $w_j$: the factor that makes the left-out
    residuals most likely, as normal ones.

    **Returns:** shape (m,) or (m, out), in squared units of y, of a label of weight 1; of a frame
    of pandas a `Series` or a `DataFrame` with its index and the names of the labels.

    **Source:** Ruppert, Wand, Holst and Hössjer, *Local polynomial variance-function estimation*
    (1997).
    """
    fit = of_regression(fit)
    out = RowVariance.of(fit, "local").at(fit.inputs(x_new), fit.y)
    return like(out[:, 0] if fit.y.ndim == 1 else out, x_new, fit.y_name)


class RowVariance(eqx.Module):
    """From labels at the inputs of a fit, their left-out residuals and the variance of each.

    It knows of the labels of the fit only how far around variances are taken: it can be asked of
    other labels, such as simulated ones.
    """

    model: KernelRegression
    x: Float[Array, "n dim"]
    given: dict[str, Any]
    hat: Float[Array, " n"]  # L_ii
    weights: Float[Array, " n"]  # of variances σ²(x) / w
    expected: Float[Array, " n"]  # of the squared residual by weight, where σ is 1
    factor: Float[Array, ""]
    noise: Noise = eqx.field(static=True)

    @classmethod
    def of(cls, fit: Fit, noise: str) -> "RowVariance":
        require_choice("noise", noise, get_args(Noise))
        fit = of_regression(fit)
        model, given = fit.model, fit.objective.weight_kwargs()
        hat, norms, weights = hat_diagonals(fit)
        # a row that the fit passes through, alone in its neighbourhood, says nothing of its noise
        expected = jnp.maximum(1.0 - 2.0 * hat + norms, jnp.finfo(hat.dtype).eps ** 0.5)
        expected = jnp.where(weights > 0, expected, 0.0)
        factors = jnp.asarray(_LONGER, hat.dtype)
        rule = cls(model, fit.x, given, hat, weights, expected, factors[0], cast(Noise, noise))
        if noise != "local":
            return rule
        best = jit_if_pure(_likeliest, (rule,), factors, fit.y)
        return eqx.tree_at(lambda rule: rule.factor, rule, best)

    def residuals(self, y: Float[Array, "n"] | Float[Array, "n out"]) -> Array:
        """Of each row, y less its prediction from all others."""
        if self.model.passes > 1:  # of which the diagonal does not tell it
            return y - self.model(self.x, self.x, y, prior=ExcludeSelf(), **self.given)
        fitted, _ = self.model.smooth(self.x, y, **self.given)
        left = jnp.maximum(1.0 - self.hat, jnp.finfo(self.hat.dtype).eps ** 0.5)
        return (y - fitted) / (left if y.ndim == 1 else left[:, None])

    def squares(self, y: Float[Array, "n"] | Float[Array, "n out"]) -> Float[Array, "n out"]:
        """Squared residuals, times the weights."""
        fitted, _ = self.model.smooth(self.x, y, **self.given)
        return self.weights[:, None] * ((y - fitted) ** 2).reshape(len(y), -1)

    def __call__(self, y: Float[Array, "n"] | Float[Array, "n out"]) -> Array:
        """The variance of each label, in the shape of y."""
        if self.noise == "rows":
            return self.residuals(y) ** 2
        if self.noise == "local":
            of_weight_one = self.at(self.x, y)
        else:
            of_weight_one = jnp.sum(self.squares(y), axis=0, keepdims=True)
            of_weight_one = of_weight_one / jnp.sum(self.expected)
        return (of_weight_one * _inverse(self.weights)[:, None]).reshape(y.shape)

    def at(
        self,
        x_new: Float[Array, "m dim"],
        y: Float[Array, "n"] | Float[Array, "n out"],
        prior: Mask | None = None,
    ) -> Float[Array, "m out"]:
        """The local variance at other inputs, of a label of weight 1."""
        squares = self.squares(y)
        kernel = self.model.kernel.rescaled(self.factor)
        longer = KernelRegression(kernel, rule=self.model.rule, on_empty="nearest")
        both = jnp.concatenate([squares, self.expected[:, None]], axis=1)
        means = longer(x_new, self.x, both, prior=prior, **self.given)
        floor = jnp.finfo(squares.dtype).eps * jnp.mean(squares, axis=0, keepdims=True)
        return jnp.maximum(means[:, :-1] / means[:, -1:], floor)


def _likeliest(
    rule: RowVariance,
    factors: Float[Array, " factors"],
    y: Float[Array, "n"] | Float[Array, "n out"],
) -> Float[Array, ""]:
    """The factor by which variances from other rows make the left-out residuals most likely."""
    some = (rule.weights > 0)[:, None]
    squares = rule.squares(y) / jnp.where(some, rule.expected[:, None], 1.0)

    def unlikely(factor: Array) -> Array:
        moved = eqx.tree_at(lambda rule: rule.factor, rule, factor)
        others = moved.at(rule.x, y, ExcludeSelf())
        return jnp.mean(jnp.log(others) + squares / others, where=some)

    return factors[jnp.argmin(jax.lax.map(unlikely, factors))]


def hat_diagonals(fit: Fit) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " n"]]:
    r"""$L_{ii}$, $w_i \sum_j L_{ij}^2 / w_j$ and $w_i$ of a fit, j over rows of weight above 0."""
    given = fit.objective.weight_kwargs()
    _, hat = fit.model.smooth(fit.x, fit.y, **given)
    weights = jnp.asarray(given.get("weights", jnp.ones(len(fit.x))), fit.y.dtype)
    norms = weights * fit.model.noise(fit.x, fit.x, _inverse(weights), **given)
    return hat, norms, weights


def _inverse(weights: Float[Array, " n"]) -> Float[Array, " n"]:
    """The variances of labels; 0 of a row that is none."""
    some = weights > 0
    return jnp.where(some, 1.0 / jnp.where(some, weights, 1.0), 0.0)


def of_regression(fit: Any) -> Fit:
    """A single fit of a `KernelRegression`, with those rows alone whose weight is above 0."""
    if not isinstance(fit, Fit):
        raise ValueError(f"fit must be a Fit, as ak.fit gives it; got a {type(fit).__name__}.")
    if fit.loss.ndim:
        raise ValueError("This is a batch of fits: ask one of them, fit.member(i).")
    if not isinstance(fit.model, KernelRegression):
        raise ValueError(
            f"This is of fits of ak.KernelRegression, whose hat matrix is known; got a "
            f"{type(fit.model).__name__}."
        )
    return with_weight(fit)


def with_weight(fit: Fit) -> Fit:
    """The fit with those rows alone whose weight is above 0: others are none.

    Inside `jit`, where weights have no value to look at, all rows stay, and those weigh nothing.
    """
    x, y, objective = drop_zero_weight_rows(fit.x, fit.y, fit.objective)
    return dataclasses.replace(fit, x=x, y=y, objective=objective)
