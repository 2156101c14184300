"""What Python makes of the size of a batch, where the given sizes do not show it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from project import Project, simulated

pytest_plugins = ["project"]

RATES = """\
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

TABLE = {1024: 0.3}
TWICE = {48: 0.3}
SETTINGS = SimpleNamespace(rates={200: 0.3})


@dataclass
class Size:
    rows: int


def warm(rows):
    return max(1.0, rows / 16384) ** 0.5


def capped(x):
    return jnp.mean(x) * min(x.shape[0] / 256, 64.0)


def helped(x):
    return jnp.mean(x) * warm(x.shape[0])


def looked_up(x):
    return jnp.mean(x) * TABLE.get(len(x), 0.1)


def looked_up_twice_as_large(x):
    return jnp.mean(x) * TWICE.get(len(x), 0.1)


def looked_up_in_an_object(x):
    return jnp.mean(x) * SETTINGS.rates.get(len(x), 0.1)


def looked_up_by_numpy(x):
    return jnp.mean(x) * (1.0 + np.isin(len(x), [160, 200]))


def equal_in_a_dataclass(x):
    return jnp.mean(x) * (1.0 + (Size(len(x)) == Size(200)))


def true_of_others(x):
    return jnp.mean(x) * (1.0 + (not (len(x) - 160)))


def wrapped(x):
    return jnp.mean(x) * np.int8(x.shape[0] % 128)


def from_a_list(x):
    return jnp.mean(x) * jnp.asarray([1.0 * max(len(x), 100)] * 3)


def behind_24(x):
    return jnp.mean(jnp.concatenate([x, 0 * x[24:] + 5.0]))


def few_bits(x):
    return jnp.sum(x) / jnp.asarray(x.shape[0], jnp.int16)


def asked_in_a_try(x):
    try:
        rate = max(1.0, int(len(x)) / 100)
    except Exception:
        rate = 1.0
    return jnp.mean(x) * rate


def asked_its_type(x):
    rows = x.shape[0]
    return jnp.mean(x) * (1.0 + 99.0 * (isinstance(rows, int) and rows >= 100))


def with_a_half_for_nothing(x):
    half = x.shape[0] // 2
    return jnp.mean(x)


compiled = jax.jit(asked_in_a_try)


@jax.jit
def by_hand(x):
    local = lambda x: jax.lax.psum(capped(x), "i") * 1.0
    return jax.pmap(local, "i", out_axes=None)(x.reshape(jax.device_count(), -1))


@jax.jit
def by_hand_right(x):
    rows = lambda x: jax.lax.psum(x.shape[0], "i")
    local = lambda x: jax.lax.pmean(jnp.mean(x), "i") * min(rows(x) / 256, 64.0)
    return jax.pmap(local, "i", out_axes=None)(x.reshape(jax.device_count(), -1))
"""
NAMES = (
    "capped",
    "helped",
    "looked_up",
    "looked_up_twice_as_large",
    "looked_up_in_an_object",
    "looked_up_by_numpy",
    "equal_in_a_dataclass",
    "true_of_others",
    "wrapped",
    "few_bits",
    "from_a_list",
    "behind_24",
    "asked_in_a_try",
    "compiled",
    "asked_its_type",
    "with_a_half_for_nothing",
)
CALLS = """\
import importlib
import numpy as np
import rates

for name in {names}:
    made = importlib.import_module(name + "_pmap")
    for rows in (24, 48, 160, 200, 1024, 8192, 20000, 32000, 80000):
        if name == "few_bits" and rows > 32767:
            continue  # The original takes no more.
        x = np.random.default_rng(rows).normal(1.0, 1.0, rows).astype("float32")
        want = np.asarray(getattr(rates, name)(x))
        assert np.allclose(getattr(made, name)(x), want, rtol=1e-3), (name, rows)
"""


def test_numbers_made_of_the_size_are_made_of_that_of_the_whole_batch(shared: Project) -> None:
    shared.write("rates.py", RATES)
    for name in NAMES:
        made = shared.run(
            "gen", f"rates.py::{name}", "--arg", "x=f32[24]", "--no-run", "-o", f"{name}_pmap.py"
        )
        assert made.exit_code == 0, made.stderr
    call = [sys.executable, "-c", CALLS.format(names=NAMES)]
    ran = subprocess.run(call, env=simulated(8), capture_output=True, text=True, cwd=Path.cwd())
    assert ran.returncode == 0, ran.stderr


COINCIDENCES = """\
import jax
import jax.numpy as jnp
import numpy as np


