"""Sums in half precision by the kernels of accelerators, which keep no weight in memory."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from .._core.arrays import as_float_dtype
from .._core.parameters import Constant
from .._core.tracing import NO_SYMBOLIC_SIZES, is_symbolic
from .._core.tuning import MAX_BLOCK_ROWS
from .._core.validation import require_bool, require_choice
from ..kernels import DotProduct, Gaussian, Kernel, SoftCapped
from ..priors import Prior, key_mask_of
from ..rules import Rule, Softmax
from ._base import Keys, Method, Queries, Task, Values, mask_unsupported_reason
from ._blocks import jvp_with_constants
from ._blockwise import sums_at_shift
from ._half_precision import HALF_DTYPES, bias_columns, sums_by_cudnn, sums_by_splash
from ._softmax_state import SoftmaxState


class Fused(Method):
    r"""One kernel of the accelerator for the whole sum: O(n + m) memory, and no pass over it twice.

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

    Derivatives: on TPUs all, by `Blockwise`'s recomputation; of cuDNN its own, that is gradients
    alone, and of these the first. Without columns of biases, JAX takes gradients of cuDNN for even
    numbers of queries and of keys alone.

    **Arguments:**

    - `dtype`: of the products: bfloat16, or on GPUs float16. Default None: that of q, k and v,
      which are rounded only where it is named here.
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
        capped = not is_cudnn and is_capped(task.kernel)
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
        left, right = key_mask_of(task.prior).limits
        if is_cudnn and left is not None and right != 0:
            return "cuDNN has windows to the left alone: join ak.Causal()"
        own = bias_columns(task.kernel, task.prior, platform)
        columns = max(task.dim + own, task.dim_v)
        if columns > 128:  # those that cuDNN takes on every GPU
            return f"heads have up to 128 columns, {own} of them its own; got {columns}"
        return None

    def resolve(self, task: Task) -> "Fused":
        platform = _resolved_platform(self.platform)
        return Fused(self._resolved_dtype(task), platform=platform, interpret=self.interpret)

    def _resolved_dtype(self, task: Task) -> np.dtype:
        """Returns the dtype of the products: `self.dtype`, or that of the inputs if it is None."""
        return jnp.dtype(task.input_dtype) if self.dtype is None else self.dtype

    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        assert isinstance(rule, Softmax)  # as unsupported_reason says
        parts = (kernel, prior, rule)
        if self.platform == "cuda":
            shift, sums = sums_by_cudnn(q, k, v, parts, self.dtype)
        else:
            values = jnp.concatenate([v, jnp.ones((len(v), 1), v.dtype)], axis=1)
            shift, sums = _sums_on_tpu(q, k, values, parts, self)
        return SoftmaxState(shift, sums[:, -1], sums[:, :-1]).with_sink(rule.log_sink())


def is_capped(kernel: Kernel) -> bool:
    """Whether it is a dot product with a cap that no program computes."""
    if not isinstance(kernel, SoftCapped) or type(kernel.kernel) is not DotProduct:
        return False
    return isinstance(kernel.cap_parameter, Constant)


def _resolved_platform(named: str | None) -> str:
    """Returns the platform `named`, or JAX's default if None; "gpu" becomes "cuda"."""
    found = jax.default_backend() if named is None else named
    return "cuda" if found == "gpu" else found


@eqx.filter_custom_jvp
def _sums_on_tpu(
    q: Queries, k: Keys, values: Float[Array, "keys width"], parts: Any, method: Fused
) -> tuple[Float[Array, " queries"], Float[Array, "queries width"]]:
    """Returns L = log Z and Σ exp(s − L) v of each query; both are 0 if it sees no key.

    `values`: v, its last column 1. `parts`: the kernel, prior and rule.
    """
    v = values[:, :-1]
    return sums_by_splash(q, k, v, parts, method.dtype, interpret=method.interpret)


@_sums_on_tpu.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[tuple[Array, Array], tuple[None, Array]]:
    """Returns `_sums_on_tpu` and its tangents; that of L is None, since L is held constant."""
    out = _sums_on_tpu(*primals)

    def sums(q: Array, k: Array, values: Array, parts: Any, _: Any) -> Array:
        sizes = min(len(q), MAX_BLOCK_ROWS), min(len(k), MAX_BLOCK_ROWS)
        return sums_at_shift(q, k, values, q[:, :0], parts, sizes, shift=out[0])

    return out, (None, jvp_with_constants(sums, primals, tangents))
