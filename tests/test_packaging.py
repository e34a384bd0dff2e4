"""The four top-level names are generic, and others ship some of them; nobody else may own ours here."""

import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import cluster
import objectives
import search_spaces
import tuner

OURS = (tuner, cluster, objectives, search_spaces)


def test_the_four_packages_lie_in_one_folder() -> None:
    folders = {Path(package.__file__ or "").parent.parent for package in OURS}
    assert len(folders) == 1


def test_no_other_distribution_owns_one_of_our_names() -> None:
    owners = packages_distributions()
    # An editable install lists no packages, so a name may have no owner; it must not have a foreign one.
    foreign = {
        package.__name__: set(owners.get(package.__name__, ())) - {"llm-serving-tuner"} for package in OURS
    }
    assert not any(foreign.values()), foreign


def test_the_wheel_holds_all_four_with_their_types_and_the_shipped_spaces(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; it is in the dev extra")
    root = Path(__file__).parent.parent
    # The backend itself: no environment of its own to fill, so it builds without a network.
    build = [*(sys.executable, "-m", "hatchling", "build"), *("-t", "wheel", "-d", str(tmp_path))]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
    names = {package.__name__ for package in OURS}
    assert {name.partition("/")[0] for name in held} == names
    assert {f"{name}/py.typed" for name in names} <= held
    modules = {str(path.relative_to(root)) for name in names for path in (root / name).rglob("*.py")}
    assert {name for name in held if name.endswith(".py")} == modules
    shipped = {name for name in held if name.startswith("search_spaces/spaces/")}
    assert shipped == {f"search_spaces/spaces/{name}.yaml" for name in ("8b", "70b", "smollm2-135m")}
