"""From a file to a space, and what is said where that cannot be."""

from pathlib import Path

import pytest

from search_spaces.load import SpaceError, load_space, parse_space, shipped_spaces
from search_spaces.measure import Capacity
from search_spaces.parameters import Categorical, Choice, Integer, Real
from search_spaces.space import Quality, Space

EVERYTHING = """
name: everything
help: one of each
model: org/model
resources: {gpus: 2, cpus: 4, accelerator: H100}
engine: {max_model_len: 8192, seed: null, compilation_config: {mode: 3}}
environment: {VLLM_A: 1, VLLM_B: true, VLLM_C: text}
parameters:
  quantisation:
    help: how weights are held
    choices:
      off:
      no: {set: {quantization: fp8}}
      w4a16: {model: org/model-w4a16, environment: {VLLM_D: 0.5}}
  speculation:
    choices:
      off: {}
      draft:
        set: {speculative_config: {method: draft_model}}
        parameters:
          depth: {int: [1, 6], argument: speculative_config.num_speculative_tokens}
          model: {choices: [org/a, org/b], argument: speculative_config.model}
  max_num_seqs: {int: [16, 512], log: true}
  gpu_memory_utilization: {float: [0.80, 0.95], step: 0.05}
  pool: {choices: [1, 2], environment: VLLM_CPU_KVCACHE_SPACE}
constraints: [max_num_seqs <= max_model_len]
traffic: {trace: traces/chat.jsonl, speed: 2, seed: 3}
slo: {ttft_p99_ms: 500, e2e_p99_ms: 40.5}
measure: {kind: capacity, resolution: 0.1}
objectives: [capacity]
budget: {trials: 40}
trust_remote_code: true
"""


def faults_of(text: str) -> list[str]:
    with pytest.raises(SpaceError) as caught:
        parse_space(text, "s.yaml")
    return [str(fault) for fault in caught.value.faults]


def with_parameter(body: str) -> list[str]:
    return faults_of(f"model: m\nparameters:\n  p: {body}\n")


def test_everything_that_a_file_can_say_arrives() -> None:
    space = parse_space(EVERYTHING, "s.yaml")
    assert (space.name, space.help, space.model, space.source) == (
        "everything",
        "one of each",
        "org/model",
        "s.yaml",
    )
    assert (space.resources.gpus, space.resources.cpus, space.resources.accelerator) == (2, 4, "H100")
    assert space.engine == {"max_model_len": 8192, "compilation_config": {"mode": 3}}
    assert space.environment == {"VLLM_A": "1", "VLLM_B": "1", "VLLM_C": "text"}
    assert space.parameters == (
        Categorical(
            path="quantisation",
            key="quantisation",
            help="how weights are held",
            choices=(
                Choice(name="off"),
                Choice(name="no", set={"quantization": "fp8"}),
                Choice(name="w4a16", model="org/model-w4a16", environment={"VLLM_D": "0.5"}),
            ),
        ),
        Categorical(
            path="speculation",
            key="speculation",
            choices=(
                Choice(name="off"),
                Choice(
                    name="draft",
                    set={"speculative_config": {"method": "draft_model"}},
                    parameters=(
                        Integer(
                            path="speculation.depth",
                            key="speculation.draft.depth",
                            low=1,
                            high=6,
                            argument="speculative_config.num_speculative_tokens",
                        ),
                        Categorical(
                            path="speculation.model",
                            key="speculation.draft.model",
                            choices=("org/a", "org/b"),
                            argument="speculative_config.model",
                        ),
                    ),
                ),
            ),
        ),
        Integer(path="max_num_seqs", key="max_num_seqs", low=16, high=512, log=True, argument="max_num_seqs"),
        Real(
            path="gpu_memory_utilization",
            key="gpu_memory_utilization",
            low=0.8,
            high=0.95,
            step=0.05,
            argument="gpu_memory_utilization",
        ),
        Categorical(path="pool", key="pool", choices=(1, 2), environment="VLLM_CPU_KVCACHE_SPACE"),
    )
    assert [constraint.text for constraint in space.constraints] == ["max_num_seqs <= max_model_len"]
    assert (space.traffic.trace, space.traffic.speed, space.traffic.seed) == ("traces/chat.jsonl", 2, 3)
    assert space.slo == {"ttft_p99_ms": 500.0, "e2e_p99_ms": 40.5}
    assert space.measure == Capacity(resolution=0.1)
    assert space.objectives == ("capacity",)
    assert space.budget.trials == 40
    assert space.trust_remote_code
    assert space.text == EVERYTHING


def test_limits_on_quality_are_read_and_misspelt_ones_told_with_the_nearest_name() -> None:
    space = parse_space("model: m\nquality: {max_nll_increase: 0.05, prompts: 64}", "s.yaml")
    assert space.quality == Quality(max_nll_increase=0.05, prompts=64)
    assert set(faults_of("model: m\nquality: {max_nl_increase: 0.1, prompts: 3, min_agreement: 1.5}")) == {
        "s.yaml:2 quality.max_nl_increase: unknown key in quality; did you mean 'max_nll_increase'?",
        "s.yaml:2 quality.prompts: should be greater than or equal to 10, got 3",
        "s.yaml:2 quality.min_agreement: should be less than or equal to 1, got 1.5",
    }


