"""Records and samples come back from Parquet as they went in, of this version and of an earlier one."""

import math
from pathlib import Path

import pyarrow.parquet as pq

from objectives.measurement import Histogram, Record, Sample
from tuner.series import read_records, read_samples, write_records, write_samples

TOLD = Record(
    request=0,
    due_s=0.0,
    sent_s=0.0,
    server_queue_s=0.001,
    server_ttft_s=0.2,
    server_generation_s=1.5,
    server_itl_mean_s=0.05,
    drafts=10,
    draft_tokens=40,
    accepted_tokens=21,
)
HISTOGRAM = Histogram(bounds=(0.1, 2.5, math.inf), counts=(1.0, 3.0, 4.0), sum=12.25)


def test_what_the_engine_said_of_a_request_is_kept(tmp_path: Path) -> None:
    records = (TOLD, Record(request=1, due_s=0.5, sent_s=None, error="connection refused"))
    write_records(tmp_path / "r", records)
    assert read_records(tmp_path / "r") == records


def test_a_histogram_is_kept_and_its_absence_too(tmp_path: Path) -> None:
    samples = (
        Sample(at_s=0.0, ttft_histogram=HISTOGRAM),
        Sample(at_s=1.0, running=2.0),
        Sample(at_s=2.0, finished_total=4.0, ttft_histogram=HISTOGRAM, e2e_histogram=HISTOGRAM),
    )
    write_samples(tmp_path / "s", samples)
    assert read_samples(tmp_path / "s") == samples


def test_a_file_from_before_a_field_was_kept_reads_as_unknown(tmp_path: Path) -> None:
    write_records(tmp_path / "r", [TOLD])
    table = pq.read_table(tmp_path / "r")
    told = [name for name in table.column_names if name.startswith(("server_", "draft", "accepted"))]
    pq.write_table(table.drop_columns(told), tmp_path / "earlier")
    assert len(told) == 7
    assert read_records(tmp_path / "earlier") == (Record(request=0, due_s=0.0, sent_s=0.0),)
