"""Learned projections before any kernel, and a soft cap on any kernel's logarithm."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.host_arrays import AnyArray
from .._core.parameter_arguments import Number, positive
from .._core.parameters import Parameter, described
from .._core.validation import require_function, require_instance
from ._base import Embedded, Kernel
from ._boxes import PointBoxes
from ._wrapper import Wrapper

Projection = Callable[[Float[Array, " dim_in"]], Float[Array, " dim_out"]]


class Projected(Embedded, Wrapper):
    r"""Any kernel of projected points: queries and keys each by a function of their own.

    $$ \log K(q, k) = \log K'(W_q q,\, W_k k), \qquad q \in \mathbb{R}^{d_q},\
       k \in \mathbb{R}^{d_k},\ W_q q, W_k k \in \mathbb{R}^d $$

    With `DotProduct` it is the score of a transformer's head; with `Gaussian`, attention by
    distance; with `Additive`, that of Bahdanau et al. Each point is projected once.

    **Arguments:**

    - `kernel`: K′, of the projected points.
    - `query_proj`, `key_proj`: functions of one point, such as `eqx.nn.Linear`, linear or not.

    **Raises:** `ValueError` where the two give points that K′ cannot compare.

    ```python
    >>> key_q, key_k = jax.random.split(jax.random.PRNGKey(0))
    >>> query_proj = eqx.nn.Linear(3, 2, key=key_q)
    >>> key_proj = eqx.nn.Linear(4, 2, key=key_k)
    >>> kernel = ak.kernels.Projected(ak.DotProduct(), query_proj, key_proj)
    >>> ak.attention_weights(jnp.ones((5, 3)), jnp.ones((6, 4)), kernel=kernel).shape
    (5, 6)

    ```
    """

    kernel: Kernel
    query_proj: Projection
    key_proj: Projection

    def __check_init__(self):
        require_instance("kernel", self.kernel, Kernel, "ak.Gaussian(0.3)")
        require_function("query_proj", self.query_proj)
        require_function("key_proj", self.key_proj)

    def check(self, dim_q: int, dim_k: int) -> None:
        sizes = []
        for name, projection, dim in (
            ("query_proj", self.query_proj, dim_q),
            ("key_proj", self.key_proj, dim_k),
        ):
            point = jax.ShapeDtypeStruct((dim,), jnp.result_type(float))
            try:
                out = eqx.filter_eval_shape(projection, point)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{name} must take one point, shape ({dim},), the size of what it projects "
                    f"here; it raised: {error}"
                ) from None
            if getattr(out, "ndim", None) != 1:
                raise ValueError(f"{name} must give one point, shape (dim_out,); got {out}.")
            sizes.append(out.shape[0])
        self.kernel.check(*sizes)

    def embed(
        self, q: Float[Array, "*batch queries dim_q"], k: Float[Array, "*batch_k keys dim_k"]
    ) -> tuple[Kernel, Array, Array]:
        return self.kernel, _project_points(self.query_proj, q), _project_points(self.key_proj, k)

    def points_of_parts(self, x: Float[AnyArray, "n dim"]) -> Float[AnyArray, "n dim_part"]:
        """Inputs as keys, by the projection as it is."""
        return _project_points(self.key_proj, x)

    def is_light(self, dim: int) -> bool:
        """No: a projection of each pair is more than one of each point."""
        return False

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """None: a projection mixes the columns."""
        return {}


def _project_points(projection: Projection, x: Array) -> Array:
    """Returns the projection of each point, the last axis of x, in the dtype of x."""
    return jnp.vectorize(projection, signature="(d)->(e)")(x).astype(x.dtype)


class SoftCapped(Wrapper):
    r"""Any kernel whose score is kept within ±c by a smooth cap.

    $$ \log K(q, k) = c \tanh\!\big(\log K'(q, k) / c\big) $$

    A pair without weight, $\log K' = -\infty$, stays without.

    **Arguments:**

    - `kernel`: K′.
    - `cap`: c > 0, in the units of a score, trained; `ak.fixed(50.0)` holds it.

    **Raises:** `ValueError` if the cap is not positive.

    **Source:** Gemma team, *Gemma 2* (2024).

    ```python
    >>> q, k = jnp.array([[10.0]]), jnp.array([[1.0], [30.0]])
    >>> np.asarray(ak.kernels.SoftCapped(ak.DotProduct(), 50.0).pairwise(q, k)).round(2)
    array([[ 9.87, 50.  ]], dtype=float32)

    ```
    """

    kernel: Kernel
    cap_parameter: Parameter
    __pdoc__ = described

    def __init__(self, kernel: Kernel, cap: Number):
        require_instance("kernel", kernel, Kernel, "ak.DotProduct()")
        self.kernel = kernel
        self.cap_parameter = positive("cap", cap, "It is in the units of a score: try 50.")

    @property
    def cap(self) -> float | Float[Array, "..."]:
        return self.cap_parameter.value

    def precomputed(
        self, q: Float[Array, "*batch queries dim_q"], k: Float[Array, "*batch_k keys dim_k"]
    ) -> tuple[Kernel, Array, Array]:
        kernel, q, k = self.kernel.precomputed(q, k)
        return self.with_parts({"kernel": kernel}), q, k

    def log_pair(self, q: Float[Array, " dim_q"], k: Float[Array, " dim_k"]) -> Float[Array, ""]:
        return self._cap_scores(self.kernel.log_pair(q, k))

    def pairwise(
        self, q: Float[Array, "queries dim_q"], k: Float[Array, "keys dim_k"]
    ) -> Float[Array, "queries keys"]:
        return self._cap_scores(self.kernel.pairwise(q, k))

    def is_light(self, dim: int) -> bool:
        """No: a hyperbolic tangent of each pair costs more than to store it."""
        return False

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        bound = self.kernel.score_upper_bound(boxes)
        return jnp.where(jnp.isneginf(bound), -jnp.inf, self.cap * jnp.tanh(bound / self.cap))

    def _cap_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns c tanh(s / c) of each score s, with c the cap; −∞ stays −∞."""
        some = ~jnp.isneginf(scores)
        capped = self.cap * jnp.tanh(jnp.where(some, scores, 0.0) / self.cap)
        return jnp.where(some, capped, -jnp.inf)
