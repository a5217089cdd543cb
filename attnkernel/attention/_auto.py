"""`Auto`: which method sums what, by a decision list that is its docstring.

The decision is by the `Task`, which is derived from the arguments of `attend` as they are checked.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._core.arrays import as_real_array, wider_dtype
from .._core.parameters import require_single
from .._core.tracing import is_symbolic
from .._core.validation import require_instance
from ..kernels import Kernel
from ..methods import (
    MAX_DENSE_PAIRS,
    Blockwise,
    Dense,
    Fourier,
    Keys,
    Method,
    Queries,
    SoftmaxState,
    Sorted,
    Task,
    Values,
)
from ..priors import Prior
from ..rules import Rule, Softmax
from ._per_head import KernelPriorRule, PerHead, batch_shape, first_head


def check_arguments(
    q: Any, k: Any, v: Any, kernel: Any, prior: Any, rule: Any, degree: int = 0
) -> tuple[tuple[Any, Any, Any], Task]:
    """Returns (q, k, v) as floating arrays, and the `Task` of one member of the batch.

    `degree`: of the moments that are summed, as in `Task`.

    **Raises:** `ValueError` if an argument is of a wrong type or shape, or they do not match.
    """
    q, k, v = _as_real_matrix("q", q), _as_real_matrix("k", k), _as_real_matrix("v", v)
    parts = (kernel, prior, rule)
    require_parts(*parts)
    for part in map(first_head, parts):
        require_single(part)
    _require_compatible_shapes(q, k, v, parts)
    return (q, k, v), task_of(q, k, v, *map(first_head, parts), degree=degree)


def require_parts(kernel: Any, prior: Any, rule: Any, *methods: Any) -> None:
    """Raises `ValueError` unless these are a `Kernel`, `Prior` and `Rule`, each of all heads or
    `PerHead`, and `methods` are each a `Method`. The prior may be None.

    `methods`: a layer passes its one method; other callers pass none.
    """
    for name, part, kind, example in (
        ("kernel", kernel, Kernel, "ak.Gaussian(0.3)"),
        ("rule", rule, Rule, "ak.Softmax()"),
        ("prior", prior, Prior, "ak.Causal(), for an array ak.priors.MaskArray(mask), or None"),
        *(("method", method, Method, "ak.attention.Auto()") for method in methods),
    ):
        if not (part is None and name == "prior"):
            require_instance(name, getattr(part, "stack", part), kind, example)


def task_of(
    q: Any, k: Any, v: Any, kernel: Kernel, prior: Prior | None, rule: Rule, degree: int = 0
) -> Task:
    """Returns the `Task` of one member of the batch, from the shapes and dtypes of q, k and v.

    Its kernel and dimension are those after `Kernel.precomputed`. `degree`: of the moments that are
    summed; above 0 nothing is precomputed, since moments are of the given points.
    """
    given = jnp.result_type(q, k, v)
    dtype = wider_dtype(given)
    if not degree and type(kernel).precomputed is not Kernel.precomputed:
        points = (jax.ShapeDtypeStruct(points.shape[-2:], dtype) for points in (q, k))
        kernel, q, k = eqx.filter_eval_shape(type(kernel).precomputed, kernel, *points)
    (*_, queries, dim), (*_, keys, dim_v) = q.shape, v.shape
    return Task(kernel, prior, rule, queries, keys, dim, dim_v, dtype, given, degree)


def _as_real_matrix(name: str, value: Any) -> Any:
    """Returns `value` as a real floating array of shape (*batch, rows, columns); a
    `ShapeDtypeStruct` stays one. `name`: that of the argument, for errors.

    Raises `ValueError` for fewer than two axes, and for what are no real numbers.
    """
    array = value if isinstance(value, jax.ShapeDtypeStruct) else as_real_array(name, value)
    if array.ndim < 2:
        raise ValueError(
            f"{name} must have shape (*batch, rows, columns); got {array.shape}. "
            f"For n numbers in one dimension use {name}[:, None]."
        )
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"{name} must be real; got dtype {array.dtype}.")
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array
    return jax.ShapeDtypeStruct(array.shape, jnp.result_type(float))


def _require_compatible_shapes(q: Any, k: Any, v: Any, parts: KernelPriorRule) -> None:
    """Raises `ValueError` unless q, k, v, the kernel and the prior fit each other in shape."""
    kernel, prior, _ = map(first_head, parts)
    try:
        kernel.check(q.shape[-1], k.shape[-1])
    except ValueError as error:
        raise ValueError(f"q {q.shape} and k {k.shape} do not fit the kernel. {error}") from None
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"Each key needs one value; got k {k.shape} and v {v.shape}.")
    if prior is not None:
        prior.check(q.shape[-2], k.shape[-2])
    batch_shape(parts, q, k, v)


def as_order(order: Any) -> int:
    """Returns the order of a local polynomial as an `int`; `ValueError` unless 0, 1 or 2."""
    if isinstance(order, bool) or not isinstance(order, int | np.integer) or not 0 <= order <= 2:
        raise ValueError(
            f"order must be 0 (local constant), 1 (linear) or 2 (quadratic); got {order!r}."
        )
    return int(order)


class Auto(Method):
    """The method that `select_method` names, by this decision list:

    1. `Dense()`, for up to 2²⁰ pairs of a query and a key (4 MB of scores in float32); in more than
       12 dimensions, and for kernels that are not cheap (`Kernel.is_cheap`), such as a dot product,
       for up to 2¹⁸. Batch members are evaluated in chunks of at most 2²⁴ pairs.
    2. `Sorted()`, if it supports the task: in one dimension, for kernels that allow it; exact.
    3. `Fourier()`, if it supports the task and there are more than 2²², 2²³, 2³⁰ pairs in
       1, 2, 3 dimensions: certified to a relative error of 1e-6.
    4. `Blockwise()`. Symbolic numbers of queries or keys (`jax.export`) always lead here.

    For local polynomials of order 1 and 2 `Sorted` is left out, and `Fourier` is taken in one
    dimension, above 2²² pairs. `Dense` and `Blockwise` then take the queries in chunks of
    neighbours.

    ```python
    >>> x = jax.ShapeDtypeStruct((5000, 1), jnp.float32)
    >>> ak.attention.select_method(x, x, x, kernel=ak.Laplace(0.3)).method
    Sorted()

    ```
    """

    def resolve(self, task: Task) -> Method:
        return _select_first_supported(task).method

    def softmax_state(
        self, q: Queries, k: Keys, v: Values, kernel: Kernel, prior: Prior | None, rule: Rule
    ) -> SoftmaxState:
        method = self.resolve(task_of(q, k, v, kernel, prior, rule))
        return method.softmax_state(q, k, v, kernel, prior, rule)


class Selection(NamedTuple):
    """The method that `Auto` takes, and why it skipped each method before it in its list.

    `skipped`: pairs (name of the method, reason), in the order of the list.

    ```python
    >>> x = jax.ShapeDtypeStruct((5000, 1), jnp.float32)
    >>> [name for name, _ in ak.attention.select_method(x, x, x, kernel=ak.Laplace(0.3)).skipped]
    ['Dense']

    ```
    """

    method: Method
    skipped: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        reasons = [f"  not {name}: {reason}" for name, reason in self.skipped]
        return "\n".join([repr(self.method), *reasons])


def select_method(
    q: ArrayLike | jax.ShapeDtypeStruct,
    k: ArrayLike | jax.ShapeDtypeStruct,
    v: ArrayLike | jax.ShapeDtypeStruct,
    *,
    kernel: Kernel | PerHead,
    prior: Prior | PerHead | None = None,
    rule: Rule | PerHead = Softmax(),
    order: int = 0,
) -> Selection:
    """The method that `Auto` takes, without running it; arguments as for `attend`.

    Of q, k and v only shapes and dtypes matter: `jax.ShapeDtypeStruct`s will do. Print what comes
    back to read the reason why each method before it in the list was skipped.

    `order`: that of local polynomials, as in `KernelRegression`. Default: 0, weighted means.

    **Raises:** `ValueError` if an argument does not fit, as in `attend`, or for another order.

    ```python
    x = jax.ShapeDtypeStruct((2000, 1), jnp.float32)
    found = ak.attention.select_method(x, x, x, kernel=ak.Epanechnikov(0.3))
    assert found.method == ak.methods.Sorted()
    ```
    """
    degree = 2 * as_order(order)
    return _select_first_supported(check_arguments(q, k, v, kernel, prior, rule, degree)[1])


def method_on_a_line(task: Task) -> Method | None:
    """`Sorted` or `Fourier`, if `Auto` would take it in one dimension for the weights and for their
    squares; else None. Also None for any rule but `Softmax`.
    """
    # squared weights are those of half the temperature: a method that takes ½ takes 1 too
    if task.dim != 1 or type(task.rule) is not Softmax:
        return None
    method = _select_first_supported(task._replace(rule=Softmax(0.5))).method
    return method if isinstance(method, Sorted | Fourier) else None


def _select_first_supported(task: Task) -> Selection:
    """Returns the first method in the list of `Auto` that supports the task, and why each method
    before it was skipped.
    """
    # above these pairs in 1, 2, 3 dimensions. Local linear fits, leave-one-out with its gradient in
    # float64, Fourier and Blockwise: 17 and 31 ms for 1200 rows, 17 and 72 ms for 2400, 20 and
    # 200 ms for 4800; CPU time to compile 13 and 7 s
    min_fourier_pairs = {1: 2**22, 2: 2**23, 3: 2**30}
    skipped = []
    pairs, max_dense_pairs = task.queries * task.keys, MAX_DENSE_PAIRS
    if not (task.kernel.is_cheap and task.dim <= 12):
        # T = 1024, 8 heads of 64, causal: Dense 150 ms, Blockwise 31, with gradients 272 and 92
        max_dense_pairs //= 4
    for method in (Dense(), Sorted(), Fourier()):
        reason = method.unsupported_reason(task)
        if isinstance(method, Dense) and is_symbolic(pairs):
            reason = f"the number of scores is symbolic, and may be more than {max_dense_pairs}"
        elif isinstance(method, Dense) and pairs > max_dense_pairs:
            size = pairs * jnp.dtype(task.dtype).itemsize
            reason = (
                f"{task.queries} x {task.keys} scores, {size / 2**20:.0f} MiB, are more than "
                f"{max_dense_pairs}"
            )
        if isinstance(method, Sorted) and task.degree:
            reason = "it has no moments of local polynomials"
        if isinstance(method, Fourier) and reason is None and pairs <= min_fourier_pairs[task.dim]:
            reason = f"{pairs} pairs are no more than {min_fourier_pairs[task.dim]}"
        if reason is None:
            return Selection(method, tuple(skipped))
        skipped.append((type(method).__name__, reason))
    return Selection(Blockwise(), tuple(skipped))  # it takes everything
