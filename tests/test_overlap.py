"""Which tests `make test` leaves to `make thorough`."""

import pytest
from conftest import UNKNOWN
from overlap.choose import choose


def test_what_is_left_out_is_there(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.stash.get(UNKNOWN, []) == []


def test_what_reaches_most_for_its_time_is_chosen() -> None:
    lines = {"slow": [1, 2], "quick": [1, 2], "alone": [3, 4], "third": [1], "dear": [5]}
    seconds = {"slow": 5.0, "quick": 3.0, "alone": 1.0, "third": 9.0, "dear": 50.0}
    assert choose(lines, seconds, 10, []) == ["alone", "quick", "slow"]
    assert choose(lines, seconds, 10, ["third"]) == ["third", "alone"]


def test_what_a_test_has_reached_counts_less_for_others() -> None:
    lines = {"both": [1, 2], "one": [1], "other": [2, 3]}
    assert choose(lines, dict.fromkeys(lines, 1.0), 2, []) == ["both", "other"]
