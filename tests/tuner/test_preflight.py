"""What is refused before a trial costs anything, with a dispatch that only says what it has."""

from dataclasses import replace

import pytest

from cluster.dispatch.dispatch import Inventory
from cluster.dispatch.in_process import InProcess
from cluster.node.simulated import SimulatedEngine
from cluster.node.vllm_arguments import ArgumentFault, Checked
from cluster.order import Order
from cluster.traffic.sessions import Sessions
from cluster.traffic.trace import Request, Trace
from cluster.traffic.workload import Workload
from objectives.goal import Goal
from objectives.slo import Slo
from search_spaces.load import parse_space
from search_spaces.measure import Closed, Fixed, Measure
from search_spaces.space import Space
from search_spaces.values import Json
from tuner.mistakes import Mistake
from tuner.preflight import (
    check_arguments,
    check_objectives,
    check_room,
    check_sessions,
    check_verdict,
    goal_of,
)

SPACE = parse_space(
    """
name: s
model: org/m
engine: {max_model_len: 100}
parameters:
  max_num_seqs: {int: [1, 8]}
  speculation:
    choices:
      off: {}
      ngram: {set: {speculative_config: {method: ngram, num_speculative_tokens: 2, promt_lookup_max: 3}}}
""",
    "s.yaml",
)


class Nodes(InProcess):
    """A dispatch with room for `fits` orders, whose vLLM finds `faults`."""

    def __init__(self, *, fits: int = 1, has: Inventory, faults: tuple[ArgumentFault, ...] = ()) -> None:
        super().__init__(SimulatedEngine())
        self._fits, self._has, self._faults = fits, has, faults
        self.asked: list[dict[str, Json]] = []

    @property
    def inventory(self) -> Inventory:
        return self._has

    def capacity(self, order: Order) -> int:
        return self._fits

    def check_arguments(self, order: Order, arguments: list[dict[str, Json]]) -> Checked:
        self.asked = arguments
        return Checked(version="0.32.0", faults=self._faults)


def _order(gpus: int = 0) -> Order:
    return Order(
        study="s",
        number=0,
        model="org/m",
        arguments={},
        environment={},
        workload=Workload(trace=Trace(requests=())),
        slo=Slo(),
        gpus=gpus,
        cpus=4,
    )


NO_GPU = Inventory(nodes=1, cpus=2, gpus=0)


def test_room_is_how_many_trials_run_at_once() -> None:
    assert check_room(_order(), Nodes(fits=3, has=NO_GPU), SPACE) == 3


@pytest.mark.parametrize(
    ("gpus", "has", "told"),
    [
        (2, NO_GPU, ("needs 2 GPUs and 4 CPUs", "found 0 GPUs and 2 CPUs", "--ray", "smollm2-135m")),
        (8, Inventory(nodes=2, cpus=64, gpus=4, accelerators=("H100",)), ("4 GPUs (H100)", "2 nodes")),
        (0, NO_GPU, ("needs 4 CPUs", "resources.cpus")),
    ],
)
def test_want_of_room_says_what_is_needed_found_and_to_be_done(
    gpus: int, has: Inventory, told: tuple[str, ...]
) -> None:
    with pytest.raises(Mistake) as mistake:
        check_room(_order(gpus), Nodes(fits=0, has=has), SPACE)
    assert "\n" not in str(mistake.value)
    for words in told:
        assert words in str(mistake.value)


def _trace(requests: int, *, apart_s: float = 0.1) -> Trace:
    return Trace(
        requests=tuple(
            Request(arrival_s=apart_s * i, input_length=8, output_length=3) for i in range(requests)
        )
    )


