r"""Fourier summation: a Gaussian kernel is a short sum of plane waves, and all pairs factorise.

With spacing $\eta$ of the frequencies and covariance Σ of the kernel (ℓ² times the inverse metric),

$$ K(q, k) = \sum_{m \in \mathbb{Z}^d} c_m\, e^{i \eta m \cdot (q - k)} - \text{images}, \qquad
   c_m = (2\pi)^{-d/2} \det(G)^{1/2} e^{-m^\top G m / 2}, \quad G = \eta \Sigma \eta, $$

so that $\sum_j K(q, k_j) v_j$ is one nonuniform FFT of the keys (type 1), a product with c, and
one at the queries (type 2): Greengard and Strain, *The fast Gauss transform* (1991); Barnett,
Magland and af Klinteberg, *A parallel nonuniform fast Fourier transform library* (2019). Every
error is bounded, query by query; where the bound is not good enough, the sum is formed exactly.
"""

import functools
import importlib.util
import math
import types
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import erfc
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Complex, Float, Int

from .._checks import as_points
from .._rules import Rule, Softmax
from ..kernels import Gaussian, Kernel
from ..priors import Prior
from ._base import Method, Task, key_mask
from ._blocks import for_any
from ._blockwise import Blockwise
from ._moments import Moments

# frequencies per dimension that there are programs for: the least that suffice are used
_SIZES = {
    1: (1024, 16384, 262144),
    2: (128, 384, 1024),
    3: (32, 64, 96, 128),
}
_PAIRS = {1: 1, 2: 100, 3: 300}  # that are summed exactly in the time of one frequency
_ROWS = 32  # queries that are recomputed at a time


