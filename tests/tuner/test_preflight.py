"""What is refused before a trial costs anything, with a dispatch that only says what it has."""

from dataclasses import replace

import pytest

from cluster.dispatch.dispatch import Inventory
from cluster.dispatch.in_process import InProcess
from cluster.node.simulated import SimulatedEngine
from cluster.node.vllm_arguments import ArgumentFault, Checked
from cluster.order import Order
from cluster.traffic.trace import Request, Trace
from cluster.traffic.workload import Workload
from objectives.slo import Slo
from search_spaces.load import parse_space
from search_spaces.measure import Closed, Fixed, Measure
from search_spaces.values import Json
from tuner.mistakes import Mistake
from tuner.preflight import check_arguments, check_room, check_verdict

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
