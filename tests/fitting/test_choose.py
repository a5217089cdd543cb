"""`choose`: the candidate with the smallest criterion, its table, warnings and refusals."""

import jax
import numpy as np
import pytest

import attnkernel as ak

N = 61


def sample():
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(-2, 2, N))
    return x, np.sin(2 * x) + 0.2 * rng.normal(size=N)


def test_candidate_with_the_smallest_criterion_is_best(x64):
    x, y = sample()
    models = [
        ak.KernelRegression(ak.Gaussian(0.3)),
        ak.KernelRegression(ak.Gaussian(0.3), order=1),
        ak.KernelRegression(ak.Gaussian(1.5)),
    ]
    found = ak.choose(models, x, y, objective=ak.LeaveOneOut(), starts=2)
    alone = [ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=2) for model in models]
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
    models = [ak.KernelRegression(ak.Gaussian(length)) for length in (0.7, 0.8)]
    bounds = [ak.KernelRegression(ak.Gaussian(length)) for length in (0.6, 0.9)]
    with pytest.warns(ak.FitWarning) as caught:
        ak.choose(models, x, y, objective=ak.LeaveOneOut(), bounds=tuple(bounds), starts=2)
    for number, warning in enumerate(caught):
        message = str(warning.message)
        assert message.startswith(f"candidate {number}, local constant, Gaussian")
        assert "bound" in message
    assert len(caught) == 2


def test_candidates_that_cannot_be_compared_are_refused():
    x, y = sample()
    model = ak.KernelRegression(ak.Gaussian(0.3))
    with pytest.raises(ValueError, match=r"HoldOut.*ak\.LeaveOneOut"):
        ak.choose([model], x, y, objective=ak.HoldOut(10))
    with pytest.raises(ValueError, match=r"models.*got \[\]"):
        ak.choose([], x, y, objective=ak.GCV())
    narrow = [ak.KernelRegression(ak.kernels.Boxcar(length)) for length in (1e-6, 2e-6, 3e-6)]
    options = {"bounds": (narrow[0], narrow[2]), "starts": 1}
    with (
        pytest.warns(ak.FitWarning, match="diverged"),
        pytest.raises(ValueError, match=r"Candidate 0, .* inf"),
    ):
        ak.choose([narrow[1]], x, y, objective=ak.LeaveOneOut(), **options)
    with pytest.raises(ValueError, match="jit"):
        jax.jit(lambda y: ak.choose([model], x, y, objective=ak.GCV(), starts=1).best.loss)(y)
