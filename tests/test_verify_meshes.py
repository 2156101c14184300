"""`jax-pmap verify` of functions with meshes of two axes, FSDP by jit, and explicit mode."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from jax_pmap.proof import verify

if TYPE_CHECKING:
    from project import Project

GRID = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P


    def loss_fn(params, batch):
        hidden = jax.nn.relu(batch["x"] @ params["up"])
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)


    def updated(params, grads):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


    def train_step(params, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        return updated(params, grads), loss


    def make_inputs(seed=0):
        random = np.random.default_rng(seed)
        sizes = (6, 24), (24, 5), (24, 6), (24, 5)
        up, down, x, y = (random.normal(size=size).astype(np.float32) for size in sizes)
        return {"up": up, "down": down}, {"x": x, "y": y}


    devices = np.array(jax.devices())
    rows = 2 if devices.size % 2 == 0 else 1
    mesh = Mesh(devices.reshape(rows, -1), ("data", "model"))
    SHARED = {"up": P(None, "model"), "down": P("model", None)}


    def tensor_loss(params, batch):
        hidden = jax.nn.relu(batch["x"] @ params["up"])
        out = jax.lax.psum(hidden @ params["down"], "model")
        return jnp.mean((out - batch["y"]) ** 2)


    def mapped(body, params=SHARED, batch=P("data"), mesh=mesh, check=True):
        specs = {"in_specs": (params, batch), "out_specs": (params, P()), "check_vma": check}
        return jax.jit(jax.shard_map(body, mesh=mesh, **specs))


    def tensor(params, batch):
        loss, grads = jax.value_and_grad(lambda p: jax.lax.pmean(tensor_loss(p, batch), "data"))(params)
        return updated(params, grads), loss


    def after(params, batch):
        loss, grads = jax.lax.pmean(jax.value_and_grad(tensor_loss)(params, batch), "data")
        return updated(params, grads), loss


    def over(*names):
        def step(params, batch):
            loss, grads = jax.lax.pmean(jax.value_and_grad(loss_fn)(params, batch), names)
            return updated(params, grads), loss

        return step


    def halved(params, batch):
        # Right where there are two rows of devices.
        loss, grads = jax.value_and_grad(lambda p: jax.lax.psum(tensor_loss(p, batch), "data") / 2)(params)
        return updated(params, grads), loss


    def up_to(limit):
        def step(params, batch):
            loss, grads = jax.lax.pmean(jax.value_and_grad(tensor_loss)(params, batch), "data")
            # Without the check, the derivative of a sum is a sum.
            number = min(jax.lax.axis_size("model"), limit)
            return updated(params, jax.tree.map(lambda g: g / number, grads)), loss

        return step


    def scattered(params, batch):
        whole = jax.tree.map(lambda p: jax.lax.all_gather(p, "data", tiled=True), params)
        loss, grads = jax.lax.pmean(jax.value_and_grad(loss_fn)(whole, batch), "model")
        size = jax.lax.axis_size("data")
        grads = jax.tree.map(lambda g: jax.lax.psum_scatter(g, "data", tiled=True) / size, grads)
        return updated(params, grads), jax.lax.pmean(loss, "data")


    tensor_parallel = mapped(tensor)
    averaged_after = mapped(after)
    both = P(("data", "model"))
    over_both = mapped(over("data", "model"), P(), both, check=False)
    over_one = mapped(over("data"), P(), both, check=False)
    limited = mapped(up_to(7), check=False)
    zero = mapped(scattered, P("data"), both, check=False)

    line = Mesh(devices, ("data",))
    own = {"up": NamedSharding(line, P(None, "data")), "down": NamedSharding(line, P("data"))}
    split = NamedSharding(line, P("data"))
    fsdp = jax.jit(train_step, in_shardings=(own, split), out_shardings=(own, None))


    @functools.partial(jax.jit, in_shardings=(own, split), out_shardings=(own, None))
    def fsdp_divided(params, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        return updated(params, jax.tree.map(lambda g: g / devices.size, grads)), loss


    explicit = jax.make_mesh((devices.size,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))


    @jax.jit
    def resharded(params, batch):
        return train_step(params, jax.sharding.reshard(batch, P("data")))


    def explicit_step(params, batch):
        with jax.set_mesh(explicit):
            return resharded(params, batch)


    if devices.size == 8:
        written = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        written_tensor = mapped(tensor, mesh=written)
        written_halved = mapped(halved, mesh=written)
"""
DERIVED = [
    "tensor_parallel",
    "over_both",
    "zero",
    "fsdp",
    "explicit_step",
    "written_tensor",
]
#: What differs, and how.
WRONG = {
    "averaged_after": "The collective of line 54 is taken of what is the same on every device already",
    "over_one": "is what the first device has by itself",
    "fsdp_divided": "differs on 3 devices",
}


