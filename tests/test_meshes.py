"""Meshes of several axes: what is asked for, where arrays lie, what is proved of it and what is said."""

from __future__ import annotations

import dataclasses
import json
import math

import jsonschema
import pytest
from project import Project

from jax_pmap import options
from jax_pmap.emit import context
from jax_pmap.emit.specs import spec_table
from jax_pmap.leaf_paths import dotted, keys_of
from jax_pmap.model import (
    Argument,
    Leaf,
    MeshAxis,
    ParameterKind,
    Plan,
    RefusalError,
    Request,
    Role,
    Span,
)
from jax_pmap.planning.meshes import on_mesh
from jax_pmap.report.as_json import schema
from jax_pmap.worker.groups import along

MESH = (MeshAxis("data", 4), MeshAxis("model", 2))
SPAN = Span("train.py", 1)


# --- what is asked for ------------------------------------------------------------------------


def test_axes_and_rules_are_read() -> None:
    assert options.mesh("data=4, model=2") == MESH
    assert options.mesh("batch=8") == (MeshAxis("batch", 8),)
    assert options.mesh(None) == ()
    for text, spec in (
        ("a=model", (("model",),)),
        ("a=None,model", ((), ("model",))),
        ("a=model,None", (("model",),)),
        ("a=None", ()),
        ("a=(data,model)", (("data", "model"),)),
        ("a=None, (model, data)", ((), ("model", "data"))),
    ):
        assert options.spec(text, MESH).spec == spec, text
    assert options.spec("(?=x).*=model", MESH).pattern == "(?=x).*"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4x2", "no number of devices"),
        ("data=4,data=2", "names axis `data` twice"),
        ("data=0", "without devices"),
        ("data=-1", "no number of devices"),
        ("4=data", "no number of devices"),
        ("my axis=4", "no identifier"),
        ("data=4,", "no number of devices"),
        ("data=1000,model=1000", "derived for 4096"),
    ],
)
def test_meshes_that_are_none(text: str, says: str) -> None:
    with pytest.raises(RefusalError) as error:
        options.mesh(text)
    assert error.value.refusal.code == "JP018"
    assert says in error.value.refusal.reason


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model", "no pattern"),
        ("=model", "no pattern"),
        ("a=", "names no axes"),
        ("a=rows", "axis `rows`, which the mesh does not have"),
        ("a=model,model", "axis `model` twice"),
        ("a=(data,model),data", "axis `data` twice"),
        ("(=model", "no regular expression"),
        ("a=model;data", "has `model;data`"),
        ("a=(model", "names no axes"),
    ],
)
def test_rules_that_are_none(text: str, says: str) -> None:
    with pytest.raises(RefusalError) as error:
        options.spec(text, MESH)
    assert error.value.refusal.code == "JP018"
    assert says in error.value.refusal.reason


def test_paths_are_keys_as_jax_writes_them() -> None:
    assert keys_of("batch['x']") == ("batch", "x")
    assert keys_of("state.params['mlp/~/linear_0'][\"w\"]") == ("state", "params", "mlp/~/linear_0", "w")
    assert keys_of("opt_state[0].mu[1]") == ("opt_state", "0", "mu", "1")
    assert keys_of("model[<flat index 3>]['it\\'s']") == ("model", "3", "it's")
    assert keys_of("w") == ("w",)
    assert dotted("params['dense']['kernel']") == "params.dense.kernel"


# --- where arrays lie -------------------------------------------------------------------------


def leaf(path: str, *shape: int, axis: int | None = None) -> Leaf:
    return Leaf(path, Role.BATCH if axis is not None else Role.REPLICATED, axis, shape, "float32")


def planned(*leaves: Leaf, outputs: tuple[Leaf, ...] = (), chain: tuple[tuple[str, str], ...] = ()) -> Plan:
    names = dict.fromkeys(keys_of(each.path)[0] for each in leaves)
    arguments = tuple(
        Argument(
            name,
            ParameterKind.POSITIONAL_OR_KEYWORD,
            None,
            tuple(each for each in leaves if keys_of(each.path)[0] == name),
        )
        for name in names
    )
    return Plan("train.py::step", "data", arguments, (), None, outputs, chain=chain)