@pytest.mark.parametrize(("attainment", "needed"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_a_capacity_takes_requests_enough_to_tell_whether_the_slo_holds(
    attainment: float, needed: int
) -> None:
    # ln 0.05 / ln q: all of fewer could meet it by chance although too few do.
    slo = Slo(ttft_s=0.5, attainment=attainment)
    check_verdict(SPACE, slo, _trace(needed))
    with pytest.raises(Mistake) as mistake:
        check_verdict(SPACE, slo, _trace(needed - 1))
    told = str(mistake.value)
    assert f"takes {needed} of them, and the trace has {needed - 1}" in told
    assert told.startswith("s.yaml measures capacity")
    assert "--measure fixed" in told
    assert "\n" not in told


def test_a_capacity_takes_an_slo_and_arrivals_that_a_speed_can_part() -> None:
    with pytest.raises(Mistake, match=r"has no slo; add one, or .* --measure fixed"):
        check_verdict(SPACE, Slo(), _trace(600))
    with pytest.raises(Mistake, match=r"due at once, at any speed; .* --measure fixed"):
        check_verdict(SPACE, Slo(ttft_s=0.5), _trace(600, apart_s=0.0))


@pytest.mark.parametrize("measure", [Fixed(), Closed(concurrency=2)])
def test_one_load_may_be_measured_on_any_trace(measure: Measure) -> None:
    space = replace(SPACE, measure=measure)
    check_verdict(space, Slo(), _trace(1))
    check_verdict(space, Slo(ttft_s=0.5, attainment=0.99), _trace(20, apart_s=0.0))


def test_turns_cannot_wait_for_each_other_in_a_closed_loop() -> None:
    closed = replace(SPACE, measure=Closed(concurrency=2))
    with pytest.raises(Mistake, match="--sessions recorded"):
        check_sessions(closed, Sessions.CAUSAL)
    check_sessions(closed, Sessions.RECORDED)
    check_sessions(SPACE, Sessions.CAUSAL)


def _aims(text: str) -> Space:
    return parse_space(f"name: s\nmodel: org/m\nmeasure: fixed\n{text}\n", "s.yaml")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("throughput", "'throughput' is no objective"),
        ("ttft_p955", "did you mean 'ttft_p95'?"),
    ],
)
def test_an_objective_that_is_none_is_told_with_its_line(name: str, told: str) -> None:
    with pytest.raises(Mistake) as mistake:
        goal_of(_aims(f"objectives: [goodput, {name}]"))
    assert str(mistake.value).startswith("s.yaml:4 objectives: ")
    assert told in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_a_p99_objective_takes_requests_enough_for_a_p99() -> None:
    space = _aims("objectives: [goodput, tpot_p99]")
    check_objectives(space, Goal.of(space.objectives), _trace(299))
    with pytest.raises(Mistake, match=r"^s\.yaml:4 objectives: 'tpot_p99' needs 299 requests.*has 298; .*"):
        check_objectives(space, Goal.of(space.objectives), _trace(298))


@pytest.mark.parametrize(
    ("name", "resources", "told"),
    [
        ("cost_per_million_tokens", "{gpus: 1}", "gpu_hour_price"),
        ("goodput_per_cost", "{gpus: 1}", "gpu_hour_price"),
        ("goodput_per_cost", "{gpus: 0, gpu_hour_price: 2}", "no GPU"),
        ("goodput_per_gpu", "{gpus: 0}", "no GPU"),
    ],
)
def test_an_objective_that_no_trial_of_the_space_can_have_is_refused(
    name: str, resources: str, told: str
) -> None:
    space = _aims(f"objectives: [{name}]\nresources: {resources}")
    with pytest.raises(Mistake) as mistake:
        check_objectives(space, Goal.of(space.objectives), _trace(600))
    assert str(mistake.value).startswith(f"s.yaml:4 objectives: {name!r}")
    assert told in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_time_between_tokens_takes_answers_of_more_than_one() -> None:
    space = _aims("objectives: [goodput, tpot_p95]")
    one = Trace(requests=tuple(replace(request, output_length=1) for request in _trace(60).requests))
    with pytest.raises(Mistake, match=r"^s\.yaml:4 objectives: 'tpot_p95' .* one output token.*"):
        check_objectives(space, goal_of(space), one)
    check_objectives(space, goal_of(space), replace(one, requests=(*one.requests, *_trace(1).requests)))


def test_costs_may_be_searched_for_where_gpus_have_a_price() -> None:
    space = _aims("objectives: [cost_per_million_tokens]\nresources: {gpus: 1, gpu_hour_price: 2}")
    check_objectives(space, goal_of(space), _trace(20))


def test_every_choice_and_both_ends_of_every_range_are_put_to_vllm() -> None:
    nodes = Nodes(has=NO_GPU)
    assert check_arguments(_order(), nodes, SPACE) == "0.32.0"
    assert {config.get("max_num_seqs") for config in nodes.asked} >= {1, 8}
    assert any("speculative_config" in config for config in nodes.asked)


def test_a_refused_argument_is_told_once_with_its_line_in_the_space() -> None:
    told = "vLLM has no such key; did you mean prompt_lookup_max?"
    faults = tuple(
        ArgumentFault(index=i, argument="speculative_config.promt_lookup_max", message=told) for i in range(3)
    )
    with pytest.raises(Mistake) as mistake:
        check_arguments(_order(), Nodes(has=NO_GPU, faults=faults), SPACE)
    assert str(mistake.value) == f"s.yaml:10: speculative_config.promt_lookup_max {told} (vLLM 0.32.0)"


def test_the_simulated_engine_knows_names_without_a_vllm() -> None:
    assert check_arguments(_order(), InProcess(SimulatedEngine()), SPACE) == "0.32.0"
    misspelt = parse_space("name: s\nmodel: org/m\nengine: {max_modle_len: 100}\n", "s.yaml")
    with pytest.raises(Mistake, match=r"s.yaml:3: max_modle_len .* did you mean max_model_len"):
        check_arguments(_order(), InProcess(SimulatedEngine()), misspelt)
