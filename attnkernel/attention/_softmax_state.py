"""The softmax state of attention: what is merged over sets of keys."""

from jax.typing import ArrayLike

from .._core.validation import require_bool
from ..kernels import Kernel
from ..methods import Blockwise, Dense, Method, SoftmaxState
from ..priors import Prior
from ..rules import Rule, Softmax
from ._attend import check_call, states_over_batch
from ._auto import Auto
from ._jit import jit_if_pure
from ._per_head import PerHead, first_head


def softmax_state(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    kernel: Kernel | PerHead,
    prior: Prior | PerHead | None = None,
    rule: Rule | PerHead = Softmax(),
    method: Method = Auto(),
    exact_maximum: bool = False,
) -> SoftmaxState:
    r"""The row maximum and the unnormalised sums of attention, without the sink of the rule.

    $$ m_i = \max_j \log w_{ij}, \qquad Z_i = \sum_j e^{-m_i} w_{ij}, \qquad
       T_i = \sum_j e^{-m_i} w_{ij}\, v_j $$

    States of disjoint sets of keys merge into that of their union: `first.merge(second)`. Then
    `.value` is T / Z, the result of `attend`, and `.log_mass` is m + log Z, the log-sum-exp. A sink
    is added once, at the end: `.with_sink(rule.log_sink())`. Positions count the rows of the call;
    `ak.priors.AtPositions` puts a prior at those of the whole sequence.

    **Arguments:** as for `attend`, and

    - `exact_maximum`: whether m is the maximum itself, which takes another pass of `Blockwise`.
      Default: no; m is then the maximum for `Dense`, and for other methods log Z or a number near
      it. Products such as $e^{m} Z$ do not depend on it.

    **Returns:** an `ak.methods.SoftmaxState`, in at least float32: `maximum` and `mass` of shape
    (*batch, queries), `total` (*batch, queries, dim_v). m is constant to differentiation.

    **Raises:** `ValueError` as `attend`; for an `Entmax`, whose weights depend on all keys at once;
    and for `exact_maximum` of another method than `Dense` and `Blockwise`.

    **Source:** Milakov and Gimelshein, *Online normalizer calculation for softmax* (2018).

    ```python
    x = jnp.linspace(0.0, 1.0, 6)[:, None]
    first, second = (
        ak.attention.softmax_state(x, x[part], x[part], kernel=ak.DotProduct())
        for part in (slice(0, 2), slice(2, 6))
    )
    whole = ak.attend(x, x, x, kernel=ak.DotProduct())
    assert jnp.allclose(first.merge(second).value, whole, atol=1e-6)
    ```
    """
    require_bool("exact_maximum", exact_maximum)
    _, (method, batch_size, parts), arrays = check_call(q, k, v, kernel, prior, rule, method)
    one = first_head(rule)
    if one.entmax_exponent is not None:
        raise ValueError(
            f"rule must weigh each key by itself, such as ak.Softmax(): the weights of "
            f"{type(one).__name__} depend on all keys of a query at once."
        )
    if exact_maximum and not isinstance(method, Dense | Blockwise):
        raise ValueError(
            f"exact_maximum=True needs method=ak.methods.Dense() or ak.methods.Blockwise(); got "
            f"{type(method).__name__}."
        )
    parts = (False, exact_maximum, method, batch_size, parts)
    return jit_if_pure(states_over_batch, parts, *arrays)
