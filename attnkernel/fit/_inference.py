r"""What a fitted curve is worth: degrees of freedom, standard errors, bands, and their simulation.

A fit at given lengthscales is linear in the labels, $\hat f(x) = \sum_j L_j(x)\, y_j$, so that its
variance is $\sum_j L_j(x)^2 \sigma_j^2$. Lengthscales count as given: that they were chosen on the
same labels is in no standard error here.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import as_points
from ..models import KernelRegression
from ..priors import LeaveOneOut as LeaveOneOutMask, Mask
from ._result import Fit

_LONGER = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # times the lengthscale of the fit, for its noise


class DegreesOfFreedom(eqx.Module):
    r"""$\nu = \operatorname{tr} L$, $\tilde\nu = \operatorname{tr} L^\top L$, and what they leave.

    `residual` is $n - 2 \nu + \tilde\nu$: the mean of RSS/σ², where the noise has one σ and the fit
    no bias.
    """

    trace: Float[Array, ""]
    trace_of_squares: Float[Array, ""]
    residual: Float[Array, ""]


def degrees_of_freedom(fit: Fit) -> DegreesOfFreedom:
    """The degrees of freedom of a fitted `KernelRegression`.

    **Source:** Loader, *Local regression and likelihood* (1999), section 2.3.2.
    """
    model = _linear(fit)
    given = fit.objective.given()
    _, hat = model.smooth(fit.x, fit.y, **given)
    squares = model.noise(fit.x, fit.x, jnp.ones(len(fit.x), fit.y.dtype), **given)
    trace, of_squares = jnp.sum(hat), jnp.sum(squares)
    return DegreesOfFreedom(trace, of_squares, len(fit.x) - 2.0 * trace + of_squares)


class Bands(eqx.Module):
    """A curve between two others at inputs x: shapes (m, dim), and (m,) or (m, out)."""

    x: Float[Array, "m dim"]
    centre: Float[Array, "*rows"]
    standard_error: Float[Array, "*rows"]
    lower: Float[Array, "*rows"]
    upper: Float[Array, "*rows"]
    level: float = eqx.field(static=True)
    kind: str = eqx.field(static=True)


def bands(
    fit: Fit | Any,
    x_new: ArrayLike,
    *,
    level: float = 0.95,
    kind: str = "pointwise",
    noise: str = "local",
    corrected: bool = True,
    draws: int = 1000,
    key: PRNGKeyArray | None = None,
) -> Bands:
    r"""A confidence band of the true mean at new inputs.

    $$ \hat f(x) \pm c\, \mathrm{se}(x), \qquad \mathrm{se}(x)^2 = \sum_j L_j(x)^2 \hat\sigma_j^2 $$

    The lengthscale that is best for a fit leaves a bias as large as its standard error, so that a
    band about the fit misses the mean far too often. With `corrected`, the robust correction of
    Calonico, Cattaneo and Farrell: centre and standard error are those of a local polynomial whose
    bias is of a higher order, 2 for a fit of order 0 or 1, with lengthscales
    $n^{1/(d + 4) - 1/(d + 3)}$ times those of the fit, d its columns: these shrink as those that
    make the error of the coverage least. For order 2 there is no higher one, and `corrected=False`
    must be said.

    **Arguments:**

    - `fit`: of a `KernelRegression`; `x_new`: shape (m,) or (m, dim).
    - `level`: the coverage, between 0 and 1.
    - `kind`: `"pointwise"`: c is a quantile of the normal distribution, and each x is covered with
      the level. `"simultaneous"`: all m inputs at once are; c is simulated, from fits of normal
      noise, and needs a `key`.
    - `noise`: `"local"` (default): $\hat\sigma_j^2$ is that of `noise_variance`. `"rows"`: the
      squared leave-one-out residual of each row: assumes nothing, and needs many neighbours.
      `"constant"`: one σ², $\mathrm{RSS} / (n - 2\nu + \tilde\nu)$.
    - `draws`: of the simulation.

    **Returns:** `Bands`; where no label has weight, error and limits are NaN, whatever `on_empty`.

    **Source:** Calonico, Cattaneo and Farrell, *On the effect of bias estimation on coverage
    accuracy in nonparametric inference* (2018); Chernozhukov, Chetverikov and Kato,
    *Anti-concentration and honest, adaptive confidence bands* (2014).
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.95; got {level!r}.")
    if kind not in ("pointwise", "simultaneous"):
        raise ValueError(f'kind must be "pointwise" or "simultaneous"; got {kind!r}.')
    model = _linear(fit)
    if corrected:
        if model.order == 2:
            raise ValueError(
                "The robust correction takes a polynomial of a higher order, and there is none "
                "above 2: fit order 0 or 1, or say corrected=False."
            )
        n, dim = fit.x.shape
        model = _changed(model, 2, float(n) ** (1.0 / (dim + 4) - 1.0 / (dim + 3)))
    given, at = fit.objective.given(), as_points("x_new", x_new)
    _, variance = _residuals(model, fit, noise)
    centre = model(at, fit.x, fit.y, **given)
    # whatever a policy answers where no label has weight, nothing is known of its error
    empty = jnp.isneginf(model.local_fit(at, fit.x, fit.y, **given).log_mass)
    empty = empty if fit.y.ndim == 1 else empty[:, None]
    error = jnp.where(empty, jnp.nan, jnp.sqrt(model.noise(at, fit.x, variance, **given)))
    if kind == "pointwise":
        c = norm.ppf(0.5 + 0.5 * level)
    else:
        if key is None:
            raise ValueError("A simultaneous band is simulated: pass key=jax.random.PRNGKey(0).")
        c = _highest(model, fit, at, jnp.sqrt(variance), error, level, draws, key)
    width = c * error
    return Bands(at, centre, error, centre - width, centre + width, level, kind)


