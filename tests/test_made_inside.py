"""Batches that a function makes itself: what is divided, what stays whole, and what is refused."""

import json
import re
import textwrap
from typing import Any

import pytest
from project import Project

from jax_pmap.planning.made_inside import Group

CODE = '''
    import jax
    import jax.numpy as jnp
    import numpy as np

    BATCH = 24


    def net(p, x):
        return jnp.tanh(x @ p["a"]) @ p["b"]


    def fool(generator, critic, key):
        """Of the same sizes as the noise are none of the parameters."""
        z = jax.random.normal(key, (BATCH, 8))
        wanted = jnp.ones((BATCH, 1))
        loss = lambda g: jnp.mean((net(critic, net(g, z)) - wanted) ** 2)
        return jax.value_and_grad(loss)(generator)


    def replayed(params, target, buffer, size, key, batch_size=24):
        """Positions that choose from a share are those in the share."""
        rows = jax.random.randint(key, (batch_size,), 0, size)
        obs, action, reward = jax.tree.map(lambda leaf: leaf[rows], buffer)

        def loss(p):
            q = net(p, obs)[jnp.arange(batch_size), action]
            return jnp.mean((q - reward - net(target, obs).max(axis=1)) ** 2)

        return jax.grad(loss)(params)


    def drawn(params, images, labels, key):
        rows = jax.random.randint(key, (BATCH,), 0, len(images))
        x, y = images[rows], labels[rows]
        return jax.grad(lambda p: jnp.mean((net(p, x)[:, 0] - y) ** 2))(params)


    def twice_drawn(params, images, labels, key):
        """Two steps, each on a batch that another function draws."""
        for each in jax.random.split(key):
            grads = drawn(params, images, labels, each)
            params = jax.tree.map(lambda p, g: p - 0.1 * g / jnp.sqrt(1 + g**2), params, grads)
        return params


    def in_turn(params, data, key):
        """A name of one key is that of many later, and of a nested function's own."""
        key, noise_key = jax.random.split(key)
        rows = jax.random.randint(noise_key, (BATCH,), 0, len(data))
        x = data[rows]

        def first(p, keys):
            keys = jax.random.split(keys, BATCH)
            return jnp.mean(jax.vmap(lambda k, row: net(p, row + jax.random.normal(k)))(keys, x) ** 2)

        def second(p, keys):
            keys = jax.random.split(keys, BATCH)
            return jnp.mean(jax.vmap(lambda k, row: net(p, row * jax.random.normal(k)))(keys, x))

        key, noise_key = jax.random.split(key)
        grads = jax.grad(first)(params, key), jax.grad(second)(params, noise_key)
        noise_key = jax.random.split(noise_key, BATCH)
        return grads, jnp.mean(jax.vmap(jax.random.normal)(noise_key) * x[:, 0])


    def two_sizes(params, key):
        inner, border = jax.random.split(key)
        inside = jax.random.uniform(inner, (48, 3))
        outside = jax.random.uniform(border, (24, 3))
        return jnp.mean(net(params, inside) ** 2) + jnp.mean(net(params, outside))


    def shaken(theta, key):
        """Noise for parameters, which no batch is made of."""
        noise = jax.random.normal(key, (theta.shape[0], 8)).sum(axis=1)
        return jax.grad(lambda t: jnp.sum(jnp.cumsum(t) ** 2))(theta) + noise


    def clamped(w, images, step):
        """The slice of the last step begins ahead of where it is asked to, as the images end."""
        x = jax.lax.dynamic_slice_in_dim(images, step * BATCH, BATCH)
        return jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)


    def windows(params, series, key):
        """Positions have a mask in common, and are as many as the hidden units."""
        starts_key, kept_key = jax.random.split(key)
        starts = jax.random.randint(starts_key, (BATCH,), 0, len(series) - 17)
        window = jax.vmap(lambda start: jax.lax.dynamic_slice(series, (start,), (17,)))(starts)
        x, y = window[:, :-1], window[:, 1:, None]

        def loss(p):
            kept = jax.random.bernoulli(kept_key, 0.9, (BATCH, 1, 1))
            return jnp.mean((jnp.where(kept, p["a"][x], 0) @ p["b"] - y) ** 2)

        return jax.grad(loss)(params)


    def windows_of(series, key):
        starts = jax.random.randint(key, (BATCH, 1), 0, len(series) - 16)
        return jax.vmap(lambda start: jax.lax.dynamic_slice(series, start, (16,)))(starts)


    def attending(p, h):
        other = jnp.tanh(h)
        seen = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", h, other))
        return jnp.mean(jnp.sin(jnp.einsum("bqk,bkd->bqd", seen, other) @ p["b"]))


    def attended(params, series, key):
        """Positions begin where rows do, have more of the numbers, and see each other."""
        x = windows_of(series, key)
        return jax.grad(lambda p: attending(p, p["a"][x]))(params)


    def attended_in_order(params, series, key):
        """Rows see those before them, too."""
        x = windows_of(series, key)
        return jax.grad(lambda p: attending(p, jnp.cumsum(jnp.tanh(p["a"][x]), axis=0)))(params)


    def adapted(params, data, key):
        """The data set has rows that devices share evenly, and another name where they are drawn."""
        rows = jax.random.randint(key, (BATCH,), 0, len(data["x"]))
        batch = jax.tree.map(lambda each: each[rows], data)
        grads = jax.grad(lambda p: jnp.mean((net(p, batch["x"])[:, 0] - batch["y"]) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g / jnp.sqrt(1 + g**2), params, grads)


    def one_key(params, key):
        """A mask that all rows share is drawn from the key of those that they have of their own."""
        x = jax.random.normal(key, (BATCH, 6))
        for key in jax.random.split(key):
            x = jnp.tanh(x) * jax.random.bernoulli(key, 0.9, x.shape[:1])[:, None]
            x = x * jax.random.bernoulli(key, 0.9, x.shape[1:])
        return jax.grad(lambda p: jnp.mean(net(p, x) ** 2))(params)


    def p_net(i, h, o):
        draw = np.random.default_rng(i).normal
        return {"a": draw(size=(i, h)).astype("float32"), "b": draw(size=(h, o)).astype("float32")}


    def for_fool(): return p_net(8, 32, 6), p_net(6, 32, 1), jax.random.key(0)
    def for_one_key(): return p_net(6, 32, 1), jax.random.key(1)
    def for_two_sizes(): return p_net(3, 16, 1), jax.random.key(1)
    def for_clamped(): return np.full(5, 0.3, "f4"), np.linspace(-1, 1, 500).reshape(100, 5), np.int32(4)
    def for_attended(): return p_net(200, 16, 1), np.arange(500) % 200, jax.random.key(4)
    def for_attended_in_order(): return for_attended()
    def for_windows(): return p_net(200, 16, 1), np.arange(2000) % 200, jax.random.key(4)
    def for_shaken(): return np.linspace(-1, 1, 5, dtype="float32"), jax.random.key(2)


    def for_adapted():
        data = np.random.default_rng(0).normal(size=(240, 5)).astype("float32")
        return p_net(5, 16, 1), {"x": data, "y": data[:, 0]}, jax.random.key(3)


    def planned(plan, state, key):
        plans = plan + jax.random.normal(key, (48, 10, 2))

        def cost(plan):
            def step(state, move):
                state = state + 0.1 * jnp.concatenate([state[2:], move])
                return state, jnp.sum(state**2)

            return jax.lax.scan(step, state, plan)[1].sum()

        costs = jax.vmap(cost)(plans)
        weights = jnp.exp(costs.min() - costs)
        return jnp.einsum("n,nij->ij", weights / weights.sum(), plans)


    def for_planned():
        return jnp.zeros((10, 2)), jnp.ones(4), jax.random.key(3)


    def for_in_turn():
        return p_net(5, 16, 1), np.linspace(-1, 1, 500, dtype="f4").reshape(100, 5), jax.random.key(3)


    def for_twice_drawn():
        images = np.random.default_rng(0).normal(size=(100, 5)).astype("float32")
        return p_net(5, 16, 1), images, images[:, 0], jax.random.key(3)


    def for_replayed():
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(100, 5)).astype("float32"), rng.integers(0, 3, 100), rng.normal(size=100)
        return p_net(5, 16, 3), p_net(5, 16, 3), rows, 90, jax.random.key(3)
'''


