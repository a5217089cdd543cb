r"""Sorted keys in one dimension: O((n + m) log n), to the last digit.

The keys within reach of a query are an interval of the sorted keys, and the sum over an interval
is put together from running sums. Prefix sums of the powers of k, by which this is done since Fan
and Marron (*Fast implementations of nonparametric curve estimators*, 1994), lose digits wherever
the range of x is many lengthscales, or x is far from 0; those of `_sorted_sums` do not.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core.tracing import NO_SYMBOLIC_SIZES, is_symbolic
from ..kernels import Biweight, Boxcar, Epanechnikov, Kernel, Laplace, Radial, Triangular, Triweight
from ..priors import Prior, pair_mask_of
from ..rules import Rule, Softmax
from ._base import Keys, Method, Queries, Task, Values, mask_unsupported_reason
from ._softmax_state import SoftmaxState
from ._sorted_sums import Line, bisect_first_false, compact_sums, laplace_sums

# K as a polynomial of z = 1 − r, coefficients from degree 0
_POLYNOMIALS: dict[type[Kernel], tuple[float, ...]] = {
    Boxcar: (1.0,),
    Triangular: (0.0, 1.0),
    Epanechnikov: (0.0, 2.0, -1.0),
    Biweight: (0.0, 0.0, 4.0, -4.0, 1.0),
    Triweight: (0.0, 0.0, 0.0, 8.0, -12.0, 6.0, -1.0),
}


class Sorted(Method):
    r"""Sorts the keys and sums over intervals of them; exact, for d = 1, in O((n + m) log n).

    Takes `Laplace` and the compact kernels `Boxcar`, `Triangular`, `Epanechnikov`, `Biweight` and
    `Triweight`; no prior, `HeldOut`, `ExcludeSelf`, or these joined by `&`. Memory is O(n + m).
    The rule is `Softmax`: at any temperature for `Laplace` and `Boxcar`, else fixed at 1.
    No sum is formed by subtraction: all digits stay, wherever the points lie.

    `ExcludeSelf` is for queries and keys that are the same rows. If the key that a query excludes
    differs from the query, is within its reach and not held out, the result of the query is NaN.

    ```python
    x = jnp.linspace(0.0, 1.0, 5)[:, None]
    out = ak.attend(x, x, x, kernel=ak.Epanechnikov(0.3), method=ak.methods.Sorted())
    assert jnp.allclose(out, ak.attend(x, x, x, kernel=ak.Epanechnikov(0.3)), atol=1e-5)
    ```
    """

    def unsupported_reason(self, task: Task) -> str | None:
        kernel, rule = task.kernel, task.rule
        if is_symbolic(task.queries, task.keys):
            return NO_SYMBOLIC_SIZES
        if type(kernel) is not Laplace and type(kernel) not in _POLYNOMIALS:
            names = ", ".join(["Laplace", *(known.__name__ for known in _POLYNOMIALS)])
            return f"it takes the kernels {names}; got {type(kernel).__name__}"
        if task.dim != 1:
            return f"it sorts points of one dimension; got {task.dim}"
        masks = "HeldOut and ExcludeSelf, also joined by &"
        if (reason := mask_unsupported_reason(task.prior, masks, "excludes_self")) is not None:
            return reason
        if pair_mask_of(task.prior).excludes_self and task.queries != task.keys:
            return (
                "with ExcludeSelf it takes queries and keys that are the same rows; got "
                f"{task.queries} queries and {task.keys} keys"
            )
        if type(rule) is not Softmax:
            return f"it takes the rule Softmax; got {type(rule).__name__}"
        if not rule.has_unit_temperature and type(kernel) not in (Laplace, Boxcar):
            return f"with {type(kernel).__name__} it takes temperature 1, held fixed"
        return None

    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        mask = pair_mask_of(prior)
        assert isinstance(kernel, Radial)
        assert isinstance(rule, Softmax)
        hidden = jnp.zeros(len(k), bool) if mask.allowed is None else ~mask.allowed
        # hidden keys come last, as copies of the greatest visible key, with weight 0
        q_fixed, k_fixed = jax.lax.stop_gradient((q[:, 0], k[:, 0]))
        sort_by = jnp.where(hidden, jnp.inf, k_fixed)
        order = jnp.argsort(sort_by)
        # often the same rows, whose order is known then: a sort is 1.0 ms, all sums of Laplace with
        # one sort 1.5 ms for 5000 rows
        if len(q) == len(k):
            same = jnp.array_equal(q_fixed, sort_by)
            rank = jax.lax.cond(same, lambda: order, lambda: jnp.argsort(q_fixed))
        else:
            rank = jnp.argsort(q_fixed)
        greatest = jnp.max(k_fixed, where=~hidden, initial=-jnp.inf)
        greatest = jnp.where(hidden.all(), 0.0, greatest)
        k_seen = jnp.where(hidden[:, None], greatest, k)
        values = jnp.concatenate([v, jnp.ones((len(v), 1), v.dtype)], axis=1)
        values = jnp.where(hidden[:, None], 0.0, values)
        own = _inverse_permutation(order)[rank] if mask.excludes_self else None
        state = _sum_sorted(q[rank], k_seen[order], values[order].T, own, kernel, rule)
        back = _inverse_permutation(rank)
        state = jax.tree.map(lambda leaf: leaf[back], state)
        return state.with_sink(rule.log_sink())


def _sum_sorted(
    q: Float[Array, "queries 1"],
    k: Float[Array, "keys 1"],
    values: Float[Array, "width keys"],
    own: Int[Array, " queries"] | None,
    kernel: Radial,
    rule: Softmax,
) -> SoftmaxState:
    """Returns the softmax state of sorted queries over sorted keys.

    `values`: transposed; the last row is 1, or 0 for a hidden key. `own`: the index, among the
    sorted keys, of the key that each query excludes; None if it excludes none.
    """
    scale = jnp.abs(kernel.in_lengthscales(jnp.ones_like(q[:1]))[0, 0])
    a, b = q[:, 0], k[:, 0]
    a_fixed, b_fixed = jax.lax.stop_gradient((a, b))
    below = bisect_first_false(lambda j: b_fixed[j] < a_fixed, b_fixed, a_fixed)
    upto = bisect_first_false(lambda j: b_fixed[j] <= a_fixed, b_fixed, a_fixed)
    line = Line(a, b, values, scale, own, below, upto)
    if type(kernel) is Laplace:
        return laplace_sums(line, rule.temperature)

    # distances as the kernel rounds them: at the end of its support they decide about a key
    kernel_fixed, q_fixed, k_fixed = jax.lax.stop_gradient((kernel, q, k))

    def inside(j: Int[Array, " queries"]) -> Bool[Array, " queries"]:
        return jax.vmap(kernel_fixed.scaled_square)(q_fixed, k_fixed[j]) < 1.0

    start = bisect_first_false(lambda j: (b_fixed[j] < a_fixed) & ~inside(j), b_fixed, a_fixed)
    stop = bisect_first_false(lambda j: (b_fixed[j] <= a_fixed) | inside(j), b_fixed, a_fixed)
    coefficients = _POLYNOMIALS[type(kernel)]
    return compact_sums(line, (start, stop), coefficients, cusp=not kernel.is_smooth)


def _inverse_permutation(order: Int[Array, " n"]) -> Int[Array, " n"]:
    """Returns the inverse of the permutation `order`: the index of each number within it."""
    index = jnp.arange(len(order), dtype=order.dtype)
    return jnp.zeros_like(order).at[order].set(index, unique_indices=True)
