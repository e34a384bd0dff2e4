"""Every command and every endpoint is documented."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.tuner.service.conftest import service_of
from tuner.cli import main
from tuner.service.app import create_app
from tuner.service.told import event_json
from tuner.study import FrontMoved

_ROOT = Path(__file__).parents[2]
_PAGES = "\n".join(path.read_text() for path in [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))])
_SERVICE = (_ROOT / "docs" / "service.md").read_text()


def _commands(group: click.Group, above: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, f"{above} {name}")
        else:
            yield f"{above} {name}"


@pytest.mark.parametrize("command", list(_commands(main, "tuner")))
def test_every_command_is_in_the_docs_and_says_what_it_does(command: str) -> None:
    assert re.search(rf"\b{command}\b(?!-)", _PAGES), f"no page of docs/ has {command!r}"
    found: click.Command = main
    for name in command.split()[1:]:
        assert isinstance(found, click.Group)
        found = found.commands[name]
    assert found.help
    for parameter in found.params:
        if isinstance(parameter, click.Option) and parameter.required:
            assert parameter.help or parameter.name in ("number", "study"), f"{command} --{parameter.name}"


def test_every_endpoint_is_in_the_docs_of_the_service(tmp_path: Path) -> None:
    app = create_app(service_of(tmp_path / "runs"))
    there = {
        f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods
    }
    documented = set(re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", _SERVICE, re.MULTILINE))
    assert documented == there


def test_every_event_is_in_the_docs_of_the_service() -> None:
    source = (_ROOT / "tuner" / "service" / "told.py").read_text()
    named = set(re.findall(r'return "(\w+)", ', source))
    assert event_json(FrontMoved(numbers=(1,)))[0] in named
    for name in named:
        assert f"`{name}`" in _SERVICE, name