@pytest.fixture
def made(shared: Project) -> Project:
    shared.write("made.py", textwrap.dedent(CODE))
    return shared


def plan(project: Project, name: str, *words: str) -> Any:
    result = project.run(
        "plan", f"made.py::{name}", "--inputs", f"made.py::for_{name}", "--output-format", "json", *words
    )
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["plan"]


def divided(found: Any) -> set[str]:
    return {sync["value"] for sync in found["syncs"] if sync["op"] in ("own_share", "own_size")}


def test_what_is_made_is_divided_and_no_parameters(made: Project) -> None:
    found = plan(made, "fool")
    assert divided(found) == {"jax.random.normal(key, (BATCH, 8))", "jnp.ones((BATCH, 1))"}
    assert all(argument["role"] in ("replicated", "key") for argument in found["arguments"])
    assert found["made"] == 24


def test_positions_that_choose_from_a_share_are_those_in_the_share(made: Project) -> None:
    found = plan(made, "replayed")
    assert divided(found) == {"jax.random.randint(key, (batch_size,), 0, size)", "batch_size"}
    roles = {argument["name"]: argument["role"] for argument in found["arguments"]}
    # The size of the buffer was asked for first, and is not what the function needs to know.
    assert (roles["batch_size"], roles["size"]) == ("static", "replicated")