def test_only_the_model_is_needed() -> None:
    assert parse_space("model: m", "here/mine.yaml") == Space(name="mine", source="here/mine.yaml", model="m")


def test_every_fault_is_told_at_once_in_the_order_of_the_file() -> None:
    text = """\
modle: m
resources: {gpu: 1}
parameters:
  a: {int: [1, one], lgo: true}
  a: {int: [1, 2]}
  b: {choices: {x: {sett: {}}}}
budget: {trials: 0}
slo: {ttft_p95_ms: 1, tpot_p90_ms: 2}
"""
    assert faults_of(text) == [
        "s.yaml:1: a space needs 'model'",
        "s.yaml:1 modle: unknown key in a space; did you mean 'model'?",
        "s.yaml:2 resources.gpu: unknown key in resources; did you mean 'gpus'?",
        "s.yaml:4 parameters.a.int[1]: should be a valid integer, got 'one'",
        "s.yaml:4 parameters.a.lgo: unknown key in a parameter with int; did you mean 'log'?",
        "s.yaml:5 parameters.a: is there twice; first in line 4",
        "s.yaml:6 parameters.b.choices.x.sett: unknown key in a choice; did you mean 'set'?",
        "s.yaml:7 budget.trials: should be greater than or equal to 1, got 0",
        "s.yaml:8 slo: all limits share one percentile, the share of requests that must meet them; "
        "got ttft_p95_ms, tpot_p90_ms",
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("3", "a parameter is a mapping with one of choices, int, float; got 3"),
        ("{choice: [1]}", "a parameter has exactly one of choices, int, float; did you mean 'choices'?"),
        ("{}", "a parameter has exactly one of choices, int, float; it has nothing"),
        ("{int: [1, 2], float: [1, 2]}", "a parameter has exactly one of choices, int, float"),
        ("{choices: []}", "needs at least one choice"),
        ("{choices: {}}", "needs at least one choice"),
        ("{choices: [1, [2]]}", "is no plain value; give the choices names, and this under 'set:'"),
        ("{choices: [1, 1.0]}", "is listed before; 1.0 equals 1"),
        ("{choices: [on]}", "'on' may mean two things: write true or false, or quote it"),
        ("{choices: [.inf]}", "must be finite, got inf"),
        ("{choices: {a: 3}}", "a choice is a mapping of keys, got 3"),
        ("{choices: {a b: {}}}", "a choice's name begins with a letter or digit"),
        ("{choices: {a: {}}, argument: x}", "does not go with named choices"),
        ("{choices: {a: {set: {x.y: 1}}}}", "nest it instead: x: {y: …}"),
        ("{choices: {a: {set: {max-num-seqs: 1}}}}", "did you mean 'max_num_seqs'?"),
        ("{choices: {a: {set: {model: x}}}}", "'model' is set by 'model:' of the space or of a choice"),
        ("{choices: {a: {environment: {A B: x}}}}", "'A B' is no name of an environment variable"),
        ("{int: [1, 2, 3]}", "List should have at most 2 items"),
        ("{int: [1, 2.5]}", "should be a valid integer, got 2.5"),
        ("{int: [1, true]}", "should be a valid integer, got True"),
        ("{int: [3, 2]}", "goes from low to high, got [3, 2]"),
        ("{int: [0, 8], log: true}", "with log the range must begin above 0, got 0"),
        ("{int: [1, 8], step: 3}", "steps of 3 lead from 1 to 7, not to 8"),
        ("{int: [1, 8], step: 0}", "should be greater than or equal to 1, got 0"),
        ("{float: [0.8, 0.97], step: 0.05}", "steps of 0.05 lead from 0.8 to 0.95, not to 0.97"),
        ("{float: [0, .nan]}", "must be finite, got [0.0, nan]"),
        (
            "{int: [1, 2], argument: a, environment: B}",
            "an engine argument or an environment variable, not both",
        ),
        ("{int: [1, 2], argument: a b}", "'a b' is no name of an engine argument"),
        ("{int: [1, 2], argument: model}", "'model' is set by"),
    ],
)
def test_a_parameter_at_fault_is_told_why(body: str, message: str) -> None:
    (fault,) = with_parameter(body)
    assert fault.startswith("s.yaml:3 parameters.p")
    assert message in fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.yaml: is empty"),
        ("- a\n", "s.yaml:1: a space is a mapping of keys, got ['a']"),
        ("model: [\n", "s.yaml:2: is no YAML: "),
        ("model: m\nparameters: [a]\n", "s.yaml:2 parameters: "),
        ("model: m\nslo: {ttft_ms: 3}", "s.yaml:2 slo.ttft_ms: is no limit; write ttft_p95_ms"),
        ("model: m\nslo: {ttft_p95_ms: 0}", "s.yaml:2 slo.ttft_p95_ms: must be above 0 ms, got 0"),
        ("model: m\nobjectives: [a, a]", "s.yaml:2 objectives: names an objective twice"),
        ("model: m\ntraffic: {trace: a, make: {}}", "takes a trace or the figures to make one, not both"),
        ("model: m\ntraffic: {speed: 0}", "s.yaml:2 traffic.speed: should be greater than 0, got 0"),
        ("model: m\nparameters: {max seqs: {int: [1, 2]}}", "a parameter's name is letters, digits and _"),
        ("model: m\nparameters: {in: {int: [1, 2]}}", "no word of Python's"),
        ("model: m\nconstraints: [{a: 1}]", "s.yaml:2 constraints[0]: should be a valid string"),
        ("model: m\nconstraints: [a > 1]", "in 'a > 1': no parameter or fixed engine argument 'a'"),
        ("model: !!python/name:os.system m", "tags are not supported"),
    ],
)
def test_a_space_at_fault_is_told_why(text: str, message: str) -> None:
    assert message in faults_of(text)[0]


