"""The quality guard of a search: which trial is asked what, and the verdict on its answers.

Each artefact is asked once, by the first trial of it that has the chance. The control runs first and is the
reference; where it failed, the next trial is that serves the same checkpoint in the same number formats.
While there is no reference nothing else is asked, and what was never checked is never recommended.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cluster.order import Measured, Order, Outcome, Probe
from objectives.answers import Answers, Tokens, Unanswered
from objectives.goal import QUALITY
from objectives.quality import QualityVerdict, judge
from search_spaces.artefact import Artefact, artefact
from search_spaces.sections import Quality
from tuner.quality import (
    Checks,
    answers_file,
    continuations,
    read_answers,
    read_checks,
    unchecked_file,
    verdict_file,
)
from tuner.records import RecordError, StoredTrial, trial_folder
from tuner.redaction import redacted_environment, redacted_settings

UNCHECKED = 1.0
"""Violation that a sampler is told of what has no verdict: a limit missed by all that it leaves."""


def artefact_of(order: Order) -> Artefact:
    """What an order serves, by the same text as lies on disk of its trial: secrets count for nothing."""
    return artefact(order.model, redacted_settings(order.arguments), redacted_environment(order.environment))


@dataclass(slots=True)
class QualityGuard:
    """What one session of a search knows of quality.

    Attributes:
        prompts: what is asked where there is no reference yet; empty: nothing is ever asked.
    """

    folder: Path
    limits: Quality
    prompts: tuple[Tokens, ...]
    control: Artefact
    checks: Checks = field(default_factory=Checks)
    _reference: tuple[Probe, Answers] | None = None
    _asked: dict[str, int] = field(default_factory=dict)
    """Trials under way that are asked, by their artefact."""

    def reload(self) -> None:
        """Learn what lies on disk. Raises RecordError where that cannot be read."""
        self.checks = read_checks(self.folder)
        name = self.checks.reference
        self._reference = None if name is None else read_answers(self.checks.folders[name])
        self._asked = {}

    def probed(self, order: Order) -> Order:
        """The order, with a probe where its artefact is to be asked by this trial."""
        served = artefact_of(order)
        name = served.fingerprint
        if not self.prompts or name in self.checks.verdicts:
            return order
        if self._asked.get(name, order.number) != order.number:
            return order
        if self._reference is not None:
            probe, answers = self._reference
            probe = replace(probe, continuations=continuations(answers))
        elif self._may_be_reference(served) and set(self._asked.values()) <= {order.number}:
            probe = Probe(prompts=self.prompts, tokens=self.limits.tokens)
        else:
            return order
        self._asked[name] = order.number
        return replace(order, probe=probe)

    def judged(self, order: Order, outcome: Outcome) -> Mapping[str, bytes]:
        """What belongs on disk beside a trial's outcome. From now on its artefact has the verdict.

        Answers that cannot be judged leave it unchecked: no measurement is lost for them.
        """
        served = artefact_of(order)
        if order.probe is None:
            return {}
        self._asked.pop(served.fingerprint, None)
        answers = outcome.answers if isinstance(outcome, Measured) else None
        match answers:
            case None:
                return {}
            case Unanswered(reason=why):
                self._keep_unchecked(served.fingerprint, why)
                return unchecked_file(served.fingerprint, why)
            case Answers():
                try:
                    return self._judged(order, order.probe, served, answers)
                except (RecordError, ValueError) as error:
                    self._keep_unchecked(served.fingerprint, str(error))
                    return unchecked_file(served.fingerprint, str(error))

    def measured(self, order: Order, outcome: Outcome) -> Outcome:
        """The outcome with what is known of quality among its metrics, for objectives that are of it."""
        verdict = self.checks.verdicts.get(artefact_of(order).fingerprint)
        if verdict is None or not isinstance(outcome, Measured):
            return outcome
        known = {name: getattr(verdict, name) for name in QUALITY}
        measurement = outcome.measurement
        return replace(outcome, measurement=replace(measurement, metrics={**measurement.metrics, **known}))

    def violation(self, trial: StoredTrial) -> float | None:
        """What the sampler is told of a trial's quality; at most 0 is feasible. None: nothing.

        Nothing is told while another trial is asking what this one serves.
        """
        verdict = self.checks.verdicts.get(trial.artefact)
        if verdict is not None:
            return verdict.violation
        return None if not self.prompts or trial.artefact in self._asked else UNCHECKED

    def _may_be_reference(self, served: Artefact) -> bool:
        return served.lossy == self.control.lossy and not served.speculates

    def _judged(self, order: Order, probe: Probe, served: Artefact, answers: Answers) -> Mapping[str, bytes]:
        name = served.fingerprint
        is_reference = probe.continuations is None
        if is_reference:
            reference = answers
        else:
            assert self._reference is not None  # nothing but a reference is asked without one
            reference = self._reference[1]
        verdict = judge(
            name,
            answers,
            reference,
            self.limits,
            beside=None if is_reference else self._beside(served, reference),
            is_reference=is_reference,
        )
        if is_reference:
            self._reference = probe, answers
        self._keep(verdict, trial_folder(self.folder, order.number))
        return {**verdict_file(verdict), **answers_file(probe, answers)}

    def _beside(self, served: Artefact, reference: Answers) -> Answers | None:
        """Answers that these must be like: those without the lossless settings of this artefact."""
        if served.lossy == self.control.lossy:
            return reference
        name = served.beside(self.control).fingerprint
        folder = self.checks.folders.get(name)
        if folder is None or name == served.fingerprint:
            return None
        return read_answers(folder)[1]

    def _keep(self, verdict: QualityVerdict, folder: Path) -> None:
        name = verdict.artefact
        self.checks = Checks(
            verdicts={**self.checks.verdicts, name: verdict},
            unchecked={other: why for other, why in self.checks.unchecked.items() if other != name},
            folders={**self.checks.folders, name: folder},
        )

    def _keep_unchecked(self, name: str, why: str) -> None:
        self.checks = replace(self.checks, unchecked={**self.checks.unchecked, name: why})
