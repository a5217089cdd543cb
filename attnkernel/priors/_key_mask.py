r"""Priors that hide keys from all queries alike: the masks that a factorised sum can respect.

A method that sums over all keys at once cannot read a prior pair by pair. It asks the prior for its
`KeyMask` and refuses the prior if there is none.
"""

import functools
import operator
from typing import NamedTuple

from jaxtyping import Array, Bool


class KeyMask(NamedTuple):
    r"""A mask that is a product of at most three factors:

    $$ \pi(i, j) = 1\{j \in \mathcal{S}\} \; 1\{j \ne i\} \; 1\{j \le i\} $$

    **Arguments:**

    - `allowed`: whether key j is in $\mathcal{S}$, shape (keys,). Default None: all keys.
    - `excludes_self`: whether the second factor is there. Default: no.
    - `is_causal`: whether the third factor is there. Default: no.
    - `unsupported_reason`: why the prior is no such mask, to follow "got". Default None: it is one.

    ```python
    held_out = ak.priors.HeldOut(np.array([True, False]))
    mask = (held_out & ak.priors.ExcludeSelf()).as_key_mask()
    assert mask.allowed.tolist() == [False, True] and mask.excludes_self
    ```
    """

    allowed: Bool[Array, " keys"] | None = None
    excludes_self: bool = False
    is_causal: bool = False
    unsupported_reason: str | None = None

    def intersect(self, other: "KeyMask") -> "KeyMask":
        """The mask that allows the pairs that both masks allow."""
        allowed = [mask.allowed for mask in (self, other) if mask.allowed is not None]
        return KeyMask(
            functools.reduce(operator.and_, allowed) if allowed else None,
            self.excludes_self or other.excludes_self,
            self.is_causal or other.is_causal,
            self.unsupported_reason or other.unsupported_reason,
        )
