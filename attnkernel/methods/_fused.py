r"""Sums by the kernels of accelerators, which keep no weight in memory.

In half precision those of cuDNN and of JAX for TPUs sum softmaxes of products. A Gaussian is one:
with points u in lengthscales from a common centre,

$$ -\tfrac12 \|u_q - u_k\|^2 = -\tfrac12 \|u_q\|^2 + (u_q, 1) \cdot (u_k, -\tfrac12 \|u_k\|^2) $$

where the first term is the query's own and comes back into the log-mass. The feature of the key is
the sum of three numbers of half precision, so that it loses nothing, and holds what the prior says
of the key as well.
"""

import functools
import importlib.util
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from .._core.arrays import as_float_dtype
from .._core.symbolic_sizes import NO_SYMBOLIC_SIZES, is_symbolic
from .._core.validation import require_choice
from ..kernels import DotProduct, Gaussian, Kernel, Laplace, Matern32, Matern52
from ..kernels._features import in_units
from ..priors import Prior
from ..priors._base import key_mask_of
from ..rules import Rule, Softmax
from ._base import Method, Task, mask_unsupported_reason
from ._blocks import derivative
from ._blockwise import Blockwise, sums_at
from ._softmax_state import SoftmaxState

_HALF = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
_RADIAL = (Gaussian, Laplace, Matern32, Matern52)
_MOST = 128  # columns of a head that every GPU of cuDNN takes
_PARTS = 3  # numbers of half precision that make one of single precision
_LEVER = 128.0  # what they are times, for float16 ends at 65504


class Fused(Method):
    r"""One kernel of the accelerator for the whole sum: O(n + m) memory, and no pass over it twice.

    In half precision, on NVIDIA's GPUs (cuDNN) and on TPUs (JAX's splash attention), of `Gaussian`
    and `DotProduct`; in float32, on NVIDIA's GPUs, by a kernel of our own, of `Gaussian`, `Laplace`
    and `Matern`. Takes the rule `Softmax`, and the priors `HeldOut` and `Causal()`, also joined.

    Products of half precision are off by up to $2 \varepsilon |u_q| |u_k|$ in a log-weight, with u
    the points in lengthscales from the mean of the keys (of `DotProduct`, the points), and
    values by ε; ε is 2⁻⁹ for bfloat16 and 2⁻¹² for float16, which holds values up to 65504 only,
    and of the Gaussian points up to 2000 lengthscales from that mean.
    Float32 is float32, differences first. `Auto` never takes this method: its parts are checked
    step by step and lowered for each platform, but it was not timed on any. JAX from 0.11 on warns
    that Triton, of which our own kernel is made, will leave it.

    Derivatives: of float32 and on TPUs all, by `Blockwise`'s recomputation; of cuDNN its own, that
    is gradients alone, and of these the first.

    **Arguments:**

    - `dtype`: of the products. Default None: that of q, k and v; it is never less than theirs
      unless named here.
    - `platform`: "cuda" or "tpu". Default None: that of JAX's default device. To name one lowers
      for it on any machine, by `jax.export`.

    **Raises:** `ValueError` if `dtype` or `platform` is another.
    """

    dtype: Any = eqx.field(static=True)
    platform: str | None = eqx.field(static=True)

    def __init__(
        self,
        dtype: DTypeLike | None = None,
        *,
        platform: str | None = None,
    ):
        if dtype is not None and as_float_dtype("dtype", dtype) not in (*_HALF, jnp.float32):
            raise ValueError(f"dtype must be bfloat16, float16, float32 or None; got {dtype!r}.")
        if platform is not None:
            require_choice("platform", platform, ("cuda", "tpu"))
        self.dtype = None if dtype is None else jnp.dtype(dtype)
        self.platform = platform

    def unsupported_reason(self, task: Task) -> str | None:
        if is_symbolic(task.queries, task.keys):
            return NO_SYMBOLIC_SIZES
        platform, dtype = _platform(self.platform), self._dtype(task)
        if platform not in ("cuda", "tpu"):
            return (
                f"it runs on NVIDIA's GPUs and on TPUs, and the default device is a {platform}: "
                f"use ak.Blockwise(), or name the platform that it is lowered for"
            )
        if dtype == jnp.float64:
            return "accelerators sum no float64; use ak.Blockwise()"
        half = dtype in _HALF
        if dtype != jnp.bfloat16 and platform == "tpu":
            return (
                f"on TPUs it takes bfloat16, not {dtype.name}: give such arrays, or "
                f"dtype=jnp.bfloat16 where the loss of digits is known to be harmless"
            )
        if not half and importlib.util.find_spec("jax.experimental.pallas.triton") is None:
            return "this version of JAX lowers no Triton; in float32 use ak.Blockwise()"
        known = (Gaussian, DotProduct) if half else _RADIAL
        if type(task.kernel) not in known:
            names = ", ".join(kernel.__name__ for kernel in known)
            return f"in {dtype.name} it takes the kernels {names}; got {type(task.kernel).__name__}"
        if type(task.rule) is not Softmax:
            return f"it takes the rule Softmax; got {type(task.rule).__name__}"
        if (reason := mask_unsupported_reason(task.prior, is_causal=True)) is not None:
            return reason
        columns = max(task.dim + _PARTS, task.dim_v)
        if half and columns > _MOST:
            return f"heads have up to {_MOST} columns, {_PARTS} of them its own; got {columns}"
        return None

    def resolve(self, task: Task) -> "Fused":
        return Fused(self._dtype(task), platform=_platform(self.platform))

    def _dtype(self, task: Task) -> np.dtype:
        return jnp.dtype(task.input_dtype) if self.dtype is None else self.dtype

    def softmax_state(
        self,
        q: Float[Array, "queries dim"],
        k: Float[Array, "keys dim"],
        v: Float[Array, "keys dim_v"],
        kernel: Kernel,
        prior: Prior | None,
        rule: Rule,
    ) -> SoftmaxState:
        assert isinstance(rule, Softmax)  # as unsupported_reason says
        if len(q) == 0 or len(k) == 0:
            return Blockwise().softmax_state(q, k, v, kernel, prior, rule)
        if self.dtype in _HALF and self.platform == "cuda":
            shift, sums = _by_cudnn(q, k, v, (kernel, prior, rule), self.dtype)
        else:
            values = jnp.concatenate([v, jnp.ones((len(v), 1), v.dtype)], axis=1)
            shift, sums = _sums(q, k, values, (kernel, prior, rule), self.dtype)
        return SoftmaxState(shift, sums[:, -1], sums[:, :-1]).with_sink(rule.log_sink())


