from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from cluster.traffic.tokenizer import TokenizerError, load_encode


def save_tokenizer(folder: Path) -> None:
    """A tokenizer that would add a special token and cut at three, if it were let."""
    tokenizer = Tokenizer(WordLevel({"<s>": 0, "?": 1, "a": 2, "b": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))


def test_encodes_without_special_tokens_truncation_or_padding(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    assert load_encode(str(tmp_path))("a b zz a b") == [2, 3, 1, 2, 3]


def test_a_folder_without_a_tokenizer_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json in this folder"):
        load_encode(str(tmp_path))


def test_a_file_that_is_no_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="not a tokenizer") as caught:
        load_encode(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("model", ["not a / name", "nobody/nothing"])
def test_a_hub_out_of_reach_is_one_line(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(TokenizerError, match="neither a folder here nor") as caught:
        load_encode(model)
    assert len(str(caught.value).splitlines()) == 1
