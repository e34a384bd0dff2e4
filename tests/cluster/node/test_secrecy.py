import pytest

from cluster.node.secrecy import hide, is_secret, secret_values, without_secrets


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "--hf-token", "api_key", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "token"),
        *("PGPASSWORD", "GITHUB_PAT", "HF_TOKEN_1", "API_KEY2", "MYSQL_PWD", "SMTP_PASS", "OPENAIAPIKEY"),
        *("CLIENTSECRET", "authToken", "environment.TOKEN"),
    ],
)
def test_names_that_carry_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("--max-num-batched-tokens", "num_speculative_tokens", "TOKENIZERS_PARALLELISM", "MONKEY"),
        *("PWD", "OLDPWD", "PATH", "eos_token_id", "pass_config", "KEYBOARD", "COMPASS", "TOKEN_BUDGET_1"),
    ],
)
def test_names_that_only_sound_like_it(name: str) -> None:
    assert not is_secret(name)


def test_a_command_keeps_everything_but_the_values_of_secret_options() -> None:
    command = ("serve", "--api-key=abc", "--hf-token", "hf_x", "--max-num-batched-tokens", "512", "--api-key")
    assert without_secrets(command) == (
        *("serve", "--api-key=***", "--hf-token", "***"),
        *("--max-num-batched-tokens", "512", "--api-key"),
    )


def test_an_option_with_several_secret_values_hides_the_first_and_keeps_flags() -> None:
    assert without_secrets(("--hf-token", "--port", "1")) == ("--hf-token", "--port", "1")


def test_a_secret_that_begins_another_leaves_no_tail() -> None:
    assert hide("x abcdefgh-ijkl y abcdefgh", ["abcdefgh", "abcdefgh-ijkl"]) == "x *** y ***"


def test_short_values_are_no_secrets() -> None:
    assert secret_values({"HF_TOKEN": "hf_abcdefgh", "API_KEY": "none", "HOME": "/home/somebody"}) == {
        "hf_abcdefgh"
    }
