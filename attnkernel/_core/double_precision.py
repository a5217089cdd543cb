"""Functions in float64 inside a program of float32, with derivatives of every order and `vmap`.

JAX has one default precision at a time, and the rules that differentiate, batch and compile a
function read it when they run, which is after the function was traced. `in_float64` is therefore
a primitive: each of its rules sets the precision, and takes and returns 32-bit numbers alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import enable_x64
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array


def in_float64(function: Callable[..., Sequence[Array]], *trees: Any) -> list[Array]:
    """Returns the results of `function(*trees)`, computed in float64 and converted to float32.

    Floating arrays among the leaves of `trees` are converted to float64, and those of the result to
    float32; int64 arrays become int32. The function must not close over traced arrays.
    """
    moving, fixed = eqx.partition(trees, eqx.is_array)
    leaves, structure = jax.tree.flatten(moving)

    def of_leaves(*leaves: Array) -> list[Array]:
        wide = structure.unflatten(_converted(leaf, jnp.float64) for leaf in leaves)
        return [_converted(out, jnp.float32) for out in function(*eqx.combine(wide, fixed))]

    return _call(of_leaves, leaves)


def _converted(array: Array, dtype: Any) -> Array:
    """Returns a floating array in this dtype, an int64 array as int32, and others unchanged."""
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(dtype)
    return array.astype(jnp.int32) if array.dtype == jnp.int64 else array


class _Traced(NamedTuple):
    """A function as JAX traced it in double precision.

    The class hides the jaxpr: JAX from 0.12 looks for rules to lower one that is itself a
    parameter of a primitive.
    """

    jaxpr: ClosedJaxpr

    def __call__(self, *arrays: Array) -> Sequence[Array]:
        return jaxpr_as_fun(self.jaxpr)(*arrays)


_in_float64 = Primitive("in_float64")
_in_float64.multiple_results = True


def _call(function: Callable[..., Sequence[Array]], arrays: Sequence[Any]) -> list[Array]:
    """Returns `function(*arrays)`, traced in double precision, as one equation.

    JAX may pass constants of NumPy among the arrays.
    """
    with enable_x64(True):
        shapes = [jax.ShapeDtypeStruct(jnp.shape(array), array.dtype) for array in arrays]
        traced = _Traced(jax.make_jaxpr(function)(*shapes))
    return _in_float64.bind(*arrays, function=traced)


def _replaced(values: Sequence[Any], where: Sequence[bool], others: Sequence[Any]) -> list[Any]:
    """Returns `values` with the next of `others` in each place where `where` is true."""
    following = iter(others)
    return [next(following) if new else old for old, new in zip(values, where, strict=True)]


def _abstract(*avals: Any, function: _Traced) -> Sequence[Any]:
    """Returns the shapes and dtypes of the results, as abstract values.

    They vary along the axes of `shard_map` along which the first array that varies does.
    """
    outs = function.jaxpr.out_avals
    for aval in avals:
        axes = getattr(aval, "manual_axis_type", None)
        if axes is not None and axes.varying:
            return [out.update(manual_axis_type=axes) for out in outs]
    return outs


def _evaluate(*arrays: Array, function: _Traced) -> Sequence[Array]:
    """Returns the results of a call outside of any transformation."""
    with enable_x64(True):
        return jax.jit(jaxpr_as_fun(function.jaxpr))(*arrays)


def _lower(context: Any, *arrays: Any, function: _Traced) -> Any:
    """Returns the compiler's operations for the function."""
    with enable_x64(True):
        # traced without the axes of shard_map along which arrays vary
        context = context.replace(avals_in=function.jaxpr.in_avals)
        return mlir.lower_fun(function, multiple_results=True)(context, *arrays)


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], *, function: _Traced
) -> tuple[Sequence[Array], Sequence[Array]]:
    """Returns the results and their tangents, which are a function of primals and tangents.

    The tangents do not share intermediate arrays with the results: those are of float64.
    """
    moves = [type(tangent) is not ad.Zero for tangent in tangents]
    number = len(primals)

    def change(*arrays: Array) -> Sequence[Array]:
        values, along = arrays[:number], arrays[number:]

        def of_moving(*moving: Array) -> Sequence[Array]:
            return function(*_replaced(values, moves, moving))

        moving = [value for value, moved in zip(values, moves, strict=True) if moved]
        return jax.jvp(of_moving, tuple(moving), tuple(along))[1]

    along = [tangent for tangent, moved in zip(tangents, moves, strict=True) if moved]
    return _in_float64.bind(*primals, function=function), _call(change, [*primals, *along])


def _transpose(cotangents: Sequence[Any], *arrays: Any, function: _Traced) -> list[Any]:
    """Returns, for each array, its cotangent if the function is linear in it, else None."""
    is_linear = [ad.is_undefined_primal(array) for array in arrays]
    known = [array for array, linear in zip(arrays, is_linear, strict=True) if not linear]
    shapes = [
        jax.ShapeDtypeStruct(array.aval.shape, array.aval.dtype)
        for array, linear in zip(arrays, is_linear, strict=True)
        if linear
    ]
    number = len(known)

    def pull_back(*arrays: Array) -> Sequence[Array]:
        known, cotangents = arrays[:number], arrays[number:]
        places = _replaced([None] * len(is_linear), [not linear for linear in is_linear], known)

        def of_linear(*linear: Array) -> Sequence[Array]:
            return function(*_replaced(places, is_linear, linear))

        return jax.linear_transpose(of_linear, *shapes)(list(cotangents))

    found = _call(pull_back, [*known, *map(ad.instantiate_zeros, cotangents)])
    return _replaced([None] * len(is_linear), is_linear, found)


def _batch(
    arrays: Sequence[Any], axes: Sequence[Any], *, function: _Traced
) -> tuple[Sequence[Array], list[int]]:
    """Returns the results for a batch, and its axis in each of them: the first."""
    mapped = [axis if isinstance(axis, int) else None for axis in axes]
    found = _call(jax.vmap(function, in_axes=mapped), arrays)
    return found, [0] * len(found)


_in_float64.def_abstract_eval(_abstract)
_in_float64.def_impl(_evaluate)
mlir.register_lowering(_in_float64, _lower)
ad.primitive_jvps[_in_float64] = _differentiate
ad.primitive_transposes[_in_float64] = _transpose
batching.primitive_batchers[_in_float64] = _batch
