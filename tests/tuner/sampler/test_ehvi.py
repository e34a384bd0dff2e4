import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import optuna
import pytest

from cluster.order import Cause
from objectives.front import hypervolume
from objectives.goal import Goal
from search_spaces.load import load_space
from search_spaces.parameters import active
from search_spaces.space import Config, Space
from search_spaces.values import Scalar
from tests.tuner.spaces import SMALL, TINY
from tuner.sampler import Foresight, Guidance, Predict, Scored, Search, Unscored, sampler_named
from tuner.sampler.ehvi import EhviSampler
from tuner.sampler.encoding import Encoding
from tuner.sampler.lessons import distribution, lessons, params_of, placed_in
from tuner.sampler.pool import drawn, neighbours

GOAL = Goal.of(["goodput", "tpot_p95"])
SHIPPED = ("spaces/8b.yaml", "spaces/70b.yaml", "spaces/smollm2-135m.yaml")

Judge = Callable[[Config], Scored | Unscored]


def _worth(config: Config) -> tuple[float, float]:
    """Goodput in requests/s and TPOT in s: a batch trades one for the other, int8 and depth 3 help both."""
    sequences, depth = config.values["max_num_seqs"], config.get("speculation.depth", 0)
    assert isinstance(sequences, int)
    assert isinstance(depth, int)
    gain = {"bf16": 1.0, "int8": 1.5, "fp8": 0.8}[str(config.values["scheme"])] * (
        1 + 0.1 * min(depth, 6 - depth)
    )
    return gain * sequences / (1 + sequences / 40), (0.005 + 0.0004 * sequences) / gain


def _scored(config: Config) -> Scored:
    goodput, tpot = _worth(config)
    return Scored(losses=(-goodput, tpot))


def _told(configs: Sequence[Config], skew: Callable[[Config], float] = lambda _: 1.0) -> Foresight:
    worths = [(_worth(config), skew(config)) for config in configs]
    return Foresight(
        metrics={
            "goodput_rps": np.array([goodput * factor for (goodput, _), factor in worths]),
            "tpot_p95_s": np.array([tpot / factor for (_, tpot), factor in worths]),
        },
        fits=np.ones(len(configs), dtype=np.bool_),
    )


def _good(configs: Sequence[Config]) -> Foresight:
    return _told(configs, lambda _: 0.7)


def _reversed(configs: Sequence[Config]) -> Foresight:
    """Takes the best scheme for the worst."""
    return _told(configs, lambda config: {"bf16": 1.0, "int8": 0.4, "fp8": 2.0}[str(config.values["scheme"])])


def _search(
    predict: Predict | None = None,
    *,
    space: Space = SMALL,
    seed: int = 0,
    storage: str = "sqlite:///:memory:",
    guidance: Guidance | None = None,
) -> Search:
    return Search.open(
        space=space,
        goal=GOAL,
        study="tea",
        storage=storage,
        recipe=sampler_named("ehvi"),
        seed=seed,
        guidance=guidance or Guidance(predict=predict),
    )


def _run(search: Search, trials: int, judge: Judge = _scored) -> list[Config]:
    configs = []
    for _ in range(trials):
        proposal = search.ask()
        search.tell(proposal.number, judge(proposal.config))
        configs.append(proposal.config)
    return configs


def _volume(configs: Sequence[Config]) -> float:
    return hypervolume([(-goodput, tpot) for goodput, tpot in map(_worth, configs)], (0.0, 0.03))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_pool_of_a_shipped_space_holds_valid_configs_only_each_once(name: str) -> None:
    space, rng = load_space(name), np.random.default_rng(0)
    configs = drawn(space, rng, 1500)
    assert len(set(configs)) == len(configs) == 1500
    near = neighbours(space, configs[:40], rng, lambda c: not space.faults(c), 500)
    assert len(set(near)) == len(near) == 500
    for config in (*configs, *near):
        assert not space.faults(config)
        assert space.config(config.values) == config


