"""Programs nobody wrote: proved and right, or refused; never wrong, never a traceback, never a hang.

`make fuzz` sets `JAX_PMAP_FUZZ` to the number of examples; the suite runs a few.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mutation.sources import request_of
from project import simulated

from jax_pmap import diagnostics, pipeline
from jax_pmap.emit.unit import emit
from jax_pmap.inputs.load import load
from jax_pmap.locate import locate
from jax_pmap.model import Devices, RefusalError, Request
from jax_pmap.planning.search import find_plan
from jax_pmap.proof.prove import prove
from jax_pmap.reading.target import read_target
from jax_pmap.session import Session

EXAMPLES = int(os.environ.get("JAX_PMAP_FUZZ", "4"))
DEEP = "JAX_PMAP_FUZZ" in os.environ

HEAD = """
import jax
import jax.numpy as jnp
import numpy as np


def inputs(seed=0):
    random = np.random.default_rng(seed)
    params = {"w": random.normal(size=3).astype("float32"), "b": np.float32(0.3)}
    batch = {
        "x": random.normal(size=(48, 3)).astype("float32"),
        "y": random.normal(size=48).astype("float32"),
        "m": (random.random(48) < 0.7).astype("float32"),
        "k": random.integers(0, 4, 48).astype("int32"),
    }
    return params, batch

"""

#: Values of one row each, made of `h` and the batch.
ROWS = (
    "jnp.tanh(h)",
    "h * batch['y']",
    "jnp.where(h > 0, h, 0.1 * h)",
    "jnp.abs(h - batch['y']) + 0.1",
    "h ** 2",
    "h * batch['m']",
    "jnp.exp(-jnp.abs(h))",
    "jax.nn.sigmoid(h) + batch['k']",
    "jnp.clip(h, -0.5, 0.5)",
    "batch['x'][:, 0] * h",
)
#: Numbers made of a row value `v`.
REDUCED = (
    "jnp.mean({v})",
    "jnp.sum({v})",
    "jnp.max({v})",
    "jnp.min({v})",
    "{v}.mean()",
    "jnp.sum({v} * batch['m']) / jnp.sum(batch['m'])",
    "jnp.sqrt(jnp.mean({v} ** 2))",
    "jnp.log(jnp.sum(jnp.exp({v})))",
    "jnp.sum({v}) / {v}.shape[0]",
    "jnp.mean({v} ** 2) - jnp.mean({v}) ** 2",
    "jnp.einsum('i,i->', {v}, batch['y'])",
    "jnp.linalg.norm({v})",
    "jnp.std({v})",
    "jnp.median({v})",
    "jnp.sum(jax.nn.one_hot(batch['k'], 4) * {v}[:, None], axis=0)",
    "(batch['x'] * {v}[:, None]).mean(axis=0)",
    "batch['x'].T @ {v}",
    "jnp.sort({v})",
    "jnp.cumsum({v})",
    "{v}[0]",
    "jnp.argmax({v})",
    "jnp.any({v} > 1)",
    "jnp.mean(({v} > 0) == (batch['y'] > 0))",
)
#: Numbers made of a number `s`.
AFTER = (
    "{s}",
    "jnp.sqrt(jnp.abs({s}) + 1)",
    "jnp.tanh({s})",
    "2.0 * {s} + params['b']",
    "1.0 / (1.0 + {s} ** 2)",
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """The text of a module with a function `f(params, batch)` and its inputs."""
    lines = ["h = batch['x'] @ params['w'] + params['b']"]
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["plain", "loop", "branch", "scan"]))
        row = draw(st.sampled_from(ROWS))
        if kind == "loop":
            lines += [f"for _ in range({draw(st.integers(1, 3))}):", f"    h = {row}"]
        elif kind == "branch":
            lines += ["if params['w'].shape[0] == 3:", f"    h = {row}", "else:", "    h = h + 1"]
        elif kind == "scan":
            lines.append("h, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c) * 0.9, None), h, None, length=2)")
        else:
            lines.append(f"h = {row}")
    names = []
    for number in range(draw(st.integers(1, 3))):
        reduced = draw(st.sampled_from(REDUCED)).format(v="h")
        lines.append(f"s{number} = {draw(st.sampled_from(AFTER)).format(s=reduced)}")
        names.append(f"s{number}")
    body = "\n    ".join(lines)
    shape = draw(st.sampled_from(["tuple", "dict", "rows", "grad", "update"]))
    if shape in ("grad", "update"):
        loss = f"    return jnp.sum(jnp.asarray({names[0]}, jnp.float32))\n"
        text = f"def loss_fn(params, batch):\n    {body}\n{loss}\n\ndef f(params, batch):\n"
        text += "    loss, grads = jax.value_and_grad(loss_fn)(params, batch)\n"
        if shape == "grad":
            return HEAD + text + "    return loss, grads\n"
        if draw(st.booleans()):
            text += "    norm = jnp.sqrt(sum(jnp.sum(g ** 2) for g in jax.tree.leaves(grads)))\n"
            text += "    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / (norm + 1e-6)), grads)\n"
        text += "    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)\n"
        return HEAD + text + "    return params, loss\n"
    result = {
        "tuple": "(" + "".join(f"{name}, " for name in names) + ")",
        "dict": "{" + ", ".join(f"'{name}': {name}" for name in names) + "}",
        "rows": f"h, {names[0]}",
    }[shape]
    return f"{HEAD}def f(params, batch):\n    {body}\n    return {result}\n"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Session]]:
    """A folder, and one warm worker in it for every program."""
    folder = tmp_path_factory.mktemp("fuzz").resolve()
    (folder / "pyproject.toml").write_text("")
    with contextlib.chdir(folder), pipeline._session(request_of(("f.py::f",), folder)) as session:
        yield folder, session


ORACLE = """
import importlib, sys
import jax, numpy as np
assert len(jax.devices()) == 6
jax.config.update("jax_enable_x64", True)
for name in sys.argv[1:]:
    given, made = importlib.import_module(name), importlib.import_module(name + "_pmap")
    for seed in (11, 12):
        args = jax.tree.map(lambda x: x.astype("float64") if x.dtype == "float32" else x, given.inputs(seed))
        want, got = given.f(*args), made.f(*args)
        assert jax.tree.structure(want) == jax.tree.structure(got), name
        for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got)):
            np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=2e-6, atol=2e-6, err_msg=name)
