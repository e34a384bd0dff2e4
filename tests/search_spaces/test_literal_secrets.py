"""A space is stored with its study and shown in MLflow, so it may hold no secret."""

import pytest

from search_spaces.load import SpaceError, load_space, parse_space, shipped_spaces

INSTEAD = (
    "a space is stored with its study; set it in the environment of the node instead, which engines inherit"
)
NAMED = f"is a secret by its name, and {INSTEAD}"
IN_URL = f"holds a URL with a secret, and {INSTEAD}"


def faults_of(text: str) -> list[str]:
    with pytest.raises(SpaceError) as caught:
        parse_space(text, "s.yaml")
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("environment: {HF_TOKEN: hf_x}", "2 environment.HF_TOKEN", NAMED),
        ("environment:\n  A: 1\n  DB_PASSWORD: 123456", "4 environment.DB_PASSWORD", NAMED),
        ("engine: {hf_token: hf_x}", "2 engine.hf_token", NAMED),
        ("engine: {a_config: {deep: {api_key: [sk-x]}}}", "2 engine.a_config.deep.api_key[0]", NAMED),
        (
            "parameters: {p: {choices: {a: {set: {hf_token: x}}}}}",
            "2 parameters.p.choices.a.set.hf_token",
            NAMED,
        ),
        (
            "parameters: {p: {choices: {a: {environment: {A_TOKEN: x}}}}}",
            "2 parameters.p.choices.a.environment.A_TOKEN",
            NAMED,
        ),
        ("parameters: {hf_token: {choices: [x]}}", "2 parameters.hf_token.choices[0]", NAMED),
        ("parameters: {p: {choices: [x], argument: c.token}}", "2 parameters.p.choices[0]", NAMED),
        ("parameters: {p: {choices: [345], environment: A_PAT}}", "2 parameters.p.choices[0]", NAMED),
        ("environment: {HTTPS_PROXY: 'http://me:pw@h'}", "2 environment.HTTPS_PROXY", IN_URL),
    ],
)
def test_a_literal_secret_is_refused_where_it_stands_and_not_repeated(
    text: str, place: str, message: str
) -> None:
    assert faults_of(f"model: m\n{text}\n") == [f"s.yaml:{place}: {message}"]


def test_all_of_a_files_secrets_are_told_with_its_other_faults() -> None:
    told = faults_of("model: m\nenvironment: {HF_TOKEN: hf_x}\nnmae: x\nengine: {hf_token: hf_x}\n")
    assert [line.partition(" ")[0] for line in told] == ["s.yaml:2", "s.yaml:3", "s.yaml:4"]


@pytest.mark.parametrize(
    "text",
    [
        "engine: {hf_token: true}",
        "engine: {hf_overrides: {pad_token: <pad>, eos_token: 2}}",
        "environment: {HF_HUB_DISABLE_IMPLICIT_TOKEN: 1, A_TOKEN: '', B_TOKEN: true}",
        "environment: {PWD: /tmp, HTTPS_PROXY: 'http://h:80'}",
        "parameters: {max_num_batched_tokens: {choices: [512, 1024]}}",
    ],
)
def test_what_only_sounds_like_a_secret_is_taken(text: str) -> None:
    parse_space(f"model: m\n{text}\n", "s.yaml")


def test_no_shipped_space_is_refused() -> None:
    for name in shipped_spaces():
        load_space(name)
