"""The step model on the committed run of record, which holds means alone: what docs/explain.md says of it."""

import json
from pathlib import Path

import pytest

from objectives.metrics import METRICS
from objectives.step_fit import Standing, StepFit, StepObservation, fit_steps
from objectives.step_times import steps_of_means
from search_spaces.accelerators import accelerator
from search_spaces.deployment import Reader
from search_spaces.load import load_space
from search_spaces.model_shape import ModelShape, known_shape
from search_spaces.schemes import Scheme, scheme_of_name
from search_spaces.space import Config
from search_spaces.step_model import Served, step_work, table_constants
from tuner.session import trace_figures
from tuner.traffic import study_trace

RECORD = Path(__file__).parents[2] / "runs/record/2026-11-30-make-search/front.json"
FACTORS = {metric.shown: (metric.name, metric.factor) for metric in METRICS.values()}


def _described(model: str) -> tuple[ModelShape, Scheme]:
    return known_shape(model), scheme_of_name(model)


@pytest.fixture(scope="module")
def fit() -> StepFit:
    told = json.loads(RECORD.read_text())
    trials = {trial["number"]: trial for trial in (*told["control"], *told["front"])}
    space, device = load_space("spaces/smollm2-135m.yaml"), accelerator("cpu")
    figures = trace_figures(study_trace(space, None)[0])
    seen = []
    for number, trial in trials.items():
        deployment = Reader(device, _described).read(space.settings(Config(trial["config"])))
        metrics = {
            FACTORS[name][0]: value / FACTORS[name][1]
            for name, value in trial["metrics"].items()
            if name in FACTORS  # a record of another version has names of its own
        }
        queries = 1.0 + deployment.depth
        if deployment.draft is None and deployment.depth:
            accepted = metrics["accepted_tokens_per_target_step"] - 1
            queries = 1.0 + accepted / metrics["draft_acceptance"]
        served = Served(
            target=deployment.target,
            target_scheme="unquantised",
            draft=deployment.draft,
            draft_scheme="unquantised" if deployment.draft else "",
            depth=deployment.depth,
        )
        (observed,) = steps_of_means(
            metrics,
            input_tokens=float(str(figures["input_mean"])),
            output_tokens=float(str(figures["output_mean"])),
            queries=queries,
        )
        works = ((1.0, step_work(served, observed.load)),)
        one = StepObservation(
            trial=number, replay=0, kind="decode", seconds=observed.seconds, steps=observed.steps, works=works
        )
        seen.append((served, one))
    table = table_constants(device, [served for served, _ in seen])
    return fit_steps([one for _, one in seen], table)


def test_the_record_is_met_to_what_the_docs_say(fit: StepFit) -> None:
    errors = fit.errors["decode"]
    assert len(errors.trials) == 4
    assert errors.median == pytest.approx(0.17, abs=0.02)
    assert errors.worst == pytest.approx(0.37, abs=0.03)


def test_four_means_tell_compute_and_nothing_else(fit: StepFit) -> None:
    told = {one.name for one in fit.fitted if one.standing is Standing.FITTED}
    assert told == {"compute unquantised"}
