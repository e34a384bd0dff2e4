"""Counters of every version by one table, against a real scrape and against another parser."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as Distribution
from prometheus_client.parser import text_string_to_metric_families

from cluster.node.counters import SOURCES, cache_config, caveats, read_sample, readings
from objectives.measurement import Histogram, Sample

SCRAPE = (Path(__file__).parent / "data" / "metrics_0.32.0.txt").read_text()
"""vLLM 0.32.0, CPU build, after 48 requests of 32 tokens with ngram speculation at depth 4."""

NAMES = frozenset(name for source in SOURCES for name in source.names)


def test_a_real_scrape_gives_every_field() -> None:
    # Values read off the file by eye.
    assert read_sample(SCRAPE, 2.5, "0.32.0+cpu") == Sample(
        at_s=2.5,
        running=0,
        waiting=0,
        kv_usage=0,
        preemptions_total=0,
        prompt_tokens_total=21294,
        generation_tokens_total=1536,
        target_steps_total=173,
        step_tokens_total=11310,
        prefix_queries_total=21294,
        prefix_hits_total=11520,
        drafts_total=168,
        draft_tokens_total=672,
        accepted_tokens_total=501,
        accepted_per_position_total=(153, 126, 111, 111),
        queue_time_s_total=0.0012756009982695105,
        inference_time_s_total=159.11560650999672,
        flops_total=2.865122731008e12,
        read_bytes_total=6.3956176128e10,
        write_bytes_total=5.020581888e9,
        finished_total=48,
    )


HISTOGRAMS = {
    "ttft_histogram": "vllm:time_to_first_token_seconds",
    "itl_histogram": "vllm:inter_token_latency_seconds",
    "tpot_histogram": "vllm:request_time_per_output_token_seconds",
    "e2e_histogram": "vllm:e2e_request_latency_seconds",
}


@pytest.mark.parametrize(("field", "name"), HISTOGRAMS.items())
def test_a_real_scrapes_histograms_are_what_prometheus_own_parser_reads(field: str, name: str) -> None:
    (family,) = (family for family in text_string_to_metric_families(SCRAPE) if family.name == name)
    buckets = {float(s.labels["le"]): s.value for s in family.samples if s.name.endswith("_bucket")}
    (total,) = (s.value for s in family.samples if s.name.endswith("_sum"))
    (count,) = (s.value for s in family.samples if s.name.endswith("_count"))
    histogram = getattr(read_sample(SCRAPE, 0.0, "0.32.0", histograms=True), field)
    assert dict(zip(histogram.bounds, histogram.counts, strict=True)) == buckets
    assert histogram.bounds == tuple(sorted(buckets))
    assert histogram.sum == total
    assert histogram.counts[-1] == count > 0


def test_a_reading_between_the_edges_has_no_histogram() -> None:
    sample = read_sample(SCRAPE, 0.0, "0.32.0")
    assert [getattr(sample, field) for field in HISTOGRAMS] == [None] * 4
    edge = read_sample(SCRAPE, 0.0, "0.32.0", histograms=True)
    assert asdict(edge) | dict.fromkeys(HISTOGRAMS) == asdict(sample)


@pytest.mark.parametrize(
    ("written", "gone"),
    [
        ("vllm:time_per_output_token_seconds", "request_time_per_output_token"),  # until 0.10.1
        ("vllm:inter_token_latency_seconds", None),
    ],
)
def test_time_between_outputs_is_found_under_both_of_its_names(written: str, gone: str | None) -> None:
    text = SCRAPE.replace("vllm:inter_token_latency_seconds", written)
    text = "\n".join(line for line in text.split("\n") if gone is None or gone not in line)
    sample = read_sample(text, 0.0, histograms=True)
    assert sample.itl_histogram == read_sample(SCRAPE, 0.0, histograms=True).itl_histogram
    assert (sample.tpot_histogram is None) is (gone is not None)


def test_where_both_names_are_written_the_newer_one_counts() -> None:
    text = SCRAPE + 'vllm:time_per_output_token_seconds_bucket{le="+Inf"} 9\n'
    text += "vllm:time_per_output_token_seconds_sum 9\n"
    assert read_sample(text, 0.0, histograms=True) == read_sample(SCRAPE, 0.0, histograms=True)


def test_histograms_of_several_engines_are_summed_bucket_by_bucket() -> None:
    text = """
