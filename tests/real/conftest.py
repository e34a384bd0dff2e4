"""What tests on a real vLLM share: the small model, made once, and the repository's own folder for it."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.node.command import engine_environment
from cluster.node.launcher_client import Launcher
from cluster.node.small_model import prepare_small_model

MODELS = Path(__file__).parents[2] / "runs" / "models"


@pytest.fixture(scope="session")
def small_model() -> Path:
    """The 135M model's folder. Where vLLM is missing the test is skipped, and says so."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed; make test installs its CPU build")
    if given := os.environ.get("TUNER_TEST_MODEL"):
        return Path(given)
    return prepare_small_model(MODELS).model


PYTESTS_OWN = "PYTEST_CURRENT_TEST"


@pytest.fixture(scope="session")
def launcher(small_model: Path) -> Iterator[Path]:
    """The socket of a launcher for tests that do not care how their engine is started, or care for this."""
    # pytest's own, which names the test that asked first, would make every other test's start a cold one.
    environment = {name: text for name, text in os.environ.items() if name != PYTESTS_OWN}
    with Launcher(engine_environment({}, environment)) as launcher:
        assert launcher.problem is None
        assert launcher.path is not None
        yield launcher.path
