"""Configs to export: one as a study on GPUs leaves it, one that held secrets wherever they can be."""

from dataclasses import replace
from datetime import UTC, datetime

from cluster.order import Ran
from objectives.measurement import Estimate, Measurement
from objectives.quality import QualityVerdict
from objectives.slo import Slo
from search_spaces.load import parse_space
from search_spaces.values import Json
from tuner.export.refusals import Mark
from tuner.export.subject import Subject
from tuner.records import State, StoredTrial, StudyFile
from tuner.verify.promised import promised_of
from tuner.verify.verification import Kept, Played, Quality, Verification

WHEN = datetime(2026, 11, 30, 12, tzinfo=UTC)

SPACE = """\
model: org/Model-8B
resources: {gpus: 2, accelerator: H100}
engine: {max_model_len: 8192}
parameters:
  prefix_cache:
    choices:
      off: {set: {enable_prefix_caching: false}}
      on: {set: {enable_prefix_caching: true}}
traffic: {make: {requests: 60, rate: 4, input_mean: 200, output_mean: 40}}
slo: {ttft_p95_ms: 500, tpot_p95_ms: 40}
objectives: [capacity, tpot_p95]
"""

STUDY = StudyFile(
    name="chat_8B",
    id="chat-1f",
    space_name="chat",
    space_text=SPACE,
    trace="made by chat.yaml",
    trace_digest="ab" * 32,
    trace_figures={"requests": 60, "rate": 4.0, "duration_s": 15.0},
    objectives=("capacity", "tpot_p95"),
    slo=Slo(ttft_s=0.5, tpot_s=0.04),
    sampler="tpe",
    seed=0,
    engine="vllm",
    created=WHEN,
    tuner_version="0.1.0",
    options={"measure": {"kind": "capacity"}, "speed": 1.0, "sessions": "recorded"},
)

ARGUMENTS: dict[str, Json] = {
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]},
    "enable_prefix_caching": False,
    "hf_overrides": {"note": 'a "quoted" $(VALUE) with 100% $HOME and \\ backslash'},
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 96,
    "quantization": "fp8",
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
    "tensor_parallel_size": 2,
}

TRIAL = StoredTrial(
    study=STUDY.name,
    number=17,
    is_control=False,
    config={"prefix_cache": "off", "speculation": "ngram", "speculation.depth": 4},
    state=State.MEASURED,
    measurement=Measurement(
        metrics={
            "capacity_rps": Estimate(value=7.5, low=7.0, high=8.0),
            "goodput_rps": Estimate(value=3.9, low=3.75, high=4.0),
            "slo_attainment": Estimate(value=0.975, low=0.95, high=0.99),
            "tpot_p95_s": Estimate(value=0.03125, low=0.03, high=0.0325),
            "ttft_p95_s": Estimate(value=0.25),
        },
        requests=60,
        failed_requests=0,
        duration_s=20.0,
    ),
    model="org/Model-8B",
    trust_remote_code=True,
    arguments=ARGUMENTS,
    environment={"SPACED": "two 'words' and \"$more\" 5%", "VLLM_ATTENTION_BACKEND": "FLASH_ATTN"},
    gpus=2,
    ran=Ran(
        engine="vllm",
        version="0.32.0",
        hardware="NVIDIA H100 80GB HBM3",
        start_s=84.0,
        effective={
            "max_model_len": 8192,
            "max_num_seqs": 96,
            "max_num_batched_tokens": 8192,
            "gpu_memory_utilization": 0.9,
            "enable_prefix_caching": False,
            "enable_chunked_prefill": True,
            "tensor_parallel_size": 2,
        },
    ),
    started=WHEN,
    finished=WHEN,
    tuner_version="0.1.0",
)

QUALITY = QualityVerdict(
    artefact="c0ffee",
    passed=True,
    nll_increase=Estimate(value=0.004, low=0.001, high=0.007),
    kl=Estimate(value=0.002, low=0.001, high=0.003),
    agreement=Estimate(value=0.985, low=0.975, high=0.995),
    alike=Estimate(value=0.9, low=0.85, high=0.95),
    violation=-0.5,
    prompts=64,
    tokens=2048,
)

VERIFICATION = Verification(
    study=STUDY.name,
    trial=17,
    source="study",
    held=True,
    why="both promises held",
    promises=(
        Kept(
            name="capacity",
            kind="objective",
            unit="requests/s",
            better="more",
            promised=Estimate(value=7.5, low=7.0, high=8.0),
            verified=Estimate(value=7.25, low=6.75, high=7.75),
            control=Estimate(value=5.0, low=4.75, high=5.25),
            ratio=Estimate(value=0.97, low=0.9, high=1.04),
            against_control=True,
            bound=1.05,
            noticed=0.92,
            held=True,
            why="0.97 times what was promised",
        ),
    ),
    not_judged=(),
    level=0.025,
    rate=0.05,
    pairs=3,
    quality=Quality(passed=True, words="passed"),
    stress=(),
    traffic=Played(
        words="60 requests made by chat.yaml with another seed",
        held_out=True,
        digests=("cd" * 32,),
        speed=1.0,
        requests=60,
    ),
    engine="vllm",
    version="0.32.0",
    hardware="NVIDIA H100 80GB HBM3",
    simulated=False,
    started=WHEN,
    finished=WHEN,
    tuner_version="0.1.0",
)


def subject(
    trial: StoredTrial = TRIAL,
    *,
    study: StudyFile = STUDY,
    again: int = 2,
    quality: QualityVerdict | None = QUALITY,
    verification: Verification | None = VERIFICATION,
    marks: tuple[Mark, ...] = (),
) -> Subject:
    """The trial with everything that an export wants of it."""
    return Subject(
        study=study,
        trial=trial,
        promised=promised_of(study, parse_space(study.space_text, "chat.yaml"), trial, None),
        again=again,
        quality=quality,
        verification=verification,
        marks=marks,
    )


def changed(
    trial: StoredTrial, *, arguments: dict[str, Json] | None = None, environment: dict[str, str] | None = None
) -> StoredTrial:
    """The trial with these settings too."""
    return replace(
        trial,
        arguments=dict(trial.arguments) | (arguments or {}),
        environment=dict(trial.environment) | (environment or {}),
    )


SECRETS = replace(
    changed(
        TRIAL,
        arguments={
            "api_key": ["***"],
            "hf_token": "***",
            "speculative_config": {"method": "draft", "url": "http://me:***@host", "hf_token": "***"},
        },
        environment={"HF_TOKEN": "***", "HTTPS_PROXY": "http://me:***@proxy:3128"},
    ),
    model="/srv/models/Model-8B",
)
"""A local model, and a secret in every place that may hold one."""

PLAIN = subject()
SECRET = subject(SECRETS, marks=(Mark.UNVERIFIED, Mark.QUALITY_FAILED), verification=None, again=0)
SUBJECTS = {"plain": PLAIN, "secrets": SECRET}