@pytest.mark.parametrize("name", SHIPPED)
def test_neighbours_differ_in_one_parameter_and_what_hangs_below_it(name: str) -> None:
    space, rng = load_space(name), np.random.default_rng(1)
    for config in drawn(space, rng, 10):
        for other in neighbours(space, [config], rng, lambda c: not space.faults(c), 1000):
            both = config.values.keys() & other.values.keys()
            changed = [path for path in both if config.values[path] != other.values[path]]
            roots = {
                path.partition(".")[0] for path in (*changed, *(config.values.keys() ^ other.values.keys()))
            }
            assert len(roots) == 1, (config, other)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_proposed_in_a_shipped_space_is_valid_and_new_whatever_comes_back(name: str) -> None:
    space = load_space(name)
    goal = Goal.of(space.objectives)
    rng = np.random.default_rng(3)
    search = Search.open(
        space=space,
        goal=goal,
        study="tea",
        storage="sqlite:///:memory:",
        recipe=sampler_named("ehvi"),
        seed=1,
    )
    seen: set[Config] = set()
    for _ in range(7):
        proposal = search.ask()
        assert not space.faults(proposal.config)
        assert proposal.config not in seen
        seen.add(proposal.config)
        if rng.random() < 0.3:
            cause = list(Cause)[int(rng.integers(len(Cause)))]
            search.tell(proposal.number, Unscored(cause=cause, reason="as chance would have it"))
        else:
            losses = tuple(o.loss(float(np.exp(rng.normal()))) for o in goal.objectives)
            search.tell(proposal.number, Scored(losses=losses, violations={"slo_attainment": rng.normal()}))


def test_a_driver_killed_after_every_trial_asks_what_one_that_lived_asks(tmp_path: Path) -> None:
    whole = _run(_search(_good, seed=7), 7)
    storage = f"sqlite:///{tmp_path}/study.db"
    parts = [config for _ in range(7) for config in _run(_search(_good, seed=7, storage=storage), 1)]
    assert parts == whole
    assert _run(_search(_good, seed=8), 2) != whole[:2]


def test_a_good_prediction_is_worth_most_at_once_and_a_reversed_one_is_seen_through() -> None:
    everything = drawn(SMALL, np.random.default_rng(0), 3000)
    top = _volume(everything)
    chance = np.median([_volume(drawn(SMALL, np.random.default_rng(seed), 12)) for seed in range(9)])
    assert _volume(_run(_search(_good), 6)) > 0.85 * top
    assert _volume(_run(_search(_reversed), 12)) > 0.85 * top
    assert chance < 0.85 * top


@pytest.mark.parametrize("predict", [_good, _reversed])
def test_the_first_trials_make_every_choice_and_go_into_both_halves_of_every_number(predict: Predict) -> None:
    asked = _run(_search(predict), 6)
    assert {config.values["scheme"] for config in asked} == {"bf16", "int8", "fp8"}
    assert {config.values["speculation"] for config in asked} == {"off", "ngram"}
    # The middles of 4 to 64 on a logarithmic scale, and of 128 to 1024 and 0.8 to 0.95 on plain ones.
    middles = {"max_num_seqs": 16, "max_num_batched_tokens": 576, "gpu_memory_utilization": 0.875}
    for key, middle in middles.items():
        assert {float(str(config.values[key])) > middle for config in asked} == {False, True}


def test_trials_under_way_are_not_repeated_nor_crowded() -> None:
    search = _search(_good)
    _run(search, 6)
    together = [search.ask().config for _ in range(4)]
    assert len(set(together)) == 4
    rows = Encoding(SMALL).rows(together)
    apart = [np.linalg.norm(a - b) for i, a in enumerate(rows) for b in rows[:i]]
    assert min(apart) > 0.02


def test_a_choice_that_crashes_is_left_alone_after_some_trials() -> None:
    def judge(config: Config) -> Scored | Unscored:
        crashes = config.values["scheme"] == "int8"  # the best of them, by the prediction
        return Unscored(cause=Cause.DIED_UNDER_LOAD, reason="x") if crashes else _scored(config)

    schemes = [config.values["scheme"] for config in _run(_search(_good), 12, judge)]
    assert Counter(schemes)["int8"] >= 1
    assert Counter(schemes[8:])["int8"] <= 1


