"""Whether an export folder is still what was exported.

`provenance.json` names every other file of the folder with its SHA-256, and holds a digest of itself, that
list included: so a hand that changed a launch file, a promised number or the list is told. Files whose names
begin with a dot are the user's own (`.env`, `.git`) and are not looked at.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from search_spaces.values import Json
from tuner.mistakes import Mistake

PROVENANCE = "provenance.json"

DIGEST = "digest"
FILES = "files"


def sealed(said: Mapping[str, Json], files: Mapping[str, str]) -> dict[str, Json]:
    """The provenance with the digests of these files and its own: what goes into `provenance.json`.

    Args:
        said: the provenance without both.
        files: file name → text, all that the folder holds beside it.
    """
    digests: dict[str, Json] = {name: _sha256(text.encode()) for name, text in sorted(files.items())}
    whole: dict[str, Json] = {**said, FILES: digests}
    return {**whole, DIGEST: _digest(whole)}


def read_provenance(folder: Path) -> dict[str, Json]:
    """What `provenance.json` of an export folder says, whether the folder agrees or not.

    Raises Mistake where there is none, or it cannot be read.
    """
    path = folder / PROVENANCE
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise Mistake(f"{folder} is no export: it has no {PROVENANCE}; tuner export writes one") from error
    except (OSError, ValueError) as error:
        raise Mistake(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(said, dict):
        raise Mistake(f"{path}: expected an object, got {type(said).__name__}")
    return said


def disagreements(folder: Path) -> tuple[str, ...]:
    """How an export folder and its provenance disagree, one sentence each; none where they agree.

    Raises Mistake where there is no provenance, it cannot be read, or it is of a tuner that wrote no digests.
    """
    said = read_provenance(folder)
    kept = said.get(FILES)
    if not isinstance(kept, dict) or not isinstance(said.get(DIGEST), str):
        raise Mistake(f"{folder / PROVENANCE} has no digests to hold the folder to; export it again")
    there = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }
    there.pop(PROVENANCE)
    told = []
    if said[DIGEST] != _digest({name: value for name, value in said.items() if name != DIGEST}):
        told.append(f"{PROVENANCE} was changed after it was exported")
    for name, digest in sorted(kept.items()):
        if name not in there:
            told.append(f"{name} was exported and is missing")
        elif _sha256(there[name].read_bytes()) != digest:
            told.append(f"{name} was changed after it was exported")
    told += [f"{name} is no file of this export" for name in there if name not in kept]
    return tuple(told)


def _digest(said: Mapping[str, Json]) -> str:
    return _sha256(json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
