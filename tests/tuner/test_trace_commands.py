import asyncio
import json
import math
import re
import signal
import sys
from pathlib import Path

import aiohttp
import click
import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from cluster.traffic.make import Recipe
from cluster.traffic.trace import read_trace
from tests.cluster.traffic.encoding import public
from tests.cluster.traffic.recording.fake_server import FakeServer, serving
from tuner.cli import main
from tuner.trace_commands import trace
from tuner.trace_usecases import requests_to_tell_apart


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["trace", *map(str, words)])


def told(*words: object) -> str:
    """What a command that succeeds prints."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: object) -> str:
    """What a command says that ends a user's mistake."""
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


@pytest.fixture
def made(tmp_path: Path) -> Path:
    out = tmp_path / "made.jsonl"
    told("make", "--out", out, "--requests", 300, "--rate", 5, "--input-mean", 900, "--output-mean", 30)
    return out


def test_every_figure_of_a_recipe_is_an_option_with_its_default() -> None:
    make = trace.commands["make"]
    options = {option.name: option for option in make.params if isinstance(option, click.Option)}
    for name, figure in Recipe.model_fields.items():
        assert options[name].required is figure.is_required(), name
        if not figure.is_required():
            assert options[name].default == figure.default, name


def test_a_made_trace_is_the_one_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl.gz"
    asked = (
        "--requests",
        200,
        "--rate",
        4,
        "--input-mean",
        1500,
        "--output-mean",
        20,
        "--shared-prefix",
        0.5,
    )
    said = json.loads(told("make", "--out", out, *asked, "--block-tokens", 64, "--seed", 3, "--json"))
    trace_read = read_trace(out)
    assert said["digest"] == trace_read.digest
    assert (len(trace_read.requests), trace_read.block_tokens) == (200, 64)
    assert said["figures"]["rate"] == pytest.approx(4)


def test_a_recipe_that_cannot_be_is_refused_with_every_fault(tmp_path: Path) -> None:
    asked = ("--requests", 0, "--rate", -1, "--input-mean", 10, "--output-mean", 20)
    said = refused("make", "--out", tmp_path / "t", *asked)
    assert "requests: Input should be greater than or equal to 1, got 0" in said
    assert "rate: Input should be" in said


def test_show_tells_of_everything(made: Path) -> None:
    said = told("show", made, "--ttft-ms", 200, "--tpot-ms", 10, "--speed", 2)
    for word in (
        "300 requests",
        "at 2 times",
        "burstiness",
        "prompts",
        "outputs",
        "prefix share",
        "sessions",
    ):
        assert word in said
    assert "were a request to take 200 ms and 10 ms a further token" in said
    assert "enough for    P99: 299 requests" in said


def test_show_as_json_has_no_nan_and_the_same_figures(made: Path) -> None:
    said = json.loads(told("show", made, "--json", "--speed", 2))
    assert said["figures"]["requests"] == 300
    assert said["concurrency"] is None
    assert sum(said["prompts"]["counts"]) == 300
    assert said["pace"]["window_s"] * sum(said["pace"]["rates"]) == pytest.approx(300)


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize(
    "words",
    [
        ("show", "--speed"),
        ("show", "--tell-apart"),
        ("show", "--pair-sd"),
        ("cut", "--out", "new.jsonl", "--sample"),
        ("cut", "--out", "new.jsonl", "--from"),
        ("split", "--search", "a.jsonl", "--held-out", "b.jsonl", "--share"),
        ("import", "--out", "new.jsonl", "--most-bad"),
    ],
)
def test_what_is_no_finite_number_is_refused_by_its_option(
    made: Path, words: tuple[str, ...], number: str
) -> None:
    assert f"Invalid value for '{words[-1]}'" in refused(words[0], made, *words[1:], number)


def test_a_service_time_needs_both_its_parts(made: Path) -> None:
    assert "--ttft-ms and --tpot-ms go together" in refused("show", made, "--ttft-ms", 3)


@pytest.mark.parametrize(("ending", "begins"), [("html", b"<!doctype html>"), ("png", b"\x89PNG")])
def test_a_picture_is_one_whole_file(made: Path, tmp_path: Path, ending: str, begins: bytes) -> None:
    out = tmp_path / f"picture.{ending}"
    told("show", made, "--picture", out)
    content = out.read_bytes()
    assert content.startswith(begins)
    assert b"https://cdn" not in content[:5000]


def test_a_picture_of_another_kind_is_refused(made: Path, tmp_path: Path) -> None:
    assert "a picture ends in .html or .png" in refused("show", made, "--picture", tmp_path / "p.gif")


def test_show_says_that_rounded_arrivals_are_bursts_that_never_were() -> None:
    said = told("show", public("mooncake_conversation.jsonl"))
    assert "12031 requests on 1180 timestamps, steps of 3 s" in said


