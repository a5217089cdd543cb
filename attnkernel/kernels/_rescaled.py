"""Any kernel with all its lengths times a factor."""

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.host_arrays import AnyArray
from .._core.parameter_arguments import positive
from .._core.validation import require_instance
from ._base import Embedded, Kernel
from ._boxes import PointBoxes
from ._wrapper import Wrapper


class Rescaled(Embedded, Wrapper):
    r"""A kernel of points divided by a factor: $\log K(q, k) = \log K'(q / f,\, k / f)$.

    It is the `rescaled` of a kernel that has no lengthscale of its own to multiply.

    **Arguments:** `kernel`: K′. `factor`: f > 0, no unit.

    **Raises:** `ValueError` if the factor is not positive.

    ```python
    >>> x = jnp.array([[2.0], [4.0]])
    >>> ak.kernels.Rescaled(ak.DotProduct(ak.fixed(1.0)), 2.0).pairwise(x, x)
    Array([[1., 2.],
           [2., 4.]], dtype=float32)

    ```
    """

    kernel: Kernel
    factor: ArrayLike

    def __check_init__(self):
        require_instance("kernel", self.kernel, Kernel, "ak.Gaussian(0.3)")
        positive("factor", self.factor, "Try 2.")
        if np.ndim(self.factor):
            raise ValueError(f"factor must be one number; got shape {np.shape(self.factor)}.")

    def embed(
        self, q: Float[Array, "*batch queries dim"], k: Float[Array, "*batch_k keys dim"]
    ) -> tuple[Kernel, Array, Array]:
        return self.kernel, q / self.factor, k / self.factor

    def points_of_parts(self, x: Float[AnyArray, "n dim"]) -> Float[AnyArray, "n dim"]:
        return x / self.factor

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        corners = [corner / self.factor for corner in boxes]
        return self.kernel.score_upper_bound(PointBoxes(*corners))
