"""Documents as YAML, always the same bytes: keys as they come, no anchors, no folded lines."""

from collections.abc import Sequence
from typing import Any

import yaml

from search_spaces.values import Json


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def yaml_text(document: Json, *, comment: Sequence[str] = ()) -> str:
    """The document as YAML, these lines above it as comments."""
    text: str = yaml.dump(
        document, Dumper=_Plain, sort_keys=False, allow_unicode=True, default_flow_style=False, width=2**16
    )
    return comment_text(comment) + text


def comment_text(lines: Sequence[str]) -> str:
    """Lines as `# …` comments; a line break within one starts no line that is no comment."""
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)
