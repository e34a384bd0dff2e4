"""The arrays of many configs against `ForwardPass.seconds`, one config and batch at a time."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.accelerators import accelerator
from search_spaces.deployment import Deployment, Drafted
from search_spaces.roofline import ForwardPass
from search_spaces.step_costs import Costs

H100 = accelerator("H100")
CONTEXT, BEFORE = 1_300.0, 450.0

amounts = st.floats(1e-3, 1e3)


@st.composite
def passes(draw: st.DrawFn) -> ForwardPass:
    numbers = {field.name: draw(amounts) for field in dataclasses.fields(ForwardPass)}
    experts = draw(st.integers(1, 64))
    numbers |= {"experts": experts, "experts_per_token": draw(st.integers(1, experts))}
    if draw(st.booleans()):
        numbers["expert_bytes"] = 0.0
    return ForwardPass(**numbers)  # type: ignore[arg-type]


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    kind = draw(st.sampled_from(["none", "ngram", "draft"]))
    return Deployment(
        target=draw(passes()),
        draft=draw(passes()) if kind == "draft" else None,
        depth=0 if kind == "none" else draw(st.integers(1, 6)),
        drafted=Drafted(rate=0.5, found=draw(st.floats(0.1, 1.0))),
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        prefix_caching=False,
        kv_tokens=1e6,
    )


def _reckoned(one: Deployment, decoding: float, chunk: float) -> float:
    """As vLLM runs it: the target verifies; the draft computes what the target did, then token by token."""
    queries = 1 + one.depth * one.drafted.found
    verified, read = decoding * queries, decoding * CONTEXT
    batch = {"tokens": verified + chunk, "sampled": verified, "read": read}
    batch["pairs"] = read * queries + chunk * BEFORE
    took = one.target.seconds(**batch) + H100.step_s + decoding * H100.sequence_s
    if one.draft is not None:
        alone = {"tokens": decoding, "sampled": decoding, "read": read, "pairs": read}
        took += one.draft.seconds(**batch) + H100.draft_step_s
        took += (one.depth - 1) * (one.draft.seconds(**alone) + H100.draft_step_s)
    return took


@settings(deadline=None)
@given(
    st.lists(deployments(), min_size=1, max_size=4), st.floats(0, 500), st.floats(1, 8000), st.floats(0.1, 9)
)
def test_a_step_takes_what_its_passes_take_one_by_one(
    some: list[Deployment], decoding: float, chunk: float, pace: float
) -> None:
    costs = Costs(some, H100)
    costs.pace = np.full(len(some), pace)
    n = np.full(len(some), decoding)
    alone, mixed = costs.steps(CONTEXT, BEFORE).seconds(n, np.full(len(some), chunk))
    assert alone == pytest.approx([pace * _reckoned(one, decoding, 0.0) for one in some])
    assert mixed == pytest.approx([pace * _reckoned(one, decoding, chunk) for one in some])
