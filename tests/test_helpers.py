"""Functions of the user's that the target calls: found, watched, looked into and carried."""

import json
import textwrap

from project import Project

HEAD = """
    import jax
    import jax.numpy as jnp


    def dicts():
        keys = jax.random.split(jax.random.key(0), 2)
        return {"w": jax.random.normal(keys[0], (5,))}, {"x": jax.random.normal(keys[1], (48, 5))}
"""
AGENTS = """
import jax.numpy as jnp

from metrics_m import masked_mean


class Agent:
    power = 2

    def __init__(self, scale):
        self.scale = scale

    def score(self, params, batch):
        return self.scale * masked_mean(batch["x"] @ params["w"], batch["mask"])

    def loss(self, params, batch):
        return self.score(params, batch) ** self.power

    @classmethod
    def total(cls, params, batch):
        return masked_mean(batch["x"] @ params["w"], batch["mask"]) ** cls.power

    def mean(self, params, batch):
        return masked_mean(batch["x"] @ params["w"], batch["mask"])


agent = Agent(3.0)
"""
STEPS = """
import functools
import types

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp

from agents_m import Agent, agent


def make():
    keys = jax.random.split(jax.random.key(0), 3)
    batch = {"x": jax.random.normal(keys[0], (48, 5))}
    batch["mask"] = (jax.random.uniform(keys[1], (48,)) < jnp.linspace(0.2, 1, 48)).astype(jnp.float32)
    return {"w": jax.random.normal(keys[2], (5,))}, batch


other = Agent(1.0)
other.mean = lambda params, batch: jnp.max(batch["x"] @ params["w"])


@jax.checkpoint
def powered(params, batch, power):
    return agent.loss(params, batch) ** power


def step(params, batch):
    fn = functools.partial(powered, power=3)
    loss, grads = jax.value_and_grad(fn)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss, Agent.total(params, batch)


def changed(params, batch):
    linear = {"linear": {"w": params["w"][:, None]}}
    scored = scorer.apply({"params": {"dense": linear["linear"]}}, batch, method=Scorer.loss)
    kept = settings.shares.kept(params, batch)
    first = other.mean(params, batch), held.apply(linear, batch, 2.0)
    return *first, settings.ratio(params, batch), scored, kept


def make_scaled(scale):
    def scaled(params, batch):
        return scale * jnp.sum(batch["x"] @ params["w"] * batch["mask"]) / jnp.sum(batch["mask"])

    return scaled


def masked(batch):
    # A second run of it in one transform would have a layer of another name.
    scores = hk.Linear(1, with_bias=False)(batch["x"])[:, 0]
    return jnp.sum(scores * batch["mask"]) / jnp.sum(batch["mask"])


@hk.without_apply_rng
@hk.transform
def held(batch, scale):
    return scale * masked(batch)
def ratio(params, batch, scale):
    return scale * jnp.sum(batch["x"] @ params["w"] * batch["mask"]) / jnp.sum(batch["mask"])


class Scorer(nn.Module):
    def setup(self):
        self.dense = Line()

    def __call__(self, x):
        return self.dense(x)[:, 0]

    def loss(self, batch):
        return jnp.sum(self(batch["x"]) * batch["mask"]) / jnp.sum(batch["mask"])


class Line(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x @ self.param("w", nn.initializers.ones, (5, 1))


class Shares:
    @staticmethod
    def kept(params, batch):
        return jnp.sum(batch["x"] @ params["w"] * batch["mask"]) / jnp.sum(batch["mask"])


scorer = Scorer()
settings = types.SimpleNamespace(ratio=functools.partial(ratio, scale=3.0), shares=Shares())
losses = {"mse": powered}
cubed = functools.partial(
    powered,  # whatever the power
    power=3,
)
doubled = make_scaled(2.0)
others = {"mse": powered}
others["mse"] = cubed


def chosen(params, batch):
    grads = jax.grad(losses["mse"])(params, batch, 2)
    params = jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)
    return params, cubed(params, batch), doubled(params, batch)


def changing(params, batch):
    return others["mse"](params, batch)
"""


