r"""Linear attention: with $K = \varphi(q) \cdot \varphi(k)$ one sum over keys serves all queries.

$$ \sum_j K(q, k_j)\, v_j = \sum_m \varphi_m(q)\, S_m, \qquad S_m = \sum_j \varphi_m(k_j)\, v_j $$

S is a state of fixed size, to which each key is added once: the causal form is a recurrence. Each
feature has its own running maximum, as each query has in softmax attention.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import precise_matmul
from .._core.tracing import is_symbolic, vary_alike
from .._core.validation import require_instance
from ..kernels import DotProduct, Features, FiniteRank, Gaussian, Kernel, RandomFeatures, in_units
from ..priors import Prior, pair_mask_of
from ..rules import Rule, Softmax
from ._base import Keys, Method, Queries, Task, Values, mask_unsupported_reason
from ._softmax_state import SoftmaxState, finite_shift


class LinearState(eqx.Module):
    """$\\sum_j \\varphi_m(k_j) (v_j, 1)$ of the keys so far, each feature times $e^{-c_m}$.

    `maximum`: $c_m$, the largest log-feature so far. `sums`: shape (features, dim_v + 1).

    ```python
    >>> ak.methods.LinearState.empty(2, 1, jnp.float32)
    LinearState(maximum=f32[2], sums=f32[2,2])

    ```
    """

    maximum: Float[Array, " features"]
    sums: Float[Array, "features width"]

    @classmethod
    def empty(cls, features: int, dim_v: int, dtype=None) -> "LinearState":
        """The state of no keys."""
        return cls(jnp.full(features, -jnp.inf, dtype), jnp.zeros((features, dim_v + 1), dtype))

    def scaled(self, maximum: Float[Array, " features"]) -> Float[Array, "features width"]:
        """The sums, rescaled to another c: `maximum`, no less than that of the state."""
        return self.sums * jnp.exp(self.maximum - finite_shift(maximum))[:, None]


class Linear(Method):
    r"""Sums of features, in O(n + m) time: exact for `FiniteRank` kernels, else approximate.

    `Auto` never takes it. Takes `FiniteRank` kernels, such as `EluFeatures`, as they are, at
    temperature 1; `Gaussian` and `DotProduct`, at any temperature, with random features. Supported
    priors: `HeldOut` and `Causal()`, also joined by `&`; `Causal()` needs as many queries as keys.
    A sum of trigonometric features whose mass is not positive is NaN.

    ```python
    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    out = ak.attend(x, x, x, kernel=ak.kernels.EluFeatures(), method=ak.methods.Linear())
    assert jnp.allclose(out, ak.attend(x, x, x, kernel=ak.kernels.EluFeatures()), atol=1e-5)
    ```

    **Arguments:** `features`: `RandomFeatures`, for kernels that are not of finite rank.

    **Raises:** `ValueError` if `features` is another.
    """

    features: RandomFeatures | None = None

    def __check_init__(self):
        if self.features is not None:
            example = "ak.kernels.RandomFeatures(64, 2, key=jax.random.PRNGKey(0))"
            require_instance("features", self.features, RandomFeatures, example)

    def unsupported_reason(self, task: Task) -> str | None:
        kernel, rule = task.kernel, task.rule
        if type(rule) is not Softmax:
            return f"it takes the rule Softmax, not {type(rule).__name__}"
        if isinstance(kernel, FiniteRank):
            if not rule.has_unit_temperature:
                return "of a kernel of finite rank it takes temperature 1"
        elif type(kernel) not in (Gaussian, DotProduct):
            return (
                "it takes kernels of finite rank, and Gaussian and DotProduct with random features;"
                f" got {type(kernel).__name__}"
            )
        elif self.features is None:
            name = type(kernel).__name__
            return f"{name} is not of finite rank: pass features=ak.kernels.RandomFeatures(...)"
        elif self.features.directions.shape[-1] != task.dim:
            dim = self.features.directions.shape[-1]
            return f"its features are of points of {dim} dimensions; got {task.dim}"
        masks = "HeldOut and Causal(), also joined by &"
        if (reason := mask_unsupported_reason(task.prior, masks, "is_causal")) is not None:
            return reason
        if pair_mask_of(task.prior).is_causal and task.queries != task.keys:
            return (
                "with a causal mask it takes as many queries as keys; got "
                f"{task.queries} queries and {task.keys} keys"
            )
        return None

    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        of_queries, of_keys = self.apply_features(q, k, kernel, rule)
        values = jnp.concatenate([v, jnp.ones((v.shape[0], 1), v.dtype)], axis=1)
        state = LinearState.empty(of_keys.log.shape[1], v.shape[1], v.dtype)
        mask = pair_mask_of(prior)
        if mask.allowed is not None:
            allowed = mask.allowed[:, None]
            log = jnp.where(allowed, of_keys.log, -jnp.inf)
            of_keys = Features(log, jnp.where(allowed, of_keys.factor, 0.0))
            values = jnp.where(allowed, values, 0.0)
        if mask.is_causal:
            softmax, _ = advance(state, of_queries, of_keys, values)
        else:
            softmax = _read_state(_add_keys(state, of_keys, values), of_queries)
        return softmax.with_sink(rule.log_sink())

    def apply_features(
        self, q: Queries, k: Keys, kernel: Kernel, rule: Rule
    ) -> tuple[Features, Features]:
        """Features of queries and of keys: those of a `FiniteRank` kernel, or else random ones."""
        if isinstance(kernel, FiniteRank):
            return kernel.features(q), kernel.features(k)
        assert isinstance(kernel, Gaussian | DotProduct)
        assert isinstance(rule, Softmax)
        assert self.features is not None
        q, k = in_units(kernel, q, k, rule.temperature)
        gaussian = isinstance(kernel, Gaussian)
        return self.features(q, gaussian), self.features(k, gaussian)


def _add_keys(
    state: LinearState, keys: Features, values: Float[Array, "keys width"]
) -> LinearState:
    """Returns the state with more keys added.

    `keys`: their features. `values`: (v, 1) of each.
    """
    maximum = jnp.maximum(state.maximum, jnp.max(keys.log, axis=0, initial=-jnp.inf))
    maximum = jax.lax.stop_gradient(maximum)
    weights = keys.factor * jnp.exp(keys.log - finite_shift(maximum)[None, :])
    return LinearState(maximum, state.scaled(maximum) + precise_matmul(weights.T, values))


def _read_state(state: LinearState, queries: Features) -> SoftmaxState:
    """Returns the softmax state of queries, given by their features, over all keys of `state`."""
    log = queries.log + finite_shift(state.maximum)[None, :]
    log = jnp.where(jnp.isneginf(state.maximum)[None, :], -jnp.inf, log)
    highest = finite_shift(jnp.max(log, axis=1))
    weights = queries.factor * jnp.exp(log - highest[:, None])
    return _state_of_sums(
        highest, precise_matmul(weights, state.sums), jnp.any(state.maximum > -jnp.inf)
    )


def _state_of_sums(
    highest: Float[Array, " queries"], sums: Float[Array, "queries width"], some: Array
) -> SoftmaxState:
    """Returns the softmax state with these sums; a mass that is not positive becomes NaN, unless
    all sums of its query are 0.

    `highest`: the shift of each query. `sums`: Σ exp(s − shift) (v, 1). `some`: whether any key
    is summed; if not, the mass stays 0.
    """
    is_wrong = some & ~(sums[:, -1] > 0) & jnp.any(sums != 0, axis=1)
    mass = jnp.where(is_wrong, jnp.nan, sums[:, -1])
    return SoftmaxState(highest, mass, sums[:, :-1])


def advance(
    state: LinearState, queries: Features, keys: Features, values: Float[Array, "rows width"]
) -> tuple[SoftmaxState, LinearState]:
    """Causal sums of rows that follow those of the state, and the state with these rows added.

    Each row sees the rows of the state, the rows before it, and itself.

    **Arguments:** `queries`, `keys`: features of the rows. `values`: (v, 1) of each.

    ```python
    rows = ak.kernels.EluFeatures().features(jnp.ones((2, 3)))
    empty = ak.methods.LinearState.empty(features=3, dim_v=1)
    softmax, state = ak.methods.advance(empty, rows, rows, jnp.ones((2, 2)))
    assert jnp.allclose(softmax.value, 1.0) and state.sums.shape == (3, 2)
    ```
    """
    rows = values.shape[0]
    # gradient at T = 4096, 4 heads x 32 features, in chunks of 16 rows 55 ms, 64 47 ms, 256 55 ms
    size = 64 if is_symbolic(rows) else min(64, rows)
    chunks = -(-rows // size)
    short = chunks * size - rows

    def cut(array: Array, padding: float) -> Array:
        array = jnp.pad(array, ((0, short), (0, 0)), constant_values=padding)
        return array.reshape(chunks, size, array.shape[1])

    parts = (
        Features(cut(queries.log, 0.0), cut(queries.factor, 0.0)),
        Features(cut(keys.log, -jnp.inf), cut(keys.factor, 0.0)),
        cut(values, 0.0),
    )

    @jax.checkpoint
    def step(
        state: LinearState, chunk: tuple[Features, Features, Array]
    ) -> tuple[LinearState, SoftmaxState]:
        _, keys, values = chunk
        after = _add_keys(state, keys, values)
        # the features that the first rows see may underflow beside those that only the last see
        first = jnp.maximum(state.maximum, keys.log[0])
        close = jnp.all(after.maximum - first < 0.4 * -jnp.log(jnp.finfo(values.dtype).tiny))
        softmax = jax.lax.cond(
            close, _chunk_by_products, _chunk_by_recurrence, state, after, *chunk
        )
        return after, softmax

    state, softmax = jax.lax.scan(step, vary_alike(state, parts), parts)
    softmax = jax.tree.map(
        lambda leaf: leaf.reshape(chunks * size, *leaf.shape[2:])[:rows], softmax
    )
    return softmax, state


def _chunk_by_products(
    state: LinearState, after: LinearState, queries: Features, keys: Features, values: Array
) -> SoftmaxState:
    """Returns the causal softmax state of each query of a chunk of rows, by matrix products.

    `state`, `after`: the sums over keys before the chunk, and with its keys added. `queries`,
    `keys`: the features of its rows. `values`: (v, 1) of each.
    """
    log = queries.log + finite_shift(after.maximum)[None, :]
    highest = finite_shift(jnp.max(log, axis=1))
    left = queries.factor * jnp.exp(log - highest[:, None])
    right = keys.factor * jnp.exp(keys.log - finite_shift(after.maximum)[None, :])
    within = jnp.tril(precise_matmul(left, right.T))
    sums = precise_matmul(within, values) + precise_matmul(left, state.scaled(after.maximum))
    return _state_of_sums(highest, sums, jnp.array(True))


def _chunk_by_recurrence(
    state: LinearState, after: LinearState, queries: Features, keys: Features, values: Array
) -> SoftmaxState:
    """Returns the same as `_chunk_by_products`, adding one key at a time; `after` is unused.

    The shift of a query never depends on later keys, next to which its features might underflow.
    """

    def step(
        state: LinearState, row: tuple[Features, Features, Array]
    ) -> tuple[LinearState, SoftmaxState]:
        query, key, value = jax.tree.map(lambda leaf: leaf[None], row)
        state = _add_keys(state, key, value)
        return state, jax.tree.map(lambda leaf: leaf[0], _read_state(state, query))

    return jax.lax.scan(step, state, (queries, keys, values))[1]
