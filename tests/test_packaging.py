"""The four top-level names are generic, and others ship some of them; nobody else may own ours here."""

from importlib.metadata import packages_distributions
from pathlib import Path

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


def test_the_wheel_is_told_to_hold_all_four() -> None:
    import tomllib

    settings = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(packages) == sorted(package.__name__ for package in OURS)
