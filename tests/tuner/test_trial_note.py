import dataclasses

from cluster.order import Cause
from tests.tuner import loads, stories
from tuner.trial_note import trial_note


def test_a_trial_is_told_with_its_capacity_its_load_and_what_to_beware_of() -> None:
    outcome = loads.measured(disagreements=("the client counted 5 tokens, the engine 6",))
    warned = dataclasses.replace(outcome.measurement, warnings=("p95 has no upper end",))
    trial = stories.stored(dataclasses.replace(outcome, measurement=warned), 7)
    assert trial_note(trial, loads.study()) == (
        "**SIMULATED, not measured.**\n\n"
        "**Capacity:** 12 (11.4 to 13.2) requests/s, known to 5 %; 4 replays, 2 of them cut, 10 s saved.\n\n"
        "**Load:** speed 1.5, 6 requests/s offered; all metrics but the capacity are of it. "
        "At this load the SLO held.\n\n"
        "**Client and engine disagree:**\n\n- the client counted 5 tokens, the engine 6\n\n"
        "**Beware:**\n\n- p95 has no upper end"
    )


def test_a_failed_trial_is_told_by_its_cause_alone() -> None:
    trial = stories.stored(stories.failed(Cause.OUT_OF_MEMORY, "needs 3 <GiB>\nhas 2"), 7)
    told = trial_note(trial, dataclasses.replace(loads.study(), engine="vllm"))
    assert told == "**out of memory:** needs 3 &lt;GiB> has 2"


def test_a_closed_loop_is_told_as_one() -> None:
    told = trial_note(stories.stored(loads.in_closed_loop(), 7), loads.closed_study())
    assert "**Load:** closed loop, 8 in flight: no load a user makes. At this load the SLO held." in told
