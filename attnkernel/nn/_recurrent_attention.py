"""Layers whose heads are online regressions: linear attention, the delta rule, least squares."""

import functools
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import as_float_dtype, require_finite, value_text, wider_dtype
from .._core.validation import (
    as_integer,
    is_real_number,
    require_choice,
    require_instance,
    require_key,
)
from ..kernels import FiniteRank
from ..recurrent import Estimator, regress
from ._cache import RecurrentCache
from ._cached_layer import HeadsLayer, NewRows
from ._inputs import as_row_mask, as_sequence, join_heads, require_bools, split_heads, zero_invalid
from ._short_convolution import ShortConvolution


class DecayGate(eqx.Module):
    r"""$\log \alpha_t = -\mathrm{softplus}(W x_t + b)$, at most 0 for all weights.

    b starts where softplus(b) is one over a number of rows, from 10 to 1000 in equal ratios: along
    the heads, or for decays of channels along the channels of each head.
    """

    proj: eqx.nn.Linear | None
    bias: Float[Array, "heads channels"]

    def __init__(
        self,
        of: Literal["head", "row", "channel"],
        size: int,
        heads: int,
        channels: int,
        dtype: Any,
        key: PRNGKeyArray,
    ):
        shape = (1, channels) if of == "channel" else (heads, 1)
        memory = 10.0 * 100.0 ** ((np.arange(max(shape)) + 0.5) / max(shape))  # rows
        bias = jnp.asarray(np.log(np.expm1(1.0 / memory)), dtype).reshape(shape)
        self.bias = jnp.broadcast_to(bias, (heads, shape[1]))
        self.proj = None
        if of != "head":
            self.proj = eqx.nn.Linear(size, self.bias.size, use_bias=False, dtype=dtype, key=key)

    def __call__(self, x: Float[Array, "rows size"]) -> Float[Array, "heads _rows channels"]:
        """Returns log α in at least float32; one row stands for all where rows do not differ."""
        dtype = wider_dtype(x.dtype)
        logits = self.bias[:, None].astype(dtype)
        if self.proj is not None:
            row_logits = jax.vmap(self.proj)(x).reshape(len(x), *self.bias.shape)
            logits = logits + row_logits.swapaxes(0, 1).astype(dtype)
        return -jax.nn.softplus(logits)


class ConvolvedState(eqx.Module):
    """The states of heads, and the last rows of queries, keys and values before convolution."""

    heads: Any
    recent: tuple[Float[Array, "recent _columns"], ...]