def _platform(named: str | None) -> str:
    found = jax.default_backend() if named is None else named
    return "cuda" if found == "gpu" else found


@eqx.filter_custom_jvp
def _sums(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    values: Float[Array, "keys width"],
    parts: Any,
    dtype: Any,
) -> tuple[Float[Array, " queries"], Float[Array, "queries width"]]:
    """L = log Z and Σ exp(s − L) v, of values whose last is 1. 0 for an empty row."""
    kernel, prior, rule = parts
    if dtype in _HALF:
        return _by_splash(q, k, values[:, :-1], parts, dtype)
    from . import _pallas  # noqa: PLC0415  it takes long to import, and GPUs alone want it

    mask, inverse_temperature = key_mask_of(prior), 1.0 / rule.temperature
    log_prior = jnp.zeros(len(k), k.dtype)
    if mask.allowed is not None:
        log_prior = jnp.where(mask.allowed, log_prior, -jnp.inf)
    inverse = jnp.broadcast_to(jnp.exp(-kernel.log_lengthscale), q.shape[1:])
    if kernel.metric_factor is not None:
        centre = _centre(k)
        q, k = (_product(points - centre, kernel.metric_factor.T) for points in (q, k))
    values = values[:, :-1]
    options: dict[str, bool] = {"causal": mask.is_causal, "interpret": _INTERPRET}
    return _pallas.sums(kernel, q, k, values, inverse, log_prior, inverse_temperature, **options)


_INTERPRET = False  # True in tests: our own kernel, step by step on any device


@_sums.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[tuple[Array, Array], tuple[None, Array]]:
    out = _sums(*primals)

    def sums(q: Array, k: Array, values: Array, parts: Any, _: Any) -> Array:
        sizes = min(len(q), 1024), min(len(k), 1024)
        return sums_at(q, k, values, q[:, :0], parts, sizes, out[0])

    return out, (None, derivative(sums, primals, tangents))


_product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def _centre(points: Float[Array, "points dim"]) -> Float[Array, "1 dim"]:
    return jax.lax.stop_gradient(jnp.mean(points, axis=0, keepdims=True))


class _Features(NamedTuple):
    """Scores as products, up to a number of each query; and what a hidden key is given."""

    q: Float[Array, "queries head"]
    k: Float[Array, "keys head"]
    v: Float[Array, "keys head"]
    own: Float[Array, " queries"]
    hidden: float


