"""What laws are tested on: kernels, priors, rules, arrays, and all that a method gives of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import attnkernel as ak
from attnkernel import priors

QUERIES, KEYS, DIM, DIM_V = 29, 37, 2, 3

KERNELS = {
    "gaussian": ak.Gaussian(0.7),
    "gaussian per dimension": ak.Gaussian(jnp.array([0.5, 1.1])),
    "gaussian, full metric": ak.Gaussian(0.8, metric=jnp.array([[2.0, 0.3], [0.3, 0.5]])),
    "laplace": ak.Laplace(0.5),
    "matern32": ak.Matern32(0.5),
    "matern52": ak.Matern52(0.5),
    "rational quadratic": ak.RationalQuadratic(0.4, 1.7),
    "cauchy": ak.Cauchy(0.3),
    "periodic": ak.Periodic(0.6, 2.3),
    "boxcar": ak.Boxcar(1.1),
    "triangular": ak.Triangular(1.2),
    "epanechnikov": ak.Epanechnikov(1.1),
    "biweight": ak.Biweight(1.3),
    "triweight": ak.Triweight(0.9),
    "tricube": ak.Tricube(1.2),
    "cosine": ak.Cosine(1.1),
    "product": ak.Gaussian(0.7) * ak.Epanechnikov(1.5),
    "dot product": ak.DotProduct(),
    "cosine similarity": ak.CosineSimilarity(jnp.asarray(2.0)),
    "polynomial": ak.Polynomial(4, offset=jnp.asarray(0.3)),
    "bilinear": ak.Bilinear([[0.5, -1.0], [0.3, 0.8]]),
    "additive": ak.Additive([1.5, -0.7]),
    "projected": ak.Projected(
        ak.Matern52(0.5),
        eqx.nn.Linear(DIM, 3, key=jax.random.PRNGKey(0)),
        eqx.nn.Linear(DIM, 3, use_bias=False, key=jax.random.PRNGKey(1)),
    ),
    "soft-capped": ak.SoftCapped(ak.Epanechnikov(1.1), jnp.asarray(2.0)),
    "on columns": ak.Matern52(0.7).on(1) * ak.Triweight(2.5).on(0),
    "categories": ak.Projected(ak.AitchisonAitken(0.3, 5), jnp.round, jnp.round).on(0)
    * ak.Gaussian(0.8).on(1),
    "ordered categories": ak.WangVanRyzin(jnp.array([0.2, 0.6])),
}
LIGHT = [name for name, kernel in KERNELS.items() if kernel.is_light(DIM)]
ROW = np.arange(KEYS)
HIDDEN = ROW % 3 == 1
PRIORS = {
    "none": None,
    "leave one out": priors.LeaveOneOut(),
    "held out": priors.HeldOut(HIDDEN),
    "causal": ak.Causal(offset=4),
    "window, but held out": ak.Window(5, 3) & ~priors.HeldOut(~HIDDEN),
    "function": priors.Where(lambda i, j: (i + j) % 5 > 0) | ak.Causal(),
    "bias in segments": ak.Alibi(jnp.asarray(0.2)) + priors.Segments(ROW[:QUERIES] // 9, ROW // 9),
    "learned bias elsewhere": priors.At(
        ak.RelativeBias(jnp.linspace(-1.0, 1.0, 8), 20) + ak.Causal(), 2 * ROW[:QUERIES], ROW[::-1]
    ),
    "weights of keys": priors.KeyWeights(jnp.sin(jnp.arange(1.0 * KEYS))) + priors.Prefix(9),
}
RULES = {
    "softmax": ak.Softmax(),
    "cold": ak.Softmax(0.6),
    "temperature to fit": ak.Softmax(jnp.asarray(1.4)),
    "sink": ak.Softmax(sink_mass=0.02),
    "uniform": ak.Uniform(),
    "sparsemax": ak.Entmax(2.0),
    "entmax to fit": ak.Entmax(jnp.asarray(1.4), jnp.asarray(0.8)),
}


def arrays(seed=0, queries=QUERIES, keys=KEYS, dim=DIM):
    rng = np.random.default_rng(seed)
    shapes = ((queries, dim), (keys, dim), (keys, DIM_V))
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)


def in_float64(tree):
    return jax.tree.map(
        lambda leaf: leaf.astype(float) if eqx.is_inexact_array(leaf) else leaf, tree
    )


def everything(method, kernel, prior, rule, q, k, v):
    """Value, log-mass, gradient and JVP with respect to whatever is a parameter."""
    moving, fixed = eqx.partition((kernel, prior, rule, q, k, v), eqx.is_inexact_array)

    def outputs(moving):
        kernel, prior, rule, q, k, v = eqx.combine(moving, fixed)
        return ak.attend(
            q, k, v, kernel=kernel, prior=prior, rule=rule, method=method, return_log_mass=True
        )

    def number(moving):
        value, log_mass = outputs(moving)
        seen = jnp.where(jnp.isneginf(log_mass), 0.0, log_mass)
        return jnp.sum(jnp.sin(value)) + jnp.sum(seen**2)

    @jax.jit
    def all_of_them(moving):
        along = jax.tree.map(
            lambda leaf: jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), moving
        )
        change = jax.jvp(outputs, (moving,), (along,))[1]
        return *outputs(moving), jax.grad(number)(moving), change

    return all_of_them(moving)


def assert_agree(a, b, rtol=1e-10, atol=1e-10):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert not np.isnan(one).any()
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)