def test_branches_of_functions_beside_are_watched(shared: Project) -> None:
    code = """
    def total(error, scale=2.0, kind="mean"):
        if error.shape[0] < 10:
            return jnp.sum(error)
        if kind == "max":
            return jnp.max(error)
        return scale * jnp.mean(error)


    def half(error):
        return total(error, 0.5)


    def f(p, batch):
        return half(batch["x"] @ p["w"])


    def side(error):
        if error is None:
            return 0.0
        return jnp.sum(error) if error.ndim > 2 else jnp.mean(error)


    def g(p, batch):
        return side(batch["x"] @ p["w"])


    def both(p, batch):
        return total(batch["x"] @ p["w"]) + total(p["w"])
    """
    shared.write("watched.py", textwrap.dedent(HEAD) + textwrap.dedent(code))
    made = shared.run("gen", "watched.py::f", "--inputs", "watched.py::dicts")
    assert made.exit_code == 0, made.stderr
    text = " ".join(made.stdout.split())
    # A share is smaller than the batch, and what is decided is decided by the batch.
    assert "if jax.lax.psum(error.shape, axis_name=AXIS)[0] < 10:" in text
    assert "`if error.shape[0] < 10` was not reached" in text
    # No call gives another kind.
    assert "return jnp.max(error)" in text
    made = shared.run("gen", "watched.py::g", "--inputs", "watched.py::dicts")
    assert made.exit_code == 0, made.stderr
    text = " ".join(made.stdout.split())
    assert 'return unseen("jnp.sum(error)") if error.ndim > 2 else jnp.mean(error)' in text
    assert "raise NotImplementedError(" in text
    # What a helper asks of a part of the batch raises likewise where it was not seen.
    assert "if error is None: raise NotImplementedError(" in text
    says = ("is a size of the batch in one call and none in another",)
    shared.refused(
        "JP069", "gen", "watched.py::both", "--inputs", "watched.py::dicts", says=says, exit_code=1
    )


def test_methods_and_bound_functions_are_looked_into(shared: Project) -> None:
    shared.write(
        "metrics_m.py",
        """
        import jax.numpy as jnp


        def masked_mean(x, mask):
            return jnp.sum(x * mask) / jnp.sum(mask)
        """,
    )
    shared.write("agents_m.py", AGENTS)
    shared.write("steps_m.py", STEPS)
    made = shared.run("gen", "steps_m.py::step", "--inputs", "steps_m.py::make")
    assert made.exit_code == 0, made.stderr
    # Methods become functions of the object or class that they were found by; what recomputes stays.
    assert "def agent_score(self, params, batch):" in made.stdout
    assert "agent_score(self, params, batch) ** self.power" in made.stdout
    assert "@jax.checkpoint\ndef powered(params, batch, power):\n    return agent_loss(agent, " in made.stdout
    assert "agent_total(Agent, params, batch)" in made.stdout
    assert "all_gather" not in made.stdout
    # An object that was given another method keeps it.
    made = shared.run("gen", "steps_m.py::changed", "--inputs", "steps_m.py::make")
    text = " ".join(made.stdout.split())
    assert "def p_changed(" in text, made.stderr
    assert "jax.lax.pmax( other.mean(params, batch), axis_name=AXIS" in text.replace("pmax(o", "pmax( o")
    # A bound module runs the copy of its method.
    assert "batch, method=scorer_loss )" in text and "def scorer_loss(self, batch):" in text
    # So is what a value holds, in place of that very function.
    assert "in_place_of(settings.ratio, ratio, p_ratio)(params, batch)" in text
    assert "in_place_of(settings.shares.kept, Shares.kept, shares_kept)(params, batch)" in text
    assert "other, ratio, " in text
    # What an object holds is carried, and the object made anew around it.
    assert "hk.without_apply_rng(hk.transform(held)).apply(linear, batch, 2.0)" in text
    assert '(jnp.sum(scores * batch["mask"]), jnp.sum(batch["mask"])), axis_name=AXIS' in text
    # What the module holds: an entry of a table, a function with something bound to it, one that was made.
    made = shared.run("gen", "steps_m.py::chosen", "--inputs", "steps_m.py::make")
    assert made.exit_code == 0, made.stderr
    text = " ".join(made.stdout.split())
    assert "jax.grad(powered)(params, batch, 2)" in text
    assert "return functools.partial( powered, # whatever the power power=3, )(*args, **kwargs)" in text
    assert "def doubled(*args, **kwargs): return make_scaled(2.0)(*args, **kwargs)" in text
    assert "def make_scaled(scale): def scaled(params, batch): total, total_mask = jax.lax.psum( (" in text
    assert "all_gather" not in text
    # A table that is changed tells nothing.
    says = ('cannot read the source of `others["mse"]`: it is a `partial`',)
    shared.refused(
        "JP067", "gen", "steps_m.py::changing", "--inputs", "steps_m.py::make", says=says, exit_code=1
    )


