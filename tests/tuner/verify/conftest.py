"""The simulated study of the ablation's tests, verified."""

from tests.tuner.ablation.conftest import Run, run, sent

__all__ = ["Run", "run", "sent"]
