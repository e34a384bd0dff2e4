from pathlib import Path

import pytest

from cluster.traffic.formats.importing import import_trace
from tests.cluster.traffic.encoding import words
from tests.cluster.traffic.formats.files import failure, lines

PARAMS = "SamplingParams(n=1, temperature=0.0, seed=None, max_tokens={}, min_tokens=0)"
TAIL = "prompt_embeds shape: None, lora_request: None, prompt_adapter_request: None."


def old(second: int, name: str, prompt: str, ids: object, limit: int = 16, pid: str = "") -> str:
    """A line as vLLM 0.8 to 0.11.1 writes it."""
    return (
        f"{pid}INFO 10-01 18:43:{second:02} [logger.py:39] Received request {name}: prompt: {prompt!r}, "
        f"params: {PARAMS.format(limit)}, prompt_token_ids: {ids}, {TAIL}"
    )


def new(second: int, name: str, limit: int = 100) -> str:
    """A line as vLLM 0.11.2 and later write it."""
    return (
        f"(APIServer pid=9) INFO 02-13 11:33:{second:02} [logger.py:49] Received request {name}: "
        f"params: {PARAMS.format(limit)}, lora_request: None."
    )


def test_lines_of_old_versions_have_prompts_and_the_limit_asked_for(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "log",
        "INFO 10-01 18:43:20 api_server.py:1] vLLM API server version 0.8.5",
        old(27, "cmpl-1-0", "How to make pizza", [5, 6, 7, 8]),
        'INFO:     127.0.0.1:3 - "POST /v1/completions HTTP/1.1" 200 OK',
        old(29, "cmpl-2-0", "it's, params: SamplingParams(max_tokens=3), ha", None, 24, "(APIServer pid=1) "),
    )
    trace, report = import_trace(path, encode=words, keep_text=True)
    assert (report.format, report.read, report.kept) == ("vllm-log", 2, 2)
    assert [(r.input_length, r.output_length) for r in trace.requests] == [(4, 16), (4, 24)]
    assert trace.requests[1].prompt == "it's, params: SamplingParams(max_tokens=3), ha"
    assert 1.0 < trace.requests[1].arrival_s < 3.0  # two seconds, each anywhere in its own
    limits, spread = trace.notes
    assert limits.startswith("2 output lengths are the most that was asked for")
    assert "spread at random over its step of 1 s" in spread


def test_token_ids_need_no_tokenizer_and_share_blocks(tmp_path: Path) -> None:
    shared = list(range(32))
    path = lines(
        tmp_path / "log",
        old(1, "a", "text", [*shared, 1]),
        old(2, "b", "text", [*shared, 2]),
    )
    trace, _ = import_trace(path)
    assert [r.hash_ids for r in trace.requests] == [(0, 1, 2), (0, 1, 3)]


def test_answers_that_were_logged_give_the_true_output_length(tmp_path: Path) -> None:
    done = "INFO 10-01 18:43:40 [logger.py:60] Generated response"
    path = lines(
        tmp_path / "log",
        old(27, "a", "one two", [1, 2]),
        old(28, "b", "three", [3]),
        f"{done} b (streaming delta): output: 'x', output_token_ids: [1], finish_reason: None",
        f"{done} b (streaming complete): output: 'x y z', output_token_ids: None, finish_reason: stop",
        f"{done} a: output: 'q, finish_reason: ', output_token_ids: [4, 5, 6, 7], finish_reason: length",
    )
    trace, _ = import_trace(path, encode=words)
    assert [r.output_length for r in trace.requests][1] == 3
    assert not any("most that was asked" in note for note in trace.notes if "2 output" in note)


def test_a_log_since_0_11_2_says_what_to_do_instead(tmp_path: Path) -> None:
    path = lines(tmp_path / "log", new(33, "chatcmpl-1"), new(34, "chatcmpl-2"))
    said = failure(path, most_bad=1.0)
    assert "its 2 requests have no lengths: vLLM's request log has carried none since 0.11.2" in said
    assert "tuner trace record" in said
    assert "tuner trace record" in failure(path)


def test_details_at_debug_level_bring_a_new_log_its_prompts(tmp_path: Path) -> None:
    detail = "DEBUG 02-13 11:33:33 [request_logger.py:40] Request chatcmpl-1 details: prompt: 'a b', "
    path = lines(
        tmp_path / "log",
        f"{detail}prompt_token_ids: [1, 2, 3], prompt_embeds shape: None.",
        new(33, "chatcmpl-1"),
    )
    (only,) = import_trace(path)[0].requests
    assert (only.input_length, only.output_length) == (3, 100)


@pytest.mark.parametrize(
    "days", [("12-31", "01-01"), ("02-28", "03-01"), ("02-29", "03-01"), ("06-30", "07-01")]
)
def test_a_log_without_years_goes_on_from_day_to_day(tmp_path: Path, days: tuple[str, str]) -> None:
    before = old(59, "a", "x", [1]).replace("10-01 18:43", f"{days[0]} 23:59")
    after = old(1, "b", "x", [1]).replace("10-01 18:43", f"{days[1]} 00:00")
    trace, _ = import_trace(lines(tmp_path / "log", before, after))
    assert 1 < trace.requests[1].arrival_s < 3  # two seconds, each anywhere in its own


def test_hostile_numbers_in_a_log_are_no_numbers(tmp_path: Path) -> None:
    path = lines(tmp_path / "log", old(1, "a", "x", "[,]"), old(2, "b", "x", f"[{'9' * 5000}]"))
    trace, _ = import_trace(path, encode=words)
    assert [r.input_length for r in trace.requests] == [1, 1]
