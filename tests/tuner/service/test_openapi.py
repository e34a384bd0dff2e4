"""Schemathesis against the service's own OpenAPI document: no answer that it does not document, and no 500.

Half of its requests are bent to a study, a trial and an ablation that there are, which it would not guess.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from cluster.order import Outcome
from tests.tuner.service.conftest import ANA, SPACE, listening, service_of
from tests.tuner.service.fakes import FakeProcesses
from tests.tuner.stories import failed, measured, order, study_file
from tuner.records import StoredTrial, write_outcome, write_study
from tuner.service.client import Client
from tuner.service.job_files import ServiceFiles
from tuner.service.tokens import Tokens, digest


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[schemathesis.BaseSchema]:
    """Of a service whose jobs end at once, with a study `tea` of good and bad trials, and one of its own."""
    service = replace(
        service_of(tmp_path_factory.mktemp("schema") / "runs", FakeProcesses(at_once=True)),
        tokens=Tokens((("ana", digest(ANA)),)),
        hosts=None,
    )
    _write_tea(service.files)
    with listening(service) as live:
        Client(live.url, ANA).post("/v1/studies", {"space": SPACE, "engine": "simulated", "name": "own"})
        yield schemathesis.openapi.from_url(f"{live.url}/openapi.json")


def _write_tea(files: ServiceFiles) -> None:
    folder = files.runs / "tea"
    write_study(folder, study_file("tea"))
    outcomes: list[Outcome] = [measured(1.0), measured(2.0), failed()]
    for number, outcome in enumerate(outcomes):
        trial = StoredTrial.of(
            order(number),
            outcome,
            config={"max_num_seqs": 16},
            is_control=number == 0,
            attempts=1,
            started=datetime(2026, 1, 1, tzinfo=UTC),
            finished=datetime(2026, 1, 1, 0, 1, tzinfo=UTC),
            tuner_version="0.1.0",
            secrets=(),
        )
        write_outcome(folder, trial, outcome)


def test_the_service_answers_as_its_document_says(schema: schemathesis.BaseSchema) -> None:
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(operations) == sum(len(methods) for methods in schema.raw_schema["paths"].values())
    for operation in operations:
        _hold(operation)


def _hold(operation: schemathesis.APIOperation[Any, Any, Any, Any]) -> None:
    @given(case=operation.as_strategy(), bent=st.booleans())
    @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def answers_as_documented(case: schemathesis.Case[Any], bent: bool) -> None:
        if bent and "study" in case.path_parameters:
            case.path_parameters["study"] = "own" if case.path.endswith(("events", "cancel")) else "tea"
        if bent and "number" in case.path_parameters:
            case.path_parameters["number"] = 1
        if case.path.endswith("/events"):
            case.query["follow"] = "false"
        case.call_and_validate(
            headers={"Authorization": f"Bearer {ANA}"},
            excluded_checks=[positive_data_acceptance],  # no schema says what a space or a trace is
        )

    answers_as_documented()