def lying(plan: Plan, *rules: str, fsdp: bool = False) -> dict[str, object]:
    request = Request("step", mesh=MESH, spec=tuple(options.spec(rule, MESH) for rule in rules), fsdp=fsdp)
    made = on_mesh(plan, request, SPAN)
    return {each.path: each.spec for a in (*made.arguments,) for each in a.leaves} | {
        each.path: each.spec for each in made.outputs
    }


def test_state_lies_as_the_parameters_it_is_of() -> None:
    plan = planned(
        leaf("params['up']['kernel']", 8, 6),
        leaf("params['down']['kernel']", 6, 8),
        leaf("state[0].mu['up']['kernel']", 8, 6),
        leaf("state[0].nu['down']['kernel']", 6, 8),
        leaf("state[0].row['up']['kernel']", 8),
        leaf("state[0].count"),
        leaf("x", 24, 8, axis=0),
        outputs=(
            leaf("result[0]['up']['kernel']", 8, 6),
            leaf("result[1]", 24, 6, axis=0),
            leaf("result[2]"),
        ),
        chain=(("params", "[0]"),),
    )
    found = lying(plan, "params.up.*=None,model", "params.*=model")
    assert found == {
        "params['up']['kernel']": ((), ("model",)),
        "params['down']['kernel']": (("model",),),
        "state[0].mu['up']['kernel']": ((), ("model",)),
        "state[0].nu['down']['kernel']": (("model",),),
        "state[0].row['up']['kernel']": (),
        "state[0].count": (),
        "x": (("data",),),
        "result[0]['up']['kernel']": ((), ("model",)),
        "result[1]": (("data",),),
        "result[2]": (),
    }


def test_fsdp_divides_the_largest_dimension_that_is_free() -> None:
    plan = planned(
        leaf("p['a']", 64, 128),
        leaf("p['b']", 66, 128),
        leaf("p['c']", 128, 66),
        leaf("p['odd']", 67, 129),
        leaf("p['small']", 8, 8),
        leaf("p['kept']", 64, 128),
        leaf("m['a']", 64, 128),
    )
    found = lying(plan, "p.a=None,model", "p.kept=None", fsdp=True)
    assert found == {
        "p['a']": (("data",), ("model",)),
        "p['b']": ((), ("data",)),
        "p['c']": (("data",),),
        "p['odd']": (),
        "p['small']": (),
        "p['kept']": (),
        "m['a']": (("data",), ("model",)),
    }


@pytest.mark.parametrize(
    ("rules", "fsdp", "says"),
    [
        (["params.kernle=model"], False, ["fits the path of no array", "`params.kernel`"]),
        (["kernel=model"], False, ["fits the path of no array", "`params.kernel`", "begin it with `.*`"]),
        (["x=model"], False, ["`x` alone, which is the batch"]),
        (["params.bias=None,model"], False, ["dimension 1 of `params.bias`, of shape (6,)"]),
        (
            ["params.odd=model"],
            False,
            ["`params.odd`, of size 9", "among 2 devices", "--mesh data=8,model=1"],
        ),
        (["params.bias=data"], False, ["of size 6", "among 4 devices", "--mesh data=2,model=4"]),
        ([], True, ["`--fsdp` divides no array", "`params.kernel` of shape (8, 6)", "fewer than 4096"]),
    ],
)
def test_what_the_mesh_does_not_divide_is_refused(rules: list[str], fsdp: bool, says: list[str]) -> None:
    plan = planned(
        leaf("params['kernel']", 8, 6),
        leaf("params['bias']", 6),
        leaf("params['odd']", 9),
        leaf("x", 24, axis=0),
    )
    with pytest.raises(RefusalError) as error:
        lying(plan, *rules, fsdp=fsdp)
    refusal = error.value.refusal
    assert refusal.code == "JP063"
    for text in says:
        assert text in f"{refusal.reason} {refusal.hint}"


