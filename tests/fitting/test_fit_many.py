"""Many fits in one program: each equals the fit alone; `choose`: the candidate with the smallest
criterion; data and arguments that are refused."""

import jax
import numpy as np
import optax
import pytest
from noisy_sine import model, sample
from refusals import assert_raises

import attnkernel as ak

ADAM = optax.adam(0.1)


def lengthscales(*fits):
    return [fit.model.kernel.lengthscale for fit in fits]


@pytest.mark.slow
def test_trainings_of_several_hold_out_sizes_equal_single_fits(x64, programs):
    """And those of another number of rows of the same bucket compile nothing."""
    keys = np.array([[0, 1], [2, 3]], np.uint32)
    sizes, options = np.array([1, 9]), {"optimizer": ADAM, "steps": 7}

    def several(x, y):
        batch = {"in_axes": (None, None, 0), "key": jax.device_put(keys)} | options
        return ak.fit_many(model(), x, y, objective=ak.HoldOut(sizes, at_most=9), **batch)

    x, y = sample()
    many = several(x, y)
    programs.clear()
    several(*sample(20))
    members = [many.member(i) for i in (0, 1)]
    assert not programs  # arrays are indexed by NumPy
    for member, size, key in zip(members, sizes, keys, strict=True):
        own = ak.HoldOut(jax.device_put(size), at_most=9)
        alone = ak.fit(model(), x, y, objective=own, key=jax.device_put(key), **options)
        np.testing.assert_allclose(member.history["loss"], alone.history["loss"], rtol=1e-9)
        np.testing.assert_allclose(*lengthscales(member, alone), rtol=1e-9)
        np.testing.assert_allclose(member(x), alone(x), rtol=1e-9)


@pytest.mark.slow
def test_searches_of_several_data_sets_equal_single_fits(x64):
    data = [sample(seed=seed) for seed in range(2)]
    x, y = (np.stack(parts) for parts in zip(*data, strict=True))
    many = ak.fit_many(model(), x, y, objective=ak.LeaveOneOut(), in_axes=(None, 0, None))
    for i in range(2):
        alone = ak.fit(model(), *data[i], objective=ak.LeaveOneOut())
        np.testing.assert_allclose(np.asarray(many.loss)[i], alone.loss, rtol=1e-9)
        member = many.member(i)
        np.testing.assert_allclose(*lengthscales(member, alone), rtol=1e-6)
        np.testing.assert_array_equal(member.x, data[i][0])
        np.testing.assert_array_equal(member.y, data[i][1])


def test_what_only_one_fit_has_is_refused_of_a_batch():
    x, y = map(np.asarray, sample())
    options = {"optimizer": ADAM, "steps": 1, "in_axes": (None, 0, None)}
    many = ak.fit_many(model(), x[None], y[None], objective=ak.LeaveOneOut(), **options)
    for call, *arguments in ((many.minima,), (many.on_bounds,), (many, x), (many.votes, x)):
        assert_raises(r"fit.member\(i\)", call, *arguments)
    with pytest.raises(IndexError, match="1 fits; got member 1"):
        many.member(1)
    assert_raises("members", many.member(0).member, 0)


@pytest.mark.parametrize(
    ("models", "keys", "options", "message"),
    [
        (1, None, {}, r"model \[\(\)\]"),
        (3, None, {}, "objective no array"),
        (3, 2, {"in_axes": (0, None, None)}, r"model \[\(3,\)\]; key \[\(2,\)\]"),
        (1, None, {"in_axes": (None, None, None)}, "in_axes"),
    ],
    ids=["one model", "one objective", "two keys", "all shared"],
)
def test_batches_that_are_refused(models, keys, options, message):
    several = model() if models == 1 else model(np.arange(1.0, models + 1.0))
    key = None if keys is None else jax.device_put(np.zeros((keys, 2), np.uint32))
    with pytest.raises(ValueError, match=message):
        ak.fit_many(several, *sample(), objective=ak.LeaveOneOut(), key=key, **options)


