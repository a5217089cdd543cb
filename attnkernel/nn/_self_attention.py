"""Self-attention with one head."""

import functools
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import require_finite
from .._core.validation import as_integer, require_bool, require_key
from ..attention import Auto, attend, attention_weights, require_parts, votes
from ..kernels import DotProduct, Kernel
from ..methods import Method, Votes
from ..priors import Prior
from ..rules import Rule, Softmax
from ._inputs import as_sequence, multiply_priors, size_or


class SelfAttention(eqx.Module):
    r"""One head of attention of a sequence to itself.

    $$ c_i = \sum_j a_{ij} W_v x_j, \qquad
       a_{ij} \propto K(W_q x_i, W_k x_j)\, \pi(i, j) $$

    By default $K$ is the exponential of $q \cdot k / \sqrt{d_{qk}}$. No output projection.

    **Arguments:**

    - `size`: d, of the rows x.
    - `qk_size`, `vo_size`: of queries and keys, and of values. Default: d.
    - `use_bias`: whether projections have one. Default: no.
    - `kernel`, `prior`, `rule`, `method`: as in `attend`.
    - `key`: a PRNG key, for the projections.

    **Source:** Vaswani et al., *Attention is all you need* (2017).

    ```python
    attention = ak.SelfAttention(8, key=jax.random.PRNGKey(0))
    assert attention(jnp.ones((5, 8))).shape == (5, 8)
    ```
    """

    query_proj: eqx.nn.Linear
    key_proj: eqx.nn.Linear
    value_proj: eqx.nn.Linear
    kernel: Kernel
    prior: Prior | None
    rule: Rule
    method: Method

    def __init__(
        self,
        size: int,
        qk_size: int | None = None,
        vo_size: int | None = None,
        *,
        use_bias: bool = False,
        kernel: Kernel = DotProduct(),
        prior: Prior | None = None,
        rule: Rule = Softmax(),
        method: Method = Auto(),
        key: PRNGKeyArray,
    ):
        size = as_integer("size", size, 1)
        qk_size, vo_size = size_or("qk_size", qk_size, size), size_or("vo_size", vo_size, size)
        require_bool("use_bias", use_bias)
        require_parts(kernel, prior, rule, method)
        require_key("key", key)
        keys = jax.random.split(key, 3)
        linear = functools.partial(eqx.nn.Linear, size, use_bias=use_bias)
        self.query_proj, self.key_proj = linear(qk_size, key=keys[0]), linear(qk_size, key=keys[1])
        self.value_proj = linear(vo_size, key=keys[2])
        self.kernel, self.prior, self.rule, self.method = kernel, prior, rule, method

    def __call__(
        self, x: Float[Array, "rows size"], *, prior: Prior | None = None
    ) -> Float[Array, "rows vo_size"]:
        """The context of each row. `prior` is multiplied by the module's own."""
        q, k, v, parts = self._read(x, prior)
        return attend(q, k, v, **parts, method=self.method)

    def weights(
        self, x: Float[Array, "rows size"], *, prior: Prior | None = None
    ) -> Float[Array, "rows rows"]:
        """The weights $a_{ij}$."""
        q, k, _, parts = self._read(x, prior)
        return attention_weights(q, k, **parts)

    def votes(
        self, x: Float[Array, "rows size"], *, prior: Prior | None = None, k_largest: int = 10
    ) -> Votes:
        """The largest weights of each row, and the rows that have them: see `ak.votes`."""
        q, k, _, parts = self._read(x, prior)
        return votes(q, k, **parts, k_largest=k_largest)

    def _read(self, x: Array, prior: Prior | None) -> tuple[Array, Array, Array, dict[str, Any]]:
        """Returns queries, keys, values, and a dict: `kernel`, `prior` and `rule` for `attend`."""
        x = as_sequence("x", x, int(self.query_proj.in_features))
        require_finite("x", x)
        q, k, v = (jax.vmap(p)(x) for p in (self.query_proj, self.key_proj, self.value_proj))
        prior = multiply_priors(self.prior, prior)
        return q, k, v, {"kernel": self.kernel, "prior": prior, "rule": self.rule}
