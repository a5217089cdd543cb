"""Conditional densities of a label given inputs, and their modes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import AnyArray
from .._core.rows import Inputs, NewInputs, Rows
from .._core.validation import require_instance
from ..attention import Auto
from ..kernels import Gaussian, Kernel, category_counts, unbounded
from ..methods import Method
from ..priors import Prior
from ..rules import Softmax
from ._kernel_density import DensityModel, density_box, log_mean_kernel, read_points
from ._smoother import on_padded_rows, require_parts

MAX_STEPS = 1000  # of mean shift


class ConditionalDensity(DensityModel):
    r"""The density of a label y given inputs x; its call returns the logarithm.

    $$ \hat f(y \mid x) = \frac{\sum_j a_j K(x, x_j)\, L(y, y_j)}{\sum_j a_j K(x, x_j)}, \qquad
       \int L(y, y_j)\, \mathrm{d}y = 1, \quad x \in \mathbb{R}^d $$

    Points are rows (x, y), with the label in the last column. `ak.fit(model, points)` minimises
    $-\frac1n \sum_i \log \hat f_{-i}(y_i \mid x_i)$ over the lengthscales of both kernels:
    likelihood cross-validation, `bwmethod = "cv.ml"` of R's `npcdens`. An input without effect gets
    a long lengthscale: Hall, Racine and Li prove it for the least-squares criterion, `"cv.ls"`.

    **Arguments:** `kernel`: K, of the inputs; `label_kernel`: L, of the label, normalised as for
    `ak.density`; `method`: how sums are evaluated. Default: `Auto()`.

    **Raises:** `ValueError` for fewer than two columns, or a label kernel without a known integral.

    **Source:** Hall, Racine and Li, *Cross-validation and the estimation of conditional probability
    densities* (2004); for `mode`, Cheng, *Mean shift, mode seeking, and clustering* (1995).

    ```python
    rng = np.random.default_rng(0)
    x = rng.uniform(size=100)
    points = np.stack([x, np.sin(6.0 * x) + 0.2 * rng.normal(size=100)], axis=1)
    fit = ak.fit(ak.ConditionalDensity(ak.Gaussian(0.1), ak.Gaussian(0.1)), points, starts=1)
    print(np.exp(fit(np.array([[0.3, 1.0], [0.3, 0.0]]))), fit.model.mode(np.array([0.3]), points))
    ```
    """

    kernel: Kernel
    label_kernel: Kernel
    method: Method = eqx.field(default=Auto(), kw_only=True)

    def __check_init__(self):
        require_parts(self.kernel, Softmax(), self.method)
        require_instance("label_kernel", self.label_kernel, Kernel, "ak.Gaussian(0.3)")

    def check_points(self, q: Float[Array, "m columns"], k: Float[Array, "n columns"]) -> None:
        for name, points in (("x_new", q), ("x", k)):
            if points.shape[1] < 2:
                raise ValueError(
                    f"{name} must have the label in its last column, and inputs before it; got "
                    f"shape {points.shape}."
                )
        self._joint(k.shape[1] - 1).check(q.shape[1], k.shape[1])

    def log_density(self, prior: Prior | None, q: NewInputs, rows: Rows) -> Float[Array, " m"]:
        r"""Returns $\log \hat f(y \mid x)$ at checked points q = (x, y), from those of the rows."""
        dim = rows.x.shape[1] - 1
        both, alone = (
            log_mean_kernel(prior, q, rows, kernel, self.method)
            for kernel in (self._joint(dim), self.kernel.on(*range(dim)))
        )
        log_integral = self.label_kernel.log_normaliser(1).astype(both.dtype)
        return both - log_integral - alone

    def _joint(self, dim: int) -> Kernel:
        """Returns the product of the kernels of `dim` inputs and of the label."""
        return self.kernel.on(*range(dim)) * self.label_kernel.on(dim)

    def mode(
        self, x_new: ArrayLike, x: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, " m"]:
        r"""The label with the highest density given inputs, $\arg\max_y \hat f(y \mid x)$.

        Mean shift from the label of the data with the highest density: each step goes to the mean
        of the labels with weights $K(x, x_j)\, L(y, y_j)$, until steps are below rounding, at most
        1000 steps. It takes O(n²) time for each of m inputs. Where no point has weight, the mode is
        NaN.

        **Arguments:** `x_new`: shape (m,) or (m, d); `x`: points, shape (n, d + 1).
        `weights`: of points, shape (n,), from 0.

        **Raises:** `ValueError` unless the label kernel is a `Gaussian`.
        """
        if not isinstance(self.label_kernel, Gaussian):
            raise ValueError(
                f"The mode is found for a Gaussian label_kernel; got {self.label_kernel}."
            )
        q, rows = read_points(x_new, x, weights)
        self.kernel.check(q.shape[1], rows.x.shape[1] - 1)
        return on_padded_rows(_find_modes, self, None, q, rows)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """Returns {column: number of its categories} for the columns of points that hold codes.

        None: the number is not known. `dim`: the number of columns of points (x, y), of which the
        label y is the last.
        """
        found = dict(category_counts(self.kernel, dim - 1))
        if label := category_counts(self.label_kernel, 1):
            found[dim - 1] = label[0]
        return found

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """Returns the box for a fit, as two models: the `density_box` of each kernel."""
        boxes = (
            density_box(self.kernel, x[:, :-1], weights),
            density_box(self.label_kernel, x[:, -1:], weights),
        )
        both = lambda model: (model.kernel, model.label_kernel)  # noqa: E731
        lower, upper = map(eqx.tree_at, (both, both), unbounded(self), zip(*boxes, strict=True))
        return lower, upper


def _find_modes(model: ConditionalDensity, _: None, q: NewInputs, rows: Rows) -> Float[Array, " m"]:
    """Returns the mode of the label at each query."""
    k = rows.x
    labels = k[:, -1]
    of_inputs = jnp.exp(model.kernel.pairwise(q, k[:, :-1])) * rows.row_weights(k.dtype)[None, :]
    assert isinstance(model.label_kernel, Gaussian)
    width = jnp.asarray(model.label_kernel.lengthscale, k.dtype).reshape(())

    def of_label(y: Array) -> Array:
        return jnp.exp(-0.5 * ((y - labels) / width) ** 2)

    def of_query(row: Array) -> Array:
        height = jax.lax.map(lambda y: jnp.sum(row * of_label(y)), labels)
        first = labels[jnp.argmax(jnp.where(row > 0, height, -jnp.inf))]

        def move(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            count, y, _ = state
            here = row * of_label(y)
            new = y + jnp.sum(here * (labels - y)) / jnp.sum(here)
            return count + 1, new, jnp.abs(new - y)

        def is_moving(state: tuple[Array, Array, Array]) -> Array:
            return (state[0] < MAX_STEPS) & (state[2] > 4.0 * jnp.finfo(k.dtype).eps * width)

        start = (jnp.zeros((), int), first, jnp.full_like(width, jnp.inf))
        mode = jax.lax.while_loop(is_moving, move, start)[1]
        return jnp.where(jnp.sum(row) > 0, mode, jnp.nan)

    return jax.lax.map(of_query, of_inputs)