vllm:e2e_request_latency_seconds_bucket{engine="0",le="1.0"} 2
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf"} 3
vllm:e2e_request_latency_seconds_bucket{engine="1",le="+Inf"} 5
vllm:e2e_request_latency_seconds_bucket{engine="1",le="1.0"} 1
vllm:e2e_request_latency_seconds_sum{engine="0"} 4.5
vllm:e2e_request_latency_seconds_sum{engine="1"} 20.25
"""
    expected = Histogram(bounds=(1.0, math.inf), counts=(3, 8), sum=24.75)
    assert read_sample(text, 0.0, histograms=True).e2e_histogram == expected


@given(
    st.lists(st.floats(0, 100), max_size=40),
    st.lists(st.floats(0.001, 50), unique=True, min_size=1, max_size=8),
)
def test_a_histogram_counts_what_was_observed(observed: list[float], bounds: list[float]) -> None:
    registry = CollectorRegistry()
    buckets = (*sorted(bounds), math.inf)
    theirs = Distribution(
        "vllm:time_to_first_token_seconds", "x", ["engine"], registry=registry, buckets=buckets
    ).labels("0")
    for seconds in observed:
        theirs.observe(seconds)
    ours = read_sample(generate_latest(registry).decode(), 0.0, histograms=True).ttft_histogram
    assert ours is not None
    assert ours.bounds == buckets
    assert ours.counts == tuple(sum(seconds <= bound for seconds in observed) for bound in buckets)
    assert ours.sum == pytest.approx(math.fsum(observed))


E2E = "vllm:e2e_request_latency_seconds"


@pytest.mark.parametrize(
    "text",
    [
        f'{E2E}_bucket{{le="1.0"}} 2\n{E2E}_sum 1\n',  # where do the others lie?
        f'{E2E}_bucket{{le="+Inf"}} 2\n',
        f'{E2E}_bucket{{le="+Inf"}} 2\n{E2E}_sum NaN\n',
        f'{E2E}_bucket{{le="one"}} 2\n{E2E}_bucket{{le="+Inf"}} 2\n{E2E}_sum 1\n',
        f'{E2E}_bucket{{le="NaN"}} 2\n{E2E}_bucket{{le="+Inf"}} 2\n{E2E}_sum 1\n',
        f'{E2E}_bucket 2\n{E2E}_bucket{{le="+Inf"}} 2\n{E2E}_sum 1\n',
        f'{E2E}_bucket{{le="1.0"}} 3\n{E2E}_bucket{{le="+Inf"}} 2\n{E2E}_sum 1\n',
        f'{E2E}_bucket{{le="1.0"}} NaN\n{E2E}_bucket{{le="+Inf"}} 2\n{E2E}_sum 1\n',
        f"{E2E}_sum 1\n{E2E}_count 2\n",
    ],
)
def test_what_is_no_whole_histogram_is_unknown(text: str) -> None:
    assert read_sample(text, 0.0, histograms=True) == Sample(at_s=0.0)


def test_the_real_scrape_adds_up() -> None:
    sample = read_sample(SCRAPE, 0.0, "0.32.0")
    # Every output token was made in a step, and every prompt token was computed or found in the cache.
    assert sample.step_tokens_total == 1536 + 21294 - 11520
    assert sample.accepted_per_position_total is not None
    assert sum(sample.accepted_per_position_total) == sample.accepted_tokens_total


def test_the_prefix_filter_reads_what_prometheus_own_parser_reads() -> None:
    theirs = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(SCRAPE)
        for sample in family.samples
        if sample.name in NAMES
    ]
    ours = [(reading.name, reading.labels, reading.value) for reading in readings(SCRAPE, NAMES)]
    assert ours == theirs
    assert len(ours) > 20


@given(
    st.lists(
        st.tuples(st.text(max_size=12), st.floats(allow_nan=False) | st.sampled_from([1e-300, 1e22])),
        max_size=6,
        unique_by=lambda pair: pair[0],
    )
)
def test_any_label_and_any_value_are_read_as_prometheus_own_parser_reads_them(
    pairs: list[tuple[str, float]],
) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("vllm:kv_cache_usage_perc", "x", ["model_name", "engine"], registry=registry)
    for label, value in pairs:
        gauge.labels(label, "0").set(value)
    text = generate_latest(registry).decode()
    theirs = [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert [(reading.labels, reading.value) for reading in readings(text, NAMES)] == theirs


@pytest.mark.parametrize("field", [field for field in Sample.__dataclass_fields__ if field != "at_s"])
def test_a_counter_that_is_not_there_is_unknown_and_never_zero(field: str) -> None:
    assert getattr(read_sample("", 0.0), field) is None
    assert getattr(read_sample("python_info 1.0\n# HELP vllm:x y\nvllm:other 3\n", 0.0), field) is None


def test_without_speculation_its_counters_are_unknown_and_the_others_are_not() -> None:
    text = "\n".join(line for line in SCRAPE.split("\n") if "spec_decode" not in line)
    sample = read_sample(text, 0.0)
    assert (sample.drafts_total, sample.draft_tokens_total, sample.accepted_tokens_total) == (
        None,
        None,
        None,
    )
    assert sample.accepted_per_position_total is None
    assert sample.generation_tokens_total == 1536


# What each version writes for the same state; names as found in its wheel.
V0_8_5 = """vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 90.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 30.0
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:generation_tokens_total{engine="0",model_name="m"} 500.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 50.0
"""
V0_9_2 = (
    V0_8_5.replace("0.25", "0.99").replace("90.0", "7.0").replace("30.0", "6.0")
    + """vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 90.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 30.0
