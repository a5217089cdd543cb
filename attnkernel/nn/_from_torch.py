"""Weights of PyTorch's `nn.MultiheadAttention`, read without importing PyTorch."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, require_finite
from .._core.parameter_arguments import fixed
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

    **Returns:** a `MultiheadAttention`, in the dtype of the weights; with `bias_k` and `bias_v`, it
    in a `PersistentMemory`. Dropout is 0 unless it is given.

    **Raises:** `ValueError` if an array is missing, left over or of another shape, H does not
    divide E, or the dtype is bfloat16 in PyTorch, which NumPy does not have.

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
    arrays = _Arrays(weights, prefix)
    linears = _projections(arrays, heads)
    bias_k, bias_v = (arrays.find(name) for name in ("bias_k", "bias_v"))
    arrays.require_none_left()
    if add_zero_attn:
        if "rule" in options:
            raise ValueError(
                "add_zero_attn sets rule to ak.Softmax(sink_mass=ak.fixed(1.0)): give one of them."
            )
        options["rule"] = Softmax(sink_mass=fixed(1.0))
    attention = _module_of(linears, heads, options)
    if bias_k is None and bias_v is None:
        return attention
    size = attention.query_size
    for name, row in (("bias_k", bias_k), ("bias_v", bias_v)):
        if row is None or row.shape != (1, 1, size):
            got = "none" if row is None else f"shape {row.shape}"
            raise ValueError(f"{prefix}{name} must have shape (1, 1, {size}); got {got}.")
    rows = (row.reshape(1, heads, -1) for row in (bias_k, bias_v) if row is not None)
    return PersistentMemory(attention, *rows)


class _Arrays:
    """The arrays of a state_dict, each taken once."""

    def __init__(self, weights: Mapping, prefix: str):
        self.prefix = prefix
        self.left = {
            str(name).removeprefix(prefix): value
            for name, value in weights.items()
            if str(name).startswith(prefix)
        }

    def take(self, name: str) -> Array:
        """Returns the array of this name; `ValueError` if it is missing."""
        array = self.find(name)
        if array is None:
            raise ValueError(
                f"weights must have {self.prefix + name!r}; got the names "
                f"{sorted(self.left) or 'none'} after prefix {self.prefix!r}."
            )
        return array

    def find(self, name: str) -> Array | None:
        """Returns the array of this name, or None if it is missing."""
        value = self.left.pop(name, None)
        if value is None:
            return None
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        try:
            array = as_real_array(f"weights[{self.prefix + name!r}]", np.asarray(value))
        except TypeError:
            raise ValueError(
                f"{self.prefix + name} has a dtype that NumPy does not have: convert the module, "
                f"such as module.float()."
            ) from None
        require_finite(f"weights[{self.prefix + name!r}]", jnp.atleast_2d(array))
        return array

    def require_none_left(self) -> None:
        """Raises `ValueError` for names that are no weights of attention."""
        if self.left:
            raise ValueError(
                f"weights has names that a torch.nn.MultiheadAttention has not: "
                f"{sorted(self.left)}. For one layer of a larger model give prefix=, such as "
                f'"layers.0.self_attn.".'
            )


Projection = tuple[Float[Array, "_out _size"], Float[Array, " _out"] | None]


def _projections(arrays: _Arrays, heads: int) -> list[Projection]:
    """Returns weight and bias of queries, keys, values and output; `ValueError` unless they fit."""
    packed, out = arrays.find("in_proj_weight"), arrays.take("out_proj.weight")
    size, prefix = out.shape[0], arrays.prefix
    if packed is not None:
        _require_shape(f"{prefix}in_proj_weight", packed, (3 * size, size))
        weights = jnp.split(packed, 3)
    else:
        weights = [arrays.take(f"{part}_proj_weight") for part in "qkv"]
        for part, weight in zip("qkv", weights, strict=True):
            inputs = weight.shape[1] if weight.ndim == 2 and part != "q" else size
            _require_shape(f"{prefix}{part}_proj_weight", weight, (size, inputs))
    _require_shape(f"{prefix}out_proj.weight", out, (size, size))
    if size % heads:
        raise ValueError(
            f"num_heads must divide the size of the weights, {size}; got num_heads {heads}."
        )
    bias, of_output = arrays.find("in_proj_bias"), arrays.find("out_proj.bias")
    if bias is not None:
        _require_shape(f"{prefix}in_proj_bias", bias, (3 * size,))
    if of_output is not None:
        _require_shape(f"{prefix}out_proj.bias", of_output, (size,))
    biases = [None] * 3 if bias is None else jnp.split(bias, 3)
    return [*zip(weights, biases, strict=True), (out, of_output)]


def _require_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    """Raises `ValueError` unless the array has this shape."""
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}; got {array.shape}.")


def _module_of(
    linears: list[Projection], heads: int, options: dict[str, Any]
) -> MultiheadAttention:
    """Returns the module of these projections."""
    taken = {"use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias", "key_size"}
    taken |= {"value_size", "output_size", "qk_size", "vo_size", "num_kv_heads", "dtype", "key"}
    if wrong := sorted(taken & set(options)):
        raise ValueError(f"The weights decide {', '.join(wrong)}: leave them out.")
    names = ("query", "key", "value", "output")
    biases = {
        f"use_{name}_bias": bias is not None for name, (_, bias) in zip(names, linears, strict=True)
    }
    size, key_size, value_size = (int(weight.shape[1]) for weight, _ in linears[:3])
    module = MultiheadAttention(
        heads,
        size,
        key_size=key_size,
        value_size=value_size,
        dtype=linears[0][0].dtype,
        key=jax.random.PRNGKey(0),
        **biases,
        **options,
    )
    for name, (weight, bias) in zip(names, linears, strict=True):
        linear = getattr(module, f"{name}_proj")
        linear = eqx.tree_at(lambda part: part.weight, linear, weight)
        if bias is not None:
            linear = eqx.tree_at(lambda part: part.bias, linear, bias)
        module = eqx.tree_at(lambda m, name=name: getattr(m, f"{name}_proj"), module, linear)
    return module
