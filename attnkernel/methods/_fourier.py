r"""Fourier summation: a Gaussian kernel is a short sum of plane waves, and all pairs factorise.

The error of each query's sum is bounded (`_nufft`). A query whose bound is too large is summed
exactly (`_fallback`).
"""

import importlib.util
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import as_points, precise_matmul
from .._core.double_precision import in_float64
from .._core.symbolic_sizes import NO_SYMBOLIC_SIZES, is_symbolic
from ..kernels import Gaussian, Kernel
from ..priors import Prior
from ..priors._base import key_mask_of
from ..rules import Rule, Softmax
from ._base import Method, Task, mask_unsupported_reason, softmax_state_in_float64
from ._blockwise import Blockwise
from ._fallback import recompute_exactly
from ._nufft import convolve
from ._softmax_state import SoftmaxState


class Fourier(Method):
    r"""Sums of a Gaussian kernel by nonuniform FFT, certified to a relative error of `tol`.

    Takes a `Gaussian` in up to three dimensions (one lengthscale, one per dimension or a full
    metric), on CPU, at any temperature; of priors, `HeldOut` and `ExcludeSelf`. It costs
    $O\big((n + m) \log 1/\mathrm{tol} + M \log M\big)$ for M frequencies, of which there are about
    (range of x / ℓ)^d. Float32 arrays are summed in float64, with all derivatives, and the results
    are rounded to float32; a gradient takes about 1.5 times as long as in float64. Needs the
    package jax-finufft: `pip install "attnkernel[fourier]"`.

    Let E be a bound on the error of the sums (of the transforms, by measurement with room; of the
    frequencies cut off; of the periodic images), δ that on a prediction that follows from it. A
    query counts as certified where its mass has a relative error of at most tol, and

    $$ \delta \le \mathrm{tol} \max\big(\min(|\hat f|, |\hat f - \bar v|),\, g / 1000\big) $$

    with $\bar v$ the mean of the values and g the geometric mean of $|v - \bar v|$: relative to the
    prediction, wherever that may have its zero; a thousandth of a typical value next to a zero.
    Every other query is recomputed by `Blockwise`; `recomputed` says how many. One transform of the
    keys serves all lengthscales of a `vmap`, and all columns of v. Derivatives of every order are
    those of the sums.

    **Arguments:** `tol`: from 1e-12. Default 1e-6.

    ```python
    with jax.enable_x64(True):
        x = jnp.linspace(0.0, 1.0, 5)[:, None]
        out = ak.attend(x, x, x, kernel=ak.Gaussian(0.3), method=ak.Fourier())
        assert jnp.allclose(out, ak.attend(x, x, x, kernel=ak.Gaussian(0.3)), rtol=1e-6)
    ```
    """

    tol: float = eqx.field(default=1e-6, static=True)

    def __check_init__(self):
        if not (isinstance(self.tol, float | int) and 1e-12 <= self.tol < 1):
            raise ValueError(f"tol must be a number from 1e-12 to 1; got {self.tol!r}.")

    def unsupported_reason(self, task: Task) -> str | None:
        if is_symbolic(task.queries, task.keys):
            return NO_SYMBOLIC_SIZES
        if type(task.kernel) is not Gaussian:
            return f"it sums a Gaussian kernel alone, not {type(task.kernel).__name__}"
        if not 1 <= task.dim <= 3:
            return f"it takes 1 to 3 dimensions, not {task.dim}"
        if type(task.rule) is not Softmax:
            return f"it takes the rule Softmax, not {type(task.rule).__name__}"
        if (reason := mask_unsupported_reason(task.prior, excludes_self=True)) is not None:
            return reason
        if jax.default_backend() != "cpu":
            return f"it runs on CPU, and the default device is {jax.default_backend()}"
        if importlib.util.find_spec("jax_finufft") is None:
            return 'it needs jax-finufft: pip install "attnkernel[fourier]"'
        return None

    def softmax_state(
        self,
        q: Float[Array, "queries dim"],
        k: Float[Array, "keys dim"],
        v: Float[Array, "keys dim_v"],
        kernel: Kernel,
        prior: Prior | None,
        rule: Rule,
    ) -> SoftmaxState:
        if q.shape[0] == 0 or k.shape[0] == 0:
            return Blockwise().softmax_state(q, k, v, kernel, prior, rule)
        if v.dtype != jnp.float64:
            return softmax_state_in_float64(self, q, k, v, kernel, prior, rule)
        sums = self._certified_sums(q, k, v, kernel, prior, rule)
        ours = SoftmaxState(jnp.zeros_like(sums.mass), sums.mass, sums.total)
        ours = ours.with_sink(rule.log_sink())
        exact = recompute_exactly(~sums.certified, q, k, v, (kernel, prior, rule))
        return SoftmaxState(
            jnp.where(sums.certified, ours.maximum, exact.maximum),
            jnp.where(sums.certified, ours.mass, exact.mass),
            jnp.where(sums.certified[:, None], ours.total, exact.total),
        )

    def recomputed(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        *,
        kernel: Kernel,
        prior: Prior | None = None,
        rule: Rule = Softmax(),
    ) -> Int[Array, ""]:
        """How many queries are not certified, and so are summed exactly.

        Arguments as for `attend`, without batch axes. **Raises:** `ValueError` if
        `unsupported_reason` gives one.
        """
        q, k, v = as_points("q", q), as_points("k", k), as_points("v", v)
        keys, dim = k.shape
        task = Task(kernel, prior, rule, len(q), keys, dim, v.shape[1], jnp.result_type(q, k, v))
        if (reason := self.unsupported_reason(task)) is not None:
            raise ValueError(f"Fourier cannot evaluate this: {reason}")

        return _count_uncertified(self, q, k, v, kernel, prior, rule)

    def _certified_sums(
        self, q: Array, k: Array, v: Array, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> "CertifiedSums":
        """Returns the mass and total of each query, and whether its error is within `tol`.

        Queries that are not certified get mass 1 and total 0.
        """
        assert isinstance(kernel, Gaussian)  # as unsupported_reason says
        assert isinstance(rule, Softmax)
        covariance = _covariance(kernel, k.shape[1]) * rule.temperature
        mask = key_mask_of(prior)
        seen = jnp.ones(len(k), v.dtype) if mask.allowed is None else mask.allowed.astype(v.dtype)
        hidden = seen[:, None] == 0
        number = jnp.maximum(jnp.sum(seen), 1.0)
        constant = jax.lax.stop_gradient(jnp.where(hidden, 0.0, v))
        centre = jnp.sum(constant, axis=0, keepdims=True) / number
        spread = jnp.where(hidden, 0.0, constant - centre)
        largest = jnp.max(jnp.abs(spread), axis=0, keepdims=True)
        largest = jnp.where(largest > 0, largest, 1.0)  # squares of what is left do not overflow
        mean_square = jnp.sum((spread / largest) ** 2, axis=0, keepdims=True) / number
        unit = jnp.where(mean_square > 0, largest * jnp.sqrt(mean_square), 1.0)
        values = jnp.where(hidden, 0.0, jnp.where(hidden, 0.0, v) - centre) / unit
        columns = jnp.concatenate([seen[:, None], values], axis=1)
        sums, error = convolve(q, k, columns, covariance, self.tol)
        if mask.excludes_self:
            own = min(len(q), len(k))
            weight = jnp.exp(
                rule.scaled_scores(jax.vmap(kernel.log_pair)(q[:own], k[:own])[:, None])
            )
            sums = sums.at[:own].add(-weight * columns[:own])
            error = error + 4.0 * jnp.finfo(v.dtype).eps
        mass, total = sums[:, 0], sums[:, 1:]

        # what follows is constant: the certificate
        z, error = jax.lax.stop_gradient((mass, error))
        certified = z > 2.0 * error / self.tol
        z, error = jnp.where(certified, z, 1.0)[:, None], jnp.where(certified, error, 0.0)[:, None]
        ratio = jax.lax.stop_gradient(total) / z
        delta = unit * (error / (z - error)) * (1 + jnp.abs(ratio))
        differs = spread != 0
        logs = jnp.log(jnp.where(differs, jnp.abs(spread), 1.0))
        count = jnp.sum(differs, axis=0, keepdims=True)
        typical = jnp.exp(jnp.sum(logs, axis=0, keepdims=True) / jnp.maximum(1, count))
        scale = jnp.minimum(jnp.abs(ratio * unit), jnp.abs(ratio * unit + centre))
        fine = delta <= self.tol * jnp.maximum(scale, 1e-3 * typical)
        certified &= jnp.all(fine | (count == 0), axis=1)  # a constant is its centre, exactly
        total = centre * mass[:, None] + unit * total
        return CertifiedSums(
            jnp.where(certified, mass, 1.0), jnp.where(certified[:, None], total, 0.0), certified
        )


class CertifiedSums(NamedTuple):
    """The mass and total of every query, and whether the bound on its error is small enough."""

    mass: Float[Array, " queries"]
    total: Float[Array, "queries dim_v"]
    certified: Bool[Array, " queries"]


@eqx.filter_jit
def _count_uncertified(
    method: Fourier, q: Array, k: Array, v: Array, kernel: Kernel, prior: Prior | None, rule: Rule
) -> Int[Array, ""]:
    """Returns `recomputed` of checked arguments."""

    def count(*parts: Any) -> tuple[Array]:
        return (jnp.sum(~method._certified_sums(*parts).certified),)

    parts = q, k, v, kernel, prior, rule
    is_wide = jnp.result_type(q, k, v) == jnp.float64
    return (count(*parts) if is_wide else in_float64(count, *parts))[0]


def _covariance(kernel: Gaussian, dim: int) -> Float[Array, "dim dim"]:
    """Returns the covariance Σ of a Gaussian kernel exp(-½ (q - k)ᵀ Σ⁻¹ (q - k))."""
    kernel.check(dim, dim)
    half = jnp.linalg.inv(kernel.in_lengthscales(jnp.eye(dim, dtype=float)))
    return precise_matmul(half.T, half)