def wild_bootstrap(
    fit: Fit, x_new: ArrayLike, *, draws: int = 1000, key: PRNGKeyArray
) -> Float[Array, "draws m"]:
    r"""Fits at new inputs to labels with the signs of their residuals drawn anew.

    $$ y^*_j = \hat f(x_j) + \hat\sigma_j\, \epsilon_j, \qquad \epsilon_j = \pm 1 $$

    with the leave-one-out residuals $\hat\sigma_j$, at the lengthscale of the fit. All draws are
    labels of one sum.

    **Source:** Wu, *Jackknife, bootstrap and other resampling methods in regression analysis*
    (1986).
    """
    model, given, at = _linear(fit), fit.objective.given(), as_points("x_new", x_new)
    if fit.y.ndim != 1:
        raise ValueError(f"The bootstrap is of one label per row; y has shape {fit.y.shape}.")
    residuals, _ = _residuals(model, fit, "rows")
    fitted, _ = model.smooth(fit.x, fit.y, **given)
    signs = jax.random.rademacher(key, (len(fit.x), draws), fit.y.dtype)
    labels = fitted[:, None] + residuals[:, None] * signs
    return model(at, fit.x, labels, **given).T


def noise_variance(fit: Fit, x_new: ArrayLike) -> Float[Array, "m"] | Float[Array, "m out"]:
    r"""The variance of the noise at new inputs: a local mean of the squared residuals.

    $$ \hat\sigma^2(x) = \frac{\sum_j w_j(x)\, r_j^2}
       {\sum_j w_j(x)\, (1 - 2 L_{jj} + \sum_l L_{jl}^2)}, \qquad r = y - L y $$

    The denominator is the expectation of $r_j^2$ where σ is 1 and the fit has no bias. The weights
    are of the kernel of the fit with 2, 4, ... 64 times its lengthscale: the factor that makes the
    left-out residuals most likely, as normal ones.

    **Source:** Ruppert, Wand, Holst and Hössjer, *Local polynomial variance-function estimation*
    (1997).
    """
    return _local_variance(_linear(fit), fit, as_points("x_new", x_new))