class RecurrentAttention(HeadsLayer):
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
        self._set_sizes(num_heads, query_size, output_size, qk_size, vo_size)
        heads, size = self.num_heads, self.query_size
        require_bools(use_query_bias=use_query_bias, use_key_bias=use_key_bias, qk_norm=qk_norm)
        require_bools(use_value_bias=use_value_bias, use_output_bias=use_output_bias)
        require_bools(output_norm=output_norm, output_gate=output_gate, conv_silu=conv_silu)
        require_instance("estimator", estimator, Estimator, "ak.recurrent.DeltaRule()")
        if kernel is not None:
            require_instance("kernel", kernel, FiniteRank, "ak.kernels.EluFeatures()")
        if decay is not None:
            require_choice("decay", decay, ("head", "row", "channel"))
        if max_rate is not None and not (is_real_number(max_rate) and max_rate > 0):
            raise ValueError(
                f"max_rate must be a number above 0, such as 1.0, or None; got "
                f"{value_text(max_rate)}."
            )
        require_key("key", key)
        dtype = as_float_dtype("dtype", dtype)
        self.estimator, self.kernel = estimator, kernel
        self.qk_norm, self.max_rate = qk_norm, None if max_rate is None else float(max_rate)
        self._require_estimator_takes(decay)
        keys = jax.random.split(key, 8)

        linear = functools.partial(eqx.nn.Linear, size, dtype=dtype)
        qk, vo = heads * self.qk_size, heads * self.vo_size
        self.query_proj = linear(qk, use_query_bias, key=keys[0])
        self.key_proj = linear(qk, use_key_bias, key=keys[1])
        self.value_proj = linear(vo, use_value_bias, key=keys[2])
        self.output_proj = eqx.nn.Linear(
            vo, self.output_size, use_output_bias, dtype=dtype, key=keys[3]
        )
        self.rate_proj = None if max_rate is None else linear(heads, key=keys[4])
        self.gate_proj = linear(vo, use_bias=False, key=keys[5]) if output_gate else None
        norm = functools.partial(eqx.nn.RMSNorm, use_bias=False, dtype=dtype)
        self.output_norm = norm(self.vo_size) if output_norm else None
        self.decay = None
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

        **Arguments:** `x`: one sequence. `mask`: True = valid row, shape (rows,); the others are
        padding, which changes no other row, and whose output is 0. Default: all are valid.

        **Raises:** `ValueError` if x or the mask has another shape.
        """
        x = as_sequence("x", x, self.query_size)
        valid = as_row_mask(mask, len(x))
        x = zero_invalid(x, valid)
        require_finite("x", x)
        out, _ = self._outputs(x, valid, self.cache(dtype=x.dtype))
        return zero_invalid(out, valid)

    def cache(self, *, dtype=None) -> RecurrentCache:
        """An empty cache for `step`, its numbers in at least float32."""
        dtype = wider_dtype(as_float_dtype("dtype", dtype))
        empty = self.estimator.initial_state(self._state_size(), self.vo_size, dtype)
        heads = self.num_heads
        state = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (heads, *leaf.shape)), empty)
        if self.convolutions is not None:
            state = ConvolvedState(state, tuple(part.empty(dtype) for part in self.convolutions))
        return RecurrentCache(state)

    def _decode_rows(self, new: NewRows, cache: Any) -> tuple[Array, RecurrentCache]:
        """Returns the output of all new rows, padding included, and the cache with the valid rows.

        Raises `ValueError` for a mask, a prior or positions.
        """
        require_instance("cache", cache, RecurrentCache, "layer.cache()")
        reason = "a recurrent state holds all rows before, in their order"
        new.refuse(reason, "mask", "prior", "positions")
        out, state = self._outputs(new.x, new.valid, cache)
        return out, cache.advanced(state, new.rows)

    def _outputs(self, x: Array, valid: Array | None, cache: RecurrentCache) -> tuple[Array, Any]:
        """Returns the output of rows that follow those of the cache, and the state after them."""
        linears = (self.query_proj, self.key_proj, self.value_proj)
        parts, before, recent = [jax.vmap(linear)(x) for linear in linears], cache.state, ()
        if self.convolutions is not None:
            before, recent = before.heads, before.recent
            found = [
                convolution.next_rows(part, rows, valid)
                for convolution, part, rows in zip(self.convolutions, parts, recent, strict=True)
            ]
            parts, recent = zip(*found, strict=True)
        q, k, v = (split_heads(part, self.num_heads).swapaxes(0, 1) for part in parts)
        if self.kernel is not None:
            features = [jax.vmap(self.kernel.features)(part) for part in (q, k)]
            q, k = (part.factor * jnp.exp(part.log) for part in features)
        if self.qk_norm:
            q, k = l2_normalise(q), l2_normalise(k)
        dtype = q.dtype
        # sums are formed in the dtype in which they are kept, or a wider one
        q, k, v = (part.astype(wider_dtype(part.dtype, cache.dtype)) for part in (q, k, v))
        rate = None
        if self.rate_proj is not None and self.max_rate is not None:
            logits = jax.vmap(self.rate_proj)(x).T
            rate = self.max_rate * jax.nn.sigmoid(logits.astype(wider_dtype(x.dtype)))
        log_decay = None if self.decay is None else self.decay(x)
        options = {"log_decay": log_decay, "rate": rate, "mask": valid, "state": before}
        out, state = regress(q, k, v, estimator=self.estimator, **options)
        out = out.swapaxes(0, 1).astype(dtype)
        if self.output_norm is not None:
            out = jax.vmap(jax.vmap(self.output_norm))(out)
        out = join_heads(out)
        if self.gate_proj is not None:
            out = out * jax.nn.silu(jax.vmap(self.gate_proj)(x))
        if self.convolutions is not None:
            state = ConvolvedState(state, recent)
        return jax.vmap(self.output_proj)(out), state

    def _state_size(self) -> int:
        """Returns the size of keys as the estimator gets them: of features if there is a kernel."""
        if self.kernel is None:
            return self.qk_size
        one = jax.ShapeDtypeStruct((1, self.qk_size), jnp.result_type(float))
        return eqx.filter_eval_shape(self.kernel.features, one).log.shape[1]

    def _require_estimator_takes(self, decay: str | None) -> None:
        """Raises `ValueError` if the estimator refuses the keys, decays and rates of the layer.

        It is asked about one row, with a key of length 1, or without `qk_norm` of length 1000.
        """
        size = self._state_size()
        key = np.full((1, 1, size), (1.0 if self.qk_norm else 1e3) / np.sqrt(size))
        channels = size if decay == "channel" else 1
        log_decay = None if decay is None else np.full((1, 1, channels), -0.1)
        rate = None if self.max_rate is None else np.full((1, 1), self.max_rate)
        try:
            self.estimator.check(key, log_decay, rate)
        except ValueError as error:
            raise ValueError(
                f"estimator cannot be used like this: {error} In this layer max_rate=1.0 gives "
                f"each row a rate of at most 1, and qk_norm=True gives keys the length 1."
            ) from None


def l2_normalise(points: Float[Array, "*rows dim"]) -> Float[Array, "*rows dim"]:
    """Returns points of length 1, or a little less; 0 stays 0, with a finite derivative."""
    wide = points.astype(wider_dtype(points.dtype))
    squares = jnp.sum(wide**2, axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(squares + 1e-12)).astype(points.dtype)
