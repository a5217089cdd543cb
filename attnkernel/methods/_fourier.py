r"""Fourier summation: a Gaussian kernel is a short sum of plane waves, and all pairs factorise.

The error of each query's sum is bounded (`_nufft`). A query whose bound is too large is summed
exactly (`_fallback`).
"""

import importlib.util
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import as_points, precise_matmul
from .._core.double_precision import in_float64
from .._core.tracing import NO_SYMBOLIC_SIZES, is_symbolic
from ..kernels import Gaussian, Kernel
from ..priors import Prior, key_mask_of
from ..rules import Rule, Softmax
from ._base import Keys, Method, Parts, Queries, Task, Values, mask_unsupported_reason
from ._certified import Standardised, WeightedPowerMeans
from ._fallback import recompute_exactly
from ._nufft import MAX_DEGREE, convolve
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

    In one dimension it also gives the moments of local polynomials, each by a filter of its own,
    for a rule without a sink. What is solved from them is certified by a bound on the error of the
    solution: fits as above, slopes times the root mean square of their monomial likewise, and the
    entries of $S^{-1}$, of which the leverage is one, to $\mathrm{tol} \sqrt{(S^{-1})_{aa}
    (S^{-1})_{bb}}$. Where the data barely determine a polynomial, it is recomputed.

    **Arguments:** `tol`: from 1e-12. Default 1e-6.

    ```python
    with jax.enable_x64(True):
        x = jnp.linspace(0.0, 1.0, 5)[:, None]
        out = ak.attend(x, x, x, kernel=ak.Gaussian(0.3), method=ak.methods.Fourier())
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
        if task.degree and task.dim != 1:
            return f"for local polynomials it takes one dimension, not {task.dim}"
        if task.degree > MAX_DEGREE:
            return f"it takes moments of degree up to {MAX_DEGREE}, not {task.degree}"
        if task.degree and task.rule.log_sink() is not None:
            return "for local polynomials it takes no sink"
        masks = "HeldOut and ExcludeSelf, also joined by &"
        if (reason := mask_unsupported_reason(task.prior, masks, "excludes_self")) is not None:
            return reason
        if jax.default_backend() != "cpu":
            return f"it runs on CPU, and the default device is {jax.default_backend()}"
        if importlib.util.find_spec("jax_finufft") is None:
            return 'it needs jax-finufft: pip install "attnkernel[fourier]"'
        return None

    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        if v.dtype != jnp.float64:
            # the quotient of total and mass is taken in float64: as mass 1, and its log as maximum
            def normalised(*arguments: Any) -> tuple[Array, Array, Array]:
                state = self.softmax_state(*arguments)
                some = state.mass != 0
                largest = float(jnp.finfo(v.dtype).max)
                log_mass = jnp.where(some, jnp.clip(state.log_mass, -largest, largest), 0.0)
                return log_mass, some.astype(log_mass.dtype), state.value

            return SoftmaxState(*in_float64(normalised, q, k, v, kernel, prior, rule))
        ours, certified = self._certified_state(q, k, v, kernel, prior, rule)
        ours = ours.with_sink(rule.log_sink())
        exact = recompute_exactly(~certified, q, k, v, (kernel, prior, rule))
        return SoftmaxState(
            jnp.where(certified, ours.maximum, exact.maximum),
            jnp.where(certified, ours.mass, exact.mass),
            jnp.where(certified[:, None], ours.total, exact.total),
        )

    def moments(
        self, q: Queries, k: Keys, v: Values, parts: Parts, degree: int, scale: Float[Array, ""]
    ) -> WeightedPowerMeans:
        kernel, _, rule = parts
        if v.dtype != jnp.float64:

            def arrays(scale: Array, *arguments: Any) -> tuple[Array, Array, Array]:
                return self.moments(*arguments, degree=degree, scale=scale)[:3]

            found = in_float64(arrays, scale, q, k, v, parts)
            return WeightedPowerMeans(*found, tol=self.tol)
        sums, error = self._bounded_sums(q, k, v, parts, degree)
        assert isinstance(kernel, Gaussian)
        assert isinstance(rule, Softmax)
        width = jnp.sqrt(_covariance(kernel, 1)[0, 0] * rule.temperature) / scale
        units = (width ** jnp.arange(degree + 1))[:, None]
        known = sums[:1, :, 0] > 2.0 * error[:1]
        mass = jnp.where(known, sums[:1, :, 0], 1.0)
        means = jnp.where(known[:, :, None], sums / mass[:, :, None], 0.0)
        relative = jnp.where(known, error / (mass - jnp.where(known, error[:1], 0.0)), jnp.inf)
        return WeightedPowerMeans(
            jnp.where(known, jnp.log(mass), 0.0)[0],
            (means * units[:, :, None]).swapaxes(0, 1),
            jax.lax.stop_gradient(relative * units).T,
            self.tol,
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

    def _certified_state(
        self, q: Array, k: Array, v: Array, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> tuple[SoftmaxState, Bool[Array, " queries"]]:
        """Returns the softmax state of each query, and whether its error is within `tol`.

        Queries that are not certified get mass 1 and total 0.
        """
        values = Standardised.of(v, key_mask_of(prior))
        sums, error = self._bounded_sums(q, k, values.z, (kernel, prior, rule))
        mass, total, error = sums[0, :, 0], sums[0, :, 1:], error[0]

        # what follows is constant: the certificate
        z = jax.lax.stop_gradient(mass)
        certified = z > 2.0 * error / self.tol
        z, error = jnp.where(certified, z, 1.0)[:, None], jnp.where(certified, error, 0.0)[:, None]
        ratio = jax.lax.stop_gradient(total) / z
        delta = (error / (z - error)) * (1 + jnp.abs(ratio))
        certified &= jnp.all(delta <= self.tol * values.accepted_error(ratio), axis=1)
        total = values.centre[None, :] * mass[:, None] + values.unit[None, :] * total
        mass, total = jnp.where(certified, mass, 1.0), jnp.where(certified[:, None], total, 0.0)
        return SoftmaxState(jnp.zeros_like(mass), mass, total), certified

    def _bounded_sums(
        self, q: Array, k: Array, v: Float[Array, "keys dim_v"], parts: Parts, degree: int = 0
    ) -> tuple[Float[Array, "degrees queries width"], Float[Array, "degrees queries"]]:
        """Returns the weighted sums of u^a (1, v) for a up to `degree`, u = (k - q) / ℓ, and a
        bound on the error of all columns, without derivatives. `v`: 0 for a hidden key.
        """
        kernel, prior, rule = parts
        assert isinstance(kernel, Gaussian)  # as unsupported_reason says
        assert isinstance(rule, Softmax)
        mask = key_mask_of(prior)
        seen = jnp.ones(len(k), bool) if mask.allowed is None else mask.allowed
        columns = jnp.concatenate([seen[:, None].astype(v.dtype), v], axis=1)
        covariance = _covariance(kernel, k.shape[1]) * rule.temperature
        sums, error = convolve(q, k, columns, covariance, self.tol, degree)
        if mask.excludes_self:
            own = min(len(q), len(k))
            terms = [jnp.exp(rule.scaled_scores(jax.vmap(kernel.log_pair)(q[:own], k[:own])))]
            for _ in range(degree):
                u = (k[:own, 0] - q[:own, 0]) / jnp.sqrt(covariance[0, 0])
                terms.append(terms[-1] * u)
            sums = sums.at[:, :own].add(-jnp.stack(terms)[:, :, None] * columns[None, :own])
            error = error + 4.0 * jnp.finfo(v.dtype).eps
        return sums, jax.lax.stop_gradient(error)


@eqx.filter_jit
def _count_uncertified(
    method: Fourier, q: Array, k: Array, v: Array, kernel: Kernel, prior: Prior | None, rule: Rule
) -> Int[Array, ""]:
    """Returns `recomputed` of checked arguments."""

    def count(*parts: Any) -> tuple[Array]:
        return (jnp.sum(~method._certified_state(*parts)[1]),)

    parts = q, k, v, kernel, prior, rule
    is_wide = jnp.result_type(q, k, v) == jnp.float64
    return (count(*parts) if is_wide else in_float64(count, *parts))[0]


def _covariance(kernel: Gaussian, dim: int) -> Float[Array, "dim dim"]:
    """Returns the covariance Σ of a Gaussian kernel exp(-½ (q - k)ᵀ Σ⁻¹ (q - k))."""
    kernel.check(dim, dim)
    half = jnp.linalg.inv(kernel.in_lengthscales(jnp.eye(dim, dtype=float)))
    return precise_matmul(half.T, half)
