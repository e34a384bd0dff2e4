"""What is wrong with a space or a config of it: every fault at once, each with its place."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that a person has to put right."""

    place: str
    """"file:line key.path"; a parameter's path where there is no file; "" for the space as a whole."""
    message: str
    line: int = 0
    """Line in the file, to tell faults in its order; 0 where there is none."""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class SpaceError(Exception):
    """A space, or values meant for it, cannot be used.

    Attributes:
        faults: all that was found, in the order of the file.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__(self.faults)  # so that it pickles

    def __str__(self) -> str:
        if len(self.faults) == 1:
            return str(self.faults[0])
        return "\n".join((f"{len(self.faults)} faults", *(f"  {fault}" for fault in self.faults)))


def nearest(name: str, known: Iterable[str]) -> str:
    """What follows "unknown name": "; did you mean 'log'?" for a slip of the pen, else what is known."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known here: {', '.join(names)}" if 0 < len(names) <= 12 else ""
