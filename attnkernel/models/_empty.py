"""Predictions at queries to which no label has weight: the policies of `on_empty`."""

from typing import Literal, cast, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import wider_dtype
from .._core.rows import NewInputs, Rows
from .._core.tracing import is_symbolic
from .._core.validation import require_choice
from ..attention import with_automatic_axes
from ..priors import Prior

OnEmpty = Literal["nan", "nearest", "mean", "raise"]


def known_policy(on_empty: str) -> OnEmpty:
    """Returns the policy; `ValueError` unless it is one of `OnEmpty`."""
    require_choice("on_empty", on_empty, get_args(OnEmpty))
    return cast(OnEmpty, on_empty)


def fill_empty(
    out: Float[Array, "m out"],
    empty: Bool[Array, " m"],
    q: NewInputs,
    rows: Rows,
    prior: Prior | None,
    on_empty: OnEmpty,
) -> Float[Array, "m out"]:
    """Returns the predictions `out`, in which rows with `empty` follow the policy `on_empty`."""
    return with_automatic_axes(_fill_empty, (prior, on_empty), out, empty, q, rows)


@eqx.filter_jit
def _fill_empty(
    parts: tuple[Prior | None, OnEmpty], out: Array, empty: Array, q: Array, rows: Rows
) -> Float[Array, "m out"]:
    """Returns `fill_empty`; `parts`: the prior and the policy."""
    (prior, on_empty), k = parts, rows.x
    if on_empty == "raise":
        return eqx.error_if(
            out,
            jnp.any(empty),
            "A query has no label within reach of its kernel. Try a larger lengthscale, or "
            'on_empty="nan", "nearest" or "mean".',
        )
    if on_empty == "nan" or k.shape[0] == 0:
        return jnp.where(empty[:, None], jnp.nan, out)

    def fill() -> Float[Array, "m out"]:
        # squares of distances, and sums of labels, overflow half precision
        points, keys, labels = (part.astype(wider_dtype(part.dtype)) for part in (q, k, rows.y))

        def fallback_label(i: Int[Array, ""], point: Float[Array, " dim"]) -> Float[Array, " out"]:
            log = jnp.zeros(keys.shape[0], labels.dtype)
            if prior is not None:
                log = prior.pairwise(i[None], jnp.arange(keys.shape[0]))[0]
            seen = ~jnp.isneginf(log)
            if on_empty == "nearest":
                gaps = jnp.where(seen[:, None], jnp.abs(keys - point[None, :]), jnp.inf)
                unit = jnp.min(jnp.max(gaps, axis=1))  # the nearest squared is then of order 1
                squares = jnp.sum((gaps / jnp.where(unit > 0, unit, 1.0)) ** 2, axis=1)
                found = labels[jnp.argmin(squares)]
            else:
                weights = jax.nn.softmax(jnp.where(jnp.any(seen), log, 0.0))
                visible = jnp.where(seen[:, None], labels, 0.0)
                found = jnp.sum(weights[:, None] * visible, axis=0)
            return jnp.where(jnp.any(seen), found, jnp.nan)

        # chunks of 64 queries: never an array of queries x keys
        each = lambda row: fallback_label(*row)  # noqa: E731
        size = None if is_symbolic(q.shape[0]) else 64
        fallback = jax.lax.map(each, (jnp.arange(q.shape[0]), points), batch_size=size)
        return jnp.where(empty[:, None], fallback.astype(out.dtype), out)

    # only if needed: the fallbacks take longer than the predictions
    return jax.lax.cond(jnp.any(empty), fill, lambda: out)