def test_a_bad_file_is_named_line_by_line_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": -1}\n[]\n')
    said = refused("show", path)
    assert f"{path}:1: timestamp must lie between" in said
    assert f"{path}:2: not a JSON object but list" in said
    assert "No such file" in refused("show", tmp_path / "absent")


def test_requests_to_tell_apart_are_those_of_a_paired_test() -> None:
    # (1.96 + 0.8416)² · (0.2 / ln 1.03)² = 7.849 · 45.78 = 359.3
    assert requests_to_tell_apart(0.03, pair_sd=0.2) == 360
    assert requests_to_tell_apart(0.1, pair_sd=0.2) == math.ceil(7.8489 * (0.2 / math.log(1.1)) ** 2)


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def recorded(path: Path, *rows: str) -> Path:
    path.write_text("".join(f"{row}\n" for row in (AZURE, *rows)))
    return path


def test_import_accounts_for_every_row_and_writes_the_trace(tmp_path: Path) -> None:
    good = [f"2024-05-10 00:00:{i:02}+00:00,10,2" for i in range(30)]
    path, out = recorded(tmp_path / "a.csv", *good, "noon,1,1"), tmp_path / "t.jsonl"
    assert "1 of 31 rows are bad as azure, over the 1% allowed" in refused("import", path, "--out", out)
    assert not out.exists()
    said = told("import", path, "--out", out, "--most-bad", 5)
    assert "read 31 rows as azure, kept 30" in said
    assert f"{path}:32: no time" in said
    assert len(read_trace(out).requests) == 30
    data = json.loads(told("import", path, "--out", out, "--most-bad", 5, "--json"))
    assert data["report"]["dropped"] == {"no time": 1}


def test_an_unknown_format_lists_those_there_are(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.csv")
    said = refused("import", path, "--out", tmp_path / "t", "--format", "x")
    assert "there are vllm-timed, mooncake, azure" in said


def test_a_model_whose_tokenizer_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = recorded(tmp_path / "a.csv", "2024-05-10 00:00:00+00:00,10,2")
    assert "no tokenizer.json" in refused(
        "import", path, "--out", tmp_path / "t", "--model", tmp_path / "model"
    )


def test_cut_says_what_it_changed(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "cut.jsonl"
    said = told("cut", made, "--out", out, "--until", 30, "--sample", 50, "--context", 512, "--rate", 4)
    for word in ("window from 0 s to 30 s", "sample of", "prompts cut at their end", "now 4"):
        assert word in said
    seen = read_trace(out)
    assert max(r.input_length + r.output_length for r in seen.requests) <= 512
    assert (len(seen.requests) - 1) / seen.requests[-1].arrival_s == pytest.approx(4, rel=1e-4)


def test_cut_wants_something_to_do_and_not_two_paces(made: Path, tmp_path: Path) -> None:
    assert "nothing to cut" in refused("cut", made, "--out", tmp_path / "t")
    assert "give one of them" in refused("cut", made, "--out", tmp_path / "t", "--speed", 2, "--rate", 1)


def test_split_writes_two_traces_and_says_what_they_share(made: Path, tmp_path: Path) -> None:
    search, held = tmp_path / "s.jsonl", tmp_path / "h.jsonl"
    said = told("split", made, "--search", search, "--held-out", held, "--share", 25)
    assert "no session is in both; 0 of 75 held-out prompts begin like one searched on" in said
    assert (len(read_trace(search).requests), len(read_trace(held).requests)) == (225, 75)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_record_ends_with_a_whole_file_when_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    vocabulary = {"[UNK]": 0, "tell": 1, "me": 2}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    out = tmp_path / "t.jsonl"

    async def main() -> str:
        async with serving(FakeServer()) as server:
            words = (
                "trace",
                "record",
                "--to",
                server,
                "--out",
                out,
                "--model",
                tmp_path / "model",
                "--port",
                0,
            )
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "from tuner.cli import main; main()",
                *map(str, words),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            assert process.stdout is not None
            first = (await process.stdout.readline()).decode()
            address = re.search(r"http://[\d.]+:\d+", first)
            assert address is not None, first
            chat = {"messages": [{"role": "user", "content": "tell me"}], "stream": True}
            async with aiohttp.ClientSession() as client:
                for _ in range(3):
                    async with client.post(f"{address[0]}/v1/chat/completions", json=chat) as response:
                        await response.read()
            process.send_signal(number)
            rest = (await process.stdout.read()).decode()
            assert await process.wait() == 0, rest
            return rest

    said = asyncio.run(main())
    assert f"wrote {out}: 3 requests" in said
    assert "Traceback" not in said
    assert [(r.input_length, r.output_length) for r in read_trace(out).requests] == [(3, 3)] * 3


def test_record_says_what_is_wrong_before_it_begins(tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    assert "without a path" in refused("record", "--to", "http://127.0.0.1:9/v1", "--out", out)
    assert "does not say what it serves" in refused("record", "--to", "http://127.0.0.1:9", "--out", out)
    assert not out.exists()