def test_a_mesh_that_is_proposed_divides_the_array_and_the_batch() -> None:
    proposed = set()
    for size in range(1, 40):
        for names in ("model", "data", "(data,model)"):
            plan = planned(leaf("w", size), leaf("x", 24, axis=0))
            try:
                lying(plan, f"w={names}")
            except RefusalError as error:
                axes = options.mesh(error.refusal.hint.partition("--mesh ")[2].partition(";")[0])
                parts = math.prod(axis.size for axis in axes if axis.name in names)
                assert size % parts == 0, (size, names, axes)
                assert all(24 % axis.size == 0 for axis in axes if axis.name == "data"), (size, names, axes)
                proposed.add((parts, names))
    assert {(2, "data"), (3, "(data,model)")} <= proposed


def test_the_table_tells_arrays_apart_by_the_ends_of_their_paths() -> None:
    wide, narrow = ((), ("model",)), (("model",),)
    leaves = [
        leaf("params['a']['kernel']", 8, 6),
        leaf("params['b']['kernel']", 8, 6),
        leaf("params['c']['kernel']", 6, 8),
        leaf("state.mu['a']['kernel']", 8, 6),
        leaf("state.row['a']['kernel']", 8),
    ]
    specs = [wide, wide, narrow, wide, ()]
    plan = planned(*(dataclasses.replace(each, spec=s) for each, s in zip(leaves, specs, strict=True)))
    table = spec_table(plan, valued=True)
    assert table == {
        "params.a.kernel": wide,
        "b.kernel": wide,
        "c.kernel": narrow,
        "mu.a.kernel": wide,
    }


# --- what the compiled program says -----------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", ["model"]),
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", ["data"]),
        ("replica_groups={{0,1,2,3,4,5,6,7}}", ["data", "model"]),
        ("replica_groups={}", ["data", "model"]),
        ("replica_groups=[4,2]<=[8]", ["model"]),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", ["data"]),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_1'}", ["model"]),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_1'}", ["data"]),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0','axis_1'}", ["data", "model"]),
        ("source_target_pairs={{0,1},{1,0},{2,3},{3,2}}", ["model"]),
        ("source_target_pairs={{0,2},{2,4},{4,6},{6,0}}", ["data"]),
        ("replica_groups={{0,3},{1,2},{4,7},{5,6}}", None),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(1)2}", None),
        ("to_apply=%add", None),
    ],
)
def test_collectives_go_along_axes(groups: str, axes: list[str] | None) -> None:
    assert along(f"%a), channel_id=1, {groups}, dimensions={{0}}", {"data": 4, "model": 2}) == axes


# --- the whole way ----------------------------------------------------------------------------

STEP = """\
import jax
import jax.numpy as jnp


def loss_fn(params, x):
    return jnp.mean(jnp.tanh(x @ params["up"]) @ params["down"])


def step(params, x):
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss
"""
WORDS = ("--arg", "params={up: f32[6,64], down: f32[64,2]}", "--arg", "x=f32[24,6]", "--backend", "jit")
ASKED = ("--mesh", "data=2,model=2", "--spec", "params.up=None,model", "--spec", "params.down=model")