def test_a_batch_that_another_function_makes_is_divided_there(made: Project) -> None:
    found = plan(made, "twice_drawn")
    assert divided(found) == {"jax.random.randint(key, (BATCH,), 0, len(images))"}
    assert {sync["op"] for sync in found["syncs"]} == {"own_share", "pmean"}


def test_a_name_has_the_rows_that_it_had_where_it_is_read(made: Project) -> None:
    found = plan(made, "in_turn")
    keys = {f"jax.random.split({name}, BATCH)" for name in ("keys", "noise_key")}
    assert divided(found) == {"jax.random.randint(noise_key, (BATCH,), 0, len(data))", *keys}
    assert {sync["op"] for sync in found["syncs"]} == {"own_share", "pmean"}


def test_what_is_made_of_an_argument_many_times_over_is_divided(made: Project) -> None:
    """The argument has rows, and they depend on each other."""
    found = plan(made, "planned")
    assert divided(found) == {"jax.random.normal(key, (48, 10, 2))"}
    assert {sync["op"] for sync in found["syncs"]} == {"own_share", "pmin", "psum"}


def test_a_data_set_is_not_sent_where_rows_are_drawn_from_it(made: Project) -> None:
    found = plan(made, "adapted")
    assert divided(found) == {'jax.random.randint(key, (BATCH,), 0, len(data["x"]))'}
    assert {sync["op"] for sync in found["syncs"]} == {"own_share", "pmean"}


def test_all_that_is_made_is_divided_or_what_the_user_names(made: Project) -> None:
    assert plan(made, "two_sizes")["made"] == 24
    assert divided(plan(made, "two_sizes", "--shard", "inside")) == {"jax.random.uniform(inner, (48, 3))"}


def test_rows_are_divided_before_the_positions_in_each(made: Project) -> None:
    found = plan(made, "windows")
    assert found["made"] == 24
    assert "jax.random.randint(starts_key, (BATCH,), 0, len(series) - 17)" in divided(found)


def test_rows_are_divided_rather_than_positions_that_see_each_other(made: Project) -> None:
    found = plan(made, "attended")
    assert found["made"] == 24
    assert divided(found) == {"windows_of(series, key)"}
    assert not any(sync["op"] == "all_gather" for sync in found["syncs"])


def test_why_positions_are_divided_and_no_rows_is_said(made: Project) -> None:
    found = plan(made, "attended_in_order")
    assert found["made"] == 16
    (note,) = (each for each in found["notes"] if "along axis 1" in each)
    assert "JP055" in note and re.search(r"9\d% of the work", note)


def test_other_numbers_of_devices_and_axes_are_refused(made: Project) -> None:
    words = "gen", "made.py::two_sizes", "--inputs", "made.py::for_two_sizes"
    made.refused("JP041", *words, "--devices", "5", says=("24 rows", "5 devices"), exit_code=1)
    made.refused("JP007", *words, "--shard", "inside:4", says=("no array", "axis 4"))
    made.refused("JP007", *words, "--helper", "place", says=("makes its own",))


def test_noise_for_parameters_makes_no_batch(made: Project) -> None:
    words = "gen", "made.py::shaken", "--inputs", "made.py::for_shaken"
    made.refused("JP043", *words, says=("jnp.cumsum(t)",), exit_code=1)


def test_why_nothing_made_is_divided_is_said_rather_than_that_parameters_are_no_batch(made: Project) -> None:
    words = "gen", "made.py::one_key", "--inputs", "made.py::for_one_key"
    made.refused("JP051", *words, says=("numbers that all devices share are drawn from it",), exit_code=1)


def test_the_header_says_which_numbers_of_devices_divide_the_rows(made: Project) -> None:
    result = made.run("gen", "made.py::fool", "--inputs", "made.py::for_fool", "--no-run")
    assert result.exit_code == 0, result.stderr
    assert "# Proved: derived for all inputs and device counts that divide 24; not run" in result.stdout


