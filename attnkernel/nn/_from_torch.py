"""Weights of PyTorch's `nn.MultiheadAttention`, read without importing PyTorch."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._core.arrays import as_real_array, require_finite
from .._core.parameters import fixed
from .._core.validation import as_integer, require_bool
from ..rules import Softmax
from ._multihead import MultiheadAttention
from ._persistent_memory import PersistentMemory


def from_torch(
    weights: Any,
    num_heads: int | None = None,
    *,
    prefix: str = "",
    add_zero_attn: bool | None = None,
    **options: Any,
) -> MultiheadAttention | PersistentMemory:
    r"""The module with the weights of a `torch.nn.MultiheadAttention`.

    $$ \mathrm{out}_i = b_o + \sum_h W_o^h \sum_j a^h_{ij} (W_v^h v_j + b_v^h), \qquad
       a^h_{ij} \propto \exp\big( (W_q^h q_i + b_q^h) \cdot (W_k^h k_j + b_k^h) / \sqrt d \big) $$

    PyTorch stacks $W_q, W_k, W_v \in \mathbb{R}^{E \times E}$ in `in_proj_weight`, (3E, E), or
    keeps `q_proj_weight` (E, E), `k_proj_weight` (E, kdim) and `v_proj_weight` (E, vdim), with
    $d = E / H$. Its row `bias_k`, `bias_v` (of `add_bias_kv`) is a `PersistentMemory`. Its zero
    row (of `add_zero_attn`) has score 0 and value 0: a softmax with a sink of mass 1.

    In PyTorch a Boolean mask is True where a key is hidden; here, where it is seen: pass
    `mask=~attn_mask`. The module acts on one sequence, (rows, E); for a batch use `jax.vmap`.

    **Arguments:**

    - `weights`: the module of PyTorch, its `state_dict()`, or one of NumPy arrays.
    - `num_heads`: H. Default: that of the module; a `state_dict` needs it.
    - `prefix`: of the names in a larger `state_dict`, such as "layers.0.self_attn.".
    - `add_zero_attn`: whether PyTorch appends a row of zeros. Default: as in the module; of a
      `state_dict`, no.
    - `options`: further arguments of `MultiheadAttention`, such as `prior=ak.Causal()`.

    **Returns:** a `MultiheadAttention`, in the dtype of the weights; with `bias_k` and `bias_v`, a
    `PersistentMemory` that holds it. Dropout is 0 unless it is given.

    **Raises:** `ValueError` if an array is missing, left over or of another shape, H is missing or
    does not divide E, or the dtype is bfloat16 in PyTorch, which NumPy does not have. Also for
    `options` that the weights decide, and for a `rule` beside `add_zero_attn`.

    **Source:** PyTorch, *torch.nn.MultiheadAttention*.

    ```python
    eye = np.eye(4, dtype=np.float32)
    state = {"in_proj_weight": np.concatenate([eye] * 3), "out_proj.weight": eye}
    attention = ak.nn.from_torch(state, num_heads=2, prior=ak.Causal())
    x = jnp.ones((3, 4))
    assert jnp.allclose(attention(x, x, x), x)
    ```
    """
    if not isinstance(prefix, str):
        raise ValueError(f'prefix must be a string, such as "layers.0.self_attn."; got {prefix!r}.')
    module = weights
    if callable(getattr(weights, "state_dict", None)) and not isinstance(weights, type):
        weights = weights.state_dict()
        num_heads = getattr(module, "num_heads", None) if num_heads is None else num_heads
        if add_zero_attn is None:
            add_zero_attn = bool(getattr(module, "add_zero_attn", False))
    if not isinstance(weights, Mapping):
        raise ValueError(
            f"weights must be a torch.nn.MultiheadAttention or its state_dict(); got "
            f"{type(weights).__name__}."
        )
    if num_heads is None:
        raise ValueError("A state_dict does not hold num_heads: give it, such as num_heads=8.")
    heads = as_integer("num_heads", num_heads, 1)
    add_zero_attn = False if add_zero_attn is None else add_zero_attn
    require_bool("add_zero_attn", add_zero_attn)
    if add_zero_attn:
        if "rule" in options:
            raise ValueError(
                "add_zero_attn sets rule to ak.Softmax(sink_mass=ak.fixed(1.0)): give one of them."
            )
        options["rule"] = Softmax(sink_mass=fixed(1.0))
    arrays = _read_arrays(weights, prefix, heads)
    attention = _with_weights(arrays, heads, options)
    if "bias_k" not in arrays:
        return attention
    keys, values = (arrays[name].reshape(1, heads, -1) for name in ("bias_k", "bias_v"))
    return PersistentMemory(attention, keys, values)


def _read_arrays(weights: Mapping, prefix: str, heads: int) -> dict[str, Array]:
    """Returns the arrays whose names have the prefix, which is removed; `ValueError` unless they
    are those of a `torch.nn.MultiheadAttention`, in their shapes."""
    arrays = {
        str(name).removeprefix(prefix): _as_array(str(name), value)
        for name, value in weights.items()
        if str(name).startswith(prefix) and value is not None
    }
    is_packed = "in_proj_weight" in arrays
    split = [f"{part}_proj_weight" for part in "qkv"]
    needed = ["out_proj.weight", *(["in_proj_weight"] if is_packed else split)]
    needed += ["bias_k", "bias_v"] if arrays.keys() & {"bias_k", "bias_v"} else []
    if missing := [name for name in needed if name not in arrays]:
        raise ValueError(
            f"weights must have {prefix + missing[0]!r}; got the names "
            f"{sorted(arrays) or 'none'} after prefix {prefix!r}."
        )
    if left := sorted(arrays.keys() - {*needed, "in_proj_bias", "out_proj.bias"}):
        raise ValueError(
            f"weights has names that a torch.nn.MultiheadAttention has not: {left}. For one layer "
            f'of a larger model give prefix=, such as "layers.0.self_attn.".'
        )
    size = len(arrays["out_proj.weight"])
    if size % heads:
        raise ValueError(
            f"num_heads must divide the size of the weights, {size}; got num_heads {heads}."
        )
    shapes = {
        "in_proj_weight": (3 * size, size),
        "in_proj_bias": (3 * size,),
        "out_proj.bias": (size,),
        "bias_k": (1, 1, size),
        "bias_v": (1, 1, size),
    }
    for name, array in arrays.items():
        any_size = array.shape[-1:] if name in split[1:] else (size,)  # of keys and values
        shape = shapes.get(name, (size, *any_size))
        if array.shape != shape:
            raise ValueError(f"{prefix}{name} must have shape {shape}; got {array.shape}.")
    return arrays


def _as_array(name: str, value: Any) -> Array:
    """Returns a PyTorch tensor or an array as a JAX array.

    Raises `ValueError` unless it is real and finite, in a dtype that NumPy has.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        array = as_real_array(f"weights[{name!r}]", np.asarray(value))
    except TypeError:
        raise ValueError(
            f"{name} has a dtype that NumPy does not have: convert the module, such as "
            f"module.float()."
        ) from None
    require_finite(f"weights[{name!r}]", jnp.atleast_2d(array))
    return array