def test_what_is_proved_and_said(shared: Project) -> None:
    shared.write("step.py", STEP)
    made = shared.run("gen", "step.py::step", *WORDS, *ASKED, "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    jsonschema.validate(document["plan"], schema("plan"))
    evidence = document["evidence"]
    assert evidence["derivation"]["complete"]
    assert evidence["derivation"]["devices"] == 4
    assert {check["devices"] for check in evidence["checks"]} == {4}
    assert {axis for row in evidence["collectives"] for axis in row["axes"]} == {"data", "model"}
    assert evidence["memory"]["arguments"] > 0
    assert document["plan"]["mesh"] == [{"name": "data", "size": 2}, {"name": "model", "size": 2}]
    params = document["plan"]["arguments"][0]["leaves"]
    assert [(row["shape"], row["spec"]) for row in params] == [
        ([64, 2], [["model"]]),
        ([6, 64], [[], ["model"]]),
    ]
    shown = shared.run("gen", "step.py::step", *WORDS, *ASKED)
    assert "derived for all inputs on 4 devices" in shown.words
    assert "mesh data=2, model=2" in shown.words
    rows = [line.split() for line in shown.stderr.splitlines()]
    assert ["params", "2.05", "kB", "1.02", "kB"] in rows
    assert ["up", "None,", "model", "1.54", "kB", "768", "B"] in rows


def test_arrays_that_lie_elsewhere_are_no_proof(shared: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.write("step.py", STEP)
    monkeypatch.setattr(context, "spec_table", lambda plan, valued: {"up": (("model",),), "down": ((),)})
    says = ("output `[0]['down']` does not lie on the mesh as planned on 4 devices", "planned as")
    shared.refused("JP045", "gen", "step.py::step", *WORDS, *ASKED, says=says, exit_code=1)


def test_a_batch_that_is_smaller_than_its_axis_is_the_batch_all_the_same(shared: Project) -> None:
    """`up` has a dimension that divides, and is no batch for it."""
    shared.write("step.py", STEP)
    words = ("plan", "step.py::step", *WORDS, "--mesh", "data=32,model=2")
    shared.refused(
        "JP041", *words, says=("its batch of 24 does not divide over 32 devices along",), exit_code=1
    )


def test_options_that_do_not_fit_together(shared: Project) -> None:
    shared.write("step.py", STEP)
    for words, code, exit_code, says in (
        (("--mesh", "data=4,model=2"), "JP046", 1, "Use --backend jit"),
        (("--mesh", "batch=8"), "JP046", 1, "--devices 8 --axis-name batch"),
        (("--fsdp", "--backend", "jit"), "JP018", 2, "is none. hint: Name its axes and their devices"),
        (("--fsdp", "--backend", "shard_map", "--axis-name", "b"), "JP018", 2, "`--mesh b=8 --fsdp`."),
        (("--spec", "a=b"), "JP018", 2, "`--backend jit --mesh data=4,model=2 --spec ...`"),
        (("--mesh", "a=2", "--devices", "4", "--backend", "jit"), "JP018", 2, "has 2 devices"),
        (("--mesh", "a=2", "--axis-name", "b", "--backend", "jit"), "JP018", 2, "`--axis-name b` is no axis"),
    ):
        shared.refused(code, "plan", "step.py::step", *words, says=(says,), exit_code=exit_code)


def test_explicit_mode_is_for_jit_code_whose_types_say_all(shared: Project) -> None:
    shared.write("step.py", STEP)
    asked = ("gen", "step.py::step", *WORDS, *ASKED, "--explicit")
    says = ("explicit mode does not say", "ontracting dimensions are sharded", "Leave out --explicit")
    place = ("step.py:6:", '@ params["down"]')
    shared.refused("JP046", *asked, says=(*says, *place), exit_code=1)
    # Some functions ask by an error of their own.
    repeated = STEP.replace('params["down"]', 'jnp.repeat(params["down"], 2, 0)[::2]')
    assert repeated != STEP
    shared.write("repeated.py", repeated)
    asked = ("gen", "repeated.py::step", *WORDS, *ASKED, "--explicit")
    says = ("explicit mode does not say", "sharding to `jnp.repeat` via", "Leave out --explicit")
    shared.refused("JP046", *asked, says=says, exit_code=1)
    for form in ("shard_map", "auto"):
        words = [each if each != "jit" else form for each in (*WORDS, "--explicit")]
        shared.refused("JP046", "plan", "step.py::step", *words, says=("Use --backend jit",), exit_code=1)
