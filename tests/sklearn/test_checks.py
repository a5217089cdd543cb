"""The estimators pass the checks of scikit-learn: a representative set by default, or all."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from attnkernel.sklearn import KernelClassifier, KernelRegressor

# the lengthscale of a column without effect ends on its upper bound, which is a warning
pytestmark = pytest.mark.filterwarnings("ignore::attnkernel.FitWarning")

# one start: most of a hundred fits have their own shapes, and are compiled
ESTIMATORS = [KernelRegressor(starts=1), KernelClassifier(starts=1)]
REPRESENTATIVE = {
    # parameters and tags
    "check_estimator_tags_renamed",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    # validation of data
    "check_complex_data",
    "check_estimators_unfitted",
    # a fit of weights of rows
    "check_classifiers_one_label_sample_weights",
}
EVERY_CHECK = parametrize_with_checks(ESTIMATORS)
CASES = [
    pytest.param(
        estimator,
        check,
        marks=() if check.func.__name__ in REPRESENTATIVE else pytest.mark.slow,
    )
    for estimator, check in EVERY_CHECK.args[1]
]


def test_representative_checks_exist():
    assert {check.func.__name__ for _, check in EVERY_CHECK.args[1]} >= REPRESENTATIVE


@pytest.mark.parametrize(("estimator", "check"), CASES, ids=EVERY_CHECK.kwargs["ids"])
def test_check_of_scikit_learn(estimator, check):
    check(estimator)
