"""`--target`: what the code becomes on TPUs that are not there."""

from __future__ import annotations

import importlib.util
import io
import json

import pytest
from project import Project

from jax_pmap.model import (
    Argument,
    Collective,
    Leaf,
    Machine,
    MeshAxis,
    ParameterKind,
    Plan,
    Role,
)
from jax_pmap.report.console import Console
from jax_pmap.report.meshes import print_machine, sent_in_a_ring
from jax_pmap.worker.machine import lacking
from jax_pmap.worker.protocol import Memory

MEAN = """\
import jax.numpy as jnp


def mean(w, x):
    return jnp.mean(x @ w, axis=0)
"""
WORDS = ("gen", "mean.py::mean", "--arg", "w=f32[4,256]", "--arg", "x=f32[24,4]")
MESH = ("--backend", "jit", "--mesh", "data=4,model=2", "--spec", "w=None,model")
HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None


@pytest.mark.skipif(HAS_LIBTPU, reason="libtpu is there")
def test_without_the_compiler_shapes_say_what_a_chip_holds_at_least(project: Project) -> None:
    project.write("mean.py", MEAN)
    made = project.run(*WORDS, *MESH, "--target", "v5e:2x4", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    machine = json.loads(made.stdout)["evidence"]["machine"]
    # Half of `w`, a quarter of `x`; the result lies whole on each chip or in two halves.
    # The mean of all rows is the one sum.
    [planned] = machine["collectives"]
    assert (planned["kind"], planned["bytes"], planned["axes"]) == ("all-reduce", 4 * 256, ["data"])
    assert machine["by_shapes"] and machine["memory"]["arguments"] == 4 * (4 * 128 + 6 * 4)
    for name, says in (("v5e:4x4", "it has 16 chips"), ("v9:1x1", "Name a machine as in v4:2x2x1")):
        project.refused("JP023", *WORDS, *MESH, "--target", name, says=(says,))
    made = project.run(*WORDS, *MESH[:2], "--no-run", "--target", "v5e:2x4", "--output-format", "json")
    machine = json.loads(made.stdout)["evidence"]["machine"]
    assert machine["memory"]["arguments"] == 4 * (4 * 256 + 3 * 4), "an eighth of `x`"


@pytest.mark.skipif(not HAS_LIBTPU, reason="needs libtpu")
def test_what_a_chip_holds_is_told(project: Project) -> None:
    project.write("mean.py", MEAN)
    made = project.run(*WORDS, *MESH, "--target", "v5e:2x4", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    machine = json.loads(made.stdout)["evidence"]["machine"]
    assert (machine["kind"], machine["devices"]) == ("TPU v5 lite", 8)
    assert machine["memory"]["arguments"] > 0
    assert {axis for row in machine["collectives"] for axis in row["axes"]} == {"data"}
    for name, says in (("v5e:4x4", "it has 16 chips"), ("v9:1x1", "TPU v9")):
        project.refused("JP023", *WORDS, *MESH, "--target", name, says=(says,))


def test_code_that_takes_the_devices_that_are_there_is_refused(shared: Project) -> None:
    shared.write("mean.py", MEAN)
    says = ("Use --backend jit, or --backend shard_map",)
    shared.refused("JP046", *WORDS, "--target", "v5e:2x4", says=says, exit_code=1)


def said(machine: Machine) -> str:
    leaf = Leaf("params['w']", Role.REPLICATED, None, (1024, 1024), "float32", spec=(("data",),))
    argument = Argument("params", ParameterKind.POSITIONAL_OR_KEYWORD, None, (leaf,))
    mesh = (MeshAxis("data", 4), MeshAxis("model", 2))
    plan = Plan("a.py::f", "data", (argument,), (), None, (), mesh=mesh)
    stream = io.StringIO()
    print_machine(plan, machine, Console(stream, 100, False))
    return " ".join(stream.getvalue().split())


def test_the_report_says_what_fits() -> None:
    rows = (Collective("all-reduce", 2, 4000, ("data",)),)
    machine = Machine("v5e:2x4", "TPU v5 lite", 8, 24, 16_000_000_000, Memory(10**9, 10**9, 10**9), rows)
    text = said(machine)
    assert "compiled for v5e:2x4, 8 × TPU v5 lite, a batch of 24; not run there" in text
    assert "takes 3 GB of 16 GB on a chip: arguments 1 GB, results 1 GB, temporary 1 GB" in text
    assert "2 all-reduce (4 kB, data)" in text


@pytest.mark.skipif(HAS_LIBTPU, reason="libtpu is there")
def test_a_plan_says_what_a_chip_holds_and_nothing_is_proved(project: Project) -> None:
    project.write("mean.py", MEAN)
    words = ("plan", "mean.py::mean", "--arg", "w=f32[4,256]", "--arg", "x=f32[1200,4]")
    made = project.run(*words, "--target", "v5e:15x20", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert document["status"] == "planned" and document["evidence"] is None
    # A share has four rows; their product with `w` is what stands between, besides sum and mean.
    product = 4 * 4 * 256
    assert product <= document["machine"]["memory"]["temporary"] <= 2 * product
    project.refused("JP023", *words, "--target", "v9:1x1", says=("Name a machine as in v4:2x2x1",))


def test_a_mesh_of_more_devices_than_are_simulated_is_derived(project: Project) -> None:
    project.write("mean.py", MEAN)
    words = ("gen", "mean.py::mean", "--arg", "w=f32[4,256]", "--arg", "x=f32[1200,4]", "--backend", "jit")
    made = project.run(*words, "--mesh", "data=300")
    assert made.exit_code == 0, made.stderr
    said = " ".join(made.stderr.split())
    assert "derived for all inputs on 300 devices" in said
    assert "not run: 300 devices are more than the 256 that are simulated" in said
    assert "on each of 300" in said


LAYERS = """\
import jax
import jax.numpy as jnp


def loss(layers, x):
    def layer(h, w):
        return jnp.tanh(h @ w), None

    return jnp.mean(jax.lax.scan(layer, x, layers)[0] ** 2)


def step(layers, x):
    return jax.tree.map(lambda w, g: w - g, layers, jax.grad(loss)(layers, x))


def shapes():
    return jax.ShapeDtypeStruct((5, 64, 64), "float32"), jax.ShapeDtypeStruct((24, 64), "float32")
"""


def test_what_is_sent_over_a_mesh_is_read_in_a_program_that_is_not_run(project: Project) -> None:
    project.write("layers.py", LAYERS)
    words = (
        "layers.py::step",
        "--inputs",
        "layers.py::shapes",
        "--backend",
        "jit",
        "--mesh",
        "data=4",
        "--fsdp",
    )
    planned = json.loads(project.run("plan", *words, "--output-format", "json").stdout)
    rows = planned["compiled"]["collectives"]
    # The layers are in a loop of five rounds, forwards and backwards.
    assert sum(row["times"] for row in rows) >= 10 > sum(row["count"] for row in rows)
    assert planned["compiled"]["memory"]["arguments"] == 4 * (5 * 64 * 64 + 24 * 64) // 4
    made = project.run("gen", *words)
    assert "derived, and not run: the inputs are shapes alone" in made.words
    assert "sent in one call, as compiled for 4 simulated CPU devices" in made.words
    assert "peak, compiled for CPU" in made.words and "compiled to" not in made.words
    assert "collective along times bytes each sends" in made.words
    # Nothing is compiled where no run was wanted.
    assert "sent in one call" not in project.run("gen", *words, "--no-run").words


def test_what_cannot_be_compiled_here_is_said(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("mean.py", MEAN)
    words = ("plan", "mean.py::mean", "--arg", "w=f32[4,256]", "--arg", "x=f32[1200,4]", "--backend", "jit")
    said = "what devices send each other is not known: "
    made = project.run(*words, "--mesh", "data=300")
    assert f"{said}300 devices are more than the 256 that are simulated" in made.words
    monkeypatch.setattr("jax_pmap.proof.machine.SHARE", 0.0)
    made = project.run(*words, "--mesh", "data=4")
    assert (made.exit_code, said in made.words, "--timeout" in made.words) == (0, True, True)


@pytest.mark.parametrize(
    ("kind", "axes", "bytes_sent"),
    [
        ("all-reduce", ("data",), 2 * 1200 * 3 // 4),
        ("all-gather", ("data", "model"), 1200 * 7 // 8),
        ("reduce-scatter", ("model",), 1200),
        ("collective-permute", ("model",), 1200),
        ("all-to-all", (), 1200 * 7 // 8),
    ],
)
def test_a_ring_sends(kind: str, axes: tuple[str, ...], bytes_sent: int) -> None:
    row = Collective(kind, 1, 400, axes, times=3, moved=1200)
    assert sent_in_a_ring(row, (MeshAxis("data", 4), MeshAxis("model", 2))) == bytes_sent


def test_the_report_says_what_is_known_from_shapes() -> None:
    at_least = Memory(10**9, 10**9, 10**9)
    text = said(Machine("v5e:2x4", "TPU v5 lite", 8, 24, 16_000_000_000, at_least, None, by_shapes=True))
    assert "worked out for v5e:2x4" in text and "takes at least 2 GB of 16 GB on a chip" in text
    assert "between them up to 1 GB, operation by operation" in text and "may not fit" not in text
    text = said(Machine("v5e:2x4", "TPU v5 lite", 8, 24, 5 * 10**8 * 5, at_least, None, by_shapes=True))
    assert "operation by operation, which may not fit" in text
    text = said(Machine("v5e:2x4", "TPU v5 lite", 8, 24, 10**9, at_least, None, by_shapes=True))
    assert "does not fit: it takes at least 2 GB" in text and "largest array" in text


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, what is needed (96.00G) exceeds HBM (15.75G).",
            "Ran out of memory on HBM, what is needed (96.00G) exceeds HBM (15.75G).",
        ),
        (
            "RESOURCE_EXHAUSTED: It fails. Ran out of memory in memory space hbm. Used 20.00G of 15.75G "
            "hbm.\n\nTotal hbm usage >= 20.25G:\n    reserved 258M\n",
            "It fails. Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm.",
        ),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.\n\nTotal hbm usage: 3M\n", ""),
        ("UNIMPLEMENTED: no such thing in hbm", ""),
    ],
)
def test_a_compiler_says_in_several_ways_that_memory_does_not_suffice(error: str, says: str) -> None:
    assert lacking(error) == says


def test_the_report_says_what_does_not_fit() -> None:
    lacks = "Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm."
    text = said(Machine("v5e:2x4", "TPU v5 lite", 8, 24, 16_000_000_000, None, None, lacks))
    assert f"does not fit: {lacks}" in text
    assert "the largest array that it is called with is `params.w`, 1.05 MB on a chip" in text
