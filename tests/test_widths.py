"""Batches of other widths than the given one: code that takes them is equal for them, or is not written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from project import Project, simulated

pytest_plugins = ["project"]

COLUMNS = """\
import jax
import jax.numpy as jnp


def turned(x, y):
    return jnp.mean(jnp.exp(x.T.reshape(x.shape)) * y[:, None])


def first(x, y):
    return jnp.mean(x.ravel()[: len(y)] * y)


def of_one_column(x, y):
    if x.shape[1] != 1:
        raise ValueError("one column")
    return jnp.mean(x.ravel()[: len(y)] * y)


def any_width(x, y):
    return jnp.mean((x - y[:, None]) ** 2)


@jax.jit
def by_hand(x, y):
    mapped = jax.pmap(lambda x, y: jax.lax.pmean(turned(x, y), "i"), "i", out_axes=None)
    return mapped(x.reshape(jax.device_count(), -1, x.shape[1]), y.reshape(jax.device_count(), -1))
"""
ARGUMENTS = ("--arg", "x=f32[24,1]", "--arg", "y=f32[24]", "--no-run")
CALLS = """\
import numpy as np
import columns
from any_width_pmap import any_width
from of_one_column_pmap import of_one_column

draw = np.random.default_rng(0)
for width in (1, 2, 5):
    x, y = draw.normal(size=(24, width)).astype("float32"), draw.normal(size=24).astype("float32")
    assert np.allclose(any_width(x, y), columns.any_width(x, y), rtol=1e-4)
try:
    of_one_column(x, y)
except (ValueError, NotImplementedError):
    print("refused")
"""


def test_what_is_equal_for_one_column_alone_is_not_proved(shared: Project) -> None:
    shared.write("columns.py", COLUMNS)
    for name in ("turned", "first"):
        made = shared.run("gen", f"columns.py::{name}", *ARGUMENTS)
        assert made.exit_code == 1 and "JP061" in made.stderr and "`x` of shape [24, 3]" in made.stderr
    made = shared.run("verify", "columns.py::by_hand", "--against", "columns.py::turned", *ARGUMENTS[:4])
    assert "not derived for all inputs" in made.stdout + made.stderr
    assert "`x` of shape [24, 3]" in " ".join((made.stdout + made.stderr).split())


def test_other_widths_are_taken_or_refused_by_the_code(shared: Project) -> None:
    shared.write("columns.py", COLUMNS)
    for name in ("of_one_column", "any_width"):
        made = shared.run("gen", f"columns.py::{name}", *ARGUMENTS, "-o", f"{name}_pmap.py")
        assert made.exit_code == 0, made.stderr
    ran = subprocess.run(
        [sys.executable, "-c", CALLS], env=simulated(8), capture_output=True, text=True, cwd=Path.cwd()
    )
    assert ran.returncode == 0 and ran.stdout == "refused\n", ran.stdout + ran.stderr