def _with_weights(
    arrays: dict[str, Array], heads: int, options: dict[str, Any]
) -> MultiheadAttention:
    """Returns a `MultiheadAttention` with these weights and biases; `ValueError` if `options` has
    an argument that they decide."""
    taken = {"use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias", "key_size"}
    taken |= {"value_size", "output_size", "qk_size", "vo_size", "num_kv_heads", "dtype", "key"}
    if wrong := sorted(taken & set(options)):
        raise ValueError(f"The weights decide {', '.join(wrong)}: leave them out.")
    packed, bias = arrays.get("in_proj_weight"), arrays.get("in_proj_bias")
    if packed is not None:
        weights = jnp.split(packed, 3)
    else:
        weights = [arrays[f"{part}_proj_weight"] for part in "qkv"]
    biases = [None] * 3 if bias is None else jnp.split(bias, 3)
    size, key_size, value_size = (weight.shape[1] for weight in weights)
    names = ("query", "key", "value")
    module = MultiheadAttention(
        heads,
        size,
        key_size=key_size,
        value_size=value_size,
        use_output_bias="out_proj.bias" in arrays,
        dtype=weights[0].dtype,
        key=jax.random.PRNGKey(0),
        **{f"use_{name}_bias": bias is not None for name in names},
        **options,
    )

    def leaves(module: MultiheadAttention) -> list[Array | None]:
        linears = [getattr(module, f"{name}_proj") for name in (*names, "output")]
        return [linear.weight for linear in linears] + [linear.bias for linear in linears]

    found = [*weights, arrays["out_proj.weight"], *biases, arrays.get("out_proj.bias")]
    return eqx.tree_at(leaves, module, found, is_leaf=lambda leaf: leaf is None)
