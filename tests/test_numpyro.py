"""Models of numpyro: what its inference sums over the examples is whole over the devices."""

import pytest
from project import Project

pytest.importorskip("numpyro")

MODELS = """
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import log_density


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    with numpyro.plate("examples", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


def minibatch(x, y):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    with numpyro.plate("examples", 1000, subsample_size=x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


def latent(x, y):
    w = numpyro.param("w", 0.1 * jnp.ones((2, 3)))
    with numpyro.plate("examples", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        numpyro.sample("x", dist.Normal(z @ w, 0.5).to_event(1), obs=x)


def encoder(x, y):
    w = numpyro.param("encoder", 0.1 * jnp.ones((3, 2)))
    with numpyro.plate("examples", x.shape[0]):
        numpyro.sample("z", dist.Normal(jnp.tanh(x @ w), 0.3).to_event(1))


def centred(x, y):
    regression(x / jnp.sqrt(jnp.mean(x**2)), y)


of_regression = SVI(regression, AutoNormal(regression), optax.adam(1e-2), Trace_ELBO())
of_minibatch = SVI(minibatch, AutoNormal(minibatch), numpyro.optim.ClippedAdam(1e-2), Trace_ELBO())
of_latent = SVI(latent, encoder, optax.adam(1e-2), TraceMeanField_ELBO())
of_centred = SVI(centred, AutoNormal(centred), optax.adam(1e-2), Trace_ELBO())


def data():
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (24, 3))
    return x, x @ jnp.arange(3.0) + jax.random.normal(keys[1], (24,))


def started(svi):
    return svi.init(jax.random.key(1), *data()), *data()


def inputs_regression():
    return started(of_regression)


def inputs_minibatch():
    return started(of_minibatch)


def inputs_latent():
    return started(of_latent)


def inputs_centred():
    return started(of_centred)


def inputs_density():
    return {"w": jnp.ones(3)}, *data()


def step_regression(state, x, y):
    state, loss = of_regression.update(state, x, y)
    return state, loss


def step_minibatch(state, x, y):
    return of_minibatch.update(state, x, y)


def step_latent(state, x, y):
    return of_latent.update(state, x, y)


def step_centred(state, x, y):
    return of_centred.update(state, x, y)


def step_density(params, x, y):
    def loss(params):
        return -log_density(regression, (x, y), {}, params)[0]

    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params))
"""


@pytest.mark.parametrize(
    ("name", "sites"),
    [("regression", '{"y"}'), ("minibatch", ""), ("latent", '{"x", "z"}'), ("density", '{"y"}')],
)
def test_sites_of_examples_count_for_all_devices(shared: Project, name: str, sites: str) -> None:
    shared.write("models.py", MODELS)
    given = ("--inputs", f"models.py::inputs_{name}", *(() if name == "latent" else ("--no-run",)))
    made = shared.run("gen", f"models.py::step_{name}", *given)
    assert made.exit_code == 0, made.stderr
    assert "all_gather" not in made.stdout and "derived for all inputs" in made.stderr
    # Sites that a plate scales to a fixed size are those of it on a share, too.
    assert ('if msg["type"] == "sample"' in made.stdout) == bool(sites)
    assert f'msg["name"] in {sites}' in made.stdout or not sites
    assert 'msg["value"] = jax.lax.pmean(msg["value"], AXIS)' in made.stdout


def test_a_step_is_changed_in_place(project: Project) -> None:
    project.write("models.py", MODELS)
    given = ("--inputs", "models.py::inputs_regression", "--backend", "shard_map", "--in-place")
    made = project.run("gen", "models.py::step_regression", *given)
    assert made.exit_code == 0, made.stderr
    assert "class OverDevices(numpyro.primitives.Messenger):" in (project.folder / "models.py").read_text()
    found = project.run("check", "models.py")
    assert found.exit_code == 0, found.stdout


def test_what_a_model_computes_of_its_batch_is_refused_with_its_line(shared: Project) -> None:
    shared.write("models.py", MODELS)
    given = ("--inputs", "models.py::inputs_centred")
    says = ("`regression(x / jnp.sqrt(jnp.mean(x**2)), y)` (models.py:37) is taken over the examples",)
    shared.refused("JP067", "gen", "models.py::step_centred", *given, says=says, exit_code=1)
