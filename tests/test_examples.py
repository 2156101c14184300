"""Every example does what it is there to show: roles, collectives, proof, through the command line."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from jax_pmap.cli import main

pytest_plugins = ["warm"]


@dataclass(frozen=True)
class Case:
    target: str
    inputs: str
    #: Path of a leaf (or name of an argument whose leaves all agree) -> its role.
    roles: dict[str, str]
    #: (op, value) in the order of the source.
    syncs: tuple[tuple[str, str], ...]
    #: Path of every output leaf -> its role; ``"result"`` for those not named.
    outputs: dict[str, str]

    def output(self, path: str) -> str | None:
        """Role of an output, or of all of them."""
        return self.outputs.get(path, self.outputs.get("result"))


BATCH, SECOND_AXIS, WHOLE, STATIC, KEY = "batch 0", "batch 1", "replicated", "static", "key"

CASES = (
    Case(
        "seed_blocks.py::scale_by_two",
        "numbers",
        {"x": BATCH},
        (),
        {"result": BATCH},
    ),
    Case(
        "seed_blocks.py::scale_and_add",
        "numbers_and_offset",
        {"x": BATCH, "y": WHOLE},
        (),
        {"result": BATCH},
    ),
    Case(
        "seed_blocks.py::scale_and_sum",
        "numbers",
        {"x": BATCH},
        (),  # its own psum is enough
        {"result[0]": BATCH, "result[1]": WHOLE},
    ),
    Case(
        "seed_blocks.py::simple_computation",
        "numbers",
        {"x": BATCH},
        (),
        {"result": BATCH},
    ),
    Case(
        "seed_blocks.py::compute_fn",
        "numbers",
        {"x": BATCH},
        (("psum", "jnp.sum(x**2)"),),
        {"result": WHOLE},
    ),
    Case(
        "seed_blocks.py::parallel_mean",
        "numbers",
        {"x": BATCH},
        (),
        {"result": WHOLE},
    ),
    Case(
        "seed_blocks.py::train_step",
        "params_and_batch",
        {"params": WHOLE, "batch": BATCH},
        (("pmean", "loss"), ("pmean", "grads")),
        {"result[0]['b']": WHOLE, "result[0]['w']": WHOLE, "result[1]": WHOLE},
    ),
    Case(
        "seed_blocks.py::synced_train_step",
        "params_and_batch",
        {"params": WHOLE, "batch": BATCH},
        (("pmean", "loss"),),  # its own pmean synchronises the gradients
        {"result[0]['b']": WHOLE, "result[0]['w']": WHOLE, "result[1]": WHOLE},
    ),
    Case(
        "metrics.py::masked_mean",
        "inputs_masked_mean",
        {"values": BATCH, "mask": BATCH},
        (("psum", "total"), ("psum", "count")),  # never a mean of the shards' ratios
        {"result": WHOLE},
    ),
    Case(
        "metrics.py::perplexity",
        "inputs_perplexity",
        {"losses": BATCH},
        (("pmean", "jnp.mean(losses)"),),  # before the exponential
        {"result": WHOLE},
    ),
    Case(
        "metrics.py::evaluate",
        "inputs_evaluate",
        {"params": WHOLE, "images": BATCH, "labels": BATCH},
        (
            ("psum", "correct"),
            ("psum", "images.shape[0]"),
            ("pmin", "jnp.min(jnp.max(probabilities, axis=-1))"),
        ),
        {"result['accuracy']": WHOLE, "result['least_sure']": WHOLE, "result['predictions']": BATCH},
    ),
    Case(
        "metrics.py::run_rnn",
        "inputs_run_rnn",
        {"params": WHOLE, "inputs": SECOND_AXIS, "state": BATCH},
        (("pmean", "jnp.mean(outputs**2)"),),
        {"result[0]": BATCH, "result[1]": SECOND_AXIS, "result[2]": WHOLE},
    ),
    Case(
        "metrics.py::look_up",
        "inputs_look_up",
        {"data['index']": BATCH, "data['table']": WHOLE, "data['scale']": WHOLE},
        (("pmax", "jnp.max(rows, axis=0)"),),
        {"result[0]": BATCH, "result[1]": WHOLE},
    ),
    Case(
        "equinox_classifier.py::make_step",
        "example_inputs",
        {
            "model.layers[1]": STATIC,
            "model.layers[3]": STATIC,
            "model": WHOLE,
            "opt_state": WHOLE,
            "x": BATCH,
            "y": BATCH,
        },
        (("pmean", "loss"), ("pmean", "accuracy"), ("pmean", "grads")),
        {"result[0].layers[1]": STATIC, "result[0].layers[3]": STATIC, "result": WHOLE},
    ),
    Case(
        "nnx_classifier.py::train_step",
        "example_inputs",
        {
            "model.dropout.rngs.key.value": KEY,
            "model": WHOLE,
            "optimizer": WHOLE,
            "metrics": WHOLE,
            "batch": BATCH,
        },
        (
            ("fold_in", "model"),
            ("pmean", "loss"),
            ("pmean", "grads"),
            ("psum", "metrics"),  # what is added to its accuracy
        ),
        {},
    ),
    Case(
        "dqn.py::update",
        "example_inputs",
        {"params": WHOLE, "target_params": WHOLE, "opt_state": WHOLE, "batch": BATCH},
        (("pmean", "loss"), ("pmean", "grads")),
        {"result": WHOLE},
    ),
    Case(
        "vae.py::train_step",
        "example_inputs",
        {"params": WHOLE, "images": BATCH, "key": KEY},
        (("pmean", "loss"), ("pmean", "grads"), ("fold_in", "key")),
        {"result": WHOLE},
    ),
    Case(
        "contrastive.py::train_step",
        "example_inputs",
        {"params": WHOLE, "opt_state": WHOLE, "images": BATCH, "texts": BATCH},
        (
            ("all_gather", "text_vectors"),
            ("psum", "logits.shape[0]"),
            ("own_share", "jnp.arange(logits.shape[0])"),
            ("all_to_all", "logits.T"),  # rows of all texts, of which a device has columns
            ("pmean", "loss"),
            ("pmean", "grads"),
        ),
        {"result": WHOLE},
    ),
    Case(
        "accumulate.py::train_step",
        "example_inputs",
        {"params": WHOLE, "opt_state": WHOLE, "x": SECOND_AXIS, "y": SECOND_AXIS},
        (("pmean", "loss"), ("pmean", "grads")),  # after the scan, once
        {"result": WHOLE},
    ),
    Case(
        "gan.py::train_step",
        "example_inputs",
        {
            "generator": WHOLE,
            "critic": WHOLE,
            "generator_state": WHOLE,
            "critic_state": WHOLE,
            "real": BATCH,
            "noise": BATCH,
        },
        (("pmean", "grads_c"), ("pmean", "loss_c"), ("pmean", "loss_g"), ("pmean", "grads_g")),
        {"result": WHOLE},
    ),
    Case(
        "pinn.py::train_step",
        "example_inputs",
        {"params": WHOLE, "t": BATCH, "x": BATCH},
        (("pmean", "loss"), ("pmean", "grads")),
        {"result": WHOLE},
    ),
    Case(
        "kmeans.py::step",
        "example_inputs",
        {"centroids": WHOLE, "points": BATCH},
        (("psum", "sums"), ("psum", "sizes"), ("pmean", "inertia")),
        {"result[0]": WHOLE, "result[1]": BATCH, "result[2]": WHOLE},
    ),
    Case(
        "sgld.py::sample_step",
        "example_inputs",
        {"weights": WHOLE, "x": BATCH, "y": BATCH, "key": KEY},
        (("pmean", "value"), ("pmean", "gradient")),  # the key is not folded
        {"result": WHOLE},
    ),
    Case(
        "ppo.py::update",
        "example_inputs",
        {"params": WHOLE, "opt_state": WHOLE, "batch": BATCH},
        (
            ("pmean", "advantage.mean()"),
            ("pmean", "loss"),
            ("pmean", "grads"),
            ("std", "advantage.std()"),
        ),
        {"result": WHOLE},
    ),
    Case(
        "masked_lm.py::train_step",
        "example_inputs",
        {"params": WHOLE, "opt_state": WHOLE, "tokens": BATCH, "hidden": BATCH},
        (("psum", "jnp.sum(hidden)"), ("psum", "loss"), ("psum", "grads")),
        {"result": WHOLE},
    ),
    Case(
        "linen_dropout.py::train_step",
        "example_inputs",
        {"state": WHOLE, "images": BATCH, "labels": BATCH, "key": KEY},
        (("fold_in", "key"), ("pmean", "loss"), ("pmean", "grads")),
        {"result": WHOLE},
    ),
    Case(
        "haiku_classifier.py::train_step",
        "example_inputs",
        # The mean has as many features as there are devices, and is whole all the same.
        {"params": WHOLE, "state": WHOLE, "opt_state": WHOLE, "images": BATCH, "labels": BATCH},
        (("pmean", "loss"), ("pmean", "state"), ("pmean", "grads")),
        {"result": WHOLE},
    ),
    Case(
        "batchnorm.py::train_step",
        "example_inputs",
        {"state": WHOLE, "images": BATCH, "labels": BATCH},
        (("pmean", "loss"), ("pmean", "grads")),  # the layer itself sees to its statistics
        {"result": WHOLE},
    ),
)


@pytest.fixture
def in_examples(warm: None, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in examples/; one worker takes them all, as it does under `check`."""
    monkeypatch.chdir(repository / "examples")


