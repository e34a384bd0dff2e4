"""YAML as people mean it."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.document import read_document
from search_spaces.values import Json

# Above 0xffff JSON escapes a character in two halves, which PyYAML does not join. Digits: PyYAML writes the
# text "0E0" without quotes, which YAML 1.2 reads as a number.
TEXT = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs", "Nd"]))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)

patient = settings(deadline=None)


def read(text: str) -> Json:
    node, faults = read_document(text, "s.yaml")
    assert not faults
    assert node is not None
    return node.plain


@patient
@given(PLAIN.filter(lambda value: value is not None))
def test_what_pyyaml_writes_comes_back(value: Json) -> None:
    assert read(yaml.safe_dump(value)) == value


@patient
@given(PLAIN)
def test_json_is_yaml_too(value: Json) -> None:
    assert read(f"a: {json.dumps(value)}") == {"a": value}


def test_keys_are_text_whatever_they_look_like() -> None:
    assert read("{off: 1, on: 2, yes: 3, 16: 4, null: 5, 1.5: 6, true: 7}") == {
        "off": 1,
        "on": 2,
        "yes": 3,
        "16": 4,
        "null": 5,
        "1.5": 6,
        "true": 7,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1_073_741_824", 1073741824),
        ("0x10", 16),
        ("0o17", 15),
        ("017", 17),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("-.5", -0.5),
        ("~", None),
        ("True", True),
        ("'off'", "off"),
        ("!!str 5", "5"),
        ("!!int '5'", 5),
    ],
)
def test_plain_values_follow_yaml_1_2(text: str, value: Json) -> None:
    assert read(f"a: {text}") == {"a": value}


def test_places_name_file_line_and_key() -> None:
    node, _ = read_document("a:\n  b:\n    - 1\n    - c: 2\n", "s.yaml")
    assert node is not None
    assert isinstance(node.value, dict)
    b = node.value["a"].value
    assert isinstance(b, dict)
    items = b["b"].value
    assert isinstance(items, list)
    assert [item.place for item in items] == ["s.yaml:3 a.b[0]", "s.yaml:4 a.b[1]"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\na: 2", "s.yaml:2 a: is there twice; first in line 1"),
        ("a: yes", "s.yaml:1 a: 'yes' may mean two things: write true or false, or quote it"),
        ("{[1]: 2}", "s.yaml:1: a key must be plain text"),
        ("a: !!int x", "s.yaml:1 a: is no number: 'x'"),
        ("a: !thing x", "s.yaml:1 a: tags are not supported: !thing"),
        (
            "a: !!python/object:os.system {}",
            "s.yaml:1 a: tags are not supported: tag:yaml.org,2002:python/object:os.system",
        ),
        ("a: 1\n---\nb: 2", "s.yaml:2: is no YAML: but found another document"),
        ("a: *nowhere", "s.yaml:1: is no YAML: found undefined alias 'nowhere'"),
    ],
)
def test_faults_of_the_file_as_yaml(text: str, fault: str) -> None:
    assert [str(found) for found in read_document(text, "s.yaml")[1]] == [fault]


@patient
@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    node, faults = read_document(text, "s.yaml")
    assert node is not None or faults
