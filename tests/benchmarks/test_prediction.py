"""How far a prediction is from what is measured: of one that is known to be off by so much."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from benchmarks import prediction
from search_spaces.load import load_space
from search_spaces.space import Config
from tuner.sampler.guidance import Foresight
from tuner.sampler.prior import predictor

_CONFIGS = 6


def _off_by(factor: float) -> Callable[..., object]:
    def told(*given: object, **named: object) -> object:
        predict = predictor(*given, **named)  # type: ignore[arg-type]
        assert predict is not None

        def scaled(configs: Sequence[Config]) -> Foresight:
            seen = predict(configs)
            return replace(seen, metrics={name: factor * values for name, values in seen.metrics.items()})

        return scaled

    return told


@pytest.mark.slow
def test_a_prediction_twice_as_high_ranks_alike_and_has_ratios_twice_as_high(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = load_space("spaces/smollm2-135m.yaml")
    plain = {row["metric"]: row for row in prediction.compared(space, _CONFIGS)}
    monkeypatch.setattr(prediction, "predictor", _off_by(2.0))
    doubled = {row["metric"]: row for row in prediction.compared(space, _CONFIGS)}
    assert {"goodput_rps", "ttft_p95_s", "tpot_p95_s"} <= set(plain) == set(doubled)
    for metric, row in plain.items():
        assert doubled[metric]["rank_correlation"] == pytest.approx(row["rank_correlation"], nan_ok=True)
        for name in ("ratio_p10", "ratio_median", "ratio_p90"):
            assert doubled[metric][name] == pytest.approx(2 * float(row[name]))
        assert 0 < int(row["configs"]) <= _CONFIGS


def test_the_table_has_a_line_for_each_metric_of_each_space() -> None:
    row: dict[str, float | str] = {
        "space": "8b",
        "metric": "tpot_p95_s",
        "configs": 7,
        "rank_correlation": 0.912,
        "ratio_p10": 0.5,
        "ratio_median": 1.004,
        "ratio_p90": 2.0,
    }
    _, ruler, line = prediction.table([row]).splitlines()
    assert line == "| 8b | tpot_p95_s | 7 | 0.91 | 0.50 | 1.00 | 2.00 |"
    assert ruler.count("|") == line.count("|")


def test_one_config_cannot_be_ranked_and_an_unknown_space_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, told in ((["--configs", "1"], "two at least"), (["--spaces", "9b"], "'9b'")):
        monkeypatch.setattr("sys.argv", ["prediction", *words])
        with pytest.raises(SystemExit):
            prediction.main()
        assert told in capsys.readouterr().err