GRADIENTS = """
    import typing

    import jax
    import jax.numpy as jnp
    import optax


    def learned(loss, params):
        grads = jax.grad(loss)(params)
        largest = jax.tree.map(jnp.max, grads)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), largest


    def step(params, batch):
        return learned(lambda p: jnp.mean((batch["x"] @ p["w"]) ** 2), params)


    def learned_over(loss, params, axis=None):
        grads = jax.grad(loss)(params)
        if axis is not None:
            grads = jax.lax.pmean(grads, axis_name=axis)
        largest = jax.tree.map(jnp.max, grads)
        return jax.tree.map(lambda p, g: p - 0.1 * jnp.sign(g), params, grads), largest


    def offline(params, batch):
        networks = {"value": {**params, "scale": jnp.ones(())}, "target": dict(params), "rate": jnp.ones(())}

        def loss(networks):
            value, target = networks["value"], networks["target"]
            mean = jnp.mean((batch["x"] @ (value["w"] * value["scale"] - value["target"])) ** 2)
            return mean + 0.0 * jnp.sum(target["w"])

        return learned_over(loss, networks)


    def clipped(params, batch):
        def loss(p):
            return jnp.mean((batch["x"] @ p["w"]) ** 2)

        updates, _ = optax.clip_by_global_norm(1.0).update(jax.grad(loss)(params), ())
        return optax.apply_updates(params, updates)


    class Scores(typing.NamedTuple):
        total: jax.Array
        count: jax.Array


    def scored(params, batch):
        def loss(p):
            scores = Scores(jnp.sum((batch["x"] @ p["w"]) ** 2), jnp.sum(batch["x"] > 0))
            return scores.total, scores

        (_, scores), grads = jax.value_and_grad(loss, has_aux=True)(params)
        if isinstance(scores, Scores) and scores is not None:
            grads = jax.tree.map(lambda g: g / scores.count, grads)
        return jax.tree.map(lambda p, g: p - jnp.sign(g), params, grads), scores


    def inputs():
        keys = jax.random.split(jax.random.key(0), 2)
        params = {"w": jax.random.normal(keys[0], (5,)), "target": jnp.ones((5,))}
        return params, {"x": jax.random.normal(keys[1], (48, 5))}
"""


def test_gradients_of_which_some_are_zero_are_averaged_where_they_are_made(shared: Project) -> None:
    shared.write("gradients.py", textwrap.dedent(GRADIENTS))
    made = shared.run("gen", "gradients.py::step", "--inputs", "gradients.py::inputs", "--no-run")
    assert made.exit_code == 0 and "pmean grads" in made.words and "gradients.py:9" in made.words, made.stderr
    assert made.stdout.count("jax.lax.p") == 1 and "derived for all inputs" in made.words, made.stdout
    # A branch that is not taken binds nothing, and what is partial is made whole by the largest parts.
    made = shared.run("gen", "gradients.py::offline", "--inputs", "gradients.py::inputs", "--no-run")
    assert made.exit_code == 0 and "derived for all inputs" in made.words, made.stderr
    average = "grads = {**grads, 'value': jax.lax.pmean(grads['value'], axis_name=AXIS)}"
    assert average.replace("'", '"') in made.stdout.replace("'", '"'), made.stdout
    # Where no statement is theirs, all of them are.
    made = shared.run("gen", "gradients.py::clipped", "--inputs", "gradients.py::inputs", "--no-run")
    assert made.exit_code == 0 and "derived for all inputs" in made.words, made.stderr
    assert "jax.lax.pmean(jax.grad(loss)(params), axis_name=AXIS)" in made.stdout, made.stdout


def test_what_a_test_asks_the_kind_of_need_not_be_whole_there(shared: Project) -> None:
    shared.write("gradients.py", textwrap.dedent(GRADIENTS))
    made = shared.run("gen", "gradients.py::scored", "--inputs", "gradients.py::inputs", "--no-run")
    assert made.exit_code == 0 and "derived for all inputs" in made.words, made.stderr
    assert "if isinstance(scores, Scores) and scores is not None:" in made.stdout, made.stdout


OBJECTS = """
    import dataclasses
    import functools

    import jax
    import jax.numpy as jnp


    @functools.partial(jax.tree_util.register_dataclass, data_fields=["w", "key"], meta_fields=[])
    @dataclasses.dataclass(frozen=True)
    class Learner:
        w: jax.Array
        key: jax.Array

        def learn(self, x, scale):
            own, key = jax.random.split(self.key)
            x = x + scale * jax.random.normal(own, x.shape)
            loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(self.w)
            return dataclasses.replace(self, w=self.w - 0.1 * grads, key=key), loss


    def learned(learner, x):
        loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(learner.w)
        return dataclasses.replace(learner, w=learner.w - 0.1 * grads), loss


    def step(learner, x):
        learner, loss = learned(learner, x)
        return learner, {"loss": loss}


    def steps(learner, x):
        new = learner
        for i in range(2):
            size = x.shape[0] // 2
            new, loss = new.learn(x[i * size : (i + 1) * size], 0.1)
        return new, loss


    def inputs():
        return Learner(jnp.ones(5), jax.random.key(0)), jax.random.normal(jax.random.key(1), (48, 5))
"""


