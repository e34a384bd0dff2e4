import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr

from objectives.answers import Answer, Answers, Scored
from objectives.quality import DEFECT_RISK, NEAR_TIE, judge, kl_of_tops
from search_spaces.sections import Quality

PROMPTS = 20


def scored(token: int = 1, logprob: float = -0.1, *others: tuple[int, float]) -> Scored:
    top = sorted([(token, logprob), *others], key=lambda item: -item[1])
    return Scored(token=token, logprob=logprob, top=tuple(top))


def answer(
    greedy: tuple[int, ...] = (1, 1, 1),
    *,
    again: tuple[int, ...] | None = None,
    apart: tuple[int, ...] | None = None,
    logprob: float = -0.1,
    other: float = -3.0,
) -> Answer:
    own = tuple(scored(token, -0.1, (9, -0.1 - NEAR_TIE / 2), (8, -5.0)) for token in greedy)
    return Answer(
        greedy=greedy,
        own=own,
        again=again or greedy,
        apart=apart,
        forced=tuple(scored(1, logprob, (9, other)) for _ in greedy),
    )


def answers(*given: Answer, of: int = PROMPTS) -> Answers:
    """These, and then as many plain ones as there are prompts left."""
    return Answers(answers=(*given, *(answer() for _ in range(of - len(given)))))


REFERENCE = Answers(answers=tuple(answer(apart=(1, 1, 1)) for _ in range(PROMPTS)))
LIMITS = Quality()


def test_the_reference_beside_itself_differs_in_nothing_and_passes() -> None:
    found = judge("a", REFERENCE, REFERENCE, LIMITS, beside=None, is_reference=True)
    assert found.passed
    assert (found.nll_increase.value, found.kl.value, found.agreement.value) == (0, 0, 1)
    assert found.violation <= 0
    # A bootstrap of nothing but agreement has no width; Wilson's interval of 60 tokens of 60 has.
    assert found.agreement.low == pytest.approx(60 / (60 + 1.96**2), abs=1e-3)


def test_the_increase_is_the_mean_over_tokens_of_what_they_became_less_likely() -> None:
    # One prompt of 20 has its 3 tokens 1 nat less likely each: 3 nats over 60 tokens.
    found = judge("a", answers(answer(logprob=-1.1)), REFERENCE, LIMITS, beside=None)
    assert found.nll_increase.value == pytest.approx(3 / 60)
    assert not found.passed
    assert found.violation == pytest.approx(0.05 / 0.02 - 1)
    assert found.reasons == ("the reference's words cost 0.0500 nats a token more, and 0.02 is the most",)


def test_a_limit_within_the_interval_is_told_as_doubtful_though_it_is_passed() -> None:
    some = answers(*(answer(logprob=-0.1 - 0.03 * (n % 2)) for n in range(PROMPTS)))
    found = judge("a", some, REFERENCE, Quality(max_nll_increase=0.016), beside=None)
    assert found.passed  # 0.015 is below 0.016
    assert any("the limit 0.016 lies within its interval" in doubt for doubt in found.doubts)


def test_agreement_counts_reference_tokens_that_are_no_longer_the_likeliest() -> None:
    # In 4 of 20 prompts another token is likelier, at all 3 positions: 48 of 60 agree.
    some = answers(*(answer(logprob=-0.7, other=-0.5) for _ in range(4)))
    found = judge("a", some, REFERENCE, Quality(max_nll_increase=9, min_agreement=0.85), beside=None)
    assert found.agreement.value == pytest.approx(0.8)
    assert found.reasons == ("it agrees on 80.0% of the reference's tokens, and 85.0% is the least",)
    assert found.violation == pytest.approx(0.05 / 0.15)


def test_a_token_as_likely_as_the_likeliest_agrees() -> None:
    found = judge(
        "a", answers(*[answer(other=-0.1)] * PROMPTS), REFERENCE, Quality(max_nll_increase=9), beside=None
    )
    assert found.agreement.value == 1


def test_a_limit_on_the_divergence_holds_where_it_is_set() -> None:
    some = answers(*[answer(logprob=-0.2)] * PROMPTS)
    loose = judge("a", some, REFERENCE, Quality(max_nll_increase=9), beside=None)
    strict = judge("a", some, REFERENCE, Quality(max_nll_increase=9, max_kl=0.001), beside=None)
    assert loose.passed
    assert not strict.passed
    assert loose.kl.value > 0.001


