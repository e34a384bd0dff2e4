"""Verifications as they lie under a study's folder, whole or not there at all.

runs/<study>/verify/trial-0017/               the latest begun of a config, its runs beside it
                    /verification.json        once it is judged
runs/<study>/verify/trial-0017-2/ …           one more each time that it was begun anew
"""

import json
import math
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from objectives.measurement import Estimate
from search_spaces.values import Json
from tuner.records import RecordError
from tuner.verify.verification import Kept, Played, Quality, Stress, Verification

VERIFY = "verify"
VERIFICATION = "verification.json"
SCHEMA = 1

_Raw = dict[str, Any]  # what json.loads gives; typed on the way out of this module


def latest_verification(folder: Path, trial_number: int) -> Verification | None:
    """The verification of a config that was finished last; None where it was never verified.

    Args:
        folder: the study's.
        trial_number: of the config's first trial.

    Raises RecordError where one cannot be read.
    """
    return latest_verifications(folder).get(trial_number)


def latest_verifications(folder: Path) -> dict[int, Verification]:
    """The same for every config that was verified, by number. Raises RecordError as that does."""
    return {one.trial: one for one in sorted(verifications(folder), key=lambda one: one.finished)}


def verifications(folder: Path) -> tuple[Verification, ...]:
    """All finished verifications of a study. Raises RecordError where one cannot be read."""
    return tuple(read_verification(path) for path in sorted(folder.glob(f"{VERIFY}/*/{VERIFICATION}")))


def write_verification(folder: Path, found: Verification) -> None:
    """Write it into its own folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{VERIFICATION}.part"
    part.write_text(
        json.dumps(verification_json(found), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )
    part.replace(folder / VERIFICATION)


def verification_json(found: Verification) -> dict[str, Json]:
    """As JSON takes it: an end that is not finite is null."""
    raw: dict[str, Json] = _plain(asdict(found)) | {"schema": SCHEMA}
    return raw


def read_verification(path: Path) -> Verification:
    """Raises RecordError where there is none or it cannot be read."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.pop("schema") != SCHEMA:
            raise ValueError(f"another schema, this version reads {SCHEMA}")
        return _verification(raw)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


def _verification(raw: _Raw) -> Verification:
    return Verification(
        **raw
        | {
            "promises": tuple(_kept(one) for one in raw["promises"]),
            "not_judged": tuple(raw["not_judged"]),
            "quality": Quality(**raw["quality"]),
            "stress": tuple(_stress(one) for one in raw["stress"]),
            "traffic": Played(**raw["traffic"] | {"digests": tuple(raw["traffic"]["digests"])}),
            "started": datetime.fromisoformat(raw["started"]),
            "finished": datetime.fromisoformat(raw["finished"]),
            "notes": tuple(raw["notes"]),
        }
    )


def _kept(raw: _Raw) -> Kept:
    estimates = {name: _estimate(raw[name]) for name in ("promised", "verified", "control", "ratio")}
    return Kept(**raw | estimates)


def _stress(raw: _Raw) -> Stress:
    shown = {
        side: {name: Estimate(**one) for name, one in raw[side].items()} for side in ("metrics", "control")
    }
    return Stress(**raw | shown)


def _estimate(raw: _Raw | None) -> Estimate | None:
    return None if raw is None else Estimate(**raw)


def _plain(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case datetime():
            return value.isoformat()
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
