"""A config as a systemd service, its engine in a virtual environment of its own."""

import re
import shlex

from tuner.export.folder import comment, fenced, secrets_text
from tuner.export.launch import PORT, Launch, is_local, launch_of, words, written
from tuner.export.subject import Subject
from tuner.export.target import Target
from tuner.export.vllm import environment_file
from tuner.export.yaml_text import comment_text

ENVIRONMENT = "vllm.env"
SECRETS = "secrets.env"
ENGINE = "/opt/vllm"
"""Where the service expects the virtual environment with vLLM."""

_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%", "$": "$$"}
_BARE = re.compile(r"[\w@:/.,=+\-]+", re.ASCII)


def launch_files(subject: Subject) -> dict[str, str]:
    """The unit, named as its service will be, and the environment that it reads."""
    launch, about = launch_of(subject), comment_text(comment(subject))
    return {
        f"{launch.name}.service": about + unit(launch),
        ENVIRONMENT: about + environment_file(launch.environment),
    }


def unit(launch: Launch) -> str:
    """The unit file."""
    command = [
        f"{ENGINE}/bin/vllm",
        "serve",
        word(launch.model),
        "--host 127.0.0.1",
        f"--port {PORT}",
        *(_joined(launch)),
    ]
    secrets = [f"EnvironmentFile=/etc/{launch.name}/{SECRETS}"] if launch.secrets else []
    lines = [
        "[Unit]",
        f"Description=vLLM serving {_one_line(launch.model)}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        "ExecStart=" + " \\\n    ".join(command),
        f"EnvironmentFile=/etc/{launch.name}/{ENVIRONMENT}",
        *secrets,
        # What it downloads and compiles outlasts a restart.
        f"Environment=HOME=%S/{launch.name} XDG_CACHE_HOME=%C/{launch.name}",
        f"StateDirectory={launch.name}",
        f"CacheDirectory={launch.name}",
        f"WorkingDirectory=%S/{launch.name}",
        "DynamicUser=yes",
        "NoNewPrivileges=yes",
        "LimitMEMLOCK=infinity",
        "LimitNOFILE=65536",
        "Restart=on-failure",
        "RestartSec=10",
        "TimeoutStopSec=60",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def word(text: str) -> str:
    """One word of `ExecStart=`, as systemd.syntax(7) and systemd.service(5) quote it.

    Specifiers (`%`) and variables (`$`) are doubled, and everything that is not plain is in double quotes.
    """
    return _quoted("".join(_ESCAPED.get(letter, letter) for letter in text))


def _joined(launch: Launch) -> list[str]:
    """The flags, each with its values on one line."""
    lines: list[str] = []
    for parts in words(launch.arguments):
        text = _quoted(
            written(
                parts,
                lambda literal: "".join(_ESCAPED.get(letter, letter) for letter in literal),
                lambda variable: f"${{{variable}}}",
            )
        )
        if text.startswith("--") or not lines:
            lines.append(text)
        else:
            lines[-1] += f" {text}"
    return lines


def _quoted(escaped: str) -> str:
    return escaped if _BARE.fullmatch(escaped) else f'"{escaped}"'


def _one_line(text: str) -> str:
    return " ".join(text.replace("%", "%%").split())


def _start(subject: Subject) -> str:
    launch = launch_of(subject)
    name = launch.name
    package = f"vllm=={launch.version}" if launch.version else "vllm"
    wheel = "" if launch.gpus else " (it was measured on a CPU: install vLLM's CPU build of that version)"
    lines = [
        f"sudo python3 -m venv {ENGINE} && sudo {ENGINE}/bin/pip install {shlex.quote(package)}",
        f"sudo install -d /etc/{name} && sudo install -m 644 {ENVIRONMENT} /etc/{name}/",
        *(
            [f"sudo install -m 600 /dev/stdin /etc/{name}/{SECRETS}   # type NAME=value lines, then Ctrl-D"]
            if launch.secrets
            else []
        ),
        f"sudo install -m 644 {name}.service /etc/systemd/system/ && sudo systemctl daemon-reload",
        f"sudo systemctl enable --now {name}",
    ]
    secrets = secrets_text(
        subject, f"Only root reads `/etc/{name}/{SECRETS}`; systemd hands it to the service."
    )
    local = f"\nThe service's user must be able to read `{launch.model}`.\n" if is_local(launch.model) else ""
    return (
        f"In this folder, on the machine that is to serve{wheel}:\n\n{fenced(lines)}\n{secrets}{local}\n"
        f"It listens on 127.0.0.1:{PORT}; `journalctl -u {name}` has its log."
    )


TARGET = Target(name="systemd", launch_files=launch_files, start=_start)
