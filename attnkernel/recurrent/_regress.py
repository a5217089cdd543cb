"""The entry point: an online regression of a whole sequence, or of its next rows."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from .._core.arrays import (
    as_boolean_array,
    as_numpy_or_none,
    as_real_array,
    is_concrete,
    require_finite,
    wider_dtype,
)
from .._core.tracing import is_symbolic, vary_alike, with_automatic_axes
from .._core.validation import require_choice, require_instance
from ._base import Estimator, Row


def regress(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    estimator: Estimator,
    log_decay: ArrayLike | None = None,
    rate: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    state: Any = None,
    method: Literal["chunked", "recurrent"] = "chunked",
) -> tuple[Array, Any]:
    r"""Online regression of values on keys: each row updates a state, and its query reads it.

    $$ S_t = \mathrm{update}_{\alpha_t, \beta_t}(S_{t-1}, k_t, v_t), \qquad
       \mathrm{out}_t = \mathrm{read}(S_t, q_t) $$

    Time is O(rows), the state is of fixed size. A row at a time, each with the state of the one
    before, gives the same as all rows in one call.

    **Arguments:**

    - `q`, `k`: queries and keys, shape (*batch, rows, dim). `v`: values, (*batch, rows, dim_v).
      Leading batch axes, such as heads, broadcast as in NumPy.
    - `estimator`: `LinearAttention()`, `DeltaRule()`, `RecursiveLeastSquares(0.1)`, or your own.
    - `log_decay`: log α ≤ 0, what remains of the state before a row is added; -inf: nothing. A
      number, or as many axes as q with its batch: (*batch, rows, 1) one per row, (*batch, rows,
      dim) one per channel. Default: 0, nothing is forgotten.
    - `rate`: β, a number or shape (*batch, rows): see the estimator.
    - `mask`: True = valid row, shape (*batch, rows) or (rows,). Other rows neither update the state
      nor let it decay, and their result is 0. Default: all are valid.
    - `state`: that after earlier rows. Default: `estimator.initial_state(dim, dim_v)`.
    - `method`: "chunked" evaluates chunks of rows by matrix products; "recurrent" one row after
      another, and derivatives of it keep the state of every row.

    **Returns:** the results, shape (*batch, rows, dim_v), in the dtype of q; the state after the
    last row, with the batch axes first, in at least float32.

    Batch axes may be symbolic (`jax.export`), with "recurrent" also the number of rows.

    **Raises:** `ValueError` if shapes do not fit together, the estimator refuses, or (where values
    are known, outside `jit`) a number is not finite or a log-decay positive.

    ```python
    k = jax.random.normal(jax.random.PRNGKey(0), (4, 100, 8))  # 4 heads
    options = {"estimator": ak.recurrent.LinearAttention(), "log_decay": -0.1}
    out, state = ak.recurrent.regress(k, k, k, **options)
    first, half = ak.recurrent.regress(*[k[:, :50]] * 3, **options)
    second, _ = ak.recurrent.regress(*[k[:, 50:]] * 3, **options, state=half)
    assert jnp.allclose(out, jnp.concatenate([first, second], axis=1), atol=1e-4)
    ```
    """
    require_instance("estimator", estimator, Estimator, "ak.recurrent.DeltaRule()")
    require_choice("method", method, ("chunked", "recurrent"))
    row, valid, batch = _read(q, k, v, log_decay, rate, mask)
    if method == "chunked" and is_symbolic(row.q.shape[-2]):
        raise ValueError(
            "method='chunked' cuts a known number of rows into chunks: for the symbolic numbers of "
            "jax.export use method='recurrent'."
        )
    estimator.check(row.k, row.log_decay, row.rate)
    _require_state(state, estimator, row, batch)
    row, valid, state = vary_alike((row, valid, state))
    trees = estimator, method == "chunked", batch, row, valid, state
    # the state has no axis of rows: results are sharded along the batch alone
    return with_automatic_axes(_run, trees, row.q, lambda: len(batch), columns=2)


@eqx.filter_jit
def _run(
    estimator: Estimator,
    is_chunked: bool,
    batch: tuple[int, ...],
    given: Row,
    mask: Array | None,
    state: Any,
) -> tuple[Array, Any]:
    """Returns the results and the last state, along all batch axes; 0 at rows that `mask` hides.

    `given`, `mask`, `batch`: from `_read`.
    """
    (rows, dim), dim_v = given.q.shape[-2:], given.v.shape[-1]
    dtype = wider_dtype(jnp.result_type(given.q, given.k, given.v))

    def whole(array: Array | None, default: float, *axes: int) -> Array:
        array = jnp.asarray(default, dtype) if array is None else array.astype(dtype)
        return where_valid(jnp.broadcast_to(array, (*batch, rows, *axes)))

    def where_valid(array: Array) -> Array:
        if mask is None:
            return array
        valid = jnp.broadcast_to(mask, (*batch, rows))
        return jnp.where(valid.reshape(valid.shape + (1,) * (array.ndim - valid.ndim)), array, 0.0)

    row = Row(
        whole(given.q, 0.0, dim),
        whole(given.k, 0.0, dim),
        whole(given.v, 0.0, dim_v),
        whole(given.log_decay, 0.0, *(np.shape(given.log_decay)[-1:] or (1,))),
        whole(given.rate, 1.0),
    )
    empty = estimator.initial_state(dim, dim_v, dtype)
    state = jax.tree.map(
        lambda leaf, of: jnp.broadcast_to(jnp.asarray(leaf, of.dtype), batch + of.shape),
        empty if state is None else state,
        empty,
    )

    def run(state: Any, row: Row) -> tuple[Array, Any]:
        return _scan_chunks(estimator, is_chunked, state, row)

    for _ in batch:
        run = jax.vmap(run)
    out, state = run(vary_alike(state, row), row)
    return where_valid(out).astype(given.q.dtype), state


def _scan_chunks(estimator: Estimator, is_chunked: bool, state: Any, row: Row) -> tuple[Array, Any]:
    """Returns the results and the last state of one sequence.

    If several chunks are scanned, derivatives keep the state at the start of each. If not
    `is_chunked`, rows are evaluated one after another.
    """
    rows = row.q.shape[0]
    if rows == 0:
        return row.v, state
    if not is_chunked:
        return estimator.advance_by_row(state, row)
    size = min(estimator.chunk_rows, 2 ** (rows - 1).bit_length())
    chunks = -(-rows // size)
    if chunks * size > rows:  # rows of padding
        row = jax.tree.map(
            lambda leaf: jnp.pad(leaf, ((0, chunks * size - rows),) + ((0, 0),) * (leaf.ndim - 1)),
            row,
        )
    if chunks == 1:
        out, state = estimator.advance(state, row)
        return out[:rows], state
    parts = jax.tree.map(lambda leaf: leaf.reshape(chunks, size, *leaf.shape[1:]), row)

    @jax.checkpoint
    def step(state: Any, part: Row) -> tuple[Any, Array]:
        out, state = estimator.advance(state, part)
        return state, out

    state, out = jax.lax.scan(step, state, parts)
    return out.reshape(chunks * size, -1)[:rows], state


def _read(
    q: Any, k: Any, v: Any, log_decay: Any, rate: Any, mask: Any
) -> tuple[Any, Array | None, tuple[int, ...]]:
    """Returns a `Row` of arrays, the mask, and the sizes of the batch axes.

    Arguments that are None stay None. Raises `ValueError` if shapes do not fit together, or for
    numbers that `regress` refuses. Outside `jit`, masked rows of q, k and v become 0.
    """
    q, k, v = (as_real_array(name, array) for name, array in (("q", q), ("k", k), ("v", v)))
    for name, array in zip("qkv", (q, k, v), strict=True):
        if array.ndim < 2 or 0 in (*array.shape[:-2], array.shape[-1]):
            raise ValueError(
                f"{name} must have shape (*batch, rows, columns), of which rows alone may be 0; "
                f"got {array.shape}."
            )
    shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
    if q.shape[-1] != k.shape[-1] or not q.shape[-2] == k.shape[-2] == v.shape[-2]:
        raise ValueError(
            f"q and k must have the same last axis, and q, k and v as many rows; got {shapes}."
        )
    try:
        batch: Any = jnp.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    except ValueError:
        raise ValueError(f"The batch axes must broadcast; got {shapes}.") from None
    dim, full = q.shape[-1], (*batch, q.shape[-2])
    if log_decay is not None:
        log_decay = as_real_array("log_decay", log_decay)
        expected = f"a number, or of shape {(*full, 1)} or {(*full, dim)}"
        _require_fits("log_decay", log_decay, (*full, dim), expected)
        if is_concrete(log_decay) and not np.all(np.asarray(log_decay) <= 0):
            raise ValueError(
                f"log_decay must be at most 0, so that α = exp(log_decay) ≤ 1; its maximum is "
                f"{np.max(np.asarray(log_decay)):.4g}. For a gate in (0, 1) pass its logarithm, "
                f"such as jax.nn.log_sigmoid(x)."
            )
    if rate is not None:
        rate = as_real_array("rate", rate)
        _require_fits("rate", rate, full, f"a number, or of shape {full}")
        if is_concrete(rate):
            require_finite("rate", np.asarray(rate).reshape(-1, 1))
    if mask is not None:
        given = mask if isinstance(mask, jax.Array) else as_numpy_or_none(mask)
        axes = 1 if getattr(given, "ndim", 0) == 1 else len(full)
        expected = f"{full} or {full[-1:]}, True = valid row"
        mask = as_boolean_array("mask", mask, axes, expected)
        if mask.shape not in (full, full[-1:]):
            raise ValueError(f"mask must be a Boolean array of shape {expected}; got {mask.shape}.")
        if is_concrete(q, k, v, mask):  # other rows may hold anything
            hidden = ~np.asarray(mask)[..., None]
            q, k, v = (jnp.asarray(np.where(hidden, x.dtype.type(0), x)) for x in (q, k, v))
    for name, array in zip("qkv", (q, k, v), strict=True):
        require_finite(name, array)
    found: Any = (q, k, v, log_decay, rate)
    return Row(*found), mask, batch


def _require_fits(name: str, array: Array, shape: tuple[int, ...], expected: str) -> None:
    """Raises `ValueError` unless the array is one number, or broadcasts to the shape with as many
    axes, each of them 1 or full."""
    fits = len(array.shape) == len(shape) and all(
        size in (1, full) for size, full in zip(array.shape, shape, strict=True)
    )
    if array.ndim and not fits:
        raise ValueError(f"{name} must be {expected}; axes may be 1. Got shape {array.shape}.")


def _require_state(state: Any, estimator: Estimator, given: Row, batch: tuple[int, ...]) -> None:
    """Raises `ValueError` unless the state is None, or one of the estimator, of these sizes."""
    if state is None:
        return
    dim, dim_v = given.q.shape[-1], given.v.shape[-1]
    empty = jax.eval_shape(lambda: estimator.initial_state(dim, dim_v, jnp.float32))
    leaves, structure = jax.tree.flatten(state)
    if structure != jax.tree.structure(empty) or not all(map(eqx.is_array, leaves)):
        raise ValueError(
            f"state must be one that {type(estimator).__name__} returned, or its "
            f"initial_state({dim}, {dim_v}); got {type(state).__name__}."
        )
    for leaf, of in zip(leaves, jax.tree.leaves(empty), strict=True):
        if leaf.shape not in (of.shape, batch + of.shape):
            raise ValueError(
                f"state must have arrays of shape {batch + of.shape}, as for keys of {dim} and "
                f"values of {dim_v} numbers; got {leaf.shape}."
            )
