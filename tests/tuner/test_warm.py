"""What an earlier study hands over: its best configs, as configs of the new space, none of its numbers."""

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from search_spaces.space import Config
from search_spaces.values import Scalar
from tests.tuner.spaces import SCHEME, SEQUENCES, SMALL, space_of
from tests.tuner.stories import measured, stored, study_file
from tests.tuner.test_cli import SPACE
from tuner.cli import main
from tuner.front import FrontView, view
from tuner.sampler import SAMPLERS, Guidance, Scored, Search, sampler_named
from tuner.warm import MOST, first_configs

BATCHES = space_of(SCHEME, SEQUENCES)


def _earlier(*trials: tuple[Mapping[str, Scalar], float, float]) -> FrontView:
    """A study whose trials had these configs, goodput and TPOT p95 in s."""
    kept = [
        replace(stored(measured(goodput, tpot_s), number), config=values, is_control=False)
        for number, (values, goodput, tpot_s) in enumerate(trials, 1)
    ]
    return view(study_file(), kept)


def test_the_front_comes_before_what_it_dominates() -> None:
    earlier = _earlier(
        ({"scheme": "bf16", "max_num_seqs": 8}, 1.0, 0.05),
        ({"scheme": "fp8", "max_num_seqs": 16}, 5.0, 0.04),
        ({"scheme": "int8", "max_num_seqs": 4}, 3.0, 0.02),
    )
    found = first_configs(earlier, BATCHES)
    assert {config.values["scheme"] for config in found[:2]} == {"fp8", "int8"}
    assert found[2].values["scheme"] == "bf16"


def test_of_a_long_front_those_are_taken_that_are_spread_over_it() -> None:
    sizes = [4 * n for n in range(1, 17)]
    row: list[tuple[Mapping[str, Scalar], float, float]] = [
        ({"scheme": "bf16", "max_num_seqs": n}, float(n), 0.001 * n) for n in sizes
    ]
    taken = [int(str(config.values["max_num_seqs"])) for config in first_configs(_earlier(*row), BATCHES)]
    assert len(taken) == MOST
    assert {min(sizes), max(sizes)} <= set(taken)
    assert max(b - a for a, b in itertools.pairwise(sorted(taken))) <= 12


def test_a_choice_that_is_gone_is_left_out_and_a_number_out_of_range_becomes_the_nearest() -> None:
    narrow = space_of(
        replace(SCHEME, choices=("bf16", "fp8")), replace(SEQUENCES, high=32), SMALL.parameters[3]
    )
    earlier = _earlier(
        ({"scheme": "int8", "max_num_seqs": 16}, 9.0, 0.01),
        ({"scheme": "fp8", "max_num_seqs": 64}, 5.0, 0.04),
    )
    (config,) = first_configs(earlier, narrow)
    assert config.values == {"scheme": "fp8", "max_num_seqs": 32, "max_num_batched_tokens": 128}


def test_what_the_new_constraints_forbid_is_left_out() -> None:
    forbidding = space_of(SCHEME, SEQUENCES, constraints=("max_num_seqs < 16",))
    earlier = _earlier(
        ({"scheme": "fp8", "max_num_seqs": 16}, 9.0, 0.01),
        ({"scheme": "fp8", "max_num_seqs": 8}, 5.0, 0.04),
    )
    assert [config.values["max_num_seqs"] for config in first_configs(earlier, forbidding)] == [8]


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_every_sampler_begins_with_what_it_is_handed(sampler: str, tmp_path: Path) -> None:
    first = tuple(Config({"scheme": "fp8", "max_num_seqs": size}) for size in (8, 32, 16))
    goal = _earlier().goal
    search = Search.open(
        space=BATCHES,
        goal=goal,
        study="tea",
        storage=f"sqlite:///{tmp_path / 'studies.db'}",
        recipe=sampler_named(sampler),
        seed=0,
        guidance=Guidance(first=first),
    )
    asked = []
    for _ in range(4):
        proposal = search.ask()
        search.tell(proposal.number, Scored(losses=(-1.0, 0.04)))
        asked.append(proposal.config)
    assert tuple(asked[:3]) == first
    assert asked[3] not in first


@pytest.fixture
def tuner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(SPACE)
    return lambda *words: CliRunner().invoke(main, list(words))


def test_a_search_begins_with_an_earlier_one_and_goes_on_without_it(tuner: Callable[..., Result]) -> None:
    simulated = ("--space", "tiny.yaml", "--engine", "simulated")
    assert tuner("search", *simulated, "--trials", "4", "--study", "old").exit_code == 0
    old = json.loads(tuner("front", "old", "--json").output)
    words = ("search", *simulated, "--speed", "2", "--study", "new", "--warm-from", "old", "--trials", "2")
    begun = tuner(*words)
    assert begun.exit_code == 0, begun.output
    assert "best in study old" in begun.output
    Path("runs/old").rename("elsewhere")
    resumed = tuner("search", "--resume", "--study", "new", "--trials", "4")
    assert resumed.exit_code == 0, resumed.output
    new = _configs("new")
    front = [trial["config"] for trial in old["front"] if not trial["is_control"]]
    assert len(new) == 3
    assert all(config in new for config in front[:3])


def test_an_earlier_study_that_is_not_there_is_one_line(tuner: Callable[..., Result]) -> None:
    result = tuner("search", "--space", "tiny.yaml", "--engine", "simulated", "--warm-from", "never")
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert "never" in result.output
    assert len(result.output.splitlines()) == 1


def _configs(study: str) -> list[dict[str, Scalar]]:
    """Of the trials that are no control, by number."""
    outcomes = [
        json.loads(path.read_text()) for path in sorted(Path(f"runs/{study}/trials").glob("*/outcome.json"))
    ]
    return [outcome["config"] for outcome in outcomes if not outcome["is_control"]]
