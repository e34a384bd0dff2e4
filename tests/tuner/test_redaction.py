import pytest

from search_spaces.values import Json
from tuner.redaction import redacted_environment, redacted_settings, redacted_text, without_passwords


def test_passwords_in_urls_are_blanked_and_the_rest_is_kept() -> None:
    text = "postgresql+psycopg://me:p%40ss@db:5432/x and https://host/path:1@2 and mysql://me@db"
    assert without_passwords(text) == (
        "postgresql+psycopg://me:***@db:5432/x and https://host/path:1@2 and mysql://me@db"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p@ss@h/x", "postgresql://u:***@h/x"),
        ("postgresql://u:p/ss@h/x", "postgresql://u:***@h/x"),
        ("redis://:pw@h:6379", "redis://:***@h:6379"),
        ("http://a:b@c,http://d:e@f", "http://a:***@c,http://d:***@f"),
        ('{"a":"http://u:p@h","b":"x@y"}', '{"a":"http://u:***@h","b":"x@y"}'),
        ("git+https://u:p@h/repo@main", "git+https://u:***@h/repo@main"),
        ("http://h:5000/image@sha256:ab", "http://h:5000/image@sha256:ab"),
        ("http://h:5000?mail=a@b", "http://h:5000?mail=a@b"),
        ("postgresql://h/db?user=me&password=p%40&x=1", "postgresql://h/db?user=me&password=***&x=1"),
        ("GET http://h/x?token=abc#top and y", "GET http://h/x?token=***#top and y"),
        ("s3://b?X-Amz-Signature=abc&apiKey=d&tokens=5", "s3://b?X-Amz-Signature=***&apiKey=***&tokens=5"),
    ],
)
def test_no_part_of_a_urls_secret_is_left_and_nothing_else_is_lost(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


def test_switches_and_a_tokenizers_tokens_are_no_secrets() -> None:
    kept: dict[str, Json] = {"pad_token": "<|end|>", "mask_token": "[MASK]", "hf_token": True}
    assert redacted_settings(kept) == kept
    switch = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
    assert redacted_environment(switch) == switch


def test_settings_with_a_secrets_name_are_blanked_however_deep() -> None:
    settings: dict[str, Json] = {
        "api_key": ["abc", "def"],
        "max_num_batched_tokens": 2048,
        "tokenizer": "org/model",
        "eos_token": 2,
        "nested": {"hf_token": "hf_x", "url": "http://a:b@c"},
    }
    assert redacted_settings(settings) == {
        "api_key": ["***", "***"],
        "max_num_batched_tokens": 2048,
        "tokenizer": "org/model",
        "eos_token": 2,
        "nested": {"hf_token": "***", "url": "http://a:***@c"},
    }


def test_variables_are_blanked_by_name_and_by_what_is_in_them() -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "x",
        "EMPTY_TOKEN": "",
        "HTTPS_PROXY": "http://a:b@c",
        "LANG": "C",
    }
    assert redacted_environment(environment) == {
        "AWS_SECRET_ACCESS_KEY": "***",
        "EMPTY_TOKEN": "",
        "HTTPS_PROXY": "http://a:***@c",
        "LANG": "C",
    }


def test_known_secrets_are_blanked_wherever_they_stand_in_a_text() -> None:
    assert redacted_text("a abcdefgh b xabcdefghx", ["abcdefgh"]) == "a *** b x***x"
