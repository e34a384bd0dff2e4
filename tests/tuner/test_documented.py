"""Every command and every endpoint is documented."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

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


def _told(command: str) -> bool:
    return re.search(rf"\b{re.escape(command)}\b(?!-)", _PAGES) is not None


def test_a_command_or_an_endpoint_that_is_nowhere_is_missed() -> None:
    grown = click.Group(commands={"front": click.Command("front"), "brew": click.Command("brew")})
    assert [command for command in _commands(grown, "tuner") if not _told(command)] == ["tuner brew"]
    app = FastAPI()
    app.get("/healthz")(lambda: None)
    app.post("/v1/brew", include_in_schema=False)(lambda: None)
    assert _endpoints(app) - _documented() == {"POST /v1/brew"}


@pytest.mark.parametrize("command", list(_commands(main, "tuner")))
def test_every_command_is_in_the_docs_and_says_what_it_does(command: str) -> None:
    assert _told(command), f"no page of docs/ has {command!r}"
    found: click.Command = main
    for name in command.split()[1:]:
        assert isinstance(found, click.Group)
        found = found.commands[name]
    assert found.help
    for parameter in found.params:
        if isinstance(parameter, click.Option) and parameter.required:
            assert parameter.help or parameter.name in ("number", "study"), f"{command} --{parameter.name}"


def _endpoints(app: FastAPI) -> set[str]:
    """Those that the schema leaves out too."""
    routes = (route for route in app.routes if isinstance(route, APIRoute))
    return {f"{method} {route.path}" for route in routes for method in route.methods}


def _documented() -> set[str]:
    return set(re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", _SERVICE, re.MULTILINE))


def test_every_endpoint_is_in_the_docs_of_the_service(tmp_path: Path) -> None:
    app = create_app(service_of(tmp_path / "runs"))
    assert _endpoints(app) == _documented()
    assert "`/openapi.json`" in _SERVICE


def test_every_event_is_in_the_docs_of_the_service() -> None:
    source = (_ROOT / "tuner" / "service" / "told.py").read_text()
    named = set(re.findall(r'return "(\w+)", ', source))
    assert event_json(FrontMoved(numbers=(1,)))[0] in named
    for name in named:
        assert f"`{name}`" in _SERVICE, name
