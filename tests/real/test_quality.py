"""The quality guard on a real vLLM: a search over checkpoints and number formats, each asked once."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.dispatch.in_process import InProcess
from cluster.node.small_model import prepare_small_model
from cluster.node.vllm_server import VllmEngine
from cluster.traffic.workload import Workload, load_encode
from objectives.goal import Goal
from objectives.quality import QualityVerdict
from search_spaces.load import parse_space
from tests.tuner.test_study import Journal
from tuner.export.refusals import Mark, marks_of
from tuner.front import FrontView, read_view
from tuner.quality import QUALITY, read_answers, read_verdict
from tuner.quality_prompts import quality_prompts
from tuner.records import StoredTrial, trial_folder
from tuner.sampler import Search, sampler_named
from tuner.session import SearchRequest, new_study, orders
from tuner.study import StudyPlan, search
from tuner.traffic import study_trace

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]

SPACE = """
name: quality
model: {model}
resources: {{gpus: 0, cpus: 1}}
engine:
  max_model_len: 512
  dtype: bfloat16
  enforce_eager: true
  kv_cache_memory_bytes: 268435456
  max_num_seqs: 8
parameters:
  scheme:
    choices:
      int8: {{model: {int8}}}
      fp8_kv: {{set: {{kv_cache_dtype: fp8}}}}
      broken: {{help: sold as quantised, model: {broken}}}
traffic:
  make: {{requests: 2, rate: 2, input_mean: 32, output_mean: 4, seed: 2}}
measure: fixed
objectives: [goodput]
quality: {{prompts: 10, tokens: 12, max_nll_increase: 0.2, min_agreement: 0.8}}
"""


def perturbed(model: Path, out: Path) -> Path:
    """The model with noise of a fifth of their spread on the weights that each layer ends with."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, out)
    generator = torch.Generator().manual_seed(0)
    for file in out.glob("*.safetensors"):
        weights = load_file(file)
        for name, weight in weights.items():
            if "down_proj" in name:
                noise = torch.randn(weight.shape, generator=generator) * weight.float().std() / 5
                weights[name] = (weight.float() + noise).to(weight.dtype)
        save_file(weights, file, metadata={"format": "pt"})
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    folder: Path
    view: FrontView

    def trial(self, scheme: str | None) -> StoredTrial:
        """Of the control, or of the config with this scheme."""
        return next(t for t in self.view.trials if (t.config or {}).get("scheme") == scheme)

    def verdict(self, scheme: str | None) -> QualityVerdict:
        found = read_verdict(self.folder, self.trial(scheme))
        assert found is not None
        return found


@pytest.fixture(scope="module")
def found(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """A search that has tried everything there is."""
    folder = tmp_path_factory.mktemp("quality")
    made = prepare_small_model(small_model.parent)
    broken = perturbed(small_model, folder / "broken")
    space = parse_space(SPACE.format(model=small_model, int8=made.int8, broken=broken), "quality.yaml")
    goal = Goal.of(space.objectives)
    trace, origin = study_trace(space, None)
    workload = Workload(trace=trace, tokenizer=str(small_model))
    study = new_study("q", SearchRequest(), space, goal, workload, origin)
    plan = StudyPlan(
        folder=folder / "q",
        study=study,
        space=space,
        goal=goal,
        total=4,
        order=orders(study, space, workload, simulated=False),
        prompts=quality_prompts(space, trace, load_encode(str(small_model))),
    )
    sampler = Search.open(
        space=space,
        goal=goal,
        study="q",
        storage=f"sqlite:///{folder / 'q.db'}",
        recipe=sampler_named("random"),
        seed=0,
    )
    with InProcess(VllmEngine()) as dispatch:
        for _ in search(plan, dispatch, sampler, Journal()):
            pass
    yield Found(folder=plan.folder, view=read_view(plan.folder))
    shutil.rmtree(broken)


def test_the_control_answers_like_itself_and_is_the_reference(found: Found) -> None:
    control = found.verdict(None)
    assert control.is_reference
    assert control.passed
    assert control.defect is None
    assert control.agreement.value > 0.95


def test_a_smaller_cache_format_and_a_quantised_checkpoint_get_verdicts_of_their_own(found: Found) -> None:
    fp8, int8 = found.verdict("fp8_kv"), found.verdict("int8")
    assert fp8.artefact != int8.artefact
    assert fp8.nll_increase != int8.nll_increase
    for verdict in (fp8, int8):
        assert verdict.kl.value > found.verdict(None).kl.value
        assert verdict.passed, verdict.reasons


def test_asked_again_in_another_order_each_answers_the_same(found: Found) -> None:
    for scheme in (None, "fp8_kv", "int8"):
        _, answers = read_answers(trial_folder(found.folder, found.trial(scheme).number))
        assert [answer.again for answer in answers.answers] == [answer.greedy for answer in answers.answers]


def test_weights_that_were_perturbed_are_caught_and_never_recommended(found: Found) -> None:
    broken, trial = found.verdict("broken"), found.trial("broken")
    assert not broken.passed
    assert broken.nll_increase.low is not None
    assert broken.nll_increase.low > 0.2
    assert trial.measurement is not None
    assert trial.number not in found.view.numbers
    assert found.view.recommended is not None
    assert found.view.recommended.number != trial.number
    raw = json.loads((trial_folder(found.folder, trial.number) / QUALITY).read_text())
    assert raw["passed"] is False
    assert Mark.QUALITY_FAILED in marks_of(trial, broken, None)  # which no export lets pass unasked


def test_the_probe_is_told_apart_from_the_replay(found: Found) -> None:
    assert all(trial.ran.probe_s for trial in found.view.trials)