def test_what_an_object_holds_is_made_whole_in_the_function_that_makes_it(shared: Project) -> None:
    shared.write("objects.py", textwrap.dedent(OBJECTS))
    made = shared.run("gen", "objects.py::step", "--inputs", "objects.py::inputs", "--no-run")
    assert made.exit_code == 0 and "derived for all inputs" in made.words, made.stderr
    assert "    loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)\n" in made.stdout, made.stdout


def test_a_key_is_followed_into_methods_that_running_shows(shared: Project) -> None:
    shared.write("objects.py", textwrap.dedent(OBJECTS))
    made = shared.run("gen", "objects.py::steps", "--inputs", "objects.py::inputs", "--no-run")
    assert made.exit_code == 0 and "derived for all inputs" in made.words, made.stderr
    assert "fold_in own" in made.words and "pmean grads" in made.words, made.stderr


FOLLOWED = """
    import jax
    import jax.numpy as jnp


    def step(online, target, left, right):
        def loss_fn(p):
            seen = jnp.tanh(right @ target["a"]) @ target["b"]
            return jnp.mean((jnp.tanh(left @ p["a"]) @ p["b"] - seen) ** 2)

        grads = jax.grad(loss_fn)(online)
        online = jax.tree.map(lambda p, g: p - 0.1 * g, online, grads)
        return online, jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, target, online)


    def inputs():
        keys = jax.random.split(jax.random.key(0), 2)
        net = {"a": jax.random.normal(keys[0], (5, 8)), "b": jnp.ones((8, 3))}
        return net, net, jax.random.normal(keys[1], (48, 5)), jnp.ones((48, 5))
"""


def test_a_target_made_like_what_is_learned_is_no_batch(shared: Project) -> None:
    shared.write("followed.py", textwrap.dedent(FOLLOWED))
    made = shared.run("plan", "followed.py::step", "--inputs", "followed.py::inputs")
    assert made.exit_code == 0 and "left batch axis 0" in made.words, made.stderr
    assert "target replicated" in made.words and "online replicated" in made.words, made.stderr


def test_layers_to_and_from_one_width_are_no_batch(shared: Project) -> None:
    """A helper takes their gradient, so neither the body nor a name says that they are parameters."""
    shared.write(
        "update.py",
        """\
        import jax
        import jax.numpy as jnp


        def loss(p, d):
            return jnp.mean((jnp.tanh(d["x"] @ p["up"]) @ p["down"] - d["y"][:, None]) ** 2)


        def updated(loss, p, d):
            value, grads = jax.value_and_grad(loss)(p, d)
            return jax.tree.map(lambda p, g: p - 0.1 * g, p, grads), value


        def step(p, d):
            return updated(loss, p, d)
        """,
    )
    words = ("--arg", "p={up: f32[8,16], down: f32[16,8]}", "--arg", "d={x: f32[24,8], y: f32[24]}")
    found = json.loads(shared.run("plan", "update.py::step", *words, "--output-format", "json").stdout)
    assert {each["name"]: each["role"] for each in found["plan"]["arguments"]} == {
        "p": "replicated",
        "d": "batch",
    }


STRATA = """
    import jax
    import jax.numpy as jnp


    def loss_fn(w, x, t, key):
        z = x + t[:, None] * jax.random.normal(key, x.shape)
        return jnp.mean((jnp.tanh(z @ w + t[:, None]) - x) ** 2)


    def step(w, x, key):
        n = x.shape[0]
        start, noise = jax.random.split(key)
        t = jnp.mod(jax.random.uniform(start) + jnp.arange(0.0, 1.0, step=1.0 / n), 1.0)
        return w - 0.1 * jax.grad(loss_fn)(w, x, t, noise)


    def inputs():
        keys = jax.random.split(jax.random.key(0))
        return jax.random.normal(keys[0], (5, 5)), jax.random.normal(keys[1], (48, 5)), jax.random.key(2)
"""


def test_times_in_strata_are_those_of_the_whole_batch(shared: Project) -> None:
    """Where they do not fit is in a function that is called with them."""
    shared.write("strata.py", textwrap.dedent(STRATA))
    made = shared.run("gen", "strata.py::step", "--inputs", "strata.py::inputs", "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "own_share(jnp.arange(0.0, 1.0, step=1.0 / total_n))" in made.stdout
