"""The one verb. Attention, Nadaraya–Watson regression and everything between are this call."""

import dataclasses
import math
from typing import Any, Literal, NamedTuple, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ._checks import require_finite
from ._rules import Rule, Softmax
from .kernels import Kernel
from .methods import Blockwise, Dense, Fourier, Method, Moments, Sorted, Task
from .priors import Prior


class Auto(Method):
    """The method that `select_method` names, by this decision list:

    1. `Dense()`, for up to 2²⁰ pairs of a query and a key (4 MB of scores in float32); of a batch
       so many members at a time as have 2²⁴.
    2. `Sorted()`, where it can: in one dimension, for kernels that allow it; exact.
    3. `Fourier()`, where it can and there are more than 2²², 2²³, 2³⁰ pairs in 1, 2, 3 dimensions:
       certified to a relative error of 1e-6.
    4. `Blockwise()`.
    """

    def refusal(self, task: Task) -> str | None:
        return None

    def choice(self, task: Task) -> Method:
        return _select(task).method

    def moments(
        self,
        q: Float[Array, "queries dim"],
        k: Float[Array, "keys dim"],
        v: Float[Array, "keys dim_v"],
        kernel: Kernel,
        prior: Prior | None,
        rule: Rule,
    ) -> Moments:
        method = self.choice(_task(q, k, v, kernel, prior, rule))
        return method.moments(q, k, v, kernel, prior, rule)


class Selection(NamedTuple):
    """What would run, and why each method before it in the list would not."""

    method: Method
    passed_over: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        reasons = [f"  not {name}: {reason}" for name, reason in self.passed_over]
        return "\n".join([repr(self.method), *reasons])


_DENSE_PAIRS = 2**20
_FOURIER_PAIRS = {1: 2**22, 2: 2**23, 3: 2**30}  # from here on it beats streaming


def select_method(
    q: ArrayLike | jax.ShapeDtypeStruct,
    k: ArrayLike | jax.ShapeDtypeStruct,
    v: ArrayLike | jax.ShapeDtypeStruct,
    *,
    kernel: Kernel,
    prior: Prior | None = None,
    rule: Rule = Softmax(),
) -> Selection:
    """The method that `Auto` takes, without running it; arguments as for `attend`.

    Of q, k and v only shapes and dtypes matter: `jax.ShapeDtypeStruct`s will do. Print what comes
    back to read the reason for which each method before it in the list was passed over.
    """
    return _select(_checked(q, k, v, kernel, prior, rule)[1])


def _select(task: Task) -> Selection:
    passed_over = []
    pairs = task.queries * task.keys
    for method in (Dense(), Sorted(), Fourier()):
        reason = method.refusal(task)
        if isinstance(method, Dense) and pairs > _DENSE_PAIRS:
            size = pairs * jnp.dtype(task.dtype).itemsize
            reason = (
                f"{task.queries} x {task.keys} scores, {size / 2**20:.0f} MiB, are more than "
                f"{_DENSE_PAIRS}"
            )
        if isinstance(method, Fourier) and reason is None and pairs <= _FOURIER_PAIRS[task.dim]:
            reason = f"{pairs} pairs are no more than {_FOURIER_PAIRS[task.dim]}"
        if reason is None:
            return Selection(method, tuple(passed_over))
        passed_over.append((type(method).__name__, reason))
    return Selection(Blockwise(), tuple(passed_over))  # it takes everything


def _task(q: Any, k: Any, v: Any, kernel: Kernel, prior: Prior | None, rule: Rule) -> Task:
    dtype = jnp.promote_types(jnp.result_type(q, k, v), jnp.float32)
    (*_, queries, dim), (*_, keys, dim_v) = jnp.shape(q), jnp.shape(v)
    return Task(kernel, prior, rule, queries, keys, dim, dim_v, dtype)


@overload
def attend(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    kernel: Kernel,
    prior: Prior | None = ...,
    rule: Rule = ...,
    method: Method = ...,
    return_log_mass: Literal[False] = ...,
) -> Array: ...


@overload
def attend(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    kernel: Kernel,
    prior: Prior | None = ...,
    rule: Rule = ...,
    method: Method = ...,
    return_log_mass: Literal[True],
) -> tuple[Array, Array]: ...


def attend(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    kernel: Kernel,
    prior: Prior | None = None,
    rule: Rule = Softmax(),
    method: Method = Auto(),
    return_log_mass: bool = False,
) -> Array | tuple[Array, Array]:
    r"""Kernel regression; equivalently, attention.

    $$ \mathrm{attend}(q)_i = \frac{\sum_j w_{ij}\, v_j}{\sum_j w_{ij}}, \qquad
       \log w_{ij} = \tfrac1\tau \big(\log K(q_i, k_j) + \log \pi(i, j)\big) $$

    Query = test point, key = input, value = label. With the Gaussian kernel and no prior this is
    the estimator of Nadaraya (1964) and Watson (1964).

    **Arguments:**

    - `q`: queries, shape (*batch, queries, dim).
    - `k`: keys, shape (*batch, keys, dim).
    - `v`: values, shape (*batch, keys, dim_v). Leading batch axes broadcast as in NumPy.
    - `kernel`: log K(q, k), for example `Gaussian(0.3)`.
    - `prior`: log π(i, j), for example `LeaveOneOut()`; None weighs all keys alike.
    - `rule`: scores to weights. Default: softmax at temperature 1.
    - `method`: how the sum is evaluated. Default: `Auto()`, see `select_method`.
    - `return_log_mass`: also return log Σ_j w_ij.

    **Returns:** shape (*batch, queries, dim_v) in the dtype of q; where a query sees no key, 0.
    With `return_log_mass`, also shape (*batch, queries); where a query sees no key, -inf. Sums
    are never formed below float32. With `v = jnp.eye(keys)` the result is the weights themselves.

    **Raises:** `ValueError` if the shapes do not fit together, `method` refuses, or (where values
    are known, outside `jit`) a number is not finite. Inside `jit`, a query that is not finite is
    NaN in its own row alone.
    """
    if not isinstance(method, Method):
        raise ValueError(
            f"method must be a Method of attnkernel, for example ak.Auto() or ak.Blockwise(); got "
            f"{method!r}."
        )
    arrays, task = _checked(q, k, v, kernel, prior, rule)
    for name, array in zip("qkv", arrays, strict=True):
        require_finite(name, array)
    if (reason := method.refusal(task)) is not None:
        raise ValueError(f"{type(method).__name__} cannot evaluate this: {reason}")
    dtype, method = arrays[0].dtype, method.choice(task)
    task, *arrays = _in_dtype((task, *arrays), task.dtype)
    # a loop is compiled at each call, unless all of the call is
    evaluate = _compiled if method.loops and _is_constant((method, task)) else _evaluate
    value, log_mass = evaluate(method, task, *arrays)
    if return_log_mass:
        return value.astype(dtype), log_mass.astype(dtype)
    return value.astype(dtype)


