"""Estimators for scikit-learn: `KernelRegressor` and `KernelClassifier` (extra `sklearn`)."""

from ._estimators import KernelClassifier as KernelClassifier, KernelRegressor as KernelRegressor
