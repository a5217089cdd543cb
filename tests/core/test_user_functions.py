"""What functions of the user's own must return: one number where one is asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from estimates import fitted_and_leverage

import attnkernel as ak
from attnkernel import kernels, priors

X = np.linspace(0.0, 1.0, 12)
Y = np.sin(6.0 * X) + 0.1 * np.cos(40.0 * X)


class ByDimension(kernels.Kernel):
    """The sum over the dimensions is forgotten."""

    log_lengthscale: jax.Array

    def log_pair(self, q, k):
        return -0.5 * ((q - k) / jnp.exp(self.log_lengthscale)) ** 2


class Column(priors.Prior):
    def log_pair(self, i, j):
        return jnp.zeros((1,))


class Allowed(priors.Mask):
    def allows(self, i, j):
        return (i >= j)[None]


class OfRows(ak.objectives.Objective):
    is_stochastic = False

    def __call__(self, model, x, y, *, key=None):
        return (model(x, x, y) - y) ** 2


KERNEL = ByDimension(jnp.log(0.2))
MODEL = ak.KernelRegression(KERNEL)
GAUSSIAN = ak.KernelRegression(ak.Gaussian(0.2))
COLUMN = X[:, None]
OF_PAIR = r"{} must return one number for one pair.*; got shape \(1,\)"


@pytest.mark.parametrize(
    "call",
    [
        lambda: MODEL(X, X, Y),
        lambda: fitted_and_leverage(MODEL, X, Y),
        lambda: MODEL.local_fit(X, X, Y),
        lambda: ak.KernelRegression(KERNEL, order=1)(X, X, Y),
        lambda: ak.models.BiasReduced(MODEL, iterations=2)(X, X, Y),
        lambda: ak.KernelRegression(KERNEL * ak.Gaussian(1.0))(X, X, Y),
        lambda: ak.KernelRegression(KERNEL.on(0))(X, X, Y),
        lambda: ak.attention_weights(COLUMN, COLUMN, kernel=KERNEL),
        lambda: ak.fit(MODEL, X, Y, objective=ak.LeaveOneOut()),
        lambda: ak.fit(MODEL, X, Y, objective=ak.GCV()),
        *(
            lambda method=method: ak.attend(COLUMN, COLUMN, COLUMN, kernel=KERNEL, method=method)
            for method in (ak.methods.Dense(), ak.methods.Blockwise(4, 4), ak.methods.Sharded())
        ),
    ],
)
def test_a_kernel_that_returns_no_number_is_refused(call):
    with pytest.raises(ValueError, match=OF_PAIR.format(r"ByDimension\.log_pair")):
        call()


@pytest.mark.parametrize(
    ("prior", "name"), [(Column(), r"Column\.log_pair"), (Allowed(), r"Allowed\.allows")]
)
@pytest.mark.parametrize("method", [ak.methods.Dense(), ak.methods.Blockwise(4, 4)], ids=repr)
def test_a_prior_that_returns_no_number_is_refused(prior, name, method):
    with pytest.raises(ValueError, match=OF_PAIR.format(name)):
        ak.attend(COLUMN, COLUMN, COLUMN, kernel=ak.Gaussian(0.2), prior=prior, method=method)


@pytest.mark.parametrize("options", [{}, {"optimizer": optax.adam(0.1), "steps": 2}])
def test_an_objective_that_returns_no_number_is_refused(options):
    with pytest.raises(ValueError, match=r"OfRows must return one number; got shape \(12,\)"):
        ak.fit(GAUSSIAN, X, Y, objective=OfRows(), **options)


def test_a_score_that_is_not_of_each_row_is_refused():
    objective = ak.LeaveOneOut(score=lambda found, y: jnp.mean((found - y) ** 2))
    with pytest.raises(ValueError, match=r"score must return one number for each of 12 rows"):
        ak.fit(GAUSSIAN, X, Y, objective=objective)
