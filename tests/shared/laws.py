"""Kernels, priors and rules for tests that compare methods, and tables of all their pairs.

A table is one program: inside it a kernel is chosen among many by `jax.lax.switch`, and a prior
too, so that 27 kernels times 9 priors compile in a ninth of the time of a program for each pair.
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import attnkernel as ak
from attnkernel import priors
from attnkernel.methods import Dense
from attnkernel.priors import RelativeBias
from attnkernel.rules import Uniform

QUERIES, KEYS, DIM, DIM_V = 29, 37, 2, 3
ROUNDED = ak.kernels.Projected(ak.kernels.AitchisonAitken(0.3, 5), jnp.round, jnp.round)

KERNELS = {
    "gaussian": ak.Gaussian(0.7),
    "gaussian per dimension": ak.Gaussian(np.array([0.5, 1.1])),
    "gaussian, full metric": ak.Gaussian(0.8, metric=np.array([[2.0, 0.3], [0.3, 0.5]])),
    "laplace": ak.Laplace(0.5),
    "matern32": ak.kernels.Matern32(0.5),
    "matern52": ak.Matern52(0.5),
    "rational quadratic": ak.kernels.RationalQuadratic(0.4, 1.7),
    "cauchy": ak.kernels.Cauchy(0.3),
    "periodic": ak.Periodic(0.6, 2.3),
    "boxcar": ak.kernels.Boxcar(1.1),
    "triangular": ak.kernels.Triangular(1.2),
    "epanechnikov": ak.Epanechnikov(1.1),
    "biweight": ak.kernels.Biweight(1.3),
    "triweight": ak.kernels.Triweight(0.9),
    "tricube": ak.kernels.Tricube(1.2),
    "cosine": ak.kernels.Cosine(1.1),
    "product": ak.Gaussian(0.7) * ak.Epanechnikov(1.5),
    "dot product": ak.DotProduct(),
    "cosine similarity": ak.kernels.CosineSimilarity(np.asarray(2.0)),
    "polynomial": ak.kernels.Polynomial(4, offset=np.asarray(0.3)),
    "bilinear": ak.kernels.Bilinear([[0.5, -1.0], [0.3, 0.8]]),
    "additive": ak.kernels.AdditiveScore([1.5, -0.7]),
    "projected": ak.kernels.Projected(
        ak.Matern52(0.5),
        eqx.nn.Linear(DIM, 3, key=jax.random.PRNGKey(0)),
        eqx.nn.Linear(DIM, 3, use_bias=False, key=jax.random.PRNGKey(1)),
    ),
    "soft-capped": ak.kernels.SoftCapped(ak.Epanechnikov(1.1), np.asarray(2.0)),
    "on columns": ak.Matern52(0.7).on(1) * ak.kernels.Triweight(2.5).on(0),
    "categories": ROUNDED.on(0) * ak.Gaussian(0.8).on(1),
    "ordered categories": ak.kernels.WangVanRyzin(np.array([0.2, 0.6])),
}
# one smooth and positive everywhere, one compact, one of inner products
REPRESENTATIVE_KERNELS = ("gaussian", "epanechnikov", "dot product")
ROW = np.arange(KEYS)
HELD_OUT = ROW % 3 == 1
PRIORS = {
    "none": None,
    "leave one out": priors.ExcludeSelf(),
    "held out": priors.HeldOut(HELD_OUT),
    "causal": ak.Causal(offset=4),
    "window without held out": ak.Window(5, 3) & ~priors.HeldOut(~HELD_OUT),
    "function": priors.MaskFunction(lambda i, j: (i + j) % 5 > 0) | ak.Causal(),
    "bias in segments": ak.Alibi(0.2) * priors.Segments(ROW[:QUERIES] // 9, ROW // 9),
    "relative bias at given positions": priors.AtPositions(
        RelativeBias(np.linspace(-1.0, 1.0, 8), 20) * ak.Causal(), 2 * ROW[:QUERIES], ROW[::-1]
    ),
    "key weights": priors.KeyWeights(np.sin(np.arange(1.0 * KEYS))) * priors.Prefix(9),
}
RULES = {
    "softmax": ak.Softmax(),
    "constant temperature": ak.Softmax(ak.fixed(0.6)),
    "trainable temperature": ak.Softmax(1.4),
    "sink": ak.Softmax(sink_mass=ak.fixed(0.02)),
    "uniform": Uniform(),
    "sparsemax": ak.Entmax(ak.fixed(2.0)),
    "trainable entmax": ak.Entmax(1.4, 0.8),
}


def random_arrays(seed=0, queries=QUERIES, keys=KEYS, dim=DIM):
    """Queries, keys and values of NumPy, in the default precision of JAX."""
    rng = np.random.default_rng(seed)
    shapes = ((queries, dim), (keys, dim), (keys, DIM_V))
    dtype = jax.dtypes.canonicalize_dtype(float)
    return tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)


def to_float64(tree):
    """Floating-point arrays in float64; compiles nothing."""

    def wide(leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        array = np.asarray(leaf, np.float64)
        return array if isinstance(leaf, np.ndarray) else jax.device_put(array)

    return jax.tree.map(wide, tree)


class OneOfKernels(ak.kernels.Kernel):
    """The kernel of the given index among several; a program that holds them all."""

    kernels: tuple[ak.kernels.Kernel, ...]
    index: jax.Array

    def log_pair(self, q, k):
        return self._call("log_pair", q, k)

    def pairwise(self, q, k):
        return self._call("pairwise", q, k)

    def score_upper_bound(self, boxes):
        return self._call("score_upper_bound", boxes)

    @property
    def is_cheap(self):
        return all(kernel.is_cheap for kernel in self.kernels)

    def _call(self, name, *arguments):
        branches = [
            lambda *arguments, kernel=kernel: getattr(kernel, name)(*arguments)
            for kernel in self.kernels
        ]
        return jax.lax.switch(self.index, branches, *arguments)


class OneOfPriors(priors.Prior):
    """The prior of the given index among several, None for no prior."""

    priors: tuple[priors.Prior | None, ...]
    index: jax.Array

    def log_pair(self, i, j):
        return self._call("log_pair", i, j)

    def score_upper_bound(self, block):
        return self._call("score_upper_bound", block)

    def _call(self, name, *arguments):
        def branch(prior):
            if prior is None:
                return lambda *_: jnp.zeros((), float)
            return lambda *arguments: jnp.asarray(getattr(prior, name)(*arguments), float)

        return jax.lax.switch(self.index, [branch(prior) for prior in self.priors], *arguments)


def derivatives_too(outputs: Callable, arguments):
    """Value and log-mass, the gradient of a scalar of both, and their JVP along fixed tangents.

    With respect to every floating-point array in `arguments`. The scalar is the sum of sines of
    the value and of squares of the finite log-masses.
    """
    moving, fixed = eqx.partition(arguments, eqx.is_inexact_array)

    def of(moving):
        return outputs(*eqx.combine(moving, fixed))

    def wave(leaf):
        return jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape)

    (value, log_mass), pull_back = jax.vjp(of, moving)
    slopes = jnp.cos(value), 2 * jnp.where(jnp.isneginf(log_mass), 0, log_mass)
    tangent = jax.jvp(of, (moving,), (jax.tree.map(wave, moving),))[1]
    return (value, log_mass), pull_back(slopes)[0], tangent


def outputs(method, kernel, prior, rule, q, k, v):
    """Value and log-mass by a method."""
    parts = {"kernel": kernel, "prior": prior, "rule": rule, "method": method}
    return ak.attend(q, k, v, **parts, return_log_mass=True)


def evaluate(method, kernel, prior, rule, q, k, v, derivatives=True):
    """Value and log-mass of one case, with gradient and JVP; one program.

    `method` may be a tuple of methods: the results are a list then.
    """
    methods = method if isinstance(method, tuple) else (method,)
    moving, fixed = eqx.partition((kernel, prior, rule, q, k, v), eqx.is_inexact_array)
    call = derivatives_too if derivatives else lambda function, arguments: function(*arguments)

    @jax.jit
    def program(moving):
        arguments = eqx.combine(moving, fixed)
        return [call(functools.partial(outputs, each), arguments) for each in methods]

    found = jax.device_get(program(moving))
    return found if isinstance(method, tuple) else found[0]


def evaluate_table(method, kernels, prior_names, rule, q, k, v, derivatives=True):
    """As `evaluate`, for all pairs of named kernels and priors; one program.

    **Returns:** a dict from (kernel, prior) to the results; of several methods, a list of them.
    """
    methods = method if isinstance(method, tuple) else (method,)
    parts = tuple(KERNELS[name] for name in kernels), tuple(PRIORS[name] for name in prior_names)
    if q.dtype == np.float64:
        parts, rule = to_float64((parts, rule))
    moving, fixed = eqx.partition((*parts, rule, q, k, v), eqx.is_inexact_array)
    call = derivatives_too if derivatives else lambda function, arguments: function(*arguments)

    @jax.jit
    def program(moving, pairs):
        arguments = eqx.combine(moving, fixed)

        def of_pair(pair):
            def of_method(method, kernels, priors, *others):
                chosen = OneOfKernels(kernels, pair[0]), OneOfPriors(priors, pair[1])
                return outputs(method, *chosen, *others)

            return [call(functools.partial(of_method, each), arguments) for each in methods]

        return jax.lax.map(of_pair, pairs)

    pairs = [(i, j) for i in range(len(kernels)) for j in range(len(prior_names))]
    names = [(kernels[i], prior_names[j]) for i, j in pairs]
    found = jax.device_get(program(moving, np.array(pairs)))
    rows = [jax.tree.map(lambda leaf, row=row: leaf[row], found) for row in range(len(names))]
    tables = [dict(zip(names, results, strict=True)) for results in zip(*rows, strict=True)]
    return tables if isinstance(method, tuple) else tables[0]


def assert_agree(a, b, rtol=1e-10, atol=1e-10, case=""):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert not np.isnan(one).any(), case
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=str(case))


def assert_equals_dense(method, *parts, derivatives=True, rtol=1e-10, atol=1e-10):
    """Checks `evaluate(method, *parts)` against `Dense`, in one program."""
    assert_agree(*evaluate((method, Dense()), *parts, derivatives=derivatives), rtol, atol)


def assert_tables_agree(found, expected, rtol=1e-10, atol=1e-10):
    assert found.keys() == expected.keys()
    for case, results in found.items():
        assert_agree(results, expected[case], rtol, atol, case)
