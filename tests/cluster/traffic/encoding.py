"""A stand-in for a tokenizer, and where the public traces are."""

import zlib
from pathlib import Path

import pytest

PUBLIC = Path(__file__).parents[3].parent / "shared" / "traces"


def words(text: str) -> list[int]:
    """One token a word, by its checksum: thousands of different ones, the same on every machine."""
    return [zlib.crc32(word.encode()) for word in text.split()]


def letters(text: str) -> list[int]:
    """One token a character: about a hundred different ones, as few as any tokenizer has."""
    return [ord(letter) for letter in text]


def public(name: str) -> Path:
    """A public trace's file; skips the test where it is not beside the checkout."""
    path = PUBLIC / name
    if not path.is_file():
        pytest.skip(f"needs the public trace {name} in ../shared/traces")
    return path
