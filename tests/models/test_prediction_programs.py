"""The first prediction of a model compiles one program, another number of rows or queries none."""

import jax
import numpy as np
import pytest
from marks import slow

import attnkernel as ak

CONSTANT = ak.KernelRegression(ak.Gaussian(0.1))
MODELS = {
    "local constant": CONSTANT,
    "local linear": ak.KernelRegression(ak.Gaussian(0.1), order=1),
    "likelihood": ak.LocalLikelihood(ak.Gaussian(0.1), family=ak.Gamma(), order=1),
    "quantile": ak.LocalQuantile(ak.Gaussian(0.1), order=0),
    "robust": ak.RobustRegression(CONSTANT),
}


@pytest.mark.parametrize(
    "name",
    ["local constant", "robust", slow("local linear"), slow("likelihood"), slow("quantile")],
)
def test_a_prediction_is_one_program_for_numbers_of_rows_in_a_bucket(programs, name):
    jax.clear_caches()
    x = np.linspace(0.0, 1.0, 40)
    y, x_new = 2.0 + np.sin(6.0 * x), np.linspace(0.1, 0.9, 16)
    model = MODELS[name]
    for labels in (y, np.stack([y, y**2], axis=1)):
        programs.clear()
        assert model(x_new, x, labels).shape == (16, *labels.shape[1:])
        assert len(programs) == 1
        fewer = model(x_new[:13], x[:37], labels[:37])
        assert len(programs) == 1
        assert fewer.shape == labels[:13].shape
