"""A model's tokenizer, from its folder or from the hub: text to token ids and nothing more."""

from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from cluster.traffic.text import Encode

FILE = "tokenizer.json"


class TokenizerError(ValueError):
    """A model's tokenizer cannot be had; one line that says why and what to do."""


@lru_cache(maxsize=4)
def load_encode(model: str) -> Encode:
    """The encoding of a model's tokenizer: no special tokens, no truncation, no padding.

    Args:
        model: a local folder with a `tokenizer.json`, or a hub id (only that file is fetched, and
            taken from the hub's cache where it is there).

    Raises:
        TokenizerError: where there is no such file, or it is no tokenizer.
    """
    path = model_file(model, FILE)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for any bad file
        raise TokenizerError(f"{path}: not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return encode


def model_file(model: str, name: str) -> Path:
    """A file of a model's: in its folder, in the hub's cache, or fetched from the hub.

    Raises:
        TokenizerError: where there is none.
    """
    folder = Path(model)
    if folder.is_dir():
        path = folder / name
        if not path.is_file():
            raise TokenizerError(f"{model}: no {name} in this folder; save the model with its fast tokenizer")
        return path
    # Only a hub id needs it, and its import takes longer than the rest of this house.
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(model, name)
        if isinstance(cached, str):  # else a hub out of reach is retried for half a minute first
            return Path(cached)
        return Path(hf_hub_download(model, name))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TokenizerError(
            f"{model}: neither a folder here nor a {name} to be had from the hub ({reason})"
        ) from error
