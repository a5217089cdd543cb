r"""Masks that a method can be told without reading them pair by pair.

A method that sums over all keys at once asks the prior for its `KeyMask`. It refuses a prior that
is no such mask, and a mask with a factor that the method does not support.
"""

import functools
import operator
from typing import NamedTuple

from jaxtyping import Array, Bool, Int

WORDS = {
    "excludes_self": "a mask that excludes the row of each query",
    "is_causal": "a causal mask",
    "window": "Window",
    "segments": "Segments",
}


class KeyMask(NamedTuple):
    r"""A mask that is a product of at most five factors:

    $$ \pi(i, j) = 1\{j \in \mathcal{S}\} \; 1\{j \ne i\} \; 1\{j \le i\} \;
       1\{i - l \le j \le i + r\} \; 1\{a_i = b_j\} $$

    **Arguments:**

    - `allowed`: whether key j is in $\mathcal{S}$, shape (keys,). Default None: all keys.
    - `excludes_self`: whether the second factor is there. Default: no.
    - `is_causal`: whether the third factor is there. Default: no.
    - `window`: (l, r) of the fourth. Default: none.
    - `segments`: (a, b) of the fifth, integers of shapes (queries,) and (keys,). Default: none.
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
    window: tuple[int, int] | None = None
    segments: tuple[Int[Array, " queries"], Int[Array, " keys"]] | None = None
    unsupported_reason: str | None = None

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The most keys before and after its own position that a query sees; None: all."""
        left, right = self.window or (None, None)
        return left, 0 if self.is_causal else right

    def intersect(self, other: "KeyMask") -> "KeyMask":
        """The mask that allows the pairs that both masks allow."""
        allowed = [mask.allowed for mask in (self, other) if mask.allowed is not None]
        windows = [mask.window for mask in (self, other) if mask.window is not None]
        segments = [mask.segments for mask in (self, other) if mask.segments is not None]
        twice = "a product of two Segments" if len(segments) == 2 else None
        return KeyMask(
            functools.reduce(operator.and_, allowed) if allowed else None,
            self.excludes_self or other.excludes_self,
            self.is_causal or other.is_causal,
            (min(left for left, _ in windows), min(right for _, right in windows))
            if windows
            else None,
            segments[0] if segments else None,
            self.unsupported_reason or other.unsupported_reason or twice,
        )

    def reason_beyond(self, *factors: str) -> str | None:
        """Why this is no mask of the first factor and of those named alone; None if it is.

        `factors`: names of fields, such as "is_causal".
        """
        if self.unsupported_reason is not None:
            return self.unsupported_reason
        present = (name for name in WORDS if getattr(self, name) not in (None, False))
        return next((WORDS[name] for name in present if name not in factors), None)
