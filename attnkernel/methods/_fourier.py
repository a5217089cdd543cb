r"""Fourier summation: a Gaussian kernel is a short sum of plane waves, and all pairs factorise.

With spacing $\eta$ of the frequencies and covariance Σ of the kernel (ℓ² times the inverse metric),

$$ K(q, k) = \sum_{m \in \mathbb{Z}^d} c_m\, e^{i \eta m \cdot (q - k)} - \text{images}, \qquad
   c_m = (2\pi)^{-d/2} \det(G)^{1/2} e^{-m^\top G m / 2}, \quad G = \eta \Sigma \eta, $$

so that $\sum_j K(q, k_j) v_j$ is one nonuniform FFT of the keys (type 1), a product with c, and
one at the queries (type 2): Greengard and Strain, *The fast Gauss transform* (1991); Barnett,
Magland and af Klinteberg, *A parallel nonuniform fast Fourier transform library* (2019).

In one dimension the moments about each query have filters of their own. With u = (k - q) / ℓ and
the Hermite polynomials $He_{a+1}(x) = x\, He_a(x) - a\, He_{a-1}(x)$,

$$ u^a K(q, k) = \sum_m i^a He_a(\eta \ell m)\, c_m\, e^{i \eta m (q - k)} - \text{images}. $$

Powers of k and q are never formed: nothing cancels where ℓ is short against the range of x.

The error of each query's sum is bounded. A query whose bound is too large is summed exactly
(`_fallback`).
"""

import functools
import importlib.util
import itertools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import erfc
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Complex, Float, Int

from .._core.arrays import as_points, precise_matmul
from .._core.double_precision import in_float64
from .._core.tracing import NO_SYMBOLIC_SIZES, is_symbolic, over_batch
from ..kernels import Gaussian, Kernel
from ..priors import Prior, pair_mask_of
from ..rules import Rule, Softmax
from ._base import (
    Keys,
    Method,
    Parts,
    Queries,
    Standardised,
    Task,
    Values,
    WeightedPowerMeans,
    mask_unsupported_reason,
)
from ._fallback import recompute_exactly
from ._softmax_state import SoftmaxState

# Frequencies per dimension, by the number of dimensions. Each is compiled; a call uses the smallest
# that suffices.
GRID_SIZES = {
    1: (1024, 16384, 262144),
    2: (128, 384, 1024, 2048),
    3: (32, 64, 96, 128, 160, 208, 256),
}
# Pairs that are summed exactly in the time that one frequency takes, by the number of dimensions.
PAIRS_PER_FREQUENCY = {1: 1, 2: 100, 3: 300}
# Bounds on the error of u^a K near the diagonal, a from 0 to 6, in units of `near`. Measured with ℓ
# from 0.01 to 0.6 of inputs from -3 to 3: at most 0.16, 0.19, 0.17, 0.33, 0.64, 1.7, 4.9.
ERROR_OF_DEGREE = (1.0, 2.0, 2.0, 3.0, 6.0, 15.0, 40.0)
MAX_DEGREE = len(ERROR_OF_DEGREE) - 1  # of moments

_max_over_batch = over_batch(jnp.max)  # of constants