def _evaluate(
    method: Method,
    task: Task,
    q: Float[Array, "*#batch queries dim"],
    k: Float[Array, "*#batch keys dim"],
    v: Float[Array, "*#batch keys dim_v"],
) -> tuple[Float[Array, "*batch queries dim_v"], Float[Array, "*batch queries"]]:
    """Values and log-masses, over all batch axes."""

    def unbatched(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        moments = method.moments(q, k, v, task.kernel, task.prior, task.rule)
        return moments.value, moments.log_mass

    rank = max(array.ndim for array in (q, k, v))
    q, k, v = (jnp.expand_dims(array, tuple(range(rank - array.ndim))) for array in (q, k, v))
    batch = jnp.broadcast_shapes(*(array.shape[:-2] for array in (q, k, v)))
    at_a_time = method.side_by_side(task)
    if at_a_time is None or math.prod(batch) <= at_a_time:
        return jnp.vectorize(unbatched, signature="(q,d),(k,d),(k,e)->(q,e),(q)")(q, k, v)
    flat = [
        jnp.broadcast_to(array, batch + array.shape[-2:]).reshape(
            math.prod(batch), *array.shape[-2:]
        )
        for array in (q, k, v)
    ]
    found = jax.lax.map(
        lambda member: unbatched(*member), flat, batch_size=at_a_time if at_a_time > 1 else None
    )
    value, log_mass = (part.reshape(*batch, *part.shape[1:]) for part in found)
    return value, log_mass


_compiled = eqx.filter_jit(_evaluate)


def _is_constant(node: Any) -> bool:
    """Whether modules hold but arrays of JAX and plain constants: no function, nor anything else
    whose result may change unseen."""
    if isinstance(node, tuple):
        return all(map(_is_constant, node))
    if isinstance(node, eqx.Module):
        return all(_is_constant(getattr(node, field.name)) for field in dataclasses.fields(node))
    return isinstance(node, jax.Array | bool | int | float | str | np.dtype | type | None)


def _in_dtype(tree: Any, dtype: Any) -> Any:
    """The tree with all of its real floating arrays in one dtype."""

    def cast(leaf: Any) -> Any:
        floating = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, dtype) if floating else leaf

    return jax.tree.map(cast, tree)


def _checked(
    q: Any, k: Any, v: Any, kernel: Kernel, prior: Prior | None, rule: Rule
) -> tuple[tuple[Any, Any, Any], Task]:
    """Arrays that fit together, and what is to be done with them.

    **Raises:** `ValueError`, with a sentence, where they do not or are of another kind.
    """
    q, k, v = _matrix("q", q), _matrix("k", k), _matrix("v", v)
    _require_fitting(q, k, v)
    for name, part, kind in (("kernel", kernel, Kernel), ("rule", rule, Rule)):
        if not isinstance(part, kind):
            raise ValueError(
                f"{name} must be a {kind.__name__} of attnkernel, for example "
                f"{'ak.Gaussian(0.3)' if kind is Kernel else 'ak.Softmax()'}; got {part!r}."
            )
    if prior is not None:
        if not isinstance(prior, Prior):
            raise ValueError(
                f"prior must be a Prior, for example ak.priors.LeaveOneOut(), or None; got "
                f"{prior!r}."
            )
        prior.check(q.shape[-2], k.shape[-2])
    return (q, k, v), _task(q, k, v, kernel, prior, rule)


def _matrix(name: str, value: Any) -> Any:
    """A floating array of rows and columns, or its shape, with any leading batch axes."""
    array = value if isinstance(value, jax.ShapeDtypeStruct) else jnp.asarray(value)
    if array.ndim < 2:
        raise ValueError(
            f"{name} must have shape (*batch, rows, columns); got {array.shape}. "
            f"For n numbers in one dimension use {name}[:, None]."
        )
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"{name} must be real; got dtype {array.dtype}.")
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(array.shape, jnp.result_type(float))
    return array.astype(float)


def _require_fitting(q: Any, k: Any, v: Any) -> None:
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"Queries and keys must have the same dimension; got q {q.shape} and k {k.shape}."
        )
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"Each key needs one value; got k {k.shape} and v {v.shape}.")
    try:
        jnp.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    except ValueError:
        raise ValueError(
            f"The leading batch axes must broadcast; got q {q.shape}, k {k.shape}, v {v.shape}."
        ) from None
