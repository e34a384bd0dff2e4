from cluster.traffic.groups import groups
from cluster.traffic.trace import Request


def asked(*ids: int, session: str | None = None) -> Request:
    return Request(
        arrival_s=0.0, input_length=512 * max(len(ids), 1), output_length=1, hash_ids=ids, session_id=session
    )


def test_prefixes_and_sessions_keep_requests_together() -> None:
    requests = [asked(1, 2), asked(3, session="a"), asked(1, 9), asked(4, session="a"), asked(4, 5), asked()]
    found = groups(requests, most=10)
    assert found.members == ((0, 2), (1, 3, 4), (5,))
    assert found.split_prefixes == 0


def test_a_prefix_of_too_many_is_split_where_it_goes_on() -> None:
    requests = [asked(0, 1, 7), asked(0, 1, 8), asked(0, 2), asked(0, 2), asked(0), asked(0)]
    found = groups(requests, most=2)
    # Six begin with 0: split into those that go on with 1, with 2, and two that go on with nothing.
    assert found.members == ((0, 1), (2, 3), (4,), (5,))
    assert found.split_prefixes == 1
    assert groups(requests, most=1).members == tuple((place,) for place in range(6))


def test_a_session_is_never_split() -> None:
    requests = [asked(0, place, session="a") for place in range(9)]
    assert groups(requests, most=1).members == (tuple(range(9)),)