def test_lossless_settings_that_change_what_is_clearly_likelier_are_a_defect() -> None:
    # Token 8 is 4.9 nats below the likeliest one: no rounding chooses it.
    broken = answers(*(answer((1, 8, 8), again=(1, 8, 8)) for _ in range(10)))
    found = judge("a", broken, REFERENCE, LIMITS, beside=REFERENCE)
    assert not found.passed
    assert found.defect is not None
    assert "changed 10 of 20 continuations clearly" in found.defect
    assert "against itself: 0" in found.defect
    assert found.violation >= 1


def test_near_ties_that_fall_the_other_way_are_no_defect() -> None:
    tied = answers(*(answer((1, 9, 9), again=(1, 9, 9)) for _ in range(PROMPTS)))
    found = judge("a", tied, REFERENCE, LIMITS, beside=REFERENCE)
    assert found.defect is None
    assert found.alike.value == pytest.approx(1 / 3)


def test_as_many_changes_as_the_reference_has_against_itself_are_no_defect() -> None:
    noisy = Answers(answers=tuple(answer(apart=(1, 8, 8)) for _ in range(PROMPTS)))
    broken = answers(*(answer((1, 8, 8), again=(1, 8, 8)) for _ in range(PROMPTS)))
    assert judge("a", broken, noisy, LIMITS, beside=noisy).defect is None


def test_a_continuation_that_ends_early_is_another_one() -> None:
    short = answers(*(answer((1,), again=(1,)) for _ in range(PROMPTS)))
    padded = Answers(answers=tuple(replace(a, forced=REFERENCE.answers[0].forced) for a in short.answers))
    assert judge("a", padded, REFERENCE, LIMITS, beside=REFERENCE).defect is not None


def test_an_engine_that_answers_otherwise_when_asked_again_is_defective_whatever_its_weights() -> None:
    # Nothing to lay it beside: a checkpoint of its own.
    broken = answers(*(answer(again=(1, 8, 8)) for _ in range(10)))
    found = judge("a", broken, REFERENCE, LIMITS, beside=None)
    assert found.defect is not None
    assert found.defect.startswith("asked again with its caches kept, it continued 10 of 20 prompts")


def test_few_changes_may_be_chance() -> None:
    # 7 of 7 discordant prompts have a chance of 1/128, above half of the stated risk; 8 have 1/256.
    assert 1 / 256 < DEFECT_RISK / 2 < 1 / 128
    for changed, told in ((7, False), (8, True)):
        broken = answers(*(answer(again=(1, 8, 8)) for _ in range(changed)))
        assert (judge("a", broken, REFERENCE, LIMITS, beside=None).defect is not None) is told


def test_an_engine_as_noisy_as_the_reference_is_rarely_called_defective() -> None:
    rng = np.random.default_rng(7)
    called = 0
    for _ in range(400):
        noise = rng.random((PROMPTS, 2)) < 0.3
        own = answers(*(answer(again=(1, 8, 8) if now else (1, 1, 1)) for now in noise[:, 0]))
        reference = Answers(
            answers=tuple(answer(apart=(1, 8, 8) if then else (1, 1, 1)) for then in noise[:, 1])
        )
        called += judge("a", own, reference, LIMITS, beside=None).defect is not None
    assert called / 400 <= DEFECT_RISK


def test_answers_to_other_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="19 answers beside 20"):
        judge("a", answers(of=19), REFERENCE, LIMITS, beside=None)


_SHARES = st.lists(st.floats(0.01, 1), min_size=3, max_size=8)


@settings(max_examples=60, deadline=None)
@given(_SHARES, _SHARES, st.integers(1, 8))
def test_the_divergence_of_tops_bounds_that_of_all_tokens_from_below(
    a: list[float], b: list[float], kept: int
) -> None:
    size = min(len(a), len(b))
    p, q = (np.array(shares[:size]) / sum(shares[:size]) for shares in (a, b))

    def top(shares: np.ndarray) -> Scored:
        known = sorted(((i, math.log(x)) for i, x in enumerate(shares)), key=lambda item: -item[1])
        return Scored(token=0, logprob=math.log(shares[0]), top=tuple(known[:kept]))

    found = kl_of_tops(top(p), top(q))
    assert 0 <= found <= float(rel_entr(p, q).sum()) + 1e-9
    if kept >= size:
        assert found == pytest.approx(float(rel_entr(p, q).sum()), abs=1e-6)