def test_two_parameters_that_are_active_together_cannot_decide_one_setting() -> None:
    text = """\
model: m
parameters:
  a: {choices: {x: {set: {s: {depth: 1}}}, y: {}}}
  b: {int: [1, 2], argument: s.depth}
  c: {choices: {z: {model: n, parameters: {d: {int: [1, 2], environment: E}}}}}
  e: {choices: {w: {model: o, environment: {E: 1}}}}
  f: {choices: {v: {set: {s: null}}}}
"""
    assert faults_of(text) == [
        "s.yaml:4 parameters.b: sets argument s.depth, which 'a' sets too",
        "s.yaml:6 parameters.e: sets environment E, which 'c' sets too",
        "s.yaml:6 parameters.e: sets model, which 'c' sets too",
        "s.yaml:7 parameters.f: sets argument s, which 'a' sets too",
        "s.yaml:7 parameters.f: sets argument s, which 'b' sets too",
    ]


def test_branches_of_one_parameter_may_decide_the_same_and_override_what_holds_them() -> None:
    choices = "{x: {set: {s: 1}, parameters: {s: {int: [2, 3]}}}, y: {set: {s: 4}}}"
    space = parse_space(f"model: m\nparameters: {{a: {{choices: {choices}}}}}\n", "s.yaml")
    assert space.settings(space.config({"a": "x", "a.s": 2})).arguments == {"s": 2}


def test_choices_whose_names_hold_dots_cannot_make_two_keys_alike() -> None:
    inner = "{parameters: {d: {int: [1, 2]}}}"
    text = f"{{choices: {{b.q.c: {inner}, b: {{parameters: {{q: {{choices: {{c: {inner}}}}}}}}}}}}}"
    assert "two parameters have the key 'p.b.q.c.d'" in with_parameter(text)[0]


def test_a_fault_among_parameters_does_not_drag_constraints_along() -> None:
    text = "model: m\nparameters: {a: {int: [2, 1]}}\nconstraints: [a > 1]\n"
    assert faults_of(text) == ["s.yaml:2 parameters.a.int: goes from low to high, got [2, 1]"]


def test_one_fault_reads_as_one_line_and_several_as_a_list() -> None:
    with pytest.raises(SpaceError) as one:
        parse_space("model: 3", "s.yaml")
    assert str(one.value) == "s.yaml:1 model: should be a valid string, got 3"
    with pytest.raises(SpaceError) as two:
        parse_space("model: 3\nname: 4", "s.yaml")
    assert str(two.value).splitlines()[0] == "2 faults"


def test_a_file_where_the_user_stands_comes_before_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_space("spaces/8b.yaml").model == "meta-llama/Llama-3.1-8B-Instruct"
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "8b.yaml").write_text("model: mine\n")
    assert load_space("spaces/8b.yaml").model == "mine"


def test_a_missing_space_says_where_it_looked_and_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for reference in ("spaces/9b.yaml", "../search_spaces/load.py", "\0"):
        with pytest.raises(SpaceError) as caught:
            load_space(reference)
        message = str(caught.value)
        assert message.startswith(f"no space '{reference}': no such file under {tmp_path}")
        assert message.endswith(", ".join(shipped_spaces()))


def test_what_is_no_text_file_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"model: \xff\xfe")
    with pytest.raises(SpaceError, match=r"is no UTF-8 text \(byte 7\)"):
        load_space(str(tmp_path / "bytes.yaml"))
    with pytest.raises(SpaceError, match="is a folder"):
        load_space(str(tmp_path))
    (tmp_path / "nul.yaml").write_text("model: \0")
    with pytest.raises(SpaceError, match="is no YAML"):
        load_space(str(tmp_path / "nul.yaml"))


def test_constraints_that_leave_no_config_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("model: m\nparameters: {a: {int: [1, 4]}}\nconstraints: [a > 4]\n")
    with pytest.raises(SpaceError) as caught:
        load_space(str(path))
    assert str(caught.value).startswith(f"{path}: no config is valid; ")
    assert "breaks 'a > 4'" in str(caught.value)


def test_a_few_lines_that_name_billions_of_values_are_refused() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    assert any("too many values" in fault for fault in faults_of(bomb))
    assert any("nested too deep" in fault for fault in faults_of("a: &a [*a]\n"))