def padded(x):
    return jnp.mean(jax.lax.pad(x, 0.0, ((0, len(x) - 24, 0),)))


def padded_but_twice(x):
    return jnp.mean(jax.lax.pad(x, 0.0, ((0, (len(x) - 24) * (len(x) - 168), 0),)))


def rolled(x):
    return jnp.sum(jnp.roll(x, len(x) - 24) * x)


def weighted(x):
    return jnp.mean(x * np.where(np.arange(len(x)) < 30, 1.0, 2.0).astype(np.float32))


def repeated(x):
    return jnp.pad(x, (max(0, len(x) - 24), 0), mode="edge").mean()


def returned(x):
    return jnp.mean(x), max(len(x), 100)


def caught(x):
    try:
        rate = float(len(x)) if len(x) < 100 else 100.0
    except TypeError:
        rate = 1.0
    return rate * jnp.mean(x)
"""


COUPLED = ("rolled", "weighted", "returned", "caught")


@pytest.mark.parametrize("name", COUPLED)
def test_what_the_given_size_hides_is_not_called_proved(shared: Project, name: str) -> None:
    shared.write("coincidences.py", COINCIDENCES)
    found = shared.run("gen", f"coincidences.py::{name}", "--arg", "x=f32[24]", "--no-run")
    assert found.exit_code == 1, found.stdout


def test_several_scores_for_each_two_rows_are_taken(shared: Project) -> None:
    """Twice the square of as many rows as sizes are told by has more than 32 bits."""
    source = """\
import jax.numpy as jnp


def contrast(a, b):
    scores = jnp.einsum("ihk,jhk->ijh", a, b)
    return jnp.mean(jnp.logaddexp(0.0, scores))
"""
    shared.write("contrast.py", source)
    words = ("--arg", "a=f32[24,2,4]", "--arg", "b=f32[24,2,4]", "--no-run", "-o", "contrast_pmap.py")
    found = shared.run("gen", "contrast.py::contrast", *words)
    assert found.exit_code == 0, found.stderr
    assert "derived for all inputs and device counts" in found.stderr


def test_a_size_that_gives_devices_a_row_gathers_nothing_for_others(shared: Project) -> None:
    """As many rows as classes are a size that tells; on eight devices, they are a row and no more."""
    source = """\
import jax
import jax.numpy as jnp
import numpy as np


def loss(w, x, y):
    x = x.reshape(-1, int(np.prod(x.shape[1:])))
    picked = jnp.take_along_axis(jax.nn.log_softmax(x @ w), y[:, None], axis=-1)
    return -picked.sum() / int(np.prod(y.shape))


def attacked(w, x, y):
    moved = jnp.zeros_like(x)
    for _ in range(2):
        moved += jnp.sign(jax.grad(lambda moved: loss(w, x + moved, y))(moved)) / 10
    return x + moved


def step(w, x, y):
    return w - 0.1 * jax.grad(loss)(w, attacked(w, x, y), y)


def inputs():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(24, 2, 3)), rng.normal(size=(6, 10))
    return w.astype("float32"), x.astype("float32"), np.arange(24) % 10
"""
    shared.write("attack.py", source)
    found = shared.run("plan", "attack.py::step", "--inputs", "attack.py::inputs", "--output-format", "json")
    assert found.exit_code == 0, found.stderr
    assert [sync["op"] for sync in json.loads(found.stdout)["plan"]["syncs"]] == ["pmean"]


@pytest.mark.parametrize("name", ["padded_but_twice", "padded", "repeated"])
def test_other_sizes_tell_what_the_given_one_hides(shared: Project, name: str) -> None:
    """48 rows would be padded twice by less than nothing; 24 are not padded at all."""
    shared.write("coincidences.py", COINCIDENCES)
    words = (f"coincidences.py::{name}", "--arg", "x=f32[24]", "--no-run", "-o", f"{name}_pmap.py")
    made = shared.run("gen", *words)
    assert made.exit_code == 0, made.stderr
    call = f"""\
import coincidences, numpy as np, {name}_pmap

for rows in (24, 192):
    x = np.random.default_rng(rows).normal(1.0, 1.0, rows).astype("float32")
    want = coincidences.{name}(x)
    assert np.allclose({name}_pmap.{name}(x), want, rtol=1e-4), rows