def test_candidate_with_the_smallest_criterion_is_best(x64):
    x, y = sample()
    models = [model(0.3), ak.KernelRegression(ak.Gaussian(0.3), order=1), model(1.5)]
    found = ak.choose(models, x, y, objective=ak.LeaveOneOut(), starts=2)
    alone = [ak.fit(each, x, y, objective=ak.LeaveOneOut(), starts=2) for each in models]
    np.testing.assert_array_equal(found.criteria, [float(fit.loss) for fit in alone])
    least = int(np.argmin(found.criteria))
    assert found.best is found.fits[least]
    head, *lines = str(found).splitlines()
    assert "LeaveOneOut" in head
    assert [line.startswith("*") for line in lines] == [i == least for i in range(3)]
    assert lines[least].endswith("  0")
    assert f"local linear, {found.fits[1].model.kernel}" in lines[1]


def test_warning_names_its_candidate(x64):
    x, y = sample()
    options = {"objective": ak.LeaveOneOut(), "bounds": (model(0.6), model(0.9)), "starts": 2}
    with pytest.warns(ak.FitWarning) as caught:
        ak.choose([model(0.7), model(0.8)], x, y, **options)
    for number, warning in enumerate(caught):
        message = str(warning.message)
        assert message.startswith(f"candidate {number}, local constant, Gaussian")
        assert "bound" in message
    assert len(caught) == 2


def test_candidates_that_cannot_be_compared_are_refused():
    x, y = sample()
    model = ak.KernelRegression(ak.Gaussian(0.3))
    assert_raises(r"HoldOut.*ak\.LeaveOneOut", ak.choose, [model], x, y, objective=ak.HoldOut(10))
    assert_raises(r"models.*got \[\]", ak.choose, [], x, y, objective=ak.GCV())
    narrow = [ak.KernelRegression(ak.kernels.Boxcar(length)) for length in (1e-6, 2e-6, 3e-6)]
    options = {"bounds": (narrow[0], narrow[2]), "starts": 1}
    with (
        pytest.warns(ak.FitWarning, match="diverged"),
        pytest.raises(ValueError, match=r"Candidate 0, .* inf"),
    ):
        ak.choose([narrow[1]], x, y, objective=ak.LeaveOneOut(), **options)
    with pytest.raises(ValueError, match="jit"):
        jax.jit(lambda y: ak.choose([model], x, y, objective=ak.GCV(), starts=1).best.loss)(y)


N = 19
RNG = np.random.default_rng(0)
X, Y = RNG.uniform(-2, 2, size=(N, 1)), RNG.normal(size=N)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": X[:2], "y": Y[:2], "objective": ak.LeaveOneOut()}, "3 rows; got 2"),
        ({"x": np.ones_like(X)}, "x is constant"),
        ({"y": np.ones(N)}, r"y is constant.*1\.0"),
        ({"objective": ak.HoldOut(N)}, r"HoldOut\(19\).*19 rows"),
        ({"key": None}, "key="),
        ({"optimizer": None}, "HoldOut.*optimizer="),
        ({"steps": None}, "steps="),
        ({"starts": 5}, "starts.*bounds="),
        ({"trainable": lambda leaf: False}, "trainable="),
        ({"bounds": (model(2.0), model(3.0))}, "outside its bounds.*lengthscale=1.*lengthscale=2"),
        ({"bounds": (model(3.0), model(0.5))}, "lower bound"),
        ({"bounds": (0.1, 3.0)}, r"bounds.*0\.1, 3\.0"),
    ],
    ids=lambda of: ", ".join(of) if isinstance(of, dict) else "",
)
def test_arguments_that_are_refused(changes, message):
    arguments = {"x": X, "y": Y, "objective": ak.HoldOut(4), "optimizer": ADAM, "steps": 13}
    arguments |= {"key": jax.device_put(np.zeros(2, np.uint32))} | changes
    assert_raises(f"(?is){message}", ak.fit, model(), **arguments)
