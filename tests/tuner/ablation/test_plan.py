"""What an ablation will measure: cells that add up to the trial, blocks, and what it refuses to begin."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from search_spaces.settings import at
from search_spaces.values import Scalar
from tests.tuner.ablation.desks import FIVE, THREE, Desk, P, Q, S
from tuner.ablation.plan import DESIGN, write_design
from tuner.mistakes import Mistake

NONE = frozenset[str]()


def test_none_on_is_the_control_and_all_on_the_trial(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    plan = desk.plan()
    assert plan.names == (Q, P, S)
    assert plan.settings(NONE).arguments == {
        **desk.space.engine,
        "kv_cache_dtype": "auto",
        "max_num_seqs": 256,  # as the control's, in effect
        "max_num_batched_tokens": 2048,
    }
    assert plan.settings(frozenset(plan.names)) == desk.space.settings(desk.space.config(THREE))
    assert "speculative_config" not in plan.settings(frozenset({Q, P})).arguments


def test_with_some_factors_named_all_on_is_still_the_trial(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    plan = desk.plan(factors=(S, Q))
    assert plan.names == (Q, S)  # in the order in which factors are read
    assert plan.settings(frozenset({Q, S})) == desk.space.settings(desk.space.config(THREE))
    without = plan.settings(NONE).arguments
    assert without["enable_prefix_caching"] is True
    assert "quantization" not in without
    assert plan.base == "trial 4 without quantisation and speculation"
    assert plan.name(NONE) == "base"


def test_each_block_holds_every_cell_once_between_two_controls_in_its_own_order(tmp_path: Path) -> None:
    plan = Desk(tmp_path).plan(replicates=3)
    blocks = [[run.cell for run in plan.runs if run.block == block] for block in range(3)]
    for block in blocks:
        assert block[0] == block[-1] == NONE
        assert Counter(block[1:-1]) == Counter(cell for cell in plan.cells if cell)
    assert len({tuple(block) for block in blocks}) == 3
    assert [run.number for run in plan.runs] == list(range(27))


def test_another_block_leaves_those_before_it_as_they_are(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.plan(replicates=3).runs[:18] == desk.plan(replicates=2).runs


def test_five_factors_take_a_fraction_with_the_cells_that_an_ablation_is_read_from(tmp_path: Path) -> None:
    plan = Desk(tmp_path, FIVE).plan()
    assert plan.names == (Q, "kv-dtype", P, S, "batch-limits")
    assert plan.design.fraction == "V"
    assert len(plan.design.cells) < 32
    every = frozenset(plan.names)
    assert {NONE, every, *(every - {name} for name in every), *(frozenset({n}) for n in every)} <= set(
        plan.design.cells
    )
    assert len(Desk(tmp_path / "full", FIVE).plan(fraction="full").design.cells) == 32


CONTROL: Mapping[str, Scalar] = {
    "quantisation": "bf16",
    "kv_cache_dtype": "auto",
    "prefix_cache": "off",
    "speculation": "off",
    "max_num_seqs": 256,
    "max_num_batched_tokens": 512,
}


def test_cells_that_break_a_constraint_are_told_and_not_run(tmp_path: Path) -> None:
    """64 sequences of 1 + 3 tokens fit a budget of 512, the control's 256 do not."""
    desk = Desk(tmp_path, {**THREE, "max_num_seqs": 64, "max_num_batched_tokens": 512}, control=CONTROL)
    plan = desk.plan(factors=(S, "batch-limits"))
    assert set(plan.refused) == {frozenset({S})}
    assert "breaks 'max_num_batched_tokens >= max_num_seqs" in plan.refused[frozenset({S})]
    assert frozenset({S}) not in {run.cell for run in plan.runs}


def test_where_the_controls_place_is_not_known_its_constraints_are_not_judged(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {**THREE, "max_num_seqs": 64, "max_num_batched_tokens": 512})
    assert desk.plan(factors=(S, "batch-limits")).refused == {}


def test_a_cell_against_the_rules_of_vllm_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.space = type(desk.space)(
        **{
            **{name: getattr(desk.space, name) for name in desk.space.__slots__},
            "engine": {**desk.space.engine, "per_request_spec_decode_metrics": "detailed"},
        }
    )
    plan = desk.plan()
    assert set(plan.refused) == {cell for cell in plan.design.cells if S not in cell}
    assert "needs speculation" in plan.refused[NONE]


def test_the_design_is_on_disk_and_the_same_is_gone_on_with(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    plan = desk.plan(replicates=3)
    write_design(plan)
    raw = json.loads((plan.folder / DESIGN).read_text())
    assert plan.folder == desk.folder / "ablations" / "trial-0004"
    assert [cell["name"] for cell in raw["cells"]][:2] == ["control", "all"]
    assert len(raw["runs"]) == 27
    assert raw["factors"][Q] == [{"setting": "quantization", "off": None, "on": "fp8"}]
    assert desk.plan() == plan  # what is not asked is as it was begun
    assert desk.plan(replicates=4).replicates == 4


def test_another_design_in_the_same_place_is_a_mistake(tmp_path: Path) -> None:
    desk = Desk(tmp_path, FIVE)
    write_design(desk.plan(replicates=3))
    with pytest.raises(Mistake, match="3 replicates; ask for as many, or for more"):
        desk.plan(replicates=2)
    with pytest.raises(Mistake, match="other fraction and cells"):
        desk.plan(fraction="full")


def test_factors_that_are_none_are_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(
        Mistake, match="tea: trial 4 differs from the control in quantisation, prefix-cache, sp"
    ):
        Desk(tmp_path).plan(factors=("tea",))


def test_the_control_is_not_taken_apart(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(Mistake, match="trial 0 is the control"):
        desk.plan(trial=0)


def test_speculation_switches_its_whole_config(tmp_path: Path) -> None:
    plan = Desk(tmp_path).plan()
    alone = plan.settings(frozenset({S})).arguments
    assert at(alone, "speculative_config.num_speculative_tokens") == 3
    assert alone["enable_prefix_caching"] is False
