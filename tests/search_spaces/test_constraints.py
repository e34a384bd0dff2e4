"""What a constraint means, by hand."""

import pickle

import pytest

from search_spaces.constraints import Constraint, Scope, parse
from search_spaces.expression import Unreadable
from search_spaces.parameters import Categorical, Choice, Integer, Parameter
from search_spaces.values import Json, Scalar


def integer(path: str, key: str | None = None) -> Integer:
    return Integer(path=path, key=key or path, low=0, high=8192)


SPECULATION = Categorical(
    path="speculation",
    key="speculation",
    choices=(
        Choice(name="off"),
        Choice(name="ngram", parameters=(integer("speculation.depth", "speculation.ngram.depth"),)),
        Choice(name="draft", parameters=(integer("speculation.depth", "speculation.draft.depth"),)),
    ),
)
PARAMETERS: tuple[Parameter, ...] = (
    SPECULATION,
    integer("max_num_seqs"),
    integer("max_num_batched_tokens"),
    Categorical(path="offload", key="offload", choices=(None, 16, 64)),
    Categorical(path="block", key="block", choices=("auto", 16)),
)
ENGINE: dict[str, Json] = {"max_model_len": 2048, "speculative_config": {"prompt_lookup_min": 2}}


def read(text: str) -> Constraint:
    return parse(text, Scope.of(PARAMETERS, ENGINE))


def test_the_budget_must_cover_every_sequence_and_its_draft() -> None:
    constraint = read("max_num_batched_tokens >= max_num_seqs * (1 + depth)")
    # 64 sequences with 3 drafted tokens each are 256 tokens a step.
    values: dict[str, Scalar] = {"speculation": "ngram", "speculation.depth": 3, "max_num_seqs": 64}
    assert constraint.holds({**values, "max_num_batched_tokens": 256}) is True
    assert constraint.holds({**values, "max_num_batched_tokens": 255}) is False


def test_an_absent_parameter_leaves_it_unknown_and_a_default_fills_in() -> None:
    values: dict[str, Scalar] = {"speculation": "off", "max_num_seqs": 64, "max_num_batched_tokens": 1}
    assert read("max_num_batched_tokens >= max_num_seqs * (1 + depth)").holds(values) is None
    assert read("max_num_batched_tokens >= max_num_seqs * (1 + default(depth, 0))").holds(values) is False


def test_presence_can_be_asked_and_null_counts_as_absent() -> None:
    assert read("present(speculation.depth)").holds({"speculation.depth": 0}) is True
    assert read("present(speculation.depth)").holds({}) is False
    assert read("present(offload)").holds({"offload": None}) is False
    assert read("offload > 8").holds({"offload": None}) is None


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("depth > 1 and max_num_seqs > 1", None),
        ("depth > 1 and max_num_seqs < 1", False),
        ("depth > 1 or max_num_seqs > 1", True),
        ("depth > 1 or max_num_seqs < 1", None),
        ("not depth > 1", None),
        ("2 < max_num_seqs < depth", None),
        ("9 < max_num_seqs < depth", False),
    ],
)
def test_truths_combine_by_kleene(text: str, truth: bool | None) -> None:
    assert read(text).holds({"max_num_seqs": 4}) is truth


def test_engine_arguments_that_are_fixed_can_be_named_dotted_too() -> None:
    assert read("max_num_batched_tokens >= max_model_len").holds({"max_num_batched_tokens": 2048}) is True
    assert read("speculative_config.prompt_lookup_min <= depth").holds({"speculation.depth": 1}) is False


def test_a_value_of_another_kind_is_unequal_and_has_no_order() -> None:
    assert read("block == 16").holds({"block": "auto"}) is False
    assert read("block >= 16").holds({"block": "auto"}) is None
    assert read("block >= 16").holds({"block": 16}) is True


def test_dividing_by_zero_is_unknown() -> None:
    assert (
        read("max_num_batched_tokens / max_num_seqs > 4").holds(
            {"max_num_batched_tokens": 8, "max_num_seqs": 0}
        )
        is None
    )


def test_what_is_broken_is_said_with_its_values() -> None:
    constraint = read("max_num_seqs <= max_model_len")
    assert constraint.sentence({"max_num_seqs": 4096}) == (
        "breaks 'max_num_seqs <= max_model_len' (max_num_seqs = 4096, max_model_len = 2048)"
    )


def test_a_constraint_survives_the_wire() -> None:
    constraint = read("max_num_seqs <= 3")
    again = pickle.loads(pickle.dumps(constraint))
    assert again == constraint
    assert again.holds({"max_num_seqs": 4}) is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_num_sqs > 1",
            "no parameter or fixed engine argument 'max_num_sqs'; did you mean 'max_num_seqs'?",
        ),
        ("speculation == 'ngarm'", "'speculation' has no choice 'ngarm'; did you mean 'ngram'?"),
        ("speculation in ['off', 'daft']", "'speculation' has no choice 'daft'; did you mean 'draft'?"),
        ("speculation > 1", "compares 'speculation' (text) with '1' (a number)"),
        ("max_num_seqs", "is not true or false; compare it with something"),
        ("max_num_seqs and depth > 1", "'max_num_seqs' is a number, where true or false is needed"),
        ("(depth > 1) + 1 == 2", "'depth > 1' is true or false, where a number is needed"),
        ("speculation * 2 == 2", "'speculation' is text, where a number is needed"),
        ("depth is 1", "'is' is not allowed in a constraint; write == or !="),
        ("depth in max_num_seqs", "'in' needs a list of plain values, got 'max_num_seqs'"),
        ("depth >", "cannot be read: invalid syntax at character"),
        ("depth = 1", "cannot be read: "),
        ("(lambda: 1) == 1", "is not allowed in a constraint"),
        ("[depth for depth in [1]] == 1", "is not allowed in a constraint"),
        ("open('x') == 1", "no function 'open': there are min, max, abs, default and present"),
        ("depth.__class__ == 1", "no parameter or fixed engine argument 'depth.__class__'"),
        ("''.join == 1", "'''' is not a name"),
        ("default(1, 2) == 1", "'default' takes other arguments"),
        ("min(depth) == 1", "'min' takes other arguments"),
        ("min(*depth) == 1", "'min' takes other arguments"),
        ("1e999 > depth", "is not allowed in a constraint"),
        ("1j > depth", "is not allowed in a constraint"),
        ("'\\d' == speculation", "backslash"),
    ],
)
def test_what_is_no_constraint_says_why(text: str, message: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(text)
    assert message in str(caught.value)


def test_a_last_part_that_two_paths_share_is_ambiguous() -> None:
    parameters = (integer("draft.depth"), integer("ngram.depth"))
    with pytest.raises(Unreadable, match=r"'depth' is ambiguous: draft\.depth or ngram\.depth"):
        parse("depth > 1", Scope.of(parameters, {}))
