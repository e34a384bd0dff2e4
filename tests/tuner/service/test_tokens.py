"""Who is asking."""

import hashlib
from pathlib import Path

import pytest
import yaml

from tuner.mistakes import Mistake
from tuner.service.tokens import TOKENS_VARIABLE, Tokens, digest, new_token


def test_a_token_is_its_users_and_any_other_is_nobodys(tmp_path: Path) -> None:
    first, second, third = (new_token(name) for name in ("ana", "ben", "ben"))
    path = tmp_path / "tokens.yaml"
    path.write_text(yaml.safe_dump({"ana": digest(first), "ben": [digest(second), digest(third)]}))
    tokens = Tokens.read(path, {})
    assert [tokens.user_of(token) for token in (first, second, third)] == ["ana", "ben", "ben"]
    assert tokens.user_of(first + "x") is None
    assert tokens.user_of("") is None
    assert tokens.user_of("\udcff") is None
    assert bool(tokens)


def test_every_hash_is_compared_whichever_token_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def counting(asked: str, known: str) -> bool:
        compared.append(known)
        return asked == known

    monkeypatch.setattr("tuner.service.tokens.hmac.compare_digest", counting)
    tokens = Tokens([("ana", digest("a")), ("ben", digest("b")), ("cy", digest("c"))])
    for token in ("a", "c", "none"):
        compared.clear()
        tokens.user_of(token)
        assert len(compared) == 3


def test_what_is_kept_is_the_sha_256_of_the_token() -> None:
    assert digest("abc") == hashlib.sha256(b"abc").hexdigest()
    assert len({new_token("ana") for _ in range(50)}) == 50


def test_tokens_come_from_the_environment_where_there_is_no_file() -> None:
    tokens = Tokens.read(None, {TOKENS_VARIABLE: "ana=0123456789abcdef ben=fedcba9876543210"})
    assert tokens.user_of("fedcba9876543210") == "ben"
    assert not Tokens.read(None, {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n- b\n",
        "ana: secret-in-the-clear\n",
        f"ana: {'A' * 64}\n",
        f"'../x': {'a' * 64}\n",
        f"ana: [{'a' * 64}, 3]\n",
        f"ana: {'a' * 64}\nben: {'a' * 64}\n",
        "ana: [\n",
    ],
)
def test_a_file_of_tokens_that_is_none_is_refused_without_repeating_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(text)
    with pytest.raises(Mistake) as told:
        Tokens.read(path, {})
    assert "secret-in-the-clear" not in str(told.value)


@pytest.mark.parametrize("words", ["ana", "ana=short", "=0123456789abcdef", "../x=0123456789abcdef"])
def test_words_of_the_environment_that_are_no_tokens_are_refused_without_repeating_them(words: str) -> None:
    with pytest.raises(Mistake) as told:
        Tokens.read(None, {TOKENS_VARIABLE: words})
    assert words not in str(told.value)
