import dataclasses
import itertools

import pytest

from tests.tuner.ablation.reports import report
from tuner.ablation.pictures import bars, panels, waterfall, way
from tuner.ablation.report import EffectReport, MeanReport

SPECULATION = frozenset({"speculation"})


def test_isolated_effects_start_where_the_last_one_ended_and_end_at_the_product() -> None:
    outcome = report().outcomes[0]
    steps = waterfall(outcome).steps
    assert [step.kind for step in steps] == [
        "base",
        "alone",
        "alone",
        "alone",
        "product",
        "difference",
        "measured",
    ]
    for before, after in itertools.pairwise(steps):
        assert before.leaves == pytest.approx(after.enters)
    alone, product = steps[3], steps[4]
    assert alone.mark is not None
    assert product.mark is not None
    assert alone.mark.at == pytest.approx(product.mark.at)


def test_the_difference_leads_from_the_promise_to_what_was_measured() -> None:
    outcome = report().outcomes[0]
    fall = waterfall(outcome)
    *_, product, difference, measured = fall.steps
    assert outcome.product is not None
    assert outcome.combination is not None
    # Contending factors: the measured combination lies below the product, so the bar runs leftwards
    assert difference.left == pytest.approx(fall.axis.scale.at(outcome.combination.ratio))
    assert difference.right == pytest.approx(fall.axis.scale.at(outcome.product.ratio))
    assert product.left == measured.left == fall.axis.one
    assert difference.mark is not None
    assert difference.mark.way == "worse"


def test_a_factor_that_was_not_measured_alone_leaves_no_product_and_no_bar() -> None:
    steps = {
        (step.kind, step.factor): step for step in waterfall(report(lost=[SPECULATION]).outcomes[0]).steps
    }
    lost = steps["alone", "speculation"]
    assert (lost.effect, lost.mark, lost.left) == (None, None, lost.right)
    assert steps["product", None].mark is None
    assert steps["difference", None].mark is None
    assert steps["measured", None].mark is not None


def test_one_factor_is_its_own_product() -> None:
    assert [step.kind for step in waterfall(report(("only",)).outcomes[0]).steps] == ["base", "measured"]


def test_where_two_factors_do_nothing_together_the_line_would_be_parallel() -> None:
    made = report()
    for panel in panels(made.outcomes[0], made.cells).panels:
        for plot in panel.plots:
            assert plot.apart is not None
            off, on = plot.without
            assert plot.apart[1] - plot.apart[0] == pytest.approx(on.mark.at - off.mark.at)
            assert plot.apart[0] == pytest.approx(plot.beside[0].mark.at)


def test_contending_factors_end_below_the_line_of_the_product() -> None:
    made = report()
    panel = panels(made.outcomes[0], made.cells).panels[0]
    assert panel.interaction.contend
    for plot in panel.plots:
        assert plot.apart is not None
        assert plot.beside[1].mark.at < plot.apart[1]


def test_of_three_factors_a_pair_is_drawn_with_the_third_off_and_on() -> None:
    made = report()
    panel = panels(made.outcomes[0], made.cells).panels[0]
    off, on = panel.plots
    assert [point.cell for point in (*off.without, *off.beside)] == [
        "control",
        "quantisation",
        "prefix-cache",
        "quantisation + prefix-cache",
    ]
    assert [point.cell for point in (*on.without, *on.beside)] == [
        "speculation",
        "quantisation + speculation",
        "prefix-cache + speculation",
        "all",
    ]


def test_of_two_factors_there_is_one_plot() -> None:
    made = report(("a", "b"))
    (panel,) = panels(made.outcomes[0], made.cells).panels
    assert len(panel.plots) == 1


def test_a_cell_that_was_not_measured_has_no_point() -> None:
    made = report(lost=[SPECULATION])
    drawn = {panel.interaction.pair: panel for panel in panels(made.outcomes[0], made.cells).panels}
    off, on = drawn["quantisation", "speculation"].plots
    assert [point.cell for point in off.beside] == ["quantisation + speculation"]
    assert off.apart is None
    assert len(on.without) + len(on.beside) == 4


def test_an_effect_goes_the_way_of_who_is_served() -> None:
    rate, latency = report().outcomes[:2]
    more = EffectReport(ratio=1.2, low=1.1, high=1.3, told=True)
    untold = dataclasses.replace(more, low=0.9, told=False)
    assert [way(more, rate), way(more, latency), way(untold, rate)] == ["better", "worse", "not told"]


def test_an_effect_that_is_told_but_slight_is_neither_better_nor_worse() -> None:
    # A simulated engine without noise tells a thousandth from nothing
    slight = EffectReport(ratio=1.001, low=1.001, high=1.001, told=True)
    assert way(slight, report().outcomes[0]) == "slight"


def test_bars_are_lengths_of_the_largest_run_or_of_a_whole() -> None:
    cells = [
        dataclasses.replace(cell, metrics={"x": MeanReport(mean=mean, least=mean / 2, most=2 * mean, runs=2)})
        for cell, mean in zip(report().cells, (0.1, 0.2, float("inf")), strict=False)
    ]
    drawn = bars(cells, "x")
    assert {name: (bar.least, bar.mean, bar.most) for name, bar in drawn.items()} == {
        "control": pytest.approx((0.125, 0.25, 0.5)),
        "all": pytest.approx((0.25, 0.5, 1.0)),
    }
    assert bars(cells, "x", full=1.0)["all"].mean == pytest.approx(0.2)
    assert bars(cells, "y") == {}
