"""Layers whose heads are online regressions: linear attention, the delta rule, least squares."""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import (
    as_boolean_array,
    as_float_dtype,
    require_finite,
    value_text,
    wider_dtype,
)
from .._core.validation import (
    as_integer,
    is_real_number,
    require_choice,
    require_instance,
    require_key,
)
from ..kernels import FiniteRank
from ..recurrent import Estimator, regress
from ._cached_layer import CachedLayer, NewRows
from ._decay_gate import DecayGate
from ._heads import as_sequence, head_size, require_bools
from ._recurrent_cache import RecurrentCache
from ._recurrent_keys import divided_by_length, feature_values, require_estimator_takes
from ._short_convolution import ShortConvolution

DECAYS = ("head", "row", "channel")


class ConvolvedState(NamedTuple):
    """The states of heads, and the last rows of queries, keys and values without convolution."""

    heads: Any
    recent: tuple[Float[Array, "recent columns"], ...]


class RecurrentAttention(CachedLayer):
    r"""Multi-head online regression: each head updates a state by each row, and reads it.

    $$ S^h_t = \mathrm{update}_{\alpha^h_t, \beta^h_t}(S^h_{t-1}, k^h_t, v^h_t), \qquad
       \mathrm{out}_t = \sum_h W_o^h \big(g^h_t \odot
       \mathrm{norm}(\mathrm{read}(S^h_t, q^h_t))\big) $$

    $$ q_t, k_t = \varphi(W_q x_t), \varphi(W_k x_t), \quad v_t = W_v x_t, \quad
       \log \alpha_t = -\mathrm{softplus}(W_\alpha x_t + b), \quad
       \beta_t = c\, \sigma(W_\beta x_t), \quad g_t = \mathrm{silu}(W_g x_t) $$

    | layer | `estimator` of `ak.recurrent` | `decay` | `max_rate` | `qk_norm` |
    |---|---|---|---|---|
    | RetNet | `LinearAttention()` | "head" | | |
    | Mamba-2 (its heads) | `LinearAttention()` | "row" | | |
    | gated linear attention | `LinearAttention()` | "channel" | | |
    | DeltaNet | `DeltaRule()` | | 1.0 | True |
    | Gated DeltaNet | `DeltaRule()` | "row" | 1.0 | True |
    | Kimi delta attention | `DeltaRule()` | "channel" | 1.0 | True |
    | Mesa | `RecursiveLeastSquares(1.0)` | "row" | 1.0 | True |

    Time is O(rows), and the cache of `step` has a fixed size. Most of the published layers convolve
    q, k and v before $\varphi$, over the row and three before it: `conv_width=4`. Layers have no
    positions.

    **Arguments:** `num_heads`, `query_size`, `output_size`, `qk_size`, `vo_size`, `use_*_bias` and
    `dtype` as in `ak.MultiheadAttention`, and by keyword

    - `estimator`: what is updated and read, an `ak.recurrent.Estimator`.
    - `decay`: α is one number per head, per "row" and head, or per row, head and "channel" of keys;
      "head" does not depend on x. Default None: 1, nothing is forgotten.
    - `max_rate`: c > 0, the upper bound of the rate β. Default None: every row has the rate 1. The
      delta rule needs one, of at most 2.
    - `qk_norm`: whether queries and keys of heads are divided by their lengths. Default: no. The
      delta rule needs it: its steps are stable where β‖k‖² ≤ 2.
    - `kernel`: one of finite rank, whose features φ replace queries and keys, such as
      `ak.kernels.EluFeatures()`. Default: φ(z) = z.
    - `output_norm`: whether what heads read has an RMS norm with a learned scale. Default: yes.
    - `output_gate`: whether it is multiplied by g. Default: no.
    - `conv_width`: of an `ak.nn.ShortConvolution` each of queries, keys and values. Default None:
      no convolution. `conv_silu`: whether silu follows it. Default: yes.

    **Raises:** `ValueError` for a size, number or choice outside these ranges, and where the
    estimator refuses such keys, rates or decays.

    **Source:** Sun et al., *Retentive network* (2023); Yang et al., *Gated linear attention
    transformers* (2024), *Gated delta networks* (2025); Dao and Gu, *Transformers are SSMs* (2024);
    Kimi Team, *Kimi linear* (2025); von Oswald et al., *MesaNet* (2025).

    ```python
    rule = ak.recurrent.DeltaRule()
    options = {"decay": "row", "max_rate": 1.0, "qk_norm": True}
    layer = ak.nn.RecurrentAttention(2, 8, estimator=rule, **options, key=jax.random.PRNGKey(0))
    x = jax.random.normal(jax.random.PRNGKey(1), (5, 8))
    first, cache = layer.step(x[:3], layer.cache())
    rest, cache = layer.step(x[3:], cache)
    assert jnp.allclose(layer(x), jnp.concatenate([first, rest]), atol=1e-5)
    ```
    """

    query_proj: eqx.nn.Linear
    key_proj: eqx.nn.Linear
    value_proj: eqx.nn.Linear
    output_proj: eqx.nn.Linear
    rate_proj: eqx.nn.Linear | None
    gate_proj: eqx.nn.Linear | None
    output_norm: eqx.nn.RMSNorm | None
    decay: DecayGate | None
    estimator: Estimator
    kernel: FiniteRank | None
    convolutions: tuple[ShortConvolution, ...] | None

    num_heads: int = eqx.field(static=True)
    query_size: int = eqx.field(static=True)
    output_size: int = eqx.field(static=True)
    qk_size: int = eqx.field(static=True)
    vo_size: int = eqx.field(static=True)
    max_rate: float | None = eqx.field(static=True)
    qk_norm: bool = eqx.field(static=True)

    def __init__(
        self,
        num_heads: int,
        query_size: int,
        output_size: int | None = None,
        qk_size: int | None = None,
        vo_size: int | None = None,
        use_query_bias: bool = False,
        use_key_bias: bool = False,
        use_value_bias: bool = False,
        use_output_bias: bool = False,
        dtype=None,
        *,
        estimator: Estimator,
        decay: Literal["head", "row", "channel"] | None = None,
        max_rate: float | None = None,
        qk_norm: bool = False,
        kernel: FiniteRank | None = None,
        output_norm: bool = True,
        output_gate: bool = False,
        conv_width: int | None = None,
        conv_silu: bool = True,
        key: PRNGKeyArray,
    ):
        self.num_heads = heads = as_integer("num_heads", num_heads, 1)
        self.query_size = size = as_integer("query_size", query_size, 1)
        self.output_size = (
            size if output_size is None else as_integer("output_size", output_size, 1)
        )
        self.qk_size = head_size("qk_size", qk_size, size, heads)
        self.vo_size = head_size("vo_size", vo_size, size, heads)
        biases = {
            "use_query_bias": use_query_bias,
            "use_key_bias": use_key_bias,
            "use_value_bias": use_value_bias,
            "use_output_bias": use_output_bias,
        }
        flags = {"output_norm": output_norm, "output_gate": output_gate, "conv_silu": conv_silu}
        require_bools(**biases, qk_norm=qk_norm, **flags)
        require_instance("estimator", estimator, Estimator, "ak.recurrent.DeltaRule()")
        if kernel is not None:
            require_instance("kernel", kernel, FiniteRank, "ak.kernels.EluFeatures()")
        if decay is not None:
            require_choice("decay", decay, DECAYS)
        if max_rate is not None and not (is_real_number(max_rate) and max_rate > 0):
            raise ValueError(
                f"max_rate must be a number above 0, such as 1.0, or None; got "
                f"{value_text(max_rate)}."
            )
        require_key("key", key)
        dtype = as_float_dtype("dtype", dtype)
        self.estimator, self.kernel = estimator, kernel
        self.qk_norm, self.max_rate = qk_norm, None if max_rate is None else float(max_rate)
        require_estimator_takes(estimator, self._state_size(), decay, self.max_rate, qk_norm)
        keys = jax.random.split(key, 8)

        def linear(size: int, out: int, use_bias: bool, key: PRNGKeyArray) -> eqx.nn.Linear:
            return eqx.nn.Linear(size, out, use_bias=use_bias, dtype=dtype, key=key)

        qk, vo = heads * self.qk_size, heads * self.vo_size
        self.query_proj = linear(size, qk, use_query_bias, keys[0])
        self.key_proj = linear(size, qk, use_key_bias, keys[1])
        self.value_proj = linear(size, vo, use_value_bias, keys[2])
        self.output_proj = linear(vo, self.output_size, use_output_bias, keys[3])
        self.rate_proj = None if max_rate is None else linear(size, heads, True, keys[4])
        self.gate_proj = linear(size, vo, False, keys[5]) if output_gate else None
        norm = eqx.nn.RMSNorm(self.vo_size, use_bias=False, dtype=dtype) if output_norm else None
        self.output_norm, self.decay = norm, None
        if decay is not None:
            self.decay = DecayGate(decay, size, heads, self._state_size(), dtype, keys[6])
        self.convolutions = None
        if conv_width is not None:
            width = as_integer("conv_width", conv_width, 1)
            self.convolutions = tuple(
                ShortConvolution(columns, width, silu=conv_silu, dtype=dtype, key=one)
                for columns, one in zip((qk, qk, vo), jax.random.split(keys[7], 3), strict=True)
            )

    def __call__(
        self, x: Float[Array, "rows query_size"], mask: ArrayLike | None = None
    ) -> Float[Array, "rows output_size"]:
        """The output of each row, from the rows before and its own.

        **Arguments:** `x`: one sequence. `mask`: True = the row is there, shape (rows,); the others
        are padding, which changes no other row, and whose output is 0. Default: all are.

        **Raises:** `ValueError` if x or the mask has another shape.
        """
        x = as_sequence("x", x, self.query_size)
        if mask is None:
            require_finite("x", x)
            return self._outputs(x, None, None)[0]
        there = as_boolean_array("mask", mask, 1, "(rows,), True where a row is there")
        if there.shape != x.shape[:1]:
            raise ValueError(
                f"mask must have one Boolean per row of x, shape {x.shape[:1]}; got {there.shape}."
            )
        x = jnp.where(there[:, None], x, 0)  # padding may hold anything
        require_finite("x", x)
        out, _ = self._outputs(x, there, None)
        return jnp.where(there[:, None], out, 0)

    def cache(self, *, dtype=None) -> RecurrentCache:
        """An empty cache for `step`, its numbers in at least float32."""
        dtype = wider_dtype(as_float_dtype("dtype", dtype))
        empty = self.estimator.empty(self._state_size(), self.vo_size, dtype)
        heads = self.num_heads
        state = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (heads, *leaf.shape)), empty)
        if self.convolutions is not None:
            state = ConvolvedState(state, tuple(part.empty(dtype) for part in self.convolutions))
        return RecurrentCache(state)

    def _next_rows(self, new: NewRows, cache: Any) -> tuple[Array, RecurrentCache]:
        require_instance("cache", cache, RecurrentCache, "layer.cache()")
        reason = "a recurrent state holds all rows before, in their order"
        new.refuse(reason, "mask", "prior", "positions")
        out, state = self._outputs(new.x, new.are_there, cache)
        return out, cache._advanced(state, len(new.x) if new.count is None else new.count)

    def _outputs(
        self, x: Array, there: Array | None, cache: RecurrentCache | None
    ) -> tuple[Array, Any]:
        """Returns the output of rows that follow those of the cache, and the state after them."""
        linears = (self.query_proj, self.key_proj, self.value_proj)
        parts = [jax.vmap(linear)(x) for linear in linears]
        before, recent = None if cache is None else cache.state, ()
        if self.convolutions is not None:
            parts, recent = self._convolve(parts, before, there)
            before = None if before is None else before.heads
        q, k, v = (part.reshape(len(x), self.num_heads, -1).swapaxes(0, 1) for part in parts)
        if self.kernel is not None:
            q, k = (feature_values(self.kernel, part) for part in (q, k))
        if self.qk_norm:
            q, k = divided_by_length(q), divided_by_length(k)
        dtype = q.dtype
        if cache is not None:  # sums are formed in the dtype in which they are kept, or a wider one
            q, k, v = (part.astype(wider_dtype(part.dtype, cache.dtype)) for part in (q, k, v))
        rate = None
        if self.rate_proj is not None and self.max_rate is not None:
            logits = jax.vmap(self.rate_proj)(x).T
            rate = self.max_rate * jax.nn.sigmoid(logits.astype(wider_dtype(x.dtype)))
        out, state = regress(
            q,
            k,
            v,
            estimator=self.estimator,
            log_decay=None if self.decay is None else self.decay(x),
            rate=rate,
            mask=there,
            state=before,
        )
        out = out.swapaxes(0, 1).astype(dtype)
        if self.output_norm is not None:
            out = jax.vmap(jax.vmap(self.output_norm))(out)
        out = out.reshape(len(x), -1)
        if self.gate_proj is not None:
            out = out * jax.nn.silu(jax.vmap(self.gate_proj)(x))
        if self.convolutions is not None:
            state = ConvolvedState(state, recent)
        return jax.vmap(self.output_proj)(out), state

    def _convolve(
        self, parts: list[Array], before: ConvolvedState | None, there: Array | None
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Returns queries, keys and values after their convolutions, and the last rows of each."""
        assert self.convolutions is not None
        if before is None:
            recent = [convolution.empty(parts[0].dtype) for convolution in self.convolutions]
        else:
            recent = before.recent
        found = (
            convolution.next_rows(part, rows, there)
            for convolution, part, rows in zip(self.convolutions, parts, recent, strict=True)
        )
        convolved, last = zip(*found, strict=True)
        return convolved, last

    def _state_size(self) -> int:
        """Returns the number of coordinates of a key of the estimator."""
        if self.kernel is None:
            return self.qk_size
        one = jax.ShapeDtypeStruct((1, self.qk_size), jnp.result_type(float))
        return eqx.filter_eval_shape(self.kernel.features, one).log.shape[1]
