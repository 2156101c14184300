"""Errors that were reported in public: some pairs anew, and the page against what was recorded of all."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from public_bugs import BEGIN, END, PAGE, Judge, checked, pairs, recorded, score, table

#: One of each kind of answer, and quick: a scale, replicas, an average, keys, rows, a shard_map, a state with
#: a device axis that has no name of one.
SOME = (
    "ema_before_sync",
    "mapped_keyword",
    "masked_means",
    "no_sync",
    "one_dropout_mask",
    "padded_rows",
    "pmean_in_shard_map",
    "psum_inside_grad",
)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    made = Judge()
    yield made
    made.close()


@pytest.mark.parametrize("name", SOME)
def test_verify_tells_right_from_wrong(judge: Judge, name: str):
    (pair,) = pairs([name])
    wrong, says = judge.verify(pair, "wrong")
    assert (judge.verify(pair, "right")[0], wrong) == ("proved", "JP045"), says
    assert recorded()[name].wrong == wrong


def test_check_says_what_is_recorded():
    found = {pair.name: checked(pair) for pair in pairs()}
    assert found == {name: (each.check_right, each.check_wrong) for name, each in recorded().items()}


def test_every_pair_is_on_the_page_as_it_was_recorded(repository):
    assert {pair.name for pair in pairs()} == recorded().keys()
    page = PAGE.read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0] == table(recorded())
    readme = (repository / "README.md").read_text(encoding="utf-8")
    counted = re.search(r"in (\d+) of (\d+) \(`make bugs`\)", readme)
    assert counted is not None
    told = sum(each.verified for each in recorded().values())
    assert (int(counted[1]), int(counted[2])) == (told, len(recorded()))
    assert score(recorded()) in table(recorded()).replace("Of ", "of ")