def asked(*words: str) -> tuple[int, dict]:
    """The exit code of the command line and its report."""
    answer = CliRunner().invoke(main, [*words, "--python", sys.executable, "--output-format", "json"])
    assert answer.stdout, answer.stderr
    return answer.exit_code, json.loads(answer.stdout)


def jax_pmap(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in examples/, as an installed one would be."""
    path = os.pathsep.join(filter(None, [str(repository / "generator"), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "jax_pmap", *words],
        cwd=repository / "examples",
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def role(leaf: dict) -> str:
    return leaf["role"] if leaf["axis"] is None else f"{leaf['role']} {leaf['axis']}"


@pytest.mark.usefixtures("in_examples")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.target)
def test_examples_are_proved_with_the_expected_plan(case: Case) -> None:
    file = case.target.partition("::")[0]
    code, report = asked("gen", case.target, "--inputs", f"{file}::{case.inputs}")
    assert (code, report["status"]) == (0, "proved"), report["refusal"]
    evidence = report["evidence"]
    derived = evidence["derivation"]["complete"]
    assert derived or case.target in TRIED_ALONE, evidence["derivation"]
    assert {check["devices"] for check in evidence["checks"]} == ({3, 8} if derived else {2, 3, 4, 8})

    plan = report["plan"]
    leaves = [leaf for argument in plan["arguments"] for leaf in argument["leaves"]]
    found = {path: role(leaf) for leaf in leaves for path in leaf["paths"]}
    for path, leaf_role in found.items():
        wanted = case.roles.get(path, case.roles.get(re.split(r"[\[.]", path)[0]))
        assert leaf_role == wanted, path
    assert sorted((sync["op"], sync["value"]) for sync in plan["syncs"]) == sorted(case.syncs)
    outputs = {path: role(leaf) for leaf in plan["outputs"] for path in leaf["paths"]}
    assert outputs == {path: case.output(path) for path in outputs}
    assert case.outputs.keys() - {"result"} <= outputs.keys()


#: Examples that are run on inputs alone: no derivation of them comes to its end.
TRIED_ALONE: frozenset[str] = frozenset()


@pytest.mark.usefixtures("in_examples")
@pytest.mark.parametrize(
    ("file", "function", "inputs"),
    [("metrics.py", "ranks", "inputs_ranks"), ("ranking.py", "discounted_gain", "example_inputs")],
)
def test_a_rank_over_the_batch_is_refused_with_its_line(
    repository: Path, file: str, function: str, inputs: str
) -> None:
    words = ("gen", f"{file}::{function}", "--inputs", f"{file}::{inputs}")
    code, report = asked(*words)
    assert (code, report["status"]) == (1, "refused")
    assert report["code"] is None
    assert report["refusal"]["code"] == "JP043"
    line = (repository / "examples" / file).read_text().splitlines()[report["refusal"]["span"]["line"] - 1]
    assert "jnp.argsort" in line


def test_the_demo_runs_on_eight_devices_and_agrees(repository: Path, tmp_path: Path) -> None:
    generated = tmp_path / "train_pmap.py"
    answer = jax_pmap(
        repository,
        "gen",
        "train.py::train_step",
        "--axis-name",
        "batch",
        "--inputs",
        "train.py::example_inputs",
        "-o",
        str(generated),
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == ""
    assert "run on 3, 8 devices" in answer.stderr
    text = generated.read_text()
    sync = text.index("loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)")
    assert sync < text.index("norm = optax.global_norm(grads)"), "clipped before the gradients are whole"

    compared = subprocess.run(
        [sys.executable, str(repository / "examples" / "compare.py"), str(generated)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert compared.returncode == 0, compared.stdout + compared.stderr
    heading, *steps = compared.stdout.splitlines()
    assert "8 devices" in heading
    assert len(steps) == 5
