from dataclasses import replace

from tests.tuner import stories
from tests.tuner.verdicts import passed, verdict
from tuner.entries import study_entry, trial_entry
from tuner.front import view
from tuner.quality import Checks
from tuner.quality_words import quality_json, quality_text
from tuner.trial_note import trial_note

TRIAL = stories.stored(stories.measured(), 1)
STUDY = replace(stories.study_file(), engine="vllm", options={"quality": {"max_nll_increase": 0.02}})


def test_a_verdict_is_told_with_its_numbers_and_their_ends() -> None:
    assert quality_text(STUDY, TRIAL, passed([TRIAL])) == (
        "quality passed: NLL +0.0639 (0.0498 to 0.0765), KL 0.0159 (0.0125 to 0.0200) nats a token, "
        "agreement 93.4% (91.7% to 94.8%)"
    )


def test_a_doubtful_pass_tells_the_doubt() -> None:
    doubtful = replace(verdict(TRIAL.artefact), doubts=("the limit lies within",))
    told = quality_text(STUDY, TRIAL, Checks(verdicts={TRIAL.artefact: doubtful}))
    assert told is not None
    assert told.endswith("; the limit lies within")


def test_a_reference_that_is_itself_quantised_says_what_verdicts_do_not_see() -> None:
    checks = Checks(verdicts={TRIAL.artefact: verdict(TRIAL.artefact, is_reference=True)})
    assert quality_text(STUDY, TRIAL, checks) == "quality: the reference"
    ran = replace(TRIAL.ran, effective={"quantization": "fp8", "kv_cache_dtype": "auto"})
    assert quality_text(STUDY, replace(TRIAL, ran=ran), checks) == (
        "quality: the reference, itself quantization=fp8: what that costs is not seen"
    )


def test_what_was_not_checked_is_told_with_the_reason_and_a_failure_has_no_quality() -> None:
    reference = verdict("another", is_reference=True)
    assert quality_text(STUDY, TRIAL, Checks()) == (
        "quality not checked: there is no reference to compare it with"
    )
    assert quality_text(STUDY, TRIAL, Checks(verdicts={"another": reference})) == (
        "quality not checked: it was not asked"
    )
    assert quality_text(STUDY, TRIAL, Checks(unchecked={TRIAL.artefact: "HTTP 500"})) == (
        "quality not checked: HTTP 500"
    )
    assert quality_text(STUDY, stories.stored(stories.failed(), 1), Checks()) is None


def test_a_simulated_trial_is_said_to_be_so_whatever_lies_there() -> None:
    study = replace(STUDY, engine="simulated")
    assert quality_text(study, TRIAL, passed([TRIAL])) == "quality simulated, not checked"
    assert quality_json(study, TRIAL, Checks())["state"] == "simulated, not checked"


def test_mlflow_has_the_verdict_as_a_tag_its_numbers_as_metrics_and_the_note() -> None:
    checks = passed([TRIAL])
    entry = trial_entry(TRIAL, STUDY, trial_note(TRIAL, STUDY, checks), on_front=True, checks=checks)
    assert entry.tags["quality"] == "passed"
    assert entry.tags["artefact"] == TRIAL.artefact
    assert entry.metrics["quality_nll_increase"] == 0.0639
    assert entry.metrics["interval/quality_agreement_low"] == 0.917
    assert "**Quality:** passed: NLL +0.0639" in entry.tags["mlflow.note.content"]
    unchecked = trial_entry(TRIAL, STUDY, "", on_front=False, checks=Checks())
    assert unchecked.tags["quality"] == "not checked"
    assert not any(name.startswith("quality") for name in unchecked.metrics)
    assert "quality" not in trial_entry(TRIAL, STUDY, "", on_front=False).tags


def test_the_studys_limits_are_parameters_of_its_run() -> None:
    entry = study_entry(view(STUDY, [TRIAL]), "")
    assert entry.params["quality.max_nll_increase"] == "0.02"
