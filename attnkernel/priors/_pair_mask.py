"""`PairMask`: a mask of pairs as a product, which a method need not read pair by pair."""

import functools
import operator
from typing import NamedTuple

from jaxtyping import Array, Bool, Int


class PairMask(NamedTuple):
    r"""A mask of pairs, as a product of at most four factors that a method can use directly:

    $$ \pi(i, j) = 1\{j \in \mathcal{S}\} \; 1\{j \ne i\} \;
       1\{i - l \le j \le i + r\} \; 1\{a_i = b_j\} $$

    A method that sums over all keys at once asks the prior for it, and refuses a factor that it
    does not support.

    **Arguments:**

    - `allowed`: whether key j is in $\mathcal{S}$, shape (keys,). Default None: all keys.
    - `excludes_self`: whether the second factor is there. Default: no.
    - `limits`: (l, r), the most keys before and after its own position that a query sees; None is
      all. (None, 0) is a causal mask. Default: (None, None).
    - `segments`: (a, b) of the fourth, integers of shapes (queries,) and (keys,). Default: none.
    - `unsupported_reason`: why the prior is no such mask, to follow "got". Default None: it is one.

    ```python
    held_out = ak.priors.HeldOut(np.array([True, False]))
    mask = (held_out & ak.priors.ExcludeSelf()).pair_mask()
    assert mask.allowed.tolist() == [False, True] and mask.excludes_self
    ```
    """

    allowed: Bool[Array, " keys"] | None = None
    excludes_self: bool = False
    limits: tuple[int | None, int | None] = (None, None)
    segments: tuple[Int[Array, " queries"], Int[Array, " keys"]] | None = None
    unsupported_reason: str | None = None

    @property
    def is_causal(self) -> bool:
        """Whether the limits are (None, 0): no key after the query's own. Ignores other factors."""
        return self.limits == (None, 0)

    @property
    def window(self) -> tuple[int | None, int | None] | None:
        """The limits (l, r); None if they are those of all keys or of a causal mask."""
        return None if self.limits == (None, None) or self.is_causal else self.limits

    def intersect(self, other: "PairMask") -> "PairMask":
        """The mask that allows the pairs that both masks allow.

        It has an `unsupported_reason` if either mask has one, or if both have segments.
        """
        allowed = [mask.allowed for mask in (self, other) if mask.allowed is not None]
        segments = [mask.segments for mask in (self, other) if mask.segments is not None]
        twice = "a product of two Segments" if len(segments) == 2 else None
        return PairMask(
            functools.reduce(operator.and_, allowed) if allowed else None,
            self.excludes_self or other.excludes_self,
            (_least(self.limits[0], other.limits[0]), _least(self.limits[1], other.limits[1])),
            segments[0] if segments else None,
            self.unsupported_reason or other.unsupported_reason or twice,
        )

    def reason_beyond(self, *factors: str) -> str | None:
        """Returns why a method that supports `allowed` and these factors alone refuses the mask.

        `factors`: any of "excludes_self", "is_causal", "window" and "segments". None: the method
        supports the mask. Else a phrase: `unsupported_reason`, or the first other factor in words.
        """
        if self.unsupported_reason is not None:
            return self.unsupported_reason
        words = {
            "excludes_self": "a mask that excludes the row of each query",
            "is_causal": "a causal mask",
            "window": "Window",
            "segments": "Segments",
        }
        present = (name for name in words if getattr(self, name) not in (None, False))
        return next((words[name] for name in present if name not in factors), None)


def _least(*limits: int | None) -> int | None:
    """Returns the least of these limits. None is no limit: the result is None if all are None."""
    return min((limit for limit in limits if limit is not None), default=None)
