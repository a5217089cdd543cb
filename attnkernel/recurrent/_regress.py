"""The entry point: an online regression of a whole sequence, or of its next rows."""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from .._core.arrays import as_numpy_or_none, as_real_array, require_finite, wider_dtype
from .._core.host_arrays import is_concrete
from .._core.mesh_axes import vary_alike
from .._core.symbolic_sizes import is_symbolic
from .._core.validation import require_choice, require_instance
from ._base import Estimator, Row

METHODS = ("chunked", "recurrent")


class _Arguments(NamedTuple):
    """Arrays as given; None for defaults."""

    q: Array
    k: Array
    v: Array
    log_decay: Array | None
    rate: Array | None
    mask: Array | None


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
    - `mask`: True = the row is there, shape (*batch, rows) or (rows,). A row that is not there
      neither updates the state nor lets it decay, and its result is 0. Default: all are.
    - `state`: that after earlier rows. Default: `estimator.empty(dim, dim_v)`.
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
    require_choice("method", method, METHODS)
    arguments, batch = _checked(q, k, v, log_decay, rate, mask)
    if method == "chunked" and is_symbolic(arguments.q.shape[-2]):
        raise ValueError(
            "method='chunked' cuts a known number of rows into chunks: for the symbolic numbers of "
            "jax.export use method='recurrent'."
        )
    estimator.check(arguments.k, arguments.log_decay, arguments.rate)
    dtype = wider_dtype(jnp.result_type(*arguments[:3]))
    state = _checked_state(state, estimator, arguments, batch)
    arguments, state = vary_alike((arguments, state))
    return _run(estimator, method == "chunked", dtype, batch, arguments, state)


@eqx.filter_jit
def _run(
    estimator: Estimator,
    is_chunked: bool,
    dtype: Any,
    batch: tuple[int, ...],
    given: _Arguments,
    state: Any,
) -> tuple[Array, Any]:
    """Returns the results and the last state, of checked arguments, along all batch axes."""
    (*_, rows, dim), dim_v = given.q.shape, given.v.shape[-1]

    def whole(array: Array | None, default: float, *tail: int) -> Array:
        array = jnp.full((), default, dtype) if array is None else array.astype(dtype)
        return jnp.broadcast_to(array, (*batch, *tail)) if tail else array

    channels = (
        1 if given.log_decay is None or not given.log_decay.ndim else given.log_decay.shape[-1]
    )
    row = Row(
        whole(given.q, 0.0, rows, dim),
        whole(given.k, 0.0, rows, dim),
        whole(given.v, 0.0, rows, dim_v),
        whole(given.log_decay, 0.0, rows, channels),
        whole(given.rate, 1.0, rows),
    )
    there = None if given.mask is None else jnp.broadcast_to(given.mask, (*batch, rows))
    if there is not None:
        row = jax.tree.map(lambda leaf: _where_rows(there, leaf), row)
    if state is None:
        state = estimator.empty(dim, dim_v, dtype)
    empty = jax.eval_shape(lambda: estimator.empty(dim, dim_v, dtype))
    state = jax.tree.map(
        lambda leaf, of: jnp.broadcast_to(jnp.asarray(leaf, of.dtype), batch + of.shape),
        state,
        empty,
    )

    def member(state: Any, row: Row) -> tuple[Array, Any]:
        return _scan_chunks(estimator, is_chunked, state, row)

    run = member
    for _ in batch:
        run = jax.vmap(run)
    out, state = run(vary_alike(state, row), row)
    if there is not None:
        out = _where_rows(there, out)
    return out.astype(given.q.dtype), state


def _where_rows(there: Array, leaf: Array) -> Array:
    """Returns the array with 0 in the rows that are not there."""
    return jnp.where(there.reshape(there.shape + (1,) * (leaf.ndim - there.ndim)), leaf, 0.0)


