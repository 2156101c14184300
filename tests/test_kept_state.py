"""What calls leave behind, and numbers of devices that code knows: one trace is no statement about these."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from project import Project

from jax_pmap.worker.kept_state import left_by_calls

pytest_plugins = ["project"]

COUNTING = """\
import itertools

import numpy as np

CALLS, COUNT, TABLE, BUFFER = 0, itertools.count(), {}, np.zeros(3)


class Runner:
    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x


RUNNER = Runner()


def by_global(x):
    global CALLS
    CALLS += 1
    return x


def by_iterator(x):
    return x * next(COUNT)


def by_object(x):
    return RUNNER(x)


def by_buffer(x):
    BUFFER[0] += 1
    return x


def by_default(x, seen=[]):
    seen.append(x)
    return x


def make():
    calls = 0

    def by_closure(x):
        nonlocal calls
        calls += 1
        return x

    return by_closure


by_closure = make()


def made_once(x):
    if "made" not in TABLE:
        TABLE["made"] = lambda x: x
    return TABLE["made"](x)
"""
NAMES = {
    "by_global": "CALLS",
    "by_iterator": "COUNT",
    "by_object": "RUNNER.calls",
    "by_buffer": "BUFFER",
    "by_default": "[0]",
    "by_closure": "calls",
    "made_once": "",
}


@pytest.mark.parametrize("name", NAMES)
def test_what_each_call_changes_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "counting", raising=False)
    function: Any = getattr(__import__("counting"), name)
    assert left_by_calls(function, lambda: function(1)) == NAMES[name]


WRITTEN = """\
import functools

import jax
import jax.numpy as jnp

CALLS = 0
AT_ONCE = functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0), out_axes=None)


def loss(w, x):
    return jnp.mean((x @ w) ** 2)


def split(x):
    return x.reshape(jax.local_device_count(), -1, *x.shape[1:])


@AT_ONCE
def mean(w, x):
    return jax.lax.pmean(loss(w, x), "i")


@AT_ONCE
def total(w, x):
    return jax.lax.psum(loss(w, x), "i")


def later(w, x):
    global CALLS
    CALLS += 1
    return (mean if CALLS < 400 else total)(w, split(x))


def much_later(w, x):
    global CALLS
    CALLS += 1
    return (mean if CALLS < 4000 else total)(w, split(x))


@AT_ONCE
def scaled(w, x):
    scale = 2.0 if jax.local_device_count() == 16 else 1.0
    return jax.lax.pmean(loss(w, x), "i") * scale


def on_sixteen(w, x):
    return scaled(w, split(x))


@AT_ONCE
def by_table(w, x):
    shares = {2: 0.5, 4: 0.25, 8: 0.125, 12: 0.1}
    return jax.lax.psum(loss(w, x), "i") * shares[jax.local_device_count()]


def of_table(w, x):
    return by_table(w, split(x))


@AT_ONCE
def right(w, x):
    shares = {2: 0.5, 4: 0.25, 8: 0.125, 16: 0.0625}
    return jax.lax.psum(loss(w, x), "i") * shares[jax.local_device_count()]


def of_right_table(w, x):
    return right(w, split(x))
"""


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("later", 1, "equal calls, each of which changes `CALLS`"),
        ("much_later", 0, "each call changes `CALLS`"),
        ("on_sixteen", 1, "2 × the reference on 16 devices"),
        ("of_table", 1, "differs on 12 devices"),
        ("of_right_table", 0, ""),
    ],
)
def test_written_code_is_derived_for_all_counts_and_calls_or_not_at_all(
    name: str, code: int, says: str, shared: Project
) -> None:
    shared.write("written.py", WRITTEN)
    given = ("--arg", "w=f32[3]", "--arg", "x=f32[48,3]")
    made = shared.run("verify", f"written.py::{name}", "--against", "written.py::loss", *given)
    text = " ".join((made.stdout + made.stderr).split())
    assert made.exit_code == code, text
    assert ("derived for all inputs and device counts" in text) is (not says), text
    assert says in text
