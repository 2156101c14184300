"""The sweep over all functions goes through one, and finds what `make sweep` is there to hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep.__main__ import Steps
from sweep.targets import targets

TARGETS = {target.name: target for target in targets()}


def test_what_gen_has_proved_the_others_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = Steps(TARGETS["pages/proof/1"]).all(tmp_path)
    assert found == dict.fromkeys(found, "ok")
    assert list(found) == ["gen pmap", "verify pmap", "check", "edited", "accept", "accepted"]


def test_functions_of_all_kinds_are_swept() -> None:
    kinds = [name.partition("/")[0] for name in TARGETS]
    assert len(kinds) == len(targets()) >= 200
    assert all(kinds.count(kind) > 25 for kind in ("pages", "examples", "cases", "benchmarks"))