def _scan_chunks(estimator: Estimator, is_chunked: bool, state: Any, row: Row) -> tuple[Array, Any]:
    """Returns the results and the last state of one sequence; derivatives keep the state at the
    start of each chunk."""
    rows = row.q.shape[0]
    if not is_chunked:
        return estimator.advance_by_row(state, row)
    size = min(estimator.chunk_rows, 2 ** (rows - 1).bit_length())
    chunks = -(-rows // size)
    if chunks * size > rows:  # rows that are not there
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


def _checked(
    q: Any, k: Any, v: Any, log_decay: Any, rate: Any, mask: Any
) -> tuple[_Arguments, tuple[int, ...]]:
    """Returns the arguments as arrays, and their batch axes; `ValueError` where they do not fit."""
    named = {"q": as_real_array("q", q), "k": as_real_array("k", k), "v": as_real_array("v", v)}
    for name, array in named.items():
        if array.ndim < 2 or 0 in array.shape:
            raise ValueError(
                f"{name} must have shape (*batch, rows, columns), none of them 0; got "
                f"{array.shape}."
            )
    shapes = ", ".join(f"{name} {array.shape}" for name, array in named.items())
    q, k, v = named.values()
    if q.shape[-1] != k.shape[-1] or not q.shape[-2] == k.shape[-2] == v.shape[-2]:
        raise ValueError(
            f"q and k must have the same last axis, and q, k and v as many rows; got {shapes}."
        )
    try:
        batch: Any = jnp.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    except ValueError:
        raise ValueError(f"The batch axes must broadcast; got {shapes}.") from None
    rows, dim = q.shape[-2:]
    if log_decay is not None:
        log_decay = as_real_array("log_decay", log_decay)
        expected = f"a number, or of shape {(*batch, rows, 1)} or {(*batch, rows, dim)}"
        _require_fits("log_decay", log_decay, (*batch, rows, dim), expected)
        if is_concrete(log_decay) and not np.all(np.asarray(log_decay) <= 0):
            raise ValueError(
                f"log_decay must be at most 0, so that α = exp(log_decay) ≤ 1; its maximum is "
                f"{np.max(np.asarray(log_decay)):.4g}. For a gate in (0, 1) pass its logarithm, "
                f"such as jax.nn.log_sigmoid(x)."
            )
    if rate is not None:
        rate = as_real_array("rate", rate)
        _require_fits("rate", rate, (*batch, rows), f"a number, or of shape {(*batch, rows)}")
        if is_concrete(rate):
            require_finite("rate", np.asarray(rate).reshape(-1, 1))
    mask = None if mask is None else _checked_mask(mask, (*batch, rows))
    if mask is not None and is_concrete(q, k, v, mask):  # other rows may hold anything
        hidden = ~np.asarray(mask)[..., None]
        q, k, v = (jnp.asarray(np.where(hidden, array.dtype.type(0), array)) for array in (q, k, v))
    for name, array in zip("qkv", (q, k, v), strict=True):
        require_finite(name, array)
    return _Arguments(q, k, v, log_decay, rate, mask), batch


def _checked_mask(mask: Any, shape: tuple[int, ...]) -> Array:
    """Returns the mask as an array; `ValueError` unless it is Boolean, one per row."""
    if not isinstance(mask, jax.Array):
        mask = None if np.ma.is_masked(mask) else as_numpy_or_none(mask)
    if mask is None or mask.dtype != bool or mask.shape not in (shape, shape[-1:]):
        got = "no array of Booleans" if mask is None else f"dtype {mask.dtype}, shape {mask.shape}"
        raise ValueError(
            f"mask must be a Boolean array, shape {shape} or {shape[-1:]}, True where a row is "
            f"there; got {got}."
        )
    return jnp.asarray(mask)


def _require_fits(name: str, array: Array, shape: tuple[int, ...], expected: str) -> None:
    """Raises `ValueError` unless the array is one number, or broadcasts to the shape with as many
    axes, each of them 1 or full."""
    fits = len(array.shape) == len(shape) and all(
        size in (1, full) for size, full in zip(array.shape, shape, strict=True)
    )
    if array.ndim and not fits:
        raise ValueError(f"{name} must be {expected}; axes may be 1. Got shape {array.shape}.")


def _checked_state(state: Any, estimator: Estimator, given: _Arguments, batch: tuple) -> Any:
    """Returns the state; `ValueError` unless it is None or one of the estimator, of these sizes."""
    if state is None:
        return None
    dim, dim_v = given.q.shape[-1], given.v.shape[-1]
    empty = jax.eval_shape(lambda: estimator.empty(dim, dim_v, jnp.float32))
    leaves, structure = jax.tree.flatten(state)
    wanted = jax.tree.leaves(empty)
    if structure != jax.tree.structure(empty) or not all(map(eqx.is_array, leaves)):
        raise ValueError(
            f"state must be one that {type(estimator).__name__} returned, or its empty({dim}, "
            f"{dim_v}); got {type(state).__name__}."
        )
    for leaf, of in zip(leaves, wanted, strict=True):
        lead = leaf.ndim - of.ndim
        if lead < 0 or leaf.shape[lead:] != of.shape or leaf.shape[:lead] not in ((), batch):
            raise ValueError(
                f"state must have arrays of shape {batch + of.shape}, as for keys of {dim} and "
                f"values of {dim_v} numbers; got {leaf.shape}."
            )
    return state
