r"""Sums in half precision by the kernels of accelerators, which keep no weight in memory.

They compute softmaxes of inner products, by cuDNN on GPUs and by splash attention on TPUs.

A Gaussian kernel gives such a softmax: with points u in lengthscales from a common centre,

$$ -\tfrac12 \|u_q - u_k\|^2 = -\tfrac12 \|u_q\|^2 + (u_q, 1) \cdot (u_k, -\tfrac12 \|u_k\|^2) $$

The first term depends on the query alone, and is added to the log-mass. The last term is the bias
of a key. For cuDNN a hidden key has a very low bias in place of log 0. A bias is held as a sum of
three half-precision numbers, which keeps its digits. Dot products without hidden keys need no bias.
Splash attention hides keys by the numbers of segments.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from .._core.arrays import as_float_dtype
from .._core.parameters import Constant
from .._core.tracing import NO_SYMBOLIC_SIZES, is_symbolic
from .._core.validation import require_bool, require_choice
from ..kernels import DotProduct, Gaussian, Kernel, SoftCapped, in_units
from ..priors import PairMask, Prior, pair_mask_of
from ..rules import Rule, Softmax
from ._base import MAX_BLOCK_ROWS, Keys, Method, Queries, Task, Values, mask_unsupported_reason
from ._blockwise import sums_at_shift
from ._softmax_state import SoftmaxState

HALF_DTYPES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))

Sums = tuple[Float[Array, " queries"], Float[Array, "queries width"]]


class Fused(Method):
    r"""Evaluates the whole sum by one kernel of the accelerator, in one pass and O(n + m) memory.

    In half precision, on NVIDIA's GPUs by cuDNN, and on TPUs by JAX's splash attention. Takes the
    kernels `Gaussian` and `DotProduct`, the rule `Softmax`, and the priors `HeldOut`, `Causal()`
    and `Window`, also joined; cuDNN has windows to the left alone. On TPUs it also takes
    `Segments`, and `SoftCapped(DotProduct(), ak.fixed(c))`. Blocks outside a window or above the
    diagonal cost nothing. Heads have up to 128 columns; three of them hold biases where the kernel
    is a Gaussian, and on GPUs where keys are held out.

    Heads of queries that share keys and values read the same ones on TPUs; on GPUs each
    gets a copy.

    Log-weights are off by up to $2 \varepsilon |u_q| |u_k|$, with u the points in lengthscales from
    the mean of the keys (of `DotProduct`, the points), and values by ε; ε is 2⁻⁹ for bfloat16 and
    2⁻¹² for float16, which holds values up to 65504 only, and of the Gaussian points up to 2000
    lengthscales from that mean.

    `Auto` never takes this method: its parts are checked step by step and lowered for each
    platform, but it was not timed on any.

    Derivatives: on TPUs all, by `Blockwise`'s recomputation; on GPUs those of cuDNN, which are
    gradients of first order alone. Without columns of biases, JAX takes gradients of cuDNN for even
    numbers of queries and of keys alone.

    **Arguments:**

    - `dtype`: of the products: bfloat16, or on GPUs float16. Default None: that of q, k and v.
      Inputs of higher precision are rounded only if a dtype is named here, and refused otherwise.
    - `platform`: "cuda" or "tpu". Default None: that of JAX's default device. To name one lowers
      for it on any machine, by `jax.export`.
    - `interpret`: whether splash attention is interpreted, on any device, to test it. Default: no.

    **Raises:** `ValueError` if `dtype`, `platform` or `interpret` is another.

    ```python
    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    method = ak.methods.Fused("bfloat16", platform="tpu", interpret=True)
    out = ak.attend(x, x, x, kernel=ak.Gaussian(0.3), method=method)
    assert jnp.allclose(out, ak.attend(x, x, x, kernel=ak.Gaussian(0.3)), atol=1e-2)
    ```
    """

    dtype: Any = eqx.field(static=True)
    platform: str | None = eqx.field(static=True)
    interpret: bool = eqx.field(static=True)

    def __init__(
        self,
        dtype: DTypeLike | None = None,
        *,
        platform: str | None = None,
        interpret: bool = False,
    ):
        require_bool("interpret", interpret)
        if dtype is not None and as_float_dtype("dtype", dtype) not in HALF_DTYPES:
            raise ValueError(f"dtype must be bfloat16, float16 or None; got {dtype!r}.")
        if platform is not None:
            require_choice("platform", platform, ("cuda", "tpu"))
        self.dtype = None if dtype is None else jnp.dtype(dtype)
        self.platform, self.interpret = platform, interpret

    def unsupported_reason(self, task: Task) -> str | None:
        if is_symbolic(task.queries, task.keys):
            return NO_SYMBOLIC_SIZES
        platform, dtype = _resolved_platform(self.platform), self._resolved_dtype(task)
        if platform not in ("cuda", "tpu"):
            return (
                f"it runs on NVIDIA's GPUs and on TPUs, and the default device is a {platform}: "
                f"use ak.methods.Blockwise(), or name the platform that it is lowered for"
            )
        if dtype not in HALF_DTYPES or (dtype != jnp.bfloat16 and platform == "tpu"):
            taken = "bfloat16" if platform == "tpu" else "bfloat16 and float16"
            return (
                f"it takes {taken}, not {dtype.name}: use ak.methods.Blockwise(), or "
                f"dtype=jnp.bfloat16 where the loss of digits is known to be harmless"
            )
        is_cudnn = platform == "cuda"
        capped = not is_cudnn and _is_capped(task.kernel)
        if type(task.kernel) not in (Gaussian, DotProduct) and not capped:
            more = "" if is_cudnn else ", and SoftCapped(DotProduct(), ak.fixed(c))"
            got = type(task.kernel).__name__
            return f"it takes the kernels Gaussian and DotProduct{more}; got {got}"
        if type(task.rule) is not Softmax:
            return f"it takes the rule Softmax; got {type(task.rule).__name__}"
        if capped and not task.rule.temperature_parameter.is_fixed:
            return "a soft cap needs a temperature that is fixed: ak.fixed(1.0)"
        factors = ("is_causal", "window", "segments")[: 2 if is_cudnn else 3]
        masks = "HeldOut, Causal() and Window" + ("" if is_cudnn else ", and Segments")
        if (reason := mask_unsupported_reason(task.prior, masks, *factors)) is not None:
            return reason
        left, right = pair_mask_of(task.prior).limits
        if is_cudnn and left is not None and right != 0:
            return "cuDNN has windows to the left alone: join ak.Causal()"
        own = bias_columns(task.kernel, task.prior, platform)
        columns = max(task.dim + own, task.dim_v)
        if columns > 128:  # those that cuDNN takes on every GPU
            return f"heads have up to 128 columns, {own} of them its own; got {columns}"
        return None

    def resolve(self, task: Task) -> "Fused":
        """Returns this method with no `dtype` or `platform` of None.

        They become the dtype of the inputs and the platform of JAX's default device.
        """
        platform = _resolved_platform(self.platform)
        return Fused(self._resolved_dtype(task), platform=platform, interpret=self.interpret)

    def _resolved_dtype(self, task: Task) -> np.dtype:
        """Returns the dtype of the products: `self.dtype`, or that of the inputs if it is None."""
        return jnp.dtype(task.input_dtype) if self.dtype is None else self.dtype

    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        """Returns the state of each query, in the dtype of the inputs, the rule's sink included.

        The method's `dtype` and `platform` must not be None: `resolve` sets them.
        """
        assert isinstance(rule, Softmax)  # as unsupported_reason says
        parts = (kernel, prior, rule)
        if self.platform == "cuda":
            shift, sums = sums_by_cudnn(q, k, v, parts, self.dtype)
        else:
            values = jnp.concatenate([v, jnp.ones((len(v), 1), v.dtype)], axis=1)
            shift, sums = sums_by_splash(q, k, values, parts, self)
        return SoftmaxState(shift, sums[:, -1], sums[:, :-1]).with_sink(rule.log_sink())


def _is_capped(kernel: Kernel) -> bool:
    """Whether the kernel is a soft-capped `DotProduct` whose cap is static, as by `ak.fixed(c)`."""
    if not isinstance(kernel, SoftCapped) or type(kernel.kernel) is not DotProduct:
        return False
    return isinstance(kernel.cap_parameter, Constant)


def _resolved_platform(named: str | None) -> str:
    """Returns the platform `named`, or JAX's default if None; "gpu" becomes "cuda"."""
    found = jax.default_backend() if named is None else named
    return "cuda" if found == "gpu" else found