@pytest.mark.parametrize("backend", ["pmap", "jit"])
def test_a_slice_at_the_end_of_the_data_is_divided_as_it_is(made: Project, backend: str) -> None:
    """XLA makes one slice of two in a row, and forgets that the first one would leave the data."""
    result = made.run("gen", "made.py::clamped", "--inputs", "made.py::for_clamped", "--backend", backend)
    assert result.exit_code == 0, result.stderr
    assert "= own_share(jax.lax.dynamic_slice_in_dim(" in result.stdout


def test_explicit_mode_divides_nothing_that_is_made_inside(made: Project) -> None:
    asked = ("gen", "made.py::clamped", "--inputs", "made.py::for_clamped", "--backend", "jit", "--explicit")
    says = ("explicit mode has no safe way to divide it", "Leave out --explicit")
    made.refused("JP046", *asked, says=says, exit_code=1)


def test_a_size_that_is_read_of_what_is_divided_begins_nothing(project: Project) -> None:
    """The loss splits a key into as many as its rows: divided rows are fewer, and the keys with them."""
    project.write(
        "loaded.py",
        """
        import jax
        import jax.numpy as jnp

        DATA = jnp.sin(jnp.arange(768.0)).reshape(256, 3)


        def rows(number):
            order = jax.random.permutation(jax.random.key(3), 256)
            return DATA[jax.lax.dynamic_slice_in_dim(order, 48 * number, 48)]


        def loss(w, x, key):
            size, _ = x.shape
            keys = jax.random.split(key, size)

            def one(x, key):
                x = x + 0.1 * jax.random.normal(key, x.shape)
                for _ in range(40):
                    x = jnp.tanh(jnp.outer(x, w) @ x)
                return x.sum()

            return jnp.mean(jax.vmap(one)(x, keys) ** 2)


        def step(w, number, key):
            value, grads = jax.value_and_grad(loss)(w, rows(number), key)
            return w - 0.1 * grads, value


        def inputs():
            return jnp.ones(3), jnp.int32(2), jax.random.key(0)
        """,
    )
    result = project.run("gen", "loaded.py::step", "--inputs", "loaded.py::inputs")
    assert result.exit_code == 0, result.stderr
    assert "own_share(rows(number))" in result.stdout


STRATEGIES = """
import jax
import jax.numpy as jnp


def ask(key, state):
    noise = jax.random.normal(key, (24, 6))
    return state["mean"] + 0.1 * noise, {**state, "generation": state["generation"] + 1}


def tell(population, fitness, state):
    best = population[jnp.argsort(fitness)][:6]
    return {**state, "mean": best.mean(axis=0)}
"""
EVOLVED = """
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

sys.path.append(str(Path(__file__).parent / "site-packages"))

from strategies_of_others import ask, tell


def cost(z):
    def step(s, _):
        s = s + 0.05 * jnp.tanh(z.reshape(2, 3) @ jnp.append(s, 1.0))
        return s, jnp.sum(s**2)

    return jnp.sum(jax.lax.scan(step, jnp.ones(2), None, length=100)[1])


def evolve(key, state):
    population, state = ask(key, state)
    costs = jax.vmap(cost)(population)
    return tell(population, costs, state), jnp.mean(costs)


def inputs(seed):
    key = jax.random.key(seed)
    return key, {"mean": jax.random.normal(key, (6,)), "generation": jnp.array(0, jnp.int32)}
"""


@pytest.mark.parametrize("named", [(), ("--shard", "population")])
def test_a_population_that_a_library_gives_beside_its_state_is_divided(
    shared: Project, named: tuple[str, ...]
) -> None:
    """What a library does with all of it is done by every device, and the costs are worked out by rows."""
    shared.write("site-packages/strategies_of_others.py", STRATEGIES)
    shared.write("evolved.py", EVOLVED)
    made = shared.run("gen", "evolved.py::evolve", "--inputs", "evolved.py::inputs", *named)
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts that divide 24" in made.words
    text = " ".join(made.stdout.split())
    assert "population, state = ask(key, state) population = own_share(population)" in text
    assert "jax.lax.all_gather(costs, axis_name=AXIS, axis=0, tiled=True)" in text
    plan = shared.run(
        "plan", "evolved.py::evolve", "--inputs", "evolved.py::inputs", "--output-format", "json"
    )
    shared.write("evolved.json", plan.stdout)
    again = shared.run(
        "gen", "evolved.py::evolve", "--inputs", "evolved.py::inputs", "--plan", "evolved.json"
    )
    assert again.exit_code == 0, again.stderr
    assert "population = own_share(population)" in again.stdout