class Fourier(Method):
    r"""Sums of a Gaussian kernel by nonuniform FFT, certified to a relative error of `tol`.

    Takes a `Gaussian` in up to three dimensions (one lengthscale, one per dimension or a full
    metric), in float64 on CPU, at any temperature; of priors, `HeldOut` and `LeaveOneOut`. It costs
    $O\big((n + m) \log 1/\mathrm{tol} + M \log M\big)$ for M frequencies, of which there are about
    (range of x / ℓ)^d. Needs the package jax-finufft: `pip install "attnkernel[fourier]"`.

    Let E be a bound on the error of the sums (of the transforms, of the frequencies cut off, of
    the periodic images), δ that on a prediction that follows from it. A query counts as certified
    where its mass has a relative error of at most tol, and

    $$ \delta \le \mathrm{tol} \max\big(\min(|\hat f|, |\hat f - \bar v|),\, g / 1000\big) $$

    with $\bar v$ the mean of the values and g the geometric mean of $|v - \bar v|$: relative to the
    prediction, wherever that may have its zero; a thousandth of a typical value next to a zero.
    Every other query is recomputed by `Blockwise`; `recomputed` says how many. One transform of the
    keys serves all lengthscales of a `vmap`, and all columns of v. Derivatives of every order are
    those of the sums.

    **Arguments:** `tol`: from 1e-12. Default 1e-6.
    """

    tol: float = eqx.field(default=1e-6, static=True)

    def __check_init__(self):
        if not (isinstance(self.tol, float | int) and 1e-12 <= self.tol < 1):
            raise ValueError(f"tol must be a number from 1e-12 to 1; got {self.tol!r}.")

    def refusal(self, task: Task) -> str | None:
        if type(task.kernel) is not Gaussian:
            return f"it sums a Gaussian kernel alone, not {type(task.kernel).__name__}"
        if not 1 <= task.dim <= 3:
            return f"it takes 1 to 3 dimensions, not {task.dim}"
        if task.dtype != jnp.float64:
            return f"{jnp.dtype(task.dtype).name} is too coarse to certify; use float64"
        if type(task.rule) is not Softmax:
            return f"it takes the rule Softmax, not {type(task.rule).__name__}"
        if (reason := key_mask(task.prior).refusal) is not None:
            return reason
        if jax.default_backend() != "cpu":
            return f"it runs on CPU, and the default device is {jax.default_backend()}"
        if importlib.util.find_spec("jax_finufft") is None:
            return 'it needs jax-finufft: pip install "attnkernel[fourier]"'
        return None

    def moments(
        self,
        q: Float[Array, "queries dim"],
        k: Float[Array, "keys dim"],
        v: Float[Array, "keys dim_v"],
        kernel: Kernel,
        prior: Prior | None,
        rule: Rule,
    ) -> Moments:
        if q.shape[0] == 0 or k.shape[0] == 0:
            return Blockwise().moments(q, k, v, kernel, prior, rule)
        sums = self._sums(q, k, v, kernel, prior, rule)
        ours = Moments(jnp.zeros_like(sums.mass), sums.mass, sums.total)
        ours = ours.with_sink(rule.log_sink())
        exact = _exactly(~sums.certified, q, k, v, (kernel, prior, rule))
        return Moments(
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

        Arguments as for `attend`, without batch axes. **Raises:** `ValueError` where `refusal` says
        that this method does not take them.
        """
        q, k, v = as_points("q", q), as_points("k", k), as_points("v", v)
        keys, dim = k.shape
        dtype = jnp.result_type(q, k, v)
        task = Task(kernel, prior, rule, len(q), keys, dim, v.shape[1], dtype)
        if (reason := self.refusal(task)) is not None:
            raise ValueError(f"Fourier cannot evaluate this: {reason}")
        return jnp.sum(~self._sums(q, k, v, kernel, prior, rule).certified)

    def _sums(
        self, q: Array, k: Array, v: Array, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> "Sums":
        assert isinstance(kernel, Gaussian)  # as refusal says
        assert isinstance(rule, Softmax)
        covariance = _covariance(kernel, k.shape[1]) * rule.temperature
        mask = key_mask(prior)
        seen = jnp.ones(k.shape[0], v.dtype) if mask.seen is None else mask.seen.astype(v.dtype)
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
        sums, error = _convolve(q, k, columns, covariance, max(1e-9 * self.tol, 1e-15))
        if mask.leaves_out:
            own = min(len(q), len(k))
            weight = jnp.exp(rule.log_weights(jax.vmap(kernel.log_pair)(q[:own], k[:own])[:, None]))
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
        return Sums(
            jnp.where(certified, mass, 1.0), jnp.where(certified[:, None], total, 0.0), certified
        )


class Sums(NamedTuple):
    """Mass and total of every query, and whether its error is known to be small."""

    mass: Float[Array, " queries"]
    total: Float[Array, "queries dim_v"]
    certified: Bool[Array, " queries"]


def _sizes(dim: int, pairs: int) -> tuple[int, ...]:
    """The numbers of frequencies, per dimension, that take no longer than the pairs would."""
    least, *more = _SIZES[dim]
    return (least, *(size for size in more if _PAIRS[dim] * size**dim <= pairs))


def _covariance(kernel: Gaussian, dim: int) -> Float[Array, "dim dim"]:
    """Σ = ℓ² M⁻¹, of exp(-½ (q - k)ᵀ Σ⁻¹ (q - k))."""
    kernel._require_dimensions(dim)
    lengthscale = jnp.broadcast_to(kernel.lengthscale, (dim,))
    inverse = jnp.eye(dim, dtype=lengthscale.dtype)
    if kernel.metric_factor is not None:
        half = jnp.linalg.inv(kernel.metric_factor)
        inverse = jnp.matmul(half, half.T, precision=jax.lax.Precision.HIGHEST)
    return inverse * lengthscale[:, None] * lengthscale[None, :]


def _convolve(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    columns: Float[Array, "keys width"],
    covariance: Float[Array, "dim dim"],
    accuracy: float,
) -> tuple[Float[Array, "queries width"], Float[Array, " queries"]]:
    """Σ_j K(q, k_j) columns_j, and a bound on the error of every one of these sums."""
    dim, width = k.shape[1], columns.shape[1]
    # a point that is no number stands in the middle: its query is not certified
    known_q, known_k = (jnp.all(jnp.isfinite(points), axis=1) for points in (q, k))
    both = jnp.concatenate([q, k])
    both_known = jnp.concatenate([known_q, known_k])[:, None]
    low, high = (
        jax.lax.stop_gradient(edge)
        for edge in (
            jnp.min(both, axis=0, initial=jnp.inf, where=both_known),
            jnp.max(both, axis=0, initial=-jnp.inf, where=both_known),
        )
    )
    middle = jnp.where(low <= high, 0.5 * low + 0.5 * high, 0.0)
    extent = jnp.maximum(high - low, 0.0)
    constant = jax.lax.stop_gradient(covariance)
    width_q = jnp.sqrt(jnp.diagonal(constant))
    width_frequency = jnp.sqrt(jnp.diagonal(jnp.linalg.inv(constant)))
    # one grid for all of a batch, so that one transform of the keys serves it: the period so long
    # that images of the kernel are out of reach, so many frequencies that more have no weight
    reach = math.sqrt(-2.0 * math.log(accuracy))  # there a Gaussian is no more than `accuracy`
    period = _largest(extent) + reach * _largest(width_q)
    spacing = 2.0 * jnp.pi / period
    needed = 2.0 * jnp.max(reach * _largest(width_frequency) / spacing) + 2.0
    sizes = _sizes(dim, len(q) * len(k))
    level = jnp.minimum(jnp.sum(needed > jnp.asarray(sizes)), len(sizes) - 1)
    phase_q, phase_k = (
        jnp.where(known[:, None], points - middle[None, :], 0.0) * spacing[None, :]
        for points, known in ((q, known_q), (k, known_k))
    )

    # a pair of real columns makes one complex one, and so do their sums: K is real
    columns = jnp.pad(columns, ((0, 0), (0, width % 2)))
    packed = jax.lax.complex(columns[:, ::2], columns[:, 1::2]).T
    scaled = spacing[:, None] * covariance * spacing[None, :]

    def of_size(size: int):
        def transform(
            q: Array, k: Array, packed: Array, scaled: Array
        ) -> tuple[Complex[Array, "pairs queries"], Float[Array, " pairs"]]:
            nufft1, nufft2 = _transforms()
            modes = nufft1((size,) * dim, packed, *k.T, iflag=-1, eps=accuracy)
            modes = modes * _coefficients(scaled, size)[None]
            sums = nufft2(modes, *q.T, iflag=1, eps=accuracy)
            size_of_modes = jax.lax.stop_gradient(
                jnp.sum(jnp.abs(modes), axis=tuple(range(1, dim + 1)))
            )
            return sums, size_of_modes

        return transform

    sums, size_of_modes = jax.lax.switch(
        level, [of_size(size) for size in sizes], phase_q, phase_k, packed, scaled
    )
    out = jnp.stack([sums.real, sums.imag], axis=1).reshape(-1, len(q))[:width].T

    # the error, of every column: the largest of them
    eps = float(jnp.finfo(out.dtype).eps)
    size = jnp.asarray(sizes)[level]
    cut = (0.5 * size - 1) * spacing / width_frequency  # the last frequency, in its own unit
    beyond = jnp.sum(erfc(cut / math.sqrt(2.0)))
    images = 2 * dim * jnp.exp(-0.5 * jnp.min((2 * jnp.pi / spacing - extent) / width_q) ** 2)
    waves = jnp.sum(jnp.minimum(width_frequency / spacing, 0.5 * size))
    each = 20.0 * accuracy + 8.0 * eps * waves  # of one wave, by measurement with room
    total = jax.lax.stop_gradient(jnp.sum(jnp.abs(packed), axis=1))
    error = jnp.max(each * (total + size_of_modes) + (beyond + 3.0 * images) * total)
    known = known_q & jnp.all(known_k) & jnp.isfinite(error)
    return out, jnp.where(known, error, jnp.inf)


def _transforms() -> tuple[Callable, Callable]:
    """The two transforms of jax-finufft, an optional package."""
    from jax_finufft import nufft1, nufft2, ops  # noqa: PLC0415

    if not hasattr(ops.batching, "not_mapped"):
        # its rule for vmap, up to 1.3.1, names what JAX 0.10 took away: its issue 227
        ops.batching = types.SimpleNamespace(not_mapped=None, moveaxis=jnp.moveaxis)
    return nufft1, nufft2


@functools.partial(jax.checkpoint, static_argnums=1)  # cheaper to form anew than to keep
def _coefficients(scaled: Float[Array, "dim dim"], size: int) -> Float[Array, "..."]:
    """c_m for |m_i| <= size / 2; that of m = -size / 2, which has no partner, is 0."""
    dim = len(scaled)
    m = jnp.arange(-(size // 2), (size + 1) // 2).astype(scaled.dtype)
    axes = [m.reshape((1,) * c + (-1,) + (1,) * (dim - 1 - c)) for c in range(dim)]
    form = jnp.zeros((size,) * dim, scaled.dtype)
    for c in range(dim):
        for e in range(c, dim):
            form = form + (1.0 if c == e else 2.0) * scaled[c, e] * (axes[c] * axes[e])
    partner = jnp.ones((size,) * dim, bool)
    for c in range(dim):
        partner = partner & (axes[c] > -size / 2)
    weights = jnp.exp(-0.5 * form) * jnp.sqrt(jnp.linalg.det(scaled) / (2 * jnp.pi) ** dim)
    return jnp.where(partner, weights, 0.0)


@jax.custom_batching.custom_vmap
def _largest_bits(bits: Int[Array, " dim"]) -> Int[Array, " dim"]:
    return bits


@_largest_bits.def_vmap
def _(size: int, batched: list[bool], bits: Int[Array, "batch dim"]) -> tuple[Array, bool]:
    return _largest_bits(jnp.max(bits, axis=0)), False


def _largest(positive: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """The largest of a batch, the same for all of it, and constant to derivatives.

    As bits, in the order of which positive numbers are: integers have no derivatives.
    """
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(positive), jnp.int64)
    return jax.lax.bitcast_convert_type(_largest_bits(bits), positive.dtype)


class _Reordered(Prior):
    """A prior on rows and columns in another order."""

    prior: Prior
    rows: Int[Array, " rows"]
    columns: Int[Array, " keys"]

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        return self.prior.log_pair(self.rows[i], self.columns[j])


def _exactly(
    wanted: Bool[Array, " queries"],
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    v: Float[Array, "keys dim_v"],
    parts: tuple[Kernel, Prior | None, Rule],
) -> Moments:
    """Moments of the wanted queries by `Blockwise`; of others, none.

    Both sides are sorted by the first coordinate, so that blocks far from each other are skipped.
    """
    kernel, prior, rule = parts
    queries, dim_v = len(q), v.shape[1]
    rows = min(_ROWS, queries)
    steps = -(-queries // rows)

    def some() -> tuple[Array, Array, Array]:
        columns = jnp.argsort(jax.lax.stop_gradient(k[:, 0]))
        order = jnp.lexsort((jax.lax.stop_gradient(q[:, 0]), ~wanted))  # in front those wanted
        number = jnp.sum(wanted)
        places = jnp.arange(steps * rows)
        chosen = order[jnp.minimum(places, number - 1).clip(0)].reshape(steps, rows)
        keys, values = k[columns], v[columns]

        def of_rows(chosen: Array) -> tuple[Array, Array, Array]:
            moved = None if prior is None else _Reordered(prior, chosen, columns)
            part = Blockwise().moments(q[chosen], keys, values, kernel, moved, rule)
            return part.maximum, part.mass, part.total

        # computed anew by derivatives: a choice would keep all that it reads, for every step
        @functools.partial(jax.checkpoint, prevent_cse=False)
        def step(first: Array, chosen: Array) -> tuple[Array, tuple[Array, Array, Array]]:
            none = (
                jnp.zeros(rows, v.dtype),
                jnp.zeros(rows, v.dtype),
                jnp.zeros((rows, dim_v), v.dtype),
            )
            out = jax.lax.cond(for_any(first < number), lambda: of_rows(chosen), lambda: none)
            return first + rows, out

        out = jax.lax.scan(step, jnp.zeros((), number.dtype), chosen)[1]
        places = jnp.where(places < number, order[places.clip(0, queries - 1)], queries)
        return jax.tree.map(
            lambda leaf: (
                jnp.zeros((queries, *leaf.shape[2:]), leaf.dtype)
                .at[places]
                .set(leaf.reshape(-1, *leaf.shape[2:]), mode="drop")
            ),
            out,
        )

    def nothing() -> tuple[Array, Array, Array]:
        zeros = jnp.zeros(queries, v.dtype)
        return zeros, zeros, jnp.zeros((queries, dim_v), v.dtype)

    return Moments(*jax.lax.cond(for_any(jnp.any(wanted)), some, nothing))