"""
)
V0_33 = V0_8_5.replace("gpu_cache", "kv_cache").replace("gpu_prefix", "prefix")


@pytest.mark.parametrize("text", [V0_8_5, V0_9_2, V0_33], ids=["0.8.5", "0.9.2, both names", "0.33"])
@pytest.mark.parametrize("suffix", [True, False], ids=["with _total", "without"])
def test_every_versions_names_give_the_same_sample(text: str, suffix: bool) -> None:
    if not suffix:
        text = text.replace("_total{", "{")
    assert read_sample(text, 1.0) == Sample(
        at_s=1.0,
        running=4,
        kv_usage=0.25,
        prefix_queries_total=90,
        prefix_hits_total=30,
        preemptions_total=2,
        generation_tokens_total=500,
        target_steps_total=50,
    )


def test_several_engines_are_summed_and_shares_are_averaged() -> None:
    text = """
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_running{engine="1"} 5
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 1
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 7
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 10
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="1"} 2
"""
    sample = read_sample(text, 0.0)
    assert sample.running == 8
    assert sample.kv_usage == pytest.approx(0.3)
    assert sample.accepted_per_position_total == (17, 3)


def test_ten_positions_are_ordered_as_numbers() -> None:
    lines = [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{n}"}} {100 - n}\n'
        for n in (10, *range(10))
    ]
    assert read_sample("".join(lines), 0.0).accepted_per_position_total == tuple(100.0 - n for n in range(11))


@pytest.mark.parametrize(
    "text",
    [
        'vllm:num_requests_running{engine="0"} NaN',
        'vllm:num_requests_running{engine="0"} +Inf',
        'vllm:num_requests_running{engine="0" 3',
        'vllm:num_requests_running{engine="0"}',
        "vllm:num_requests_running three",
        "vllm:num_requests_running",
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 3',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0"} 3',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} NaN',
    ],
)
def test_a_line_that_gives_no_number_gives_unknown(text: str) -> None:
    assert read_sample(text, 0.0) == Sample(at_s=0.0)


def test_a_time_stamp_after_the_value_is_not_the_value() -> None:
    assert read_sample("vllm:num_requests_running 3 1796020757658", 0.0).running == 3


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.22.1", False), ("0.23.0rc1", False), ("0.23.0", True), (None, False), ("dev", False)],
)
def test_step_tokens_that_meant_something_else_or_may_have_are_unknown(
    version: str | None, known: bool
) -> None:
    sample = read_sample(SCRAPE, 0.0, version)
    assert (sample.step_tokens_total == 11310) is known
    assert (sample.step_tokens_total is None) is not known
    assert sample.target_steps_total == 173


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.33.0", []),
        ("0.32.0+cpu", []),
        ("0.27.1", []),
        ("0.27.1rc2", ["admission"]),
        ("0.27.1.dev3+g1a2b3c", ["admission"]),
        ("0.27.0", ["admission"]),
        ("0.22.1", ["tokens per step", "admission"]),
        ("v0.11.0", ["tokens per step", "admission", "preempted"]),
        ("0.8.5.post1", ["tokens per step", "admission", "preempted", "blocks"]),
        (None, ["unknown"]),
        ("dev", ["unknown"]),
    ],
)
def test_a_version_says_what_its_counters_mean(version: str | None, said: list[str]) -> None:
    sentences = caveats(version)
    assert len(sentences) == len(said)
    assert all(word in sentence for word, sentence in zip(said, sentences, strict=True))


def test_the_cache_settings_are_read_as_the_engine_prints_them() -> None:
    settings: Mapping[str, str] = cache_config(SCRAPE)
    assert settings["num_gpu_blocks"] == "728"
    assert settings["block_size"] == "128"
    assert settings["kv_cache_dtype_skip_layers"] == "[]"
    assert cache_config("") == {}


def test_a_brace_or_a_quote_in_a_label_ends_nothing() -> None:
    registry = CollectorRegistry()
    counter = Counter("vllm:num_preemptions", "x", ["model_name"], registry=registry)
    counter.labels('a} "b\\ {c}, d="e"\n').inc(3)
    (reading,) = readings(generate_latest(registry).decode(), NAMES)
    assert reading.labels == {"model_name": 'a} "b\\ {c}, d="e"\n'}
    assert reading.value == 3
