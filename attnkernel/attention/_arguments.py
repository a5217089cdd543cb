"""Checks the arguments of `attend`, and derives the `Task` from them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._core.arrays import as_real_array, wider_dtype
from .._core.parameters import require_single
from .._core.validation import require_instance
from ..kernels import Kernel
from ..methods import Method, Task
from ..priors import Prior
from ..rules import Rule
from ._per_head import KernelPriorRule, batch_shape, first_head


def check_arguments(
    q: Any, k: Any, v: Any, kernel: Any, prior: Any, rule: Any, degree: int = 0
) -> tuple[tuple[Any, Any, Any], Task]:
    """The arguments as arrays, and the `Task` of one member of the batch.

    `degree`: that of the moments.

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
    """Raises `ValueError` unless each, or its `PerHead`, has its class; a prior may be None.

    `methods`: of a layer, one.
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
    """The `Task` of one member of the batch; `degree`: that of the moments.

    Moments are of the given points: the kernel then precomputes nothing.
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
    """The order of a local polynomial."""
    if isinstance(order, bool) or not isinstance(order, int | np.integer) or not 0 <= order <= 2:
        raise ValueError(
            f"order must be 0 (local constant), 1 (linear) or 2 (quadratic); got {order!r}."
        )
    return int(order)