class _Features(NamedTuple):
    """Queries and keys whose inner products are the scores less `query_term`, and the values."""

    q: Float[Array, "queries head"]
    k: Float[Array, "keys head"]
    v: Float[Array, "keys head"]
    query_term: Float[Array, " queries"]
    no_mass: float  # log-masses up to it are those of queries that see no key


def bias_columns(kernel: Kernel, prior: Prior | None, platform: str) -> int:
    """Returns how many columns are appended to the features of q and k for a bias of each key.

    It is 3 for a `Gaussian`, whose −‖k‖²/2 is one, and on "cuda" if a mask hides keys from all
    queries (`PairMask.allowed`, not a window); else 0.
    """
    is_hidden = platform == "cuda" and pair_mask_of(prior).allowed is not None
    # three numbers of half precision add up to one of single precision
    return 3 if isinstance(kernel, Gaussian) or is_hidden else 0


def _padded_features(
    q: Array, k: Array, v: Array, parts: Any, dtype: Any, platform: str
) -> _Features:
    """Returns queries and keys whose inner products are the scores, and the values, in `dtype`.

    A term of the score that depends on the query alone is returned separately. `parts`: the
    kernel, prior and rule. If keys have biases, keys of padding are hidden by their bias.
    """
    kernel, prior, rule = parts
    kernel = kernel.kernel if isinstance(kernel, SoftCapped) else kernel
    columns = bias_columns(kernel, prior, platform)
    unit = 8 if platform == "cuda" else 128  # of columns, and of rows
    multiple = unit if columns or platform == "tpu" else 1
    if isinstance(kernel, Gaussian):
        centre = jax.lax.stop_gradient(jnp.mean(k, axis=0, keepdims=True))
        q, k = in_units(kernel, q - centre, k - centre, rule.temperature)
        query_term, bias = (-0.5 * jnp.sum(points**2, axis=1) for points in (q, k))
    else:
        assert isinstance(kernel, DotProduct)  # as unsupported_reason says
        q, k = in_units(kernel, q, k, rule.temperature)
        query_term, bias = jnp.zeros(len(q), q.dtype), jnp.zeros(len(k), k.dtype)
    allowed = pair_mask_of(prior).allowed
    allowed = jnp.ones(len(k), bool) if allowed is None else allowed
    allowed, bias = (jnp.pad(x, (0, -len(k) % multiple)) for x in (allowed, bias))
    # so low that its weight is 0, and so high that differences of two do not overflow
    hidden = -(2.0**15) if dtype == jnp.float16 else -(2.0**34)
    bias_unit = 128.0  # float16 ends at 65504
    bias = jnp.maximum(bias / bias_unit, hidden)
    biases = []
    for i in range(columns):
        rounded = bias.astype(dtype).astype(bias.dtype)
        bias = bias - rounded
        biases.append(jnp.where(allowed, rounded, 0.0 if i else hidden)[:, None])
    head = -(-max(q.shape[1] + columns, v.shape[1]) // unit) * unit

    def padded(rows: Array, *more: Array) -> Array:
        rows = jnp.pad(rows, ((0, -len(rows) % multiple), (0, 0)))
        rows = jnp.concatenate([rows, *more], axis=1)
        return jnp.pad(rows, ((0, 0), (0, head - rows.shape[1]))).astype(dtype)

    units = jnp.full((len(q) + -len(q) % multiple, columns), bias_unit, q.dtype)
    # splash attention has masses below -1e37 where a query sees no key
    no_mass = 0.5 * hidden * bias_unit if columns and platform == "cuda" else -1e37
    return _Features(padded(q, units), padded(k, *biases), padded(v), query_term, no_mass)


def sums_by_cudnn(q: Array, k: Array, v: Array, parts: Any, dtype: Any) -> Sums:
    """Returns L = log Z and Σ exp(s − L) (v, 1) of each query, with the gradients of cuDNN.

    Both are 0 for a query that sees no key. `parts`: the kernel, prior and rule. `dtype`: of the
    products, bfloat16 or float16.
    """
    features = _padded_features(q, k, v, parts, dtype, "cuda")
    limits = pair_mask_of(parts[1]).limits
    call = functools.partial(attend_by_cudnn, limits=limits)
    out, log_mass = call(features.q, features.k, features.v)
    # cuDNN has no gradient of the log-mass: it is the mean slope of the scores at constant weights
    fixed_q, fixed_k = map(jax.lax.stop_gradient, (features.q, features.k))
    mean_key, _ = call(fixed_q, fixed_k, features.k)
    slope = jnp.sum(features.q.astype(q.dtype) * mean_key.astype(q.dtype), axis=1)
    log_mass = jax.lax.stop_gradient(log_mass.astype(q.dtype))
    if limits[0] is not None:  # queries whose window lies behind the last key
        log_mass = jnp.where(jnp.arange(len(log_mass)) - limits[0] < len(k), log_mass, -jnp.inf)
    return _unpadded_sums(features, log_mass + slope - jax.lax.stop_gradient(slope), out, v)


@eqx.filter_custom_jvp
def sums_by_splash(
    q: Queries, k: Keys, values: Float[Array, "keys width"], parts: Any, method: Fused
) -> Sums:
    """Returns L = log Z and Σ exp(s − L) v of each query on TPUs; both are 0 if it sees no key.

    `values`: v, its last column 1. `parts`: the kernel, prior and rule.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import (  # noqa: PLC0415  of TPUs alone
        splash_attention_kernel as splash,
        splash_attention_mask as masks,
    )

    (kernel, prior, rule), v = parts, values[:, :-1]
    features, pairs = _padded_features(q, k, v, parts, method.dtype, "tpu"), pair_mask_of(prior)
    shape, limits = (len(features.q), len(features.k)), pairs.limits
    mask = masks.FullMask(shape) if limits == (None, None) else masks.LocalMask(shape, limits, 0)
    is_capped = isinstance(kernel, SoftCapped)
    program = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask]),
        save_residuals=True,
        attn_logits_soft_cap=kernel.cap / rule.temperature if is_capped else None,
        interpret=method.interpret,
    )
    segments = splash.SegmentIds(*_segments(pairs, (len(q), len(k)), shape))
    out, (log_mass,) = program(features.q[None], features.k[None], features.v[None], segments)
    return _unpadded_sums(features, log_mass[0].astype(q.dtype), out[0], v)


@sums_by_splash.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[tuple[Array, Array], tuple[None, Array | None]]:
    """Returns L and the sums, and their tangents; that of L is None: L is held constant."""
    out = sums_by_splash(*primals)

    def sums(q: Array, k: Array, values: Array, parts: Any, _: Any) -> Array:
        sizes = min(len(q), MAX_BLOCK_ROWS), min(len(k), MAX_BLOCK_ROWS)
        return sums_at_shift(q, k, values, q[:, :0], parts, sizes, shift=out[0])

    return out, (None, eqx.filter_jvp(sums, primals, tangents)[1])


def _segments(mask: PairMask, sizes: tuple[int, int], padded: tuple[int, int]) -> list[Array]:
    """Returns the segment number of each query and of each key; −1 for padding, and for a key that
    no query sees.

    `sizes`, `padded`: the numbers of queries and keys, without and with padding.
    """
    queries, keys = (jnp.zeros(size, int) for size in sizes)
    if mask.segments is not None:
        ordered = jnp.sort(mask.segments[0])
        queries, keys = (jnp.searchsorted(ordered, part) for part in mask.segments)
        is_known = ordered[jnp.minimum(keys, len(ordered) - 1)] == mask.segments[1]
        keys = jnp.where(is_known, keys, -1)
    if mask.allowed is not None:
        keys = jnp.where(mask.allowed, keys, -1)
    return [
        jnp.pad(part, (0, size - len(part)), constant_values=-1).astype(jnp.int32)
        for part, size in zip((queries, keys), padded, strict=True)
    ]


def _unpadded_sums(features: _Features, log_mass: Array, out: Array, v: Array) -> Sums:
    """Returns L = log Z and Σ exp(s − L) (v, 1) without padding; 0 where all keys are hidden.

    `log_mass`, `out`: what the accelerator returns for the padded features: the log-sum-exp and
    the weighted mean of the values.
    """
    queries = len(features.query_term)
    some = log_mass[:queries] > features.no_mass
    total = jnp.where(some[:, None], out[:queries, : v.shape[1]].astype(v.dtype), 0.0)
    shift = jnp.where(some, log_mass[:queries] + features.query_term, 0.0)
    return shift, jnp.concatenate([total, some.astype(v.dtype)[:, None]], axis=1)


def attend_by_cudnn(
    q: Float[Array, "queries head"],
    k: Float[Array, "keys head"],
    v: Float[Array, "keys head"],
    limits: tuple[int | None, int | None],
) -> tuple[Float[Array, "queries head"], Float[Array, " queries"]]:
    """Returns softmax(q kᵀ) v and the log-sum-exp of each row of q kᵀ, in half precision.

    `limits`: the most keys before and after its own that a query sees; None for all. The left limit
    may be given only if the right one is 0.
    """
    left, right = limits
    # JAX's rule for `vmap` of cuDNN wants all arrays to have the batch axis, or none
    never = jnp.any(jnp.stack([jnp.isnan(x[0, 0]) for x in (q, k, v)])) & False
    out, log_mass = jax.nn.dot_product_attention(
        *(jnp.where(never, 0, x)[None, :, None, :] for x in (q, k, v)),
        scale=1.0,
        is_causal=right == 0,
        local_window_size=None if left is None else (left, 0),
        implementation="cudnn",
        return_residual=True,
    )
    return out[0, :, 0], log_mass[0, :, 0]
