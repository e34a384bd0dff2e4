from hypothesis import given
from hypothesis import strategies as st

from cluster.traffic.request import Message
from cluster.traffic.turns import Turns

SYSTEM = Message(role="system", content="be brief and kind " * 20)


def said(*texts: str) -> list[Message]:
    """A conversation that users and assistants take turns in, after the system's prompt."""
    return [SYSTEM, *(Message(role=("user", "assistant")[i % 2], content=t) for i, t in enumerate(texts))]


def test_a_turn_belongs_to_the_conversation_whose_answer_it_has() -> None:
    turns = Turns()
    a = turns.of_chat(said("hi"), "hello")
    b = turns.of_chat(said("hi"), "good day")
    assert a != b
    assert turns.of_chat(said("hi", "hello", "how are you"), "fine") == a
    assert turns.of_chat(said("hi", "good day", "bye"), None) == b


def test_an_answer_that_the_client_changed_still_goes_on_from_the_latest_with_its_question() -> None:
    turns = Turns()
    first = turns.of_chat(said("a question nobody else asks"), "<thinking> … </thinking> yes ")
    assert turns.of_chat(said("a question nobody else asks", "yes", "thanks"), None) == first


def test_a_prompt_that_only_shares_the_systems_part_is_another_session() -> None:
    turns = Turns()
    assert turns.of_chat(said("one"), "x") != turns.of_chat(said("two"), "x")
    assert turns.of_chat(said("one more"), "x") not in (0, 1)


def test_a_plain_prompt_goes_on_from_prompt_and_answer() -> None:
    turns = Turns()
    first = turns.of_prompt("Q: 1? A:", " 2", tokens=4, output=1)
    assert turns.of_prompt("Q: 1? A: 2 Q: 3? A:", " 4", tokens=9, output=1) == first
    assert turns.of_prompt("Q: 1? A: 5 Q: 3? A:", " 4", tokens=9, output=1) != first


def test_where_no_answer_is_known_the_prompt_must_be_longer_by_as_much() -> None:
    turns = Turns()
    text = "word " * 40
    first = turns.of_prompt(text, None, tokens=40, output=10)
    assert turns.of_prompt(text + "more", None, tokens=45, output=10) != first
    assert turns.of_prompt(text + "more " * 12, None, tokens=52, output=10) == first
    assert turns.of_prompt("ab", None, tokens=1, output=1) != turns.of_prompt(
        "abc d", None, tokens=3, output=1
    )


def test_the_oldest_beginnings_are_forgotten_first() -> None:
    turns = Turns(most=4)  # two a request
    first, second, third = (turns.of_chat(said(f"question {i}"), f"answer {i}") for i in range(3))
    assert turns.of_chat(said("question 0", "answer 0", "more"), None) not in (first, second, third)
    assert len(turns._sessions) == 4
    assert sum(sum(rests.values()) for rests in turns._rests.values()) == 4


@given(st.lists(st.tuples(st.integers(0, 4), st.text(max_size=70)), max_size=25))
def test_conversations_are_told_apart_whatever_order_their_turns_come_in(
    turns: list[tuple[int, str]],
) -> None:
    recogniser = Turns()
    talks: dict[int, list[str]] = {}
    sessions: dict[int, set[int]] = {}
    for who, text in turns:
        talk = talks.setdefault(who, [])
        talk.append(f"{who} {text}")  # who speaks is in the first words, so no two conversations are alike
        answer = f"answer to {text}"
        sessions.setdefault(who, set()).add(recogniser.of_chat(said(*talk), answer))
        talk.append(answer)
    assert all(len(found) == 1 for found in sessions.values())
    assert len(set().union(*sessions.values())) == len(sessions)