"""
    ran = subprocess.run([sys.executable, "-c", call], env=simulated(4), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(("name", "code"), [("by_hand", 1), ("by_hand_right", 0)])
def test_a_cap_that_only_a_large_batch_reaches_is_seen_in_written_code(
    shared: Project, name: str, code: int
) -> None:
    shared.write("rates.py", RATES)
    against = ("--against", "rates.py::capped", "--arg", "x=f32[24]")
    found = shared.run("verify", f"rates.py::{name}", *against)
    assert found.exit_code == code, found.stderr
    assert ("with a batch of" in found.words) == bool(code)


LIMITS = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P


def mean(x):
    return jnp.mean(x)


def mapped(local, x):
    mesh = Mesh(np.array(jax.devices()), ("i",))
    return jax.shard_map(local, mesh=mesh, in_specs=P("i"), out_specs=P())(x)


def up_to_eight(x):
    count = min(jax.device_count(), 8)
    return mapped(lambda x: jax.lax.psum(jnp.mean(x), "i") / count, x)


def on_any(x):
    count = jax.device_count()
    return mapped(lambda x: jax.lax.psum(jnp.mean(x), "i") / count, x)


def unlike_and_right(x):
    count = min(jax.device_count(), 8)
    return mapped(lambda x: jax.lax.pmean(jnp.mean(x) * count, "i") / count, x)


def not_beyond_eight(x):
    if jax.device_count() > 8:
        raise ValueError("for 8 devices at most")
    return up_to_eight(x)


def on_two_axes(x):
    rows = jax.device_count() // 2
    mesh = Mesh(np.array(jax.devices()).reshape(2, rows), ("i", "j"))

    def local(x):
        return jax.lax.psum(jnp.mean(x), ("i", "j")) / (2 * min(rows, 16))

    return jax.shard_map(local, mesh=mesh, in_specs=P(("i", "j")), out_specs=P())(x)


NAMES = ["device"] * 100
KNOWN = {1, 2, 3, 4, 5, 8, 16, 32, 64}


def with_names(x):
    count = min(jax.device_count(), len(NAMES))
    return mapped(lambda x: jax.lax.psum(jnp.mean(x), "i") / count, x)


def on_known(x):
    factor = 1.0 if jax.device_count() in KNOWN else 2.0
    return mapped(lambda x: factor * jax.lax.pmean(jnp.mean(x), "i"), x)


def in_groups(x):
    def local(x):
        devices = range(jax.device_count())
        groups = [list(devices[first : first + 8]) for first in devices[::8]]
        return jax.lax.psum(jnp.mean(x), "i", axis_index_groups=groups) / jax.device_count()

    mesh = Mesh(np.array(jax.devices()), ("i",))
    return jax.shard_map(local, mesh=mesh, in_specs=P("i"), out_specs=P(), check_vma=False)(x)


def unless_power_of_two(x):
    def local(x):
        rows = len(x)
        factor = 2.0 if rows > 16 and not rows & (rows - 1) else 1.0
        return factor * jax.lax.pmean(jnp.mean(x), "i")

    return mapped(local, x)


def unless_as_many_on_each(x):
    return mapped(lambda x: (1 + 5e-6 if len(x) == 176 else 1.0) * jax.lax.pmean(jnp.mean(x), "i"), x)
"""


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("up_to_eight", 1, "8 × the reference on 64 devices"),
        ("with_names", 1, "differs on 101 devices"),
        ("on_known", 1, "2 × the reference on 65 devices"),
        ("on_two_axes", 1, "2 × the reference on 64 devices"),
        ("unlike_and_right", 0, "proved on 2, 3, 4, 5, 8, 64 devices"),
        ("not_beyond_eight", 0, "derived for all inputs and device counts"),
        ("on_any", 0, "derived for all inputs and device counts"),
        ("in_groups", 1, "differs on 16 devices"),
        ("unless_power_of_two", 0, "a batch of 1536 is worked on in another way"),
        ("unless_as_many_on_each", 1, "on 8 devices with a batch of 1408"),
    ],
)
def test_limits_that_written_code_has_of_its_own_are_met(
    shared: Project, name: str, code: int, says: str
) -> None:
    shared.write("limits.py", LIMITS)
    found = shared.run("verify", f"limits.py::{name}", "--against", "limits.py::mean", "--arg", "x=f32[48]")
    assert found.exit_code == code, found.stderr
    assert says in found.words


