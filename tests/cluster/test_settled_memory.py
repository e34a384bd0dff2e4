import gc
import weakref

import pytest

from cluster.settled_memory import settled_memory


def test_the_collector_has_what_was_there_back_however_the_block_ends() -> None:
    def broken() -> None:
        with settled_memory():
            assert gc.get_freeze_count() > 0
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert gc.get_freeze_count() == 0


class _Loop:
    """Garbage once nobody else holds it, which only the collector finds."""

    def __init__(self) -> None:
        self.own = self


def test_what_was_garbage_before_is_not_kept_by_it() -> None:
    gc.disable()
    try:
        gone = weakref.ref(_Loop())
        assert gone() is not None
        with settled_memory():
            assert gone() is None
    finally:
        gc.enable()
