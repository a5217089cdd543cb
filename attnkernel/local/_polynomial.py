r"""Local polynomials: at each query the polynomial in k − q with the least weighted squared error.

$$ \hat\beta(q) = \arg\min_\beta \sum_j w_j(q)\,
   \Big\| v_j - \sum_{|a| \le p} \beta_a\, (k_j - q)^a \Big\|^2 $$

More statistics are more values: `local_moments` attends to the values $u^a$ and $u^a v$, and each
query then solves a small system of normal equations.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import wider_dtype
from ..attention import KernelPriorRule, attend, jit_if_pure
from ..methods import Method
from ._fit import LocalFit
from ._moments import local_moments
from ._monomials import Basis, with_rank_of
from ._normal_equations import solve_normal_equations

MAX_INVERSE_GRAM = 100.0  # (S⁻¹)₁₁: 1 for a local mean, and at most 41 inside uniform designs


def local_polynomial(
    q: Float[Array, "*#batch queries dim"],
    k: Float[Array, "*#batch keys dim"],
    v: Float[Array, "*#batch keys dim_v"],
    *,
    kernel: Any,
    prior: Any = None,
    rule: Any,
    method: Method,
    order: int,
    ridge: ArrayLike = 0.0,
    columns: tuple[int, ...] | None = None,
    term: int = 0,
) -> LocalFit:
    r"""The local polynomials of order p at queries; other arguments as in `attend`.

    **Arguments:**

    - `order`: p, from 0.
    - `ridge`: λ ≥ 0, added to the diagonal of S except for the constant term; in units of k.
      Default 0. Where the design is rank-deficient, $\sqrt\epsilon$ of each term is added whatever
      λ is, and directions that the keys do not determine are dropped.
    - `columns`: the columns of k that the polynomial uses. Default: all. Without any it is a
      constant.
    - `term`: the coefficient whose influence is returned. Default: 0, the value of the fit.
    - `method`: `Auto()` means `Dense()`, `Fourier()` or `Blockwise()` here.

    **Returns:** a `LocalFit`.

    **Raises:** `ValueError` for `Fourier` in more than one dimension, or with a sink.

    **Source:** Fan and Gijbels, *Local polynomial modelling and its applications* (1996).
    """
    order = 0 if columns == () else order
    if order:  # half precision cannot solve the normal equations
        q, k, v = (part.astype(wider_dtype(part.dtype)) for part in (q, k, v))
    ridge = jnp.asarray(ridge, q.dtype)
    empty = q.shape[-2] == 0  # a gather of rows needs one row
    q = jnp.zeros((*q.shape[:-2], 1, q.shape[-1]), q.dtype) if empty else q
    parts = (kernel, prior, rule), method, order, columns, term
    local = jit_if_pure(_fit_polynomials, parts, q, k, v, ridge)
    if not empty:
        return local
    axis = local.log_mass.ndim - 1
    return jax.tree.map(lambda leaf: jax.lax.slice_in_dim(leaf, 0, 0, axis=axis), local)


def _fit_polynomials(
    parts: KernelPriorRule,
    method: Method,
    order: int,
    columns: tuple[int, ...] | None,
    term: int,
    q: Float[Array, "*#batch queries dim"],
    k: Float[Array, "*#batch keys dim"],
    v: Float[Array, "*#batch keys dim_v"],
    ridge: Float[Array, ""],
) -> LocalFit:
    """Fits a polynomial of degree `order` in `columns` of k (None: all) at each query, by least
    squares with a ridge and the weights of `parts`; of order 0, the weighted mean. `term`: the
    coefficient whose influence is returned.
    """
    if order == 0:
        named = dict(zip(("kernel", "prior", "rule"), parts, strict=True))
        mean, log_mass = attend(q, k, v, **named, method=method, return_log_mass=True)
        one = jnp.ones_like(log_mass)
        none = one < 1
        return LocalFit(mean[..., None, :], one[..., None], log_mass, one, none, none)
    basis = Basis.of(k, order, columns)
    # every fit reproduces constants: without their mean, values lose fewer digits to rounding
    centre = jax.lax.stop_gradient(jnp.nanmean(v, axis=-2, keepdims=True))
    gram, right, log_mass, rounding = local_moments(q, k, v, centre, parts, method, basis)
    units, outputs = basis.units(), v.shape[-1]
    if term:
        unit_vector = (jnp.arange(len(units)) == term).astype(right.dtype)[:, None] / units[term]
        unit_vector = jnp.broadcast_to(with_rank_of(unit_vector, right), (*right.shape[:-1], 1))
        right = jnp.concatenate([right, unit_vector], axis=-1)
    # units whose squares underflow get a ridge of 0
    scaled = jnp.where(ridge > 0, ridge / units / units, 0.0)
    solved, condition, deficient = solve_normal_equations(gram, right, scaled, rounding)
    empty = jnp.isneginf(log_mass)[..., None, None]
    solved = jnp.where(empty, 0.0, solved)
    coefficients = solved[..., :outputs] / with_rank_of(units[:, None], solved)
    constant = coefficients[..., :1, :] + with_rank_of(centre[..., None, :], coefficients)
    constant = jnp.where(empty, 0.0, constant)
    coefficients = jnp.concatenate([constant, coefficients[..., 1:, :]], axis=-2)
    influence = solved[..., outputs] / with_rank_of(units, log_mass[..., None])
    deficient = deficient & ~jnp.isneginf(log_mass)  # a query without keys has no design
    extrapolates = solved[..., 0, -1] > MAX_INVERSE_GRAM
    return LocalFit(coefficients, influence, log_mass, condition, deficient, extrapolates)
