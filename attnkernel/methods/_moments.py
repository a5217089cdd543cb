"""Moments about each query, as a method that bounds their errors gives them."""

from typing import NamedTuple

from jaxtyping import Array, Float


class Moments(NamedTuple):
    r"""Weighted means about each query, of powers and of their products with values.

    $$ E_{ia} = \frac{\sum_j w_{ij}\, u_{ij}^a}{\sum_j w_{ij}}, \qquad
       E^v_{ia} = \frac{\sum_j w_{ij}\, u_{ij}^a\, v_j}{\sum_j w_{ij}}, \qquad
       u_{ij} = \frac{k_j - q_i}{s} $$

    - `log_mass`: $\log \sum_j w_{ij}$, shape (queries,).
    - `means`: shape (queries, degree + 1, 1 + dim_v): $E_{ia}$, then $E^v_{ia}$ of each column.
    - `error`: shape (queries, degree + 1), constant. The error of $E^v_{ia}$ is at most
      `error[i, a]` + `error[i, 0]` $|E^v_{ia}|$, that of $E_{ia}$ likewise; infinite where there is
      no bound.
    - `tol`: the relative error that counts as certified.

    ```python
    with jax.enable_x64(True):
        x = jnp.linspace(0.0, 1.0, 50)[:, None]
        parts = ak.Gaussian(0.3), None, ak.Softmax()
        found = ak.methods.Fourier().moments(x, x, x, *parts, degree=1, scale=jnp.array(1.0))
        assert found.means.shape == (50, 2, 2) and jnp.all(found.error < 1e-9)
    ```
    """

    log_mass: Float[Array, " queries"]
    means: Float[Array, "queries degrees width"]
    error: Float[Array, "queries degrees"]
    tol: float

    @property
    def bounds(self) -> Float[Array, "queries degrees width"]:
        """The bound on the error of each of the means."""
        return self.error[:, :, None] + self.error[:, :1, None] * abs(self.means)
