"""Writes the golden files anew: `python -m tests.tuner.export.renew_golden`. Read what git says changed."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.tuner.export.subjects import SUBJECTS
from tuner.export.digest import PROVENANCE
from tuner.export.targets import TARGETS

GOLDEN = Path(__file__).parent / "golden"

CASES = tuple(
    (target, name) for target in TARGETS for name in SUBJECTS if (target, name) != ("ray-serve", "secrets")
)
"""Ray Serve's config can hold no secret of an argument but in the clear, and is refused."""


_OTHERS = ("promised", "quality", "verification", "digest")
"""Parts of a provenance that other packages word, and what follows from them: their own tests hold those."""


def golden_files(target: str, name: str) -> Iterator[tuple[str, str]]:
    """File name and text of what is kept. Of one target the provenance: others differ in digests alone."""
    for file, text in TARGETS[target].files(SUBJECTS[name]).items():
        if file != PROVENANCE:
            yield file, text
        elif target == "vllm":
            said = {key: value for key, value in json.loads(text).items() if key not in _OTHERS}
            yield file, json.dumps(said, indent=2) + "\n"


def main() -> None:
    """Replace them all."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for target, name in CASES:
        folder = GOLDEN / target / name
        folder.mkdir(parents=True)
        for file, text in golden_files(target, name):
            (folder / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
