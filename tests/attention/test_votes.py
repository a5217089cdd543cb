"""The largest weights, the effective number and the entropy are those of the matrix of weights,
which is not stored; layers, fits and estimators name the rows."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from known_fits import known_fit
from programs import temporary_bytes
from refusals import assert_raises

import attnkernel as ak
from attnkernel.priors import ExcludeSelf, MaskArray

QUERIES, KEYS, DIM = 23, 331, 3  # eleven groups of keys, of which the largest are compared
HEADS = 2
RNG = np.random.default_rng(0)
Q, K = RNG.normal(size=(HEADS, QUERIES, DIM)), RNG.normal(size=(HEADS, KEYS, DIM))
MASK = RNG.uniform(size=(QUERIES, KEYS)) < 0.1
MASK[5] = False  # a query that sees no key
HELD_OUT = ak.priors.HeldOut(RNG.uniform(size=2100) < 0.3)
SINK = ak.Softmax(ak.fixed(0.5), sink_mass=ak.fixed(3.0))
CASES = {
    "all keys": {"kernel": ak.Gaussian(0.7)},
    "causal, few keys": {"kernel": ak.DotProduct(), "prior": ak.Causal()},
    "window, entmax": {
        "kernel": ak.DotProduct(),
        "prior": ak.Window(2, 2),
        "rule": ak.Entmax(ak.fixed(1.5)),
    },
    "a kernel of each head, masked": {
        "kernel": ak.PerHead([ak.Gaussian(0.3), ak.Gaussian(2.0)]),
        "prior": MaskArray(MASK),
    },
    "sink": {"kernel": ak.Laplace(0.4), "rule": SINK},
}


def expected_votes(weights, count):
    """Indices, weights, effective number and entropy, by sorting all weights."""
    order = np.argsort(-np.abs(weights), axis=-1, kind="stable")[..., :count]
    share = np.abs(weights) / np.maximum(np.abs(weights).sum(-1, keepdims=True), 1e-300)
    squares = np.sum(weights**2, axis=-1)
    entropy = -np.sum(share * np.log(np.where(share > 0, share, 1.0)), axis=-1)
    number = np.where(squares > 0, 1.0 / np.where(squares > 0, squares, 1.0), 0.0)
    return order, np.take_along_axis(weights, order, -1), number, entropy


def assert_votes(found, weights, count, rtol=1e-11):
    order, kept, number, entropy = expected_votes(np.asarray(weights, float), count)
    np.testing.assert_allclose(found.weights, kept, rtol=rtol, atol=rtol)
    # of keys that are seen: the order of the others means nothing
    np.testing.assert_array_equal(np.where(kept != 0, found.indices, 0), np.where(kept, order, 0))
    np.testing.assert_allclose(found.effective_number, number, rtol=rtol)
    np.testing.assert_allclose(found.entropy, entropy, rtol=rtol, atol=rtol)


def votes(q, k, **case):
    return ak.votes(q, k, **case, k_largest=3)


def votes_of_matrix(q, k, **case):
    """The same, of weights that are stored."""
    rule = case.get("rule", ak.Softmax()).without_sink()
    weights = ak.attention_weights(q, k, **case | {"rule": rule})
    return jax.vmap(lambda of_head: ak.methods.Votes.from_weights(of_head, 3))(weights)


@pytest.fixture(scope="module")
def both():
    """Votes and weights of each case; then, of a penalty on all, two gradients of each form."""

    def penalty(q, k, function):
        found = [function(q, k, **case) for case in CASES.values()]
        return sum(jnp.sum(of.entropy) + jnp.sum(of.effective_number) for of in found)

    @jax.jit
    def results(q, k):
        values = [
            (votes(q, k, **case), ak.attention_weights(q, k, **case)) for case in CASES.values()
        ]
        gradient = jax.grad(penalty, argnums=(0, 1))
        return values, [gradient(q, k, function) for function in (votes, votes_of_matrix)]

    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr("attnkernel.methods._votes.STEP_PAIRS", 8 * KEYS)  # three blocks of queries
        return jax.device_get(results(Q, K))


def test_votes_are_those_of_the_matrix(both):
    for name, (found, weights) in zip(CASES, both[0], strict=True):
        total = weights.sum(-1, keepdims=True)
        assert (np.max(total) < 0.95) == (name == "sink")
        if name == "sink":  # part of the weights alone
            kept = found.weights / total
            found = ak.methods.Votes(found.indices, kept, found.effective_number, found.entropy)
            weights = weights / total
        assert_votes(found, weights, 3)


def test_penalties_have_the_derivatives_of_the_matrix(both):
    for ours, theirs in zip(*both[1], strict=True):
        assert np.max(np.abs(theirs)) > 0.1
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


LINE = {
    "Sorted": (ak.Laplace(0.05), ExcludeSelf(), 1100, SINK),
    "Fourier": (ak.Gaussian(0.05), HELD_OUT & ExcludeSelf(), 2100, ak.Softmax()),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["Sorted", "Fourier"])
def test_votes_on_a_line_are_those_of_all_pairs(x64, method):
    kernel, prior, n, rule = LINE[method]
    case = {"kernel": kernel, "prior": prior, "rule": rule}
    x = np.random.default_rng(1).uniform(size=(n, 1))
    chosen = ak.attention.select_method(x, x, x, **case | {"rule": ak.Softmax(0.5)})
    assert type(chosen.method).__name__ == method

    def of_matrix(x):
        bare = ak.attention_weights(x, x, **case | {"rule": rule.without_sink()})
        found = ak.methods.Votes.from_weights(bare, 3)
        weights = jnp.take_along_axis(ak.attention_weights(x, x, **case), found.indices, axis=1)
        return eqx.tree_at(lambda votes: votes.weights, found, weights)

    def penalty(x, function):
        found = function(x)
        total = found.effective_number + found.entropy + found.share
        return jnp.sum(total * jnp.arange(1.0, n + 1)), found

    slopes = jax.value_and_grad(penalty, has_aux=True)
    with jax.numpy_rank_promotion("allow"):  # jax-finufft broadcasts ranks in its derivatives
        line, matrix = (
            jax.device_get(jax.jit(lambda x, of=of: slopes(x, of))(x))
            for of in (lambda x: ak.votes(x, x, **case, k_largest=3), of_matrix)
        )
    for ours, theirs in zip(jax.tree.leaves(line), jax.tree.leaves(matrix), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-8 * np.max(np.abs(theirs)))


def test_of_equal_weights_the_earlier_are_named():
    x = np.zeros((700, 1), np.float32)
    found = ak.votes(x[:2], x, kernel=ak.Gaussian(1.0), k_largest=5)
    np.testing.assert_array_equal(found.indices, [range(5)] * 2)
    np.testing.assert_allclose(found.effective_number, 700.0, rtol=1e-5)
    np.testing.assert_allclose(found.entropy, np.log(700.0), rtol=1e-5)


def test_invalid_queries_and_few_keys():
    q = np.array([[0.0], [np.nan]], np.float32)
    votes = jax.jit(lambda q: ak.votes(q, q[:1], kernel=ak.Gaussian(1.0)))
    found = votes(q)
    np.testing.assert_array_equal(found.weights, [[1.0], [np.nan]])
    np.testing.assert_array_equal(found.entropy, [0.0, np.nan])
    none = ak.votes(q[:1], q[:0], kernel=ak.Gaussian(1.0))
    assert (none.weights.shape, none.effective_number.tolist()) == ((1, 0), [0.0])
    assert_raises("k_largest must be", ak.votes, q[:1], q[:1], kernel=ak.Gaussian(1.0), k_largest=0)


def test_symbolic_numbers_of_rows_are_refused():
    (rows,) = jax.export.symbolic_shape("n")
    shape = jax.ShapeDtypeStruct((rows, 3), jnp.float32)
    votes = jax.jit(lambda x: ak.votes(x, x, kernel=ak.DotProduct()))
    assert_raises("numbers of rows of q and k must be known", jax.export.export(votes), shape)


def test_memory_is_that_of_a_block():
    def penalty(x):
        found = ak.votes(x, x, kernel=ak.DotProduct())
        return jnp.sum(found.entropy) + jnp.sum(found.weights)

    assert temporary_bytes(jax.value_and_grad(penalty), (8192, 4)) < 4 * 8192**2 / 8


def test_layers_name_the_largest_weights_of_each_head():
    x = np.asarray(RNG.normal(size=(11, 8)), np.float32)
    layer = ak.MultiheadAttention(4, 8, num_kv_heads=2, key=jax.random.PRNGKey(0))
    single = ak.SelfAttention(8, prior=ak.Causal(), key=jax.random.PRNGKey(1))

    @jax.jit
    def results(x):
        many = layer.votes(x, x, prior=ExcludeSelf(), k_largest=2)
        one = single.votes(x, k_largest=2)
        return (many, layer.weights(x, x, prior=ExcludeSelf())), (one, single.weights(x))

    for found, weights in jax.device_get(results(x)):
        assert_votes(found, weights, 2, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("order", [0, 1])
def test_votes_of_a_fit_sum_to_its_predictions(x64, order):
    x, y = RNG.uniform(size=41), RNG.normal(size=41)
    weights = np.where(np.arange(41) % 5 == 0, 0.0, RNG.uniform(0.5, 2.0, 41))
    fit = known_fit(ak.KernelRegression(ak.Gaussian(0.1), order=order), x, y, weights)
    at = np.array([0.02, 0.5])
    found = jax.device_get(fit.votes(at, 41))
    np.testing.assert_allclose(np.sum(found.weights * y[found.indices], axis=1), fit(at), rtol=1e-9)
    by_row = np.zeros((2, 41))
    np.put_along_axis(by_row, found.indices, found.weights, axis=1)
    assert_votes(fit.votes(at, 4), by_row, 4, rtol=1e-9)
    assert (found.weights.min() < -1e-3) == (order == 1)


def test_a_frame_gets_inputs_labels_and_weights():
    kernel = ak.Gaussian(1.0).on(0) * ak.kernels.LiRacine(0.1).on(1)
    x = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [4.0, 1.0]])
    fit = known_fit(ak.KernelRegression(kernel), x, np.array([10.0, 20.0, 30.0, 40.0]))
    fit = fit.named(["age", "kind"], "wage", [None, ("low", "high")])
    asked = pandas.DataFrame({"age": [4.0], "kind": pandas.Categorical(["high"])}, index=["d"])
    found = fit.votes(asked, 2)
    assert found.index.tolist() == [("d", 3), ("d", 1)]
    assert found[["age", "kind", "wage"]].values.tolist() == [
        [4.0, "high", 40.0],
        [2.0, "high", 20.0],
    ]
    share = np.exp(-0.5 * 2.0**2)
    np.testing.assert_allclose(found["weight"] / found["weight"].iloc[0], [1.0, share], rtol=1e-5)


def test_estimator_counts_the_rows_that_it_was_given():
    from attnkernel.sklearn import KernelRegressor  # noqa: PLC0415  scikit-learn is an extra

    x, y = np.array([[0.0], [0.0], [1.0], [2.0], [3.0]]), np.array([1.0, 5.0, 9.0, 2.0, 4.0])
    model = KernelRegressor(lengthscale=0.7).fit(x, y, sample_weight=[1, 3, 0, 1, 1])
    found = model.votes([[0.5], [2.5]])
    assert set(found.indices[0].tolist()) == {0, 1, 3, 4}
    np.testing.assert_allclose(
        np.sum(found.weights * y[found.indices], axis=1), model.predict([[0.5], [2.5]])
    )
    np.testing.assert_allclose(found.weights[0, 0], 3 * found.weights[0, 1])


def test_votes_need_one_fit_that_is_linear_in_its_labels():
    x = np.linspace(0.0, 1.0, 9, dtype=np.float32)
    fit = known_fit(ak.LocalQuantile(ak.Gaussian(0.3)), x, x)
    assert_raises("linear in the labels.*LocalQuantile", fit.votes, x)