BRANCHES = """\
import jax.numpy as jnp


def named(x):
    if (rows := len(x)) > 64:
        return jnp.sum(x) / rows * 2
    return jnp.sum(x) / rows


def chosen(x):
    times = 2 if (rows := len(x)) > 64 else 1
    return jnp.sum(x) / rows * times


def rounded(x):
    few = jnp.float16 if len(x) < 65 else jnp.bfloat16
    return jnp.mean(x.astype(few).astype(jnp.float32))


def guarded(x):
    match x.shape:
        case (rows, _) if rows > 64:
            return jnp.mean(x) * 2
    return jnp.mean(x)


def in_chunks(x):
    chunks = [x[first : first + 64] for first in range(0, len(x), 64)]
    return sum(jnp.mean(chunk) for chunk in chunks) / len(chunks)


def entered(x):
    for _ in range(len(x) // 65):
        return jnp.mean(x) * 2
    return jnp.mean(x)
"""


@pytest.mark.parametrize("name", ["named", "chosen", "rounded"])
def test_a_size_that_a_test_asks_for_is_that_of_the_whole_batch(shared: Project, name: str) -> None:
    """A share of 72 rows has less than 64, and what the test decides is that of 72."""
    shared.write("branches.py", BRANCHES)
    words = (f"branches.py::{name}", "--arg", "x=f32[24]", "--no-run", "-o", f"{name}_pmap.py")
    made = shared.run("gen", *words)
    assert made.exit_code == 0, made.stderr
    call = f"""\
import branches, numpy as np, {name}_pmap

for rows in (24, 72, 512):
    x = np.random.default_rng(rows).normal(1.0, 1.0, rows).astype("float32")
    try:
        found = {name}_pmap.{name}(x)
    except NotImplementedError:
        assert rows > 64 and "{name}" != "chosen", rows
    else:
        assert np.allclose(found, branches.{name}(x), rtol=1e-4), rows
"""
    ran = subprocess.run([sys.executable, "-c", call], env=simulated(4), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", ["guarded", "entered"])
def test_a_branch_that_only_larger_shares_take_tells_of_batches_of_as_many_rows(
    shared: Project, name: str
) -> None:
    """The code raises where a share is as large as a batch that goes another way, and not before."""
    shared.write("branches.py", BRANCHES)
    found = shared.refused("JP061", "gen", f"branches.py::{name}", "--arg", "x=f32[24,2]", exit_code=1)
    assert "a batch of 168 is worked on in another way" in found.words


def test_chunks_are_run_on_shares_that_leave_some_of_one_over(shared: Project) -> None:
    """Of 4096 rows on a device all chunks of 64 are full, and the mean of their means is that of all."""
    shared.write("branches.py", BRANCHES)
    words = ("gen", "branches.py::in_chunks", "--arg", "x=f32[24]")
    found = shared.refused("JP045", *words, exit_code=1)
    assert "on 8 devices with a batch of 32792" in found.words


MASKED = """\
import jax.numpy as jnp
import numpy as np


def masked(w, x):
    mask = np.tril(np.ones((len(x), 512, 512)))
    return jnp.mean((x @ w)[:, None, :1] * mask)


def inputs():
    return jnp.eye(3), jnp.arange(72.0).reshape(24, 3) / 72
"""


def test_masks_of_numpy_for_millions_of_rows_are_not_made(project: Project) -> None:
    """What it holds for each row is seen on some hundreds, before there is no room for it."""
    project.write("masked.py", MASKED)
    made = project.run("gen", "masked.py::masked", "--inputs", "masked.py::inputs", "--memory", "3G")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr and "all_gather" not in made.stdout


CUT_INSIDE = """\
import jax.numpy as jnp

ROWS = 24


def loss(w, data):
    for name, rows in data.items():
        data[name] = rows[:ROWS]
    each = jnp.tanh(data["x"] @ w)[..., 0] * (data["mask"][:, 0] != 0)
    return jnp.sum(each) / (jnp.sum(data["mask"] != 0) + 1e-8)


def evaluate(w, data):
    return loss(w, data)
"""


def test_a_cut_that_a_large_batch_shows_is_named_as_what_to_look_for(shared: Project) -> None:
    shared.write("cut_inside.py", CUT_INSIDE)
    given = ("--arg", "w=f32[5,4]", "--arg", "data={x: f32[24,5], mask: i32[24,3]<2}")
    says = ("Look for a number of rows in the code that so large a batch goes beyond",)
    shared.refused("JP045", "gen", "cut_inside.py::evaluate", *given, says=says, exit_code=1)
    shared.write("cut_ahead.py", CUT_INSIDE.replace("rows[:ROWS]", "rows"))
    found = shared.run("gen", "cut_ahead.py::evaluate", *given, "--no-run")
    assert "derived for all inputs and device counts" in found.words
