"""Newton's method for concave functions."""

import jax
import jax.numpy as jnp
import numpy as np

from attnkernel.local._windows import Expansion, maximise


def test_steps_that_lower_the_function_are_halved(x64):
    """Full steps for −log cosh diverge from 2: the first goes to −25."""

    def expand(point):
        slope = jnp.tanh(point)
        return Expansion(-jnp.sum(jnp.log(jnp.cosh(point))), -slope, jnp.diag(1 - slope**2))

    found = jax.jit(lambda start: maximise(expand, start))(np.array([2.0]))
    np.testing.assert_allclose(found.point, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.inverse, 1.0, rtol=1e-6)