@pytest.fixture
def grid(shared: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with one step on several meshes, asked about on two counts of devices."""
    monkeypatch.setattr(verify, "COUNTS", verify.SECOND)
    shared.write("grid.py", GRID)
    return shared


def question(name: str, against: str = "train_step") -> tuple[str, ...]:
    """The command line of one question."""
    return (
        "verify",
        f"grid.py::{name}",
        "--against",
        f"grid.py::{against}",
        "--inputs",
        "grid.py::make_inputs",
    )


@pytest.mark.parametrize("name", DERIVED)
def test_a_step_is_derived_on_its_mesh(grid: Project, name: str):
    result = grid.run(*question(name), "--output-format", "json")
    assert result.exit_code == 0, result.stderr
    evidence = json.loads(result.stdout)["evidence"]
    assert evidence["derivation"]["complete"], evidence["derivation"]["reason"]
    assert {check["devices"] for check in evidence["checks"]} >= {8}


@pytest.mark.parametrize(("name", "says"), WRONG.items())
def test_a_step_that_is_wrong_on_its_mesh_is_refused(grid: Project, name: str, says: str):
    grid.refused("JP045", *question(name), says=(says,), exit_code=1)


def test_what_holds_for_one_size_of_an_axis_is_not_derived(grid: Project):
    result = grid.run(*question("written_halved"))
    assert result.exit_code == 0, result.stderr
    assert "proved on 8 devices" in result.words
    assert "not derived for all inputs" in result.words


def test_a_limit_on_one_axis_shows_where_that_is_long(grid: Project):
    grid.refused("JP045", *question("limited"), says=("on a mesh of 2 × 24 devices",), exit_code=1)


def test_two_meshes_are_held_against_each_other(grid: Project):
    result = grid.run(*question("over_both", "tensor_parallel"))
    assert result.exit_code == 0, result.stderr
    assert "derived for all inputs and device counts" in result.words
    grid.refused("JP045", *question("over_one", "zero"), says=("differs on 3 devices",), exit_code=1)


NOISE = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    devices = np.array(jax.devices())
    mesh = Mesh(devices.reshape(2 - devices.size % 2, -1), ("data", "model"))


    def dropped(w, x, key):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * w, 0.0)


    def mapped(rows, fold):
        specs = {"in_specs": (P(), P(rows), P()), "out_specs": P(rows), "check_vma": False}
        return jax.jit(jax.shard_map(lambda w, x, key: dropped(w, x, fold(key)), mesh=mesh, **specs))


    def along(*axes):
        def fold(key):
            for axis in axes:
                key = jax.random.fold_in(key, jax.lax.axis_index(axis))
            return key

        return fold


    def summed(key):
        return jax.random.fold_in(key, jax.lax.axis_index("data") + jax.lax.axis_index("model"))


    by_both = mapped(("data", "model"), along("data", "model"))
    by_data = mapped("data", along("data"))
    by_one_of_two = mapped(("data", "model"), along("data"))
    by_one_too_many = mapped("data", along("data", "model"))
    by_their_sum = mapped(("data", "model"), summed)


    def make_inputs(seed=0):
        random = np.random.default_rng(seed)
        return random.normal(size=3), random.normal(size=(24, 3)), jax.random.key(seed)
"""


@pytest.mark.parametrize("name", ["by_both", "by_data"])
def test_keys_are_folded_along_each_axis_that_divides_the_rows(shared: Project, name: str):
    shared.write("noise.py", NOISE)
    words = (
        "verify",
        f"noise.py::{name}",
        "--against",
        "noise.py::dropped",
        "--inputs",
        "noise.py::make_inputs",
    )
    found = shared.run(*words, "--devices", "4")
    assert found.exit_code == 0, found.stderr
    assert "equal for equal draws" in found.words


@pytest.mark.parametrize("name", ["by_one_of_two", "by_one_too_many", "by_their_sum"])
def test_keys_that_are_folded_along_other_axes_are_wrong(shared: Project, name: str):
    shared.write("noise.py", NOISE)
    words = (
        "verify",
        f"noise.py::{name}",
        "--against",
        "noise.py::dropped",
        "--inputs",
        "noise.py::make_inputs",
    )
    shared.refused("JP045", *words, "--devices", "4", says=(name,), exit_code=1)
