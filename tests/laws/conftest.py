"""Fixtures that the laws borrow."""

from tests.tuner.conftest import mlflow_template, new_mlflow

__all__ = ["mlflow_template", "new_mlflow"]