"""


def test_programs_are_proved_and_right_or_refused(workshop: tuple[Path, Session]) -> None:
    folder, session = workshop
    proved: list[str] = []
    verdicts: dict[str, int] = {}

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=not DEEP,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def one(text: str) -> None:
        name = f"program{sum(verdicts.values())}"
        (folder / f"{name}.py").write_text(text)
        request = request_of((f"{name}.py::f", "--inputs", f"{name}.py::inputs"), folder)
        session.deadline = time.monotonic() + 300
        try:
            target = pipeline._read(request, session)
            loaded = load(session, target, request, lambda _: None)
            observed = find_plan(session, target, loaded, request, lambda _: None)
            plan = dataclasses.replace(observed.plan, devices=Devices())
            code = emit(target, plan, request, loaded.carried)
            evidence = prove(session, target, plan, observed, code, lambda _: None)
        except RefusalError as error:
            code = error.refusal.code
            # JP045 says that we emitted something wrong, which only the proof kept from the user.
            assert code != "JP045", f"{error.refusal}\n{text}"
            assert diagnostics.exit_code(code) == 1, f"{error.refusal}\n{text}"
            verdicts[code] = verdicts.get(code, 0) + 1
            return
        assert evidence.proved
        (folder / f"{name}_pmap.py").write_text(code)
        proved.append(name)
        verdicts["proved"] = verdicts.get("proved", 0) + 1

    one()
    assert proved
    done = subprocess.run(
        [sys.executable, "-c", ORACLE, *proved], cwd=folder, env=simulated(6), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    print(f"\n{verdicts}")


def test_any_python_file_is_located_and_read(tmp_path: Path) -> None:
    """The standard library as targets: a target, or a refusal with a place; soon."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    if not DEEP:
        files = random.Random(4).sample(files, 40)
    for path in files:
        text = path.read_bytes().decode("utf-8", "replace")
        names = [line.split("(")[0][4:].strip() for line in text.splitlines() if line.startswith("def ")]
        for name in names[:2] or ["nothing"]:
            start = time.monotonic()
            with contextlib.suppress(RefusalError):
                read_target(locate(f"{path}::{name}", tmp_path), Request(f"{path}::{name}"))
            assert time.monotonic() - start < 10, (path, name)
