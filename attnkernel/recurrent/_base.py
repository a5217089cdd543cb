r"""The parts of an online regression: a state, an update by one row, and a read by a query.

A chunk of rows is evaluated as one, by matrix products; the default is one row after another.
"""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Row(NamedTuple):
    """One row, or several along a first axis, as an `Estimator` gets them.

    `log_decay`: log α ≤ 0, one number, or one of each channel. `rate`: β. A row that is not valid
    has 0 in every field.

    ```python
    row = ak.recurrent.Row(*jnp.ones((3, 2)), log_decay=jnp.zeros(1), rate=jnp.ones(()))
    assert row.q.shape == (2,)
    ```
    """

    q: Float[Array, "*rows dim"]
    k: Float[Array, "*rows dim"]
    v: Float[Array, "*rows dim_v"]
    log_decay: Float[Array, "*rows channels"]
    rate: Float[Array, "*rows"]


class MatrixState(eqx.Module):
    r"""A matrix $S \in \mathbb{R}^{d \times d_v}$: decayed sums of $k v^\top$, or coefficients.

    ```python
    >>> ak.recurrent.DeltaRule().initial_state(3, 2).matrix.shape
    (3, 2)

    ```
    """

    matrix: Float[Array, "*batch dim dim_v"]


class Estimator(eqx.Module):
    r"""A regression of v on k that is updated by each row, and read by the row's query.

    $$ S_t = \mathrm{update}(S_{t-1}, k_t, v_t), \qquad \mathrm{out}_t = \mathrm{read}(S_t, q_t) $$

    A subclass writes `initial_state`, `update` and `read`, of one sequence without batch axes.
    States are trees of arrays and never change: to go back to an earlier row, keep its state.
    `chunk_rows` is the most rows that `advance` gets at a time, a power of two; 64 by default.

    ```python
    class LastValue(ak.recurrent.Estimator):
        def initial_state(self, dim, dim_v, dtype=None):
            return jnp.zeros(dim_v, dtype)

        def update(self, state, row):
            return jnp.where(row.rate > 0, row.v, state)

        def read(self, state, q):
            return state

    x = jnp.ones((3, 2))
    out, state = ak.recurrent.regress(x, x, x, estimator=LastValue())
    assert jnp.all(out == x)
    ```
    """

    # CPU ms at T = 4096, 8 heads of 64, forward and with gradients; chunks of 32, 64, 128:
    # linear 34 and 100, 39 and 103, 50 and 153; delta rule 48 and 150, 47 and 159, 73 and 278
    chunk_rows: ClassVar[int] = 64

    @abc.abstractmethod
    def initial_state(self, dim: int, dim_v: int, dtype: Any = None) -> Any:
        """The state of no rows, for keys of `dim` and values of `dim_v` numbers."""

    @abc.abstractmethod
    def update(self, state: Any, row: Row) -> Any:
        """The state with one more row; unchanged by one that is not valid."""

    @abc.abstractmethod
    def read(self, state: Any, q: Float[Array, " dim"]) -> Float[Array, " dim_v"]:
        """The prediction at a query."""

    def advance(self, state: Any, rows: Row) -> tuple[Float[Array, "rows dim_v"], Any]:
        """The predictions at the queries of a chunk of rows, a power of two, and the state after.

        Each query sees the rows before its own, and its own. Default: one row after another.
        """
        return self.advance_by_row(state, rows)

    def advance_by_row(self, state: Any, rows: Row) -> tuple[Float[Array, "rows dim_v"], Any]:
        """The same as `advance`, always one row after another."""

        def step(state: Any, row: Row) -> tuple[Any, Array]:
            state = self.update(state, row)
            return state, self.read(state, row.q)

        state, out = jax.lax.scan(step, state, rows)
        return out, state

    def check(self, k: Any, log_decay: Any, rate: Any) -> None:
        """Raises `ValueError` for keys, decays or rates that the estimator does not take.

        Default: all are taken.

        `k`, `log_decay`, `rate`: as `regress` got them; None where they were not given.
        """


def add_to_decayed(
    state: Float[Array, "..."], log_decay: Float[Array, "..."], added: Float[Array, "..."]
) -> Float[Array, "..."]:
    r"""Returns $\alpha S + u$ from S, log α and u, which broadcast.

    For a slow decay it evaluates $S + ((\alpha - 1) S + u)$, as a rounding of α itself repeats at
    each row. With α = e^-0.0001, 20 000 rows and float32 the relative error is 2e-6; it is 1.5e-4
    by $\alpha S + u$. For a fast decay the difference would lose digits by cancellation.
    """
    slow = state + (jnp.expm1(log_decay) * state + added)
    return jnp.where(log_decay > -0.5, slow, jnp.exp(log_decay) * state + added)
