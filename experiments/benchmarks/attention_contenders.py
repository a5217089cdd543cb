"""The contenders of attention: one piece of work for attnkernel, jax.nn, Equinox and PyTorch."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import attnkernel as ak

from .driver import Contender, compiled, optional_import, timed

CONTENDERS = OURS, JAX_NN, EQUINOX, TORCH = "attnkernel", "jax.nn", "Equinox", "PyTorch"
FORWARD, BACKWARD = "forward", "+ backward"
WORKS = [(causal, phase) for causal in (False, True) for phase in (FORWARD, BACKWARD)]
Heads = Float[Array, "heads tokens dim"]


def blockwise(q: Heads, k: Heads, v: Heads, causal: bool) -> Heads:
    prior = ak.Causal() if causal else None
    return ak.attend(q, k, v, kernel=ak.DotProduct(), prior=prior, method=ak.methods.Blockwise())


def jax_nn(q: Heads, k: Heads, v: Heads, causal: bool = False, **options: Any) -> Heads:
    """`options`: of `jax.nn.dot_product_attention`."""
    tokens_first = (a.swapaxes(0, 1) for a in (q, k, v))
    out = jax.nn.dot_product_attention(*tokens_first, is_causal=causal, **options)
    return out.swapaxes(0, 1)


def equinox_core(q: Heads, k: Heads, v: Heads, causal: bool) -> Heads:
    """`eqx.nn.MultiheadAttention` with the identity as projections."""
    heads, tokens, dim = q.shape
    module = eqx.nn.MultiheadAttention(heads, heads * dim, dtype=q.dtype, key=jax.random.PRNGKey(0))
    for name in ("query_proj", "key_proj", "value_proj", "output_proj"):
        module = eqx.tree_at(operator.attrgetter(name), module, eqx.nn.Identity())
    mask = jnp.tril(jnp.ones((tokens, tokens), bool)) if causal else None
    q, k, v = (a.swapaxes(0, 1).reshape(-1, heads * dim) for a in (q, k, v))
    return module(q, k, v, mask=mask).reshape(tokens, heads, dim).swapaxes(0, 1)


JAX_CONTENDERS: dict[str, Callable[..., Array]] = {
    OURS: blockwise,
    JAX_NN: jax_nn,
    EQUINOX: equinox_core,
}


def in_words(causal: bool, phase: str) -> str:
    return f"{'causal' if causal else 'full'} {phase}"


def draw_arrays(heads: int, length: int, dim: int, seed: int) -> list[Array]:
    """q, k, v and a cotangent; drawn by NumPy, whose peak of memory is the arrays themselves."""
    rng, dtype = np.random.default_rng(seed), jnp.zeros(()).dtype
    draws = [rng.standard_normal((heads, length, dim), dtype) for _ in range(4)]
    return [jax.block_until_ready(jnp.asarray(draw)) for draw in draws]


def make(name: str, causal: bool, phase: str, arrays: list[Array], max_bytes: float) -> Contender:
    """A contender for one piece of work; ours has no limit of memory."""
    if name == TORCH:
        make_tensor = optional_import("torch").tensor
        tensors = [make_tensor(np.asarray(array))[None] for array in arrays]  # batches come first
        return torch_contender(torch_attention(causal), phase, tensors, lambda out: out.numpy())

    def forward(q: Heads, k: Heads, v: Heads) -> Heads:
        return JAX_CONTENDERS[name](q, k, v, causal)

    return compile_phase(forward, phase, arrays, np.inf if name == OURS else max_bytes)


def compile_phase(
    forward: Callable[..., Array], phase: str, arrays: list[Array], max_bytes: float
) -> Contender:
    """A function of q, k and v; "+ backward", with its gradients for the last of the arrays."""

    def both(q: Heads, k: Heads, v: Heads, cotangent: Heads) -> Any:
        out, pullback = jax.vjp(forward, q, k, v)
        return out, *pullback(cotangent)

    function, given = (forward, arrays[:3]) if phase == FORWARD else (both, arrays)
    return compiled(function, *given, max_bytes=max_bytes)


def one_call(
    name: str, causal: bool, phase: str, sizes: tuple[int, int, int, int], max_bytes: float
) -> Callable[[], None]:
    """Calls a contender, which the first call makes; PyTorch is imported before. `sizes`: as of
    `draw_arrays`."""
    arrays = draw_arrays(*sizes)
    if name == TORCH:
        optional_import("torch")
    made = functools.cache(lambda: make(name, causal, phase, arrays, max_bytes))
    return lambda: timed(made()) and None


def torch_attention(causal: bool) -> Callable[..., Any]:
    """PyTorch's own attention. **Raises:** `Unavailable` if it is not installed."""
    functional = optional_import("torch.nn.functional")
    return functools.partial(functional.scaled_dot_product_attention, is_causal=causal)


def torch_contender(
    attention: Callable[..., Any], phase: str, tensors: list[Any], fetch: Callable[[Any], Any]
) -> Contender:
    """A function that computes `attention(q, k, v)` by PyTorch; in the phase "+ backward", its
    gradients in q, k and v too.

    `tensors`: q, k, v and a cotangent; `fetch`: waits for a tensor, and returns it as an array.
    """
    *inputs, cotangent = tensors

    def forward() -> Any:
        return fetch(attention(*inputs))

    def backward() -> tuple[Any, ...]:
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        out = attention(*leaves)
        out.backward(cotangent)
        return tuple(map(fetch, (out.detach(), *(leaf.grad for leaf in leaves))))

    return forward if phase == FORWARD else backward
