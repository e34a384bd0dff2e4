from search_spaces.values import Json
from tuner.redaction import redacted_environment, redacted_settings, redacted_text, without_passwords


def test_passwords_in_urls_are_blanked_and_the_rest_is_kept() -> None:
    text = "postgresql+psycopg://me:p%40ss@db:5432/x and https://host/path:1@2 and mysql://me@db"
    assert without_passwords(text) == (
        "postgresql+psycopg://me:***@db:5432/x and https://host/path:1@2 and mysql://me@db"
    )


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