class Fourier(Method):
    r"""Sums of a Gaussian kernel by nonuniform FFT, certified to a relative error of `tol`.

    Takes a `Gaussian` in up to three dimensions (one lengthscale, one per dimension or a full
    metric), on CPU, at any temperature of `Softmax`. Supported priors: `HeldOut` and `ExcludeSelf`,
    also joined by `&`. The cost is
    $O\big((n + m) \log 1/\mathrm{tol} + M \log M\big)$ for M frequencies, of which there are about
    (range of x / ℓ)^d. Float32 arrays are summed in float64, with all derivatives, and the results
    are rounded to float32; a gradient takes about 1.5 times as long as in float64. Needs the
    package jax-finufft: `pip install "attnkernel[fourier]"`.

    Let E be a bound on the error of the sums (of the transforms, by measurement with room; of the
    frequencies cut off; of the periodic images), δ that on a prediction that follows from it. A
    query counts as certified where its mass has a relative error of at most tol, and

    $$ \delta \le \mathrm{tol} \max\big(\min(|\hat f|, |\hat f - \bar v|),\, g / 1000\big) $$

    with $\bar v$ the mean of the values and g the geometric mean of $|v - \bar v|$. The error is
    relative to the prediction and to its distance from $\bar v$. Next to a zero of either it is
    relative to a thousandth of a typical distance.
    Every other query is recomputed by `Blockwise`; `count_recomputed` says how many. One transform
    of the keys serves all lengthscales of a `vmap`, and all columns of v. Derivatives of every
    order are those of the sums.

    In one dimension it also gives the moments of local polynomials, each by a filter of its own,
    for a rule without a sink. The solutions from these moments are certified by a bound on their
    error: fits as above, slopes times the root mean square of their monomial likewise, and the
    entries of $S^{-1}$, of which the leverage is one, to $\mathrm{tol} \sqrt{(S^{-1})_{aa}
    (S^{-1})_{bb}}$. Where the data barely determine a polynomial, it is recomputed.

    **Arguments:** `tol`: from 1e-12, below 1. Default 1e-6.

    **Raises:** `ValueError` if `tol` is another.

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
        """Returns the moments about each query up to `degree`, with bounds on their errors.

        If a mass is at most twice the bound on its error, the errors of that query are infinite,
        and its log-mass and means are 0.
        """
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

    def count_recomputed(
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
        `unsupported_reason` gives one, or if q, k or v has another shape than (n,) or (n, dim).
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
        """Returns the softmax state of each query without the sink, and whether it is certified.

        A certified error is within `tol`. Queries that are not certified get mass 1 and total 0.
        """
        values = Standardised.of(v, pair_mask_of(prior))
        sums, error = self._bounded_sums(q, k, values.z, (kernel, prior, rule))
        mass, total, error = sums[0, :, 0], sums[0, :, 1:], error[0]

        # what follows is constant: the certificate
        z = jax.lax.stop_gradient(mass)
        certified = z > 2.0 * error / self.tol
        z, error = jnp.where(certified, z, 1.0)[:, None], jnp.where(certified, error, 0.0)[:, None]
        ratio = jax.lax.stop_gradient(total) / z
        delta = (error / (z - error)) * (1 + jnp.abs(ratio))
        certified &= jnp.all(delta <= self.tol * values.error_scale(ratio), axis=1)
        total = values.centre[None, :] * mass[:, None] + values.unit[None, :] * total
        mass, total = jnp.where(certified, mass, 1.0), jnp.where(certified[:, None], total, 0.0)
        return SoftmaxState(jnp.zeros_like(mass), mass, total), certified

    def _bounded_sums(
        self, q: Array, k: Array, v: Float[Array, "keys dim_v"], parts: Parts, degree: int = 0
    ) -> tuple[Float[Array, "degrees queries width"], Float[Array, "degrees queries"]]:
        """Returns the weighted sums of u^a (1, v) for a up to `degree`, u = (k - q) / ℓ, and a
        bound on the error of all columns, without derivatives.

        ℓ² is the covariance of the kernel times the temperature. `v`: 0 for a hidden key.
        """
        kernel, prior, rule = parts
        assert isinstance(kernel, Gaussian)  # as unsupported_reason says
        assert isinstance(rule, Softmax)
        mask = pair_mask_of(prior)
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
    """Returns the number of queries whose Fourier sums are not certified, for checked arguments."""

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


def convolve(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    columns: Float[Array, "keys width"],
    covariance: Float[Array, "dim dim"],
    tol: float,
    degree: int = 0,
) -> tuple[Float[Array, "degrees queries width"], Float[Array, "degrees queries"]]:
    """Returns Σ_j u_j^a K(q, k_j) columns_j for each a up to `degree` and each query, and a bound
    on the error of each query.

    The bound is infinite for a non-finite query, and for all queries if a key is non-finite.

    `columns`: the first is 0 or 1 for each key. `covariance`: that of the Gaussian kernel K.
    `tol`: the relative error that the caller accepts; frequencies are cut off far below it.
    `degree`: above 0 in one dimension only, where u = (k_j - q) / ℓ with ℓ² the covariance.

    Aliasing turns c_m into c_m (1 + a(m)) with a small and smooth a, and rounding shifts points:
    both are errors of K near the diagonal, which grow with the mass there and not with n. By
    measurement they are less than `near` times $K^{1/4}$, a Gaussian of lengthscale 2 ℓ, whose sum
    over all keys is at most $2^d$ times the highest mass. The errors of u^a K are less than
    `ERROR_OF_DEGREE` times as large. Elsewhere the errors are rounding.
    """
    dim, width = k.shape[1], columns.shape[1]
    cut_at, accuracy = max(1e-9 * tol, 1e-15), max(1e-8 * tol, 1e-14)  # of tails; of transforms
    heaviest = jax.lax.stop_gradient(jnp.maximum(1.0, jnp.max(jnp.abs(columns))))
    # non-finite points are moved to the centre: their queries are not certified
    known_q, known_k = (jnp.all(jnp.isfinite(points), axis=1) for points in (q, k))
    both = jax.lax.stop_gradient(jnp.concatenate([q, k]))
    both_known = jnp.concatenate([known_q, known_k])[:, None]
    low = jnp.min(both, axis=0, initial=jnp.inf, where=both_known)
    high = jnp.max(both, axis=0, initial=-jnp.inf, where=both_known)
    middle = jnp.where(low <= high, 0.5 * low + 0.5 * high, 0.0)
    extent = jnp.maximum(high - low, 0.0)
    constant = jax.lax.stop_gradient(covariance)
    width_q = jnp.sqrt(jnp.diagonal(constant))
    width_frequency = jnp.sqrt(jnp.diagonal(jnp.linalg.inv(constant)))
    # one grid for all of a batch, so that one transform of the keys serves it: the period so long
    # that images of the kernel are out of reach, so many frequencies that more have no weight
    cut_at /= math.sqrt(-2.0 * math.log(cut_at)) ** degree  # the filters of moments grow as ω^a
    reach, image_reach = (math.sqrt(-2.0 * math.log(at)) for at in (cut_at, 1e-5 * cut_at))
    period = _max_over_batch(extent) + image_reach * _max_over_batch(width_q)
    spacing = 2.0 * jnp.pi / period
    needed = 2.0 * jnp.max(reach * _max_over_batch(width_frequency) / spacing) + 2.0
    sizes = _affordable_grid_sizes(dim, len(q) * len(k))
    level = jnp.minimum(jnp.sum(needed > jnp.asarray(sizes)), len(sizes) - 1)
    phase_q, phase_k = (
        jnp.where(known[:, None], points - middle[None, :], 0.0) * spacing[None, :]
        for points, known in ((q, known_q), (k, known_k))
    )

    # a pair of real columns makes one complex one, and so do their sums: K is real
    columns = jnp.pad(columns, ((0, 0), (0, width % 2)))
    packed = jax.lax.complex(columns[:, ::2], columns[:, 1::2]).T
    scaled = spacing[:, None] * covariance * spacing[None, :]

    def transform(
        size: int, q: Array, k: Array, packed: Array, scaled: Array
    ) -> tuple[Complex[Array, "degrees pairs queries"], Float[Array, "degrees pairs"]]:
        nufft1, nufft2 = _transforms()
        modes = nufft1((size,) * dim, packed, *k.T, iflag=-1, eps=accuracy)
        modes = modes * _coefficients(scaled, size)[None]
        modes = modes[None] if degree == 0 else _moment_modes(modes, scaled, degree)
        flat = modes.reshape(-1, *(size,) * dim)
        sums = nufft2(flat, *q.T, iflag=1, eps=accuracy).reshape(degree + 1, -1, q.shape[0])
        return sums, jnp.sum(jnp.abs(jax.lax.stop_gradient(modes)), axis=tuple(range(2, dim + 2)))

    on_grids = [functools.partial(transform, size) for size in sizes]
    sums, size_of_modes = jax.lax.switch(level, on_grids, phase_q, phase_k, packed, scaled)
    out = jnp.stack([sums.real, sums.imag], axis=2).reshape(degree + 1, -1, len(q))
    out = out[:, :width].swapaxes(1, 2)

    # the error, of every column: the largest of them
    eps = float(jnp.finfo(out.dtype).eps)
    size = jnp.asarray(sizes)[level]
    cut = (0.5 * size - 1) * spacing / width_frequency  # the last frequency, in its own unit
    beyond = jnp.stack([jnp.sum(_tail_of_filter(cut, a)) for a in range(degree + 1)])
    apart = jnp.min((2 * jnp.pi / spacing - extent) / width_q)
    images = 2 * dim * jnp.exp(-0.5 * apart**2) * apart ** jnp.arange(degree + 1)
    waves = jnp.sum(jnp.minimum(width_frequency / spacing, 0.5 * size))
    near = (4.0 * accuracy + 8.0 * eps * waves) * jnp.asarray(ERROR_OF_DEGREE[: degree + 1])
    total = jax.lax.stop_gradient(jnp.sum(jnp.abs(packed), axis=1))
    local = jnp.minimum(2.0**dim * heaviest * size_of_modes[0, 0], jnp.max(total))
    far = 8.0 * eps * (total[None, :] + size_of_modes)
    far = far + (beyond + 3.0 * images)[:, None] * total[None, :]
    error = (near * local + jnp.max(far, axis=1))[:, None]
    known = (known_q & jnp.all(known_k))[None, :] & jnp.isfinite(error)
    return out, jnp.where(known, error, jnp.inf)


def _moment_modes(
    modes: Complex[Array, "pairs size"], scaled: Float[Array, "1 1"], degree: int
) -> Complex[Array, "degrees pairs size"]:
    """Returns the modes of K times $i^a He_a$ for each a up to `degree`: those of u^a K.

    `scaled`: the squared lengthscale times the squared frequency spacing.
    """
    size = modes.shape[-1]
    frequency = jnp.arange(-(size // 2), (size + 1) // 2) * jnp.sqrt(scaled[0, 0])
    polynomials = [jnp.ones_like(frequency), frequency]
    for a in range(1, degree):
        polynomials.append(frequency * polynomials[a] - a * polynomials[a - 1])
    powers = [(1.0, 1.0j, -1.0, -1.0j)[a % 4] for a in range(degree + 1)]
    return jnp.stack([i * p[None, :] * modes for i, p in zip(powers, polynomials, strict=True)])


def _tail_of_filter(cut: Float[Array, " dim"], degree: int) -> Float[Array, " dim"]:
    r"""Returns a bound on $\int_{|\omega| > c} |He_a(\omega)| \phi(\omega)\, d\omega$, c = `cut`.

    Beyond the roots of $He_a$, a = `degree`, the integral is $2\, He_{a-1}(c)\, \phi(c)$.
    """
    if degree == 0:
        return erfc(cut / math.sqrt(2.0))
    beyond = 2.0 * cut ** (degree - 1) * jnp.exp(-0.5 * cut**2) / math.sqrt(2.0 * math.pi)
    return jnp.where(cut > 4.0, beyond, math.sqrt(math.factorial(degree)))


def _affordable_grid_sizes(dim: int, pairs: int) -> tuple[int, ...]:
    """Returns the grid sizes that cost no more than summing `pairs` pairs exactly.

    The smallest is always included. A grid size is a number of frequencies per dimension.
    """
    least, *more = GRID_SIZES[dim]
    return (least, *(size for size in more if PAIRS_PER_FREQUENCY[dim] * size**dim <= pairs))


@functools.cache
def _transforms() -> tuple[Callable, Callable]:
    """Returns `nufft1` and `nufft2` of jax-finufft, an optional package.

    The rule for `vmap` of jax-finufft up to 1.3.1 uses `batching.not_mapped`, which JAX 0.10
    removed (its issue 227). A private copy of its module gets this name: the module that others
    import, and the primitives that it registers, stay as they are.
    """
    from jax_finufft import ops  # noqa: PLC0415

    if not hasattr(ops.batching, "not_mapped"):
        spec: Any = importlib.util.find_spec("jax_finufft.ops")
        ops = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(ops)
        vars(ops)["batching"] = types.SimpleNamespace(not_mapped=None, moveaxis=jnp.moveaxis)
    return ops.nufft1, ops.nufft2


@functools.partial(jax.checkpoint, static_argnums=1)  # cheaper to form anew than to keep
def _coefficients(scaled: Float[Array, "dim dim"], size: int) -> Float[Array, "..."]:
    """Returns the Fourier coefficients c_m of the kernel on a grid of `size` frequencies per axis.

    `scaled`: the covariance times the frequency spacings, G. The coefficient of m = -size / 2,
    whose opposite frequency is not on the grid, is 0.
    """
    dim = len(scaled)
    m = jnp.arange(-(size // 2), (size + 1) // 2).astype(scaled.dtype)
    axes = [m.reshape((1,) * c + (-1,) + (1,) * (dim - 1 - c)) for c in range(dim)]
    pairs = itertools.product(range(dim), repeat=2)
    form = sum(scaled[c, e] * (axes[c] * axes[e]) for c, e in pairs)
    partner = functools.reduce(operator.and_, (axis > -size / 2 for axis in axes))
    weights = jnp.exp(-0.5 * form) * jnp.sqrt(jnp.linalg.det(scaled) / (2 * jnp.pi) ** dim)
    return jnp.where(partner, weights, 0.0)