@pytest.mark.parametrize(
    ("shape", "axis", "rows", "expected"),
    [
        ((96, 5), 0, 24, True),
        ((96, 5), 0, 96, False),
        ((96, 5), 0, 36, False),
        # Steps and environments as one batch, as in PPO.
        ((16, 24), 1, 96, True),
        ((16, 24, 5), 1, 16, True),
        ((16, 24), 1, 24, False),
        ((16, 24), 1, 80, False),
        ((16, 24), 1, 384, False),
        ((2, 3, 24), 2, 36, False),
    ],
)
def test_minibatches_are_parts_of_the_rows_of_one_or_two_axes(
    shape: tuple[int, ...], axis: int, rows: int, expected: bool
) -> None:
    group = Group(rows=rows, syncs=(), numbers=1, total=1, made=1, within=frozenset())
    assert group.is_part_of([(shape, axis)]) == expected


@pytest.mark.parametrize(
    ("shapes", "rows", "expected"),
    [
        # Environments and steps as one batch: of several leaves, rewards and observations say.
        (((24, 16), (24, 16, 5), (24,)), 96, True),
        (((24, 16), (24, 16, 5), (24,)), 24, False),
        (((24, 16), (24, 16, 5), (24,)), 80, False),
        # Rows of features are none.
        (((24, 16), (24, 10), (24,)), 96, False),
    ],
)
def test_minibatches_are_parts_of_rows_that_leaves_have_along_two_axes(
    shapes: tuple[tuple[int, ...], ...], rows: int, expected: bool
) -> None:
    group = Group(rows=rows, syncs=(), numbers=1, total=1, made=1, within=frozenset())
    assert group.is_part_of([(shape, 0) for shape in shapes]) == expected


ROLLOUTS = """
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import numpy as np


    class Critic(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(nn.tanh(nn.Dense(32)(nn.tanh(nn.Dense(32)(x)))))[..., 0]


    def discounted(rollout, last_value):
        def step(value, now):
            value = now["reward"] + 0.9 * value * (1 - now["done"])
            return value, value

        return jax.lax.scan(step, last_value, rollout, reverse=True)[1]


    def loss_fn(params, target, obs):
        scaled = (target - target.mean()) / (target.std() + 1e-8)
        return ((Critic().apply(params, obs) - scaled) ** 2).mean()


    def update(params, rollout, last_value, key):
        targets = {targets}

        def epoch(state, _):
            params, key = state
            key, own = jax.random.split(key)
            rows = targets.shape[0] * targets.shape[1]
            order = jax.random.permutation(own, rows)
            batch = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), (targets, rollout["obs"]))
            shuffled = jax.tree.map(lambda x: jnp.take(x, order, axis=0), batch)
            minibatches = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), shuffled)

            def minibatch(params, rows):
                loss, grads = jax.value_and_grad(loss_fn)(params, *rows)
                return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

            params, losses = jax.lax.scan(minibatch, params, minibatches)
            return (params, key), losses

        (params, key), losses = jax.lax.scan(epoch, (params, key), None, 2)
        return params, losses


    def inputs(seed=0):
        rng = np.random.default_rng(seed)
        shape = {shape}
        rollout = {{
            "obs": rng.normal(size=(*shape, 5)).astype(np.float32),
            "reward": rng.normal(size=shape).astype(np.float32),
            "done": (rng.random(shape) > 0.9).astype(np.float32),
        }}
        params = Critic().init(jax.random.key(seed), rollout["obs"])
        return params, rollout, rng.normal(size=24).astype(np.float32), jax.random.key(1)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "targets"),
    [
        ("16, 24", "discounted(rollout, last_value)"),
        ("24, 16", "jax.vmap(discounted)(rollout, last_value)"),
    ],
)
def test_shuffled_minibatches_of_environments_and_steps_are_divided(
    shared: Project, shape: str, targets: str
) -> None:
    """As in PPO: every device has its rows of each minibatch, and the rollouts whole."""
    name = f"rollouts_{shape.partition(',')[0]}"
    shared.write(f"{name}.py", ROLLOUTS.format(shape=shape, targets=targets))
    found = shared.run("gen", f"{name}.py::update", "--inputs", f"{name}.py::inputs")
    assert found.exit_code == 0, found.stderr
    assert "divided where it is made, 96 rows" in found.words
    assert "all_gather" not in found.words
