"""Engine arguments checked by the vLLM that is installed here, before any GPU time is spent.

vLLM's own parser is the judge: its names, its types, its choices. Importing it takes many seconds and much
memory, so that happens in a process of its own (`python -m cluster.node.vllm_arguments`, JSON in and out),
and beside the launcher nothing else imports vllm. What only shows with the model at hand (a budget smaller
than a context, a scheme without a kernel) shows at the engine's start.
"""

import argparse
import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from cluster.node.command import OURS, installed_version
from cluster.node.failure import error_lines, shortened
from cluster.node.guarded import PACKAGE_ROOT
from search_spaces.arguments import to_flags
from search_spaces.values import Json

_CHECK_S = 300.0
"""Importing vLLM takes ten seconds on a fast machine, a minute on a small loaded one."""


class EngineMissing(Exception):
    """No vLLM that works is installed here; the message is one line on what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentFault:
    """An argument that vLLM would refuse."""

    index: int
    """Of the config among those checked."""
    argument: str
    """The argument's name; `speculative_config.method` for a key inside one."""
    message: str
    """One line: what is wrong, and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What vLLM says of the configs."""

    version: str
    faults: tuple[ArgumentFault, ...]
    """In the order of the configs; all of them, not the first."""


def check_arguments(configs: Sequence[Mapping[str, Json]]) -> Checked:
    """Every argument of every config, checked by the installed vLLM. Raises EngineMissing."""
    if importlib.util.find_spec("vllm") is None:
        raise EngineMissing("vLLM is not installed here: pip install '.[gpu]', or '.[cpu]' without a GPU")
    try:
        told = subprocess.run(
            [sys.executable, "-m", "cluster.node.vllm_arguments"],
            input=json.dumps([dict(config) for config in configs]),
            capture_output=True,
            text=True,
            cwd=PACKAGE_ROOT,
            timeout=_CHECK_S,
        )
    except subprocess.TimeoutExpired:
        raise EngineMissing(f"the installed vLLM did not load within {_CHECK_S:g} s") from None
    if told.returncode != 0:
        *_, problem = ("no error said", *error_lines(told.stderr))
        raise EngineMissing(f"the installed vLLM does not load: {shortened(problem)}")
    answer = json.loads(told.stdout)
    return Checked(
        version=answer["version"], faults=tuple(ArgumentFault(**fault) for fault in answer["faults"])
    )


class _Refused(Exception):
    """What the parser would have ended the process with."""


class _Judge:
    """vLLM's parser, asked one argument at a time."""

    def __init__(self) -> None:
        speculative = _first("SpeculativeConfig", "vllm.config")
        self._parser = _parser()
        self._names = frozenset(vars(self._parser.parse_args([])))
        self._speculation: dict[str, Any] = {
            field.name: field.type for field in dataclasses.fields(speculative)
        }
        # The parser takes any text for it, since plugins can add schemes.
        self._schemes = frozenset(
            _first("QUANTIZATION_METHODS", "vllm.model_executor.layers.quantization")
        ) | {"online"}
        self._seen: dict[str, list[tuple[str, str]]] = {}

    def faults(self, arguments: Mapping[str, Json]) -> list[tuple[str, str]]:
        """(argument, message) pairs."""
        return [fault for name, value in arguments.items() for fault in self._remembered(name, value)]

    def _remembered(self, name: str, value: Json) -> list[tuple[str, str]]:
        """The configs of a space share most of their values."""
        key = json.dumps([name, value], sort_keys=True)
        if key not in self._seen:
            self._seen[key] = list(self._faults(name, value))
        return self._seen[key]

    def _faults(self, name: str, value: Json) -> list[tuple[str, str]]:
        if name in OURS:
            return [(name, "is set by the tuner itself; leave it out")]
        if name not in self._names:
            return [(name, no_such_argument(name, self._names))]
        try:
            parsed = self._parser.parse_args(list(to_flags({name: value})))
        except _Refused as refusal:
            return [(name, _told(str(refusal)))]
        if parsed.model_tag is not None:  # `--enable-prefix-caching yes`: the flag takes no value
            return [(name, f"takes true or false, got {json.dumps(value)}")]
        if name == "quantization" and value is not None and value not in self._schemes:
            return [(name, f"vLLM has no scheme {json.dumps(value)}{_nearest(str(value), self._schemes)}")]
        if name == "speculative_config" and isinstance(value, dict):
            return self._speculation_faults(value)
        return []

    def _speculation_faults(self, config: Mapping[str, Json]) -> list[tuple[str, str]]:
        faults = []
        for key, value in config.items():
            name = f"speculative_config.{key}"
            if key not in self._speculation:
                faults.append((name, f"vLLM has no such key{_nearest(key, self._speculation)}"))
                continue
            try:
                TypeAdapter(self._speculation[key]).validate_python(value)
            except ValidationError as error:
                message = error.errors()[0]["msg"]
                faults.append((name, f"{message[0].lower()}{message[1:]}, got {json.dumps(value)}"))
        return faults


def _parser() -> argparse.ArgumentParser:
    """vLLM's parser of a server's command line, with refusals raised."""
    # Where it was: before 0.12, before 0.32.
    flexible = _first("FlexibleArgumentParser", "vllm.utils.argparse_utils", "vllm.utils")
    make = _first(
        "make_arg_parser", "vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"
    )

    def refuse(_: argparse.ArgumentParser, message: str) -> NoReturn:
        raise _Refused(message)

    parser: argparse.ArgumentParser = make(type("Parser", (flexible,), {"error": refuse})())
    return parser


def _first(name: str, *modules: str) -> Any:  # vLLM's own objects, of any version
    """What is called this in the first of the modules that is there and has it."""
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError, AttributeError):
            return getattr(importlib.import_module(module), name)
    raise ImportError(f"this vLLM has no {name} in {' or '.join(modules)}")


def no_such_argument(name: str, known: frozenset[str]) -> str:
    """What is told of a name that vLLM does not have."""
    return f"vLLM has no such argument{_nearest(name, known)}"


def _nearest(name: str, known: frozenset[str] | Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _told(refusal: str) -> str:
    """The parser's message without the flag, which the fault names already."""
    _, found, message = refusal.partition(": ")
    lines = [line.strip() for line in (message if found else refusal).splitlines() if line.strip()]
    if len(lines) > 2 and "validation error" in lines[0]:  # pydantic: a count, the key, what is wrong with it
        lines = [f"{lines[1]}: {lines[2].partition(' [type=')[0]}"]
    return shortened(" ".join(lines))


def main() -> int:
    """Check the configs on standard input; answer on standard output."""
    answer_to = os.dup(1)
    os.dup2(2, 1)  # vLLM logs to standard output
    configs = json.loads(sys.stdin.read())
    judge = _Judge()
    answer = {
        "version": installed_version() or "unknown",
        "faults": [
            {"index": index, "argument": argument, "message": message}
            for index, config in enumerate(configs)
            for argument, message in judge.faults(config)
        ],
    }
    with os.fdopen(answer_to, "w") as output:
        json.dump(answer, output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
