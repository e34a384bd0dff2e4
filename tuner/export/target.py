"""What a target of `tuner export --to` is: a way to write one config as files, and how they are started."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.export.folder import folder_files
from tuner.export.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One way to run a config in production."""

    name: str
    """As `--to` takes it."""
    launch_files: Callable[[Subject], Mapping[str, str]]
    """File name → text, of all that launches it."""
    start: Callable[[Subject], str]
    """How it is started in its folder, as Markdown."""
    line: Callable[[Subject, Path], str] | None = None
    """The shell line that starts what was exported to this folder, run from anywhere; None: it takes several,
    which `start` has."""

    def files(self, subject: Subject) -> dict[str, str]:
        """The whole folder. Raises ExportError where this target cannot carry the config."""
        return folder_files(subject, self.name, self.launch_files(subject), self.start(subject))