def _local_variance(model: KernelRegression, fit: Fit, at: Float[Array, "m dim"]) -> Array:
    given = fit.objective.given()
    fitted, hat = model.smooth(fit.x, fit.y, **given)
    squares = (fit.y - fitted) ** 2
    norms = model.noise(fit.x, fit.x, jnp.ones(len(fit.x), fit.y.dtype), **given)
    expected = jnp.maximum(1.0 - 2.0 * hat + norms, jnp.finfo(hat.dtype).eps ** 0.5)
    both = jnp.column_stack([squares, expected])

    def ratio(factor: float, x_new: Array, prior: Mask | None = None) -> Array:
        longer = KernelRegression(
            model.kernel.stretched(factor), rule=model.rule, on_empty="nearest"
        )
        means = longer(x_new, fit.x, both, prior=prior, **given)
        return means[:, :-1] / means[:, -1:]

    floor = jnp.finfo(squares.dtype).eps * jnp.mean(squares)
    unlikely = []
    for factor in _LONGER:
        others = jnp.maximum(ratio(factor, fit.x, LeaveOneOutMask()), floor)
        left_out = both[:, :-1] / expected[:, None]
        unlikely.append(jnp.mean(jnp.log(others) + left_out / others))
    best = jnp.argmin(jnp.stack(unlikely))
    out = jnp.stack([ratio(factor, at) for factor in _LONGER])[best]
    out = jnp.maximum(out, floor)
    return out[:, 0] if fit.y.ndim == 1 else out


def _residuals(model: KernelRegression, fit: Fit, noise: str) -> tuple[Array, Array]:
    """Of each row the leave-one-out residual, and the variance of its noise."""
    fitted, hat = model.smooth(fit.x, fit.y, **fit.objective.given())
    hat = hat if fit.y.ndim == 1 else hat[:, None]
    residuals = fit.y - fitted
    # a row that the fit passes through, alone in its neighbourhood, says nothing of its noise
    left_out = residuals / jnp.maximum(1.0 - hat, jnp.finfo(fit.y.dtype).eps ** 0.5)
    if noise == "rows":
        return left_out, left_out**2
    if noise == "local":
        return left_out, _local_variance(model, fit, fit.x)
    if noise != "constant":
        raise ValueError(f'noise must be "local", "rows" or "constant"; got {noise!r}.')
    moved = eqx.tree_at(lambda fit: fit.model, fit, model)
    of_all = jnp.sum(residuals**2, axis=0) / degrees_of_freedom(moved).residual
    return left_out, jnp.broadcast_to(of_all, fit.y.shape)


def _highest(
    model: KernelRegression,
    fit: Fit,
    at: Float[Array, "m dim"],
    sd: Array,
    error: Array,
    level: float,
    draws: int,
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """The quantile of the greatest |fit of noise| / se over all inputs."""
    if fit.y.ndim != 1:
        raise ValueError(f"Simultaneous bands are of one label per row; y has {fit.y.shape}.")
    normal = jax.random.normal(key, (len(fit.x), draws), fit.y.dtype)
    of_noise = model(at, fit.x, sd[:, None] * normal, **fit.objective.given())
    ratio = jnp.abs(of_noise) / jnp.where(error > 0, error, jnp.inf)[:, None]
    return jnp.nanquantile(jnp.nanmax(ratio, axis=0), level)


def _changed(model: KernelRegression, order: int, factor: float) -> KernelRegression:
    """The model of another order, its lengthscales times a factor."""
    parts = {"rule": model.rule, "method": model.method, "on_empty": model.on_empty}
    return KernelRegression(model.kernel.stretched(factor), order=order, **parts)


def _linear(fit: Any) -> Any:
    """The model of a single fit, if it is a `KernelRegression`."""
    if not isinstance(fit, Fit):
        raise ValueError(f"Expected a fit, as ak.fit gives it; got a {type(fit).__name__}.")
    if fit.loss.ndim:
        raise ValueError("This is a batch of fits: ask one of them, fit.member(i).")
    if not isinstance(fit.model, KernelRegression):
        raise ValueError(
            f"This is of fits of ak.KernelRegression, whose hat matrix is known; got a "
            f"{type(fit.model).__name__}."
        )
    return fit.model


def effective_count(fit: Fit, x_new: ArrayLike) -> Float[Array, " m"]:
    r"""How many labels a prediction is worth, $1 / \sum_j L_j(x)^2$; 0 where none has weight."""
    ones = np.ones(len(fit.x), fit.y.dtype)
    squares = _linear(fit).noise(x_new, fit.x, ones, **fit.objective.given())
    return jnp.where(squares > 0, 1.0 / jnp.where(squares > 0, squares, 1.0), 0.0)