def test_what_says_nothing_of_a_config_teaches_nothing() -> None:
    def trial(
        config: Config, state: optuna.trial.TrialState, cause: Cause | None
    ) -> optuna.trial.FrozenTrial:
        params = params_of(SMALL, config)
        keys = {p.key: distribution(p) for p, _ in active(SMALL.parameters, config.values)}
        return optuna.trial.create_trial(
            state=state,
            params=params,
            distributions=keys,
            user_attrs={} if cause is None else {"cause": cause.value},
        )

    configs = drawn(SMALL, np.random.default_rng(0), len(Cause))
    failed = [trial(c, optuna.trial.TrialState.FAIL, cause) for c, cause in zip(configs, Cause, strict=True)]
    known = lessons(GOAL, placed_in(SMALL, failed))
    blamed = {config for config, cause in zip(configs, Cause, strict=True) if cause.blames_config}
    assert set(known.failed) == blamed
    assert set(known.taken) == set(configs)
    assert len(blamed) < len(configs)


def test_violations_are_kept_as_optunas_constraints_and_keep_proposals_within_them(tmp_path: Path) -> None:
    def judge(config: Config) -> Scored:
        sequences = config.values["max_num_seqs"]
        assert isinstance(sequences, int)
        return Scored(
            losses=_scored(config).losses, violations={"slo_attainment": 0.3 * math.log(sequences / 20)}
        )

    storage = f"sqlite:///{tmp_path}/study.db"
    configs = _run(_search(_good, storage=storage), 14, judge)
    trials = optuna.load_study(study_name="tea", storage=storage).trials
    for trial, config in zip(trials, configs, strict=True):
        assert trial.constraints == dict(judge(config).violations)
    late = [config.values["max_num_seqs"] for config in configs[8:]]
    assert sum(int(str(value)) <= 20 for value in late) >= 0.7 * len(late)


def test_one_objective_is_followed_in_its_own_direction() -> None:
    goal = Goal.of(["goodput"])
    search = Search.open(
        space=SMALL,
        goal=goal,
        study="tea",
        storage="sqlite:///:memory:",
        recipe=sampler_named("ehvi"),
        seed=0,
    )

    def loss(config: Config) -> float:
        return _scored(config).losses[0]

    late = _run(search, 12, lambda config: Scored(losses=(loss(config),)))
    best = min(map(loss, drawn(SMALL, np.random.default_rng(0), 3000)))
    assert min(map(loss, late)) <= best + 0.2 * abs(best)


def test_it_serves_any_optuna_study_of_the_space() -> None:
    sampler = EhviSampler(TINY, GOAL, Guidance(), 0)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    seen = []
    for _ in range(14):
        trial = study.ask()
        scheme = trial.suggest_categorical("scheme", ("bf16", "int8"))
        depth = 0
        if trial.suggest_categorical("speculation", ("off", "ngram")) == "ngram":
            depth = trial.suggest_int("speculation.ngram.depth", 1, 6)
        seen.append((scheme, depth))
        study.tell(trial, [10.0 + depth, 20.0 + depth])
    assert len(set(seen)) == 14  # every config of the space, once


def test_rows_tell_choices_apart_and_scale_numbers() -> None:
    encoding = Encoding(SMALL)
    values: dict[str, Scalar] = {
        "scheme": "bf16",
        "speculation": "ngram",
        "speculation.depth": 1,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 128,
        "gpu_memory_utilization": 0.8,
    }
    low = SMALL.config(values)
    high = SMALL.config({**values, "speculation.depth": 6, "max_num_seqs": 64})
    off = SMALL.config({k: v for k, v in values.items() if k != "speculation.depth"} | {"speculation": "off"})
    rows = encoding.rows([low, high, off])
    by_group = [((rows[0] - rows[i]) ** 2 @ np.eye(encoding.parameters)[encoding.groups]) for i in (1, 2)]
    # scheme, speculation, depth, sequences, tokens, memory: squared distances
    assert by_group[0] == pytest.approx([0, 0, 1, 1, 0, 0])
    assert by_group[1] == pytest.approx([0, 1, 0.25, 0, 0, 0])