def _features(q: Array, k: Array, v: Array, parts: Any, dtype: Any, whole: int) -> _Features:
    """Rows and columns are filled up to multiples of `whole`; keys that fill are hidden."""
    kernel, prior, rule = parts
    if isinstance(kernel, Gaussian):
        centre = _centre(k)
        q, k = in_units(kernel, q - centre, k - centre, rule.temperature)
        own, bias = (-0.5 * jnp.sum(points**2, axis=1) for points in (q, k))
    else:
        q, k = in_units(kernel, q, k, rule.temperature)
        own, bias = jnp.zeros(len(q), q.dtype), jnp.zeros(len(k), k.dtype)
    seen = key_mask_of(prior).allowed
    seen = jnp.ones(len(k), bool) if seen is None else seen
    seen, bias = (jnp.pad(x, (0, -len(k) % whole)) for x in (seen, bias))
    # so low that its weight is 0, and so high that differences of two do not overflow
    hidden = -(2.0**15) if dtype == jnp.float16 else -(2.0**34)
    bias = jnp.maximum(bias / _LEVER, hidden)
    of_bias = []
    for i in range(_PARTS):
        rounded = bias.astype(dtype).astype(bias.dtype)
        bias = bias - rounded
        of_bias.append(jnp.where(seen, rounded, 0.0 if i else hidden)[:, None])
    head = -(-max(q.shape[1] + _PARTS, v.shape[1]) // whole) * whole

    def filled(rows: Array, *more: Array) -> Array:
        rows = jnp.pad(rows, ((0, -len(rows) % whole), (0, 0)))
        rows = jnp.concatenate([rows, *more], axis=1)
        return jnp.pad(rows, ((0, 0), (0, head - rows.shape[1]))).astype(dtype)

    lever = jnp.full((len(q) + -len(q) % whole, _PARTS), _LEVER, q.dtype)
    return _Features(filled(q, lever), filled(k, *of_bias), filled(v), own, hidden * _LEVER)


def _by_cudnn(
    q: Array, k: Array, v: Array, parts: Any, dtype: Any
) -> tuple[Float[Array, " queries"], Float[Array, "queries width"]]:
    """L and Σ exp(s − L) (v, 1), of gradients that are cuDNN's."""
    features = _features(q, k, v, parts, dtype, 8)
    call = functools.partial(_cudnn, causal=key_mask_of(parts[1]).is_causal)
    out, raw = call(features.q, features.k, features.v)
    # cuDNN has no gradient of the log-mass: it is the mean slope of the scores, at weights as found
    fixed_q, fixed_k = map(jax.lax.stop_gradient, (features.q, features.k))
    mean_key, _ = call(fixed_q, fixed_k, features.k)
    slope = jnp.sum(features.q.astype(q.dtype) * mean_key.astype(q.dtype), axis=1)
    raw = jax.lax.stop_gradient(raw.astype(q.dtype))
    return _seen(features, raw + slope - jax.lax.stop_gradient(slope), raw, out, v)


def _seen(
    features: _Features, log_mass: Array, raw: Array, out: Array, v: Array
) -> tuple[Float[Array, " queries"], Float[Array, "queries width"]]:
    """What came out of features: 0 for a query whose every key is hidden."""
    queries = len(features.own)
    some = raw[:queries] > 0.5 * features.hidden
    total = jnp.where(some[:, None], out[:queries, : v.shape[1]].astype(v.dtype), 0.0)
    shift = jnp.where(some, log_mass[:queries] + features.own, 0.0)
    return shift, jnp.concatenate([total, some.astype(v.dtype)[:, None]], axis=1)


def _cudnn(q: Array, k: Array, v: Array, *, causal: bool) -> tuple[Array, Array]:
    """Of one head: the values, and the log-mass of the products."""
    # under `vmap`, batched all or none, as JAX's rule for cuDNN takes for granted until 0.10
    never = jnp.any(jnp.stack([jnp.isnan(x[0, 0]) for x in (q, k, v)])) & False
    q, k, v = (jnp.where(never, 0, x) for x in (q, k, v))
    out, log_mass = jax.nn.dot_product_attention(
        q[:, None, :],
        k[:, None, :],
        v[:, None, :],
        scale=1.0,
        is_causal=causal,
        implementation="cudnn",
        return_residual=True,
    )
    return out[:, 0], log_mass[:, 0]


def _by_splash(
    q: Array, k: Array, v: Array, parts: Any, dtype: Any
) -> tuple[Float[Array, " queries"], Float[Array, "queries width"]]:
    """L and Σ exp(s − L) (v, 1), on TPUs."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (  # noqa: PLC0415  of TPUs alone
        splash_attention_kernel as splash,
        splash_attention_mask as masks,
    )

    features = _features(q, k, v, parts, dtype, 128)
    shape = len(features.q), len(features.k)
    mask = masks.CausalMask(shape) if key_mask_of(parts[1]).is_causal else masks.FullMask(shape)
    program = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask]), save_residuals=True, interpret=_INTERPRET
    )
    out, (raw,) = program(features.q[None], features.k[None], features.v[None])
    raw = raw[0].astype(q.dtype)
    return _seen(features, raw, raw, out[0], v)
