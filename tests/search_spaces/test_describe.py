"""A space as a person and a program read it."""

import json

import pytest

from search_spaces.describe import count_text, lines, to_json
from search_spaces.load import load_space, parse_space, shipped_spaces
from search_spaces.space import Count

SPACE = parse_space(
    """
name: small
help: for show
model: org/m
resources: {gpus: 2, cpus: 4, accelerator: H100}
engine: {max_model_len: 2048, enforce_eager: true}
environment: {VLLM_A: 1}
parameters:
  kv_cache_dtype: {choices: [null, fp8], help: of keys and values}
  speculation:
    help: guessing ahead
    choices:
      off: {}
      ngram:
        model: org/m2
        set: {speculative_config: {method: ngram}, seed: null}
        environment: {VLLM_B: 2}
        parameters: {depth: {int: [1, 5], step: 2, argument: speculative_config.num_speculative_tokens}}
  space: {float: [0.5, 1.0], step: 0.5, log: true, environment: VLLM_C}
constraints: [depth < 5]
traffic: {make: {requests: 48}, speed: 2}
slo: {ttft_p95_ms: 500}
budget: {trials: 7}
""",
    "s.yaml",
)


def test_a_person_reads_the_tree_with_ranges_and_what_is_set() -> None:
    assert lines(SPACE) == [
        "space small: for show",
        "source     s.yaml",
        "model      org/m",
        "one trial  up to 2 GPUs, H100, 4 CPUs",
        "always     max_model_len = 2048, enforce_eager = true, VLLM_A=1",
        "traffic    made: requests 48; speed 2, seed 0",
        "slo        ttft_p95_ms 500",
        "measure    capacity to 5 %, between 0.25 and 16 times the speed",
        "objectives capacity, tpot_p95",
        "quality    NLL at most 0.02 nats a token above the control's, agreement at least 0.9; 32 prompts, "
        "32 tokens each",
        "budget     7 trials",
        "parameters",
        "  kv_cache_dtype                    null | fp8  (of keys and values)",
        "  speculation                       guessing ahead",
        "    off                             sets nothing",
        "    ngram                           model = org/m2, speculative_config.method = ngram, "
        "seed = unset, VLLM_B=2",
        "      depth                         1 to 5 in steps of 2"
        " → speculative_config.num_speculative_tokens",
        "  space                             0.5 to 1.0 in steps of 0.5, log → environment VLLM_C",
        "constraints",
        "  depth < 5",
        # 2 dtypes · (off + depth 1 + depth 3) · 2
        "valid configs: 12",
    ]


def test_a_program_reads_the_same_with_conditions() -> None:
    told = json.loads(json.dumps(to_json(SPACE)))
    assert told["valid_configs"] == {"count": 12, "exact": True}
    assert told["measure"] == {
        "kind": "capacity",
        "resolution": 0.05,
        "lowest": 0.25,
        "highest": 16.0,
        "repeats": 1,
    }
    assert told["objectives"] == ["capacity", "tpot_p95"]
    assert [parameter["path"] for parameter in told["parameters"]] == [
        "kv_cache_dtype",
        "speculation",
        "space",
    ]
    ngram = told["parameters"][1]["choices"]["ngram"]
    assert ngram["model"] == "org/m2"
    (depth,) = ngram["parameters"]
    assert depth["when"] == {"speculation": "ngram"}
    assert (depth["key"], depth["int"], depth["step"]) == ("speculation.ngram.depth", [1, 5], 2)
    assert told["parameters"][2]["float"] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        ("fixed", "measure    fixed load"),
        ("{kind: fixed, repeats: 3}", "measure    fixed load, 3 replays"),
        ("{kind: closed, concurrency: 16}", "measure    closed loop, 16 requests in flight"),
        (
            "{kind: capacity, resolution: 0.1, repeats: 2}",
            "measure    capacity to 10 %, between 0.25 and 16 times the speed; 2 replays at the speed itself",
        ),
    ],
)
def test_what_a_trial_measures_is_said_in_words(measure: str, words: str) -> None:
    assert words in lines(parse_space(f"model: m\nmeasure: {measure}\n", "s.yaml"))


def test_counts_in_words() -> None:
    assert count_text(Count(1234, exact=True)) == "1,234"
    assert count_text(Count(121_938_207, exact=False)) == "about 120,000,000 (estimated by sampling)"
    assert count_text(Count(0, exact=False)) == "about 0 (estimated by sampling)"
    assert count_text(Count(None, exact=True)).startswith("no end of them")


def test_the_shipped_spaces_can_be_shown() -> None:
    for name in shipped_spaces():
        space = load_space(name)
        assert lines(space)[0].startswith("space ")
        json.dumps(to_json(space))
