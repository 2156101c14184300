"""Functions that work in another way where a device has few rows, or as many as another axis is long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from project import Project, simulated

pytest_plugins = ["project"]

ROWS = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

RATES, SEEN = {11: 2.0}, np.ones((10, 5), np.float32)


def totals(w, x):
    return jnp.sum(jnp.squeeze(x @ w), axis=0)


def error(w, x):
    return jnp.mean(jnp.squeeze(x @ w[:, :1]) ** 2)


def along_time(w, x):
    time = x.shape.index(len(w))
    return jnp.mean(jnp.tanh(jnp.moveaxis(x, time, -1) @ w[:, 0]))


def halves(w, x):
    few = int(np.argmin(x.shape))
    return jnp.mean(jnp.max(x, axis=few))


def shortest(w, x):
    return jnp.mean(jnp.max(x, axis=1 - int(np.argmax(x.shape))))


def looked_up(w, x):
    return jnp.mean(x) * RATES.get(len(x), 1.0)


def scaled(w, x):
    return jnp.mean(jnp.tanh(x * (jnp.zeros((24, 5)) + w[:, 0])))


def by_root(w, x):
    return jnp.sum((x @ w) ** 2) / len(x) ** 0.5


def first(w, x):
    return jnp.sum(jnp.squeeze(x @ w[:, :1])[:3] ** 2)


def in_two(w, x):
    half = len(x) // 2
    for part in (x[:half], x[half:]):
        w = w - 0.1 * jax.grad(error)(w, part)
    return w


def host(x):
    x = np.asarray(x)
    return x - (np.median(x) if len(x) > 500 else x.mean(axis=-1, keepdims=True))


def centred(w, x):
    return jnp.mean(jax.pure_callback(host, x, x) ** 2)


def by_hand(local, w, x):
    mesh = Mesh(np.array(jax.devices()), ("i",))
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())(w, x)


@jax.jit
def along_time_by_hand(w, x):
    return by_hand(lambda w, x: jax.lax.pmean(along_time(w, x), "i"), w, x)


@jax.jit
def named_by_hand(w, x):
    seen = lambda x: 1.0 + np.isin(len(x), len(SEEN))
    return by_hand(lambda w, x: jax.lax.psum(jnp.sum(x), "i") * seen(x), w, x)


def sums(w, x):
    return jnp.sum(x)


@jax.jit
def error_by_hand(w, x):
    return by_hand(lambda w, x: jax.lax.pmean(error(w, x), "i"), w, x)


def noisy(w, x):
    _, *keys = jax.random.split(jax.random.key(0), len(x) + 1)
    noise = jax.vmap(lambda key: jax.random.normal(key, x.shape[1:]))(jnp.stack(keys))
    return jnp.mean(jnp.tanh((x + noise) @ w))
"""
CALLS = """\
import sys
import numpy as np
import rows, rows_pmap

draw, name = np.random.default_rng(0), sys.argv[1]
for size in map(int, sys.argv[2:]):
    w = draw.normal(size=(5, 3)).astype("float32")
    x = draw.normal(size=(size, 7, 5) if name in ("along_time", "halves") else (size, 5)).astype("float32")
    try:
        found = getattr(rows_pmap, name)(w, x)
    except ValueError as error:
        print(size, " ".join(str(error).split("; not ")[1:]))
    else:
        want = getattr(rows, name)(w, x)
        assert np.shape(found) == np.shape(want) and np.allclose(found, want, rtol=1e-4, atol=1e-5), size
"""
TABLE = ("--arg", "w=f32[5,3]", "--arg", "x=f32[24,5]")
WIDE = ("--arg", "w=f32[5,3]", "--arg", "x=f32[96,5]")
SERIES = ("--arg", "w=f32[5,3]", "--arg", "x=f32[96,7,5]")


@pytest.fixture
def rows(shared: Project) -> Project:
    shared.write("rows.py", ROWS)
    return shared


@pytest.mark.parametrize(
    ("name", "words", "sizes", "refused"),
    [
        ("totals", TABLE, (4, 8, 12), "4 1 row for a device, or in all\n"),
        # One row is no axis there, and its square is its mean all the same.
        ("error", TABLE, (4, 8), ""),
        # A number that changes with the rows is no other way.
        ("by_root", WIDE, (4, 8, 20), ""),
        ("along_time", SERIES, (20, 24, 28), "20 5 rows for a device, or in all\n"),
        # One row is scaled by each of 24, and counts 24 times.
        ("scaled", TABLE, (4, 24), "4 1 row for a device, or in all\n"),
        # The run has a batch of 24, of which 8 devices have 3 rows each.
        ("first", TABLE, (12, 16), "12 1 to 3 rows for a device, or in all\n"),
        # As many rows as columns are many already.
        (
            "shortest",
            WIDE,
            (12, 16, 20),
            "".join(f"{size} 1 to 4 rows for a device, or in all\n" for size in (12, 16)),
        ),
        # 11 rows are those of 11 devices, too.
        ("looked_up", TABLE, (40, 44, 48), "44 11 rows for a device, or in all\n"),
        # Of two minibatches each device has one row.
        ("in_two", TABLE, (8, 16), ""),
        # Nothing is run there, so what would be equal is refused, too.
        (
            "halves",
            (*SERIES, "--no-run"),
            (12, 16, 20, 32),
            "".join(f"{size} 1 to 5 rows for a device, or in all\n" for size in (12, 16, 20)),
        ),
        # With a key for each, it is another program for every number of them.
        ("noisy", TABLE, (4, 8, 12, 48), ""),
    ],
)
def test_code_refuses_few_rows_with_which_it_is_not_shown_equal(
    rows: Project, name: str, words: tuple[str, ...], sizes: tuple[int, ...], refused: str
) -> None:
    made = rows.run("gen", f"rows.py::{name}", *words, "-o", "rows_pmap.py", "--force")
    assert made.exit_code == 0, made.stderr
    assert ("on a device the function works in another way" in made.words) is bool(refused)
    call = [sys.executable, "-c", CALLS, name, *map(str, sizes)]
    ran = subprocess.run(call, env=simulated(4), capture_output=True, text=True, cwd=Path.cwd())
    assert ran.returncode == 0 and ran.stdout == refused, ran.stdout + ran.stderr


@pytest.mark.parametrize(("name", "words", "code"), [("along_time", SERIES, 1), ("error", TABLE, 0)])
def test_code_written_by_hand_is_held_to_few_rows(
    rows: Project, name: str, words: tuple[str, ...], code: int
) -> None:
    found = rows.run("verify", f"rows.py::{name}_by_hand", "--against", f"rows.py::{name}", *words)
    assert found.exit_code == code, found.stderr
    assert ("with a batch of 40" in found.words) is bool(code)
    assert ("with so many it works in another way" in found.words) is bool(code)


def test_code_written_by_hand_is_run_with_rows_that_it_names(rows: Project) -> None:
    found = rows.run("verify", "rows.py::named_by_hand", "--against", "rows.py::sums", *TABLE)
    assert found.exit_code == 1 and "with a batch of 80" in found.words


def test_what_calls_out_of_jax_is_run_with_many_rows(rows: Project) -> None:
    rows.refused("JP045", "gen", "rows.py::centred", *TABLE, says=("with a batch of",), exit_code=1)
