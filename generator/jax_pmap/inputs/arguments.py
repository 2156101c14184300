"""Puts together what `--arg`, annotations, defaults and the body say of each argument."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jax_pmap.inputs.annotations import form_of_annotation, read_dims, whole
from jax_pmap.inputs.forms import Classes, classes_in, form_of, hint_of_node, spec_children, unknown
from jax_pmap.inputs.hints import hint_of
from jax_pmap.inputs.nodes import Node
from jax_pmap.inputs.spec import Spec
from jax_pmap.inputs.structure import read_structure
from jax_pmap.model import ParameterKind
from jax_pmap.reading.facts import FunctionFacts, Parameter
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.worker.protocol import SearchInputs
from jax_pmap.worker.scopes import parameters

_HOW = {
    ParameterKind.POSITIONAL_ONLY: "positional",
    ParameterKind.POSITIONAL_OR_KEYWORD: "positional",
    ParameterKind.VAR_POSITIONAL: "var_positional",
    ParameterKind.KEYWORD_ONLY: "keyword",
    ParameterKind.VAR_KEYWORD: "var_keyword",
}


@dataclass(frozen=True, slots=True)
class InputSearch:
    """The question for the worker."""

    request: SearchInputs
    #: Specs by name when nothing is left to search (everything given, annotated or defaulted), else None.
    specs: dict[str, Spec] | None
    #: Names whose specs annotations gave: to be printed as assumed, too.
    annotated: tuple[str, ...]


def input_search(
    parsed: ParsedSource,
    facts: FunctionFacts,
    given: Mapping[str, Spec],
    replicated: Collection[str] = (),
) -> InputSearch:
    """Forms of all arguments.

    Args:
        parsed: the target's file.
        facts: what was read of the target.
        given: specs of `--arg`, by name.
        replicated: arguments the user said are replicated: they are not given a batch axis.
    """
    classes = classes_in(parsed)
    nodes = read_structure(parsed)
    annotations = {
        item.arg: item.annotation
        for item in parameters(parsed.definition.args)
        if item.annotation is not None and item.arg not in given
    }
    hints = {name: _hint(node, replicated) for name, node in nodes.items()}
    apart = [name for name, hint in hints.items() if name in replicated or hint == "parameter"]
    dims = read_dims(annotations.items(), parsed, apart)
    settled: dict[str, Spec] = {}
    annotated: dict[str, Spec | None] = {}
    for parameter in facts.parameters:
        name = parameter.name
        if name in given:
            settled[name] = given[name]
        elif parameter.default is not None:
            settled[name] = {"kind": "default"}
        elif name in annotations:
            form = annotated[name] = form_of_annotation(annotations[name], parsed, dims, classes, name)
            if form is not None and whole(form):
                settled[name] = {**form, "assumed": True}
    # A position may be an element of a tuple or a row of an array: the first reading takes containers.
    readings: list[dict[str, Spec]] = []
    for containers, tied in itertools.product((True, False), (True, False)):
        forms = {
            parameter.name: settled.get(parameter.name)
            or _form(
                parameter,
                nodes[parameter.name],
                annotated.get(parameter.name),
                hints[parameter.name],
                classes,
                facts,
                containers,
            )
            for parameter in facts.parameters
        }
        _tie(forms, nodes, given, by_name=tied)
        if forms not in readings:
            readings.append(forms)
    rows = [{"name": p.name, "how": _HOW[p.kind], "hint": hints[p.name]} for p in facts.parameters]
    first = readings[0]
    done = all(whole(form) for form in first.values())
    return InputSearch(
        SearchInputs(tuple(rows), tuple(readings)),
        {name: {k: v for k, v in form.items() if k != "assumed"} for name, form in first.items()}
        if done
        else None,
        tuple(name for name in annotated if name in settled),
    )


def _hint(node: Node, replicated: Collection[str]) -> str:
    """``"parameter"`` for what has no batch axis, ``"data"`` for what may have one, or ``""``."""
    if node.word in replicated:
        return "parameter"
    hint = hint_of_node(node)
    return "data" if hint not in ("parameter", "like", "") else "parameter" if hint else ""


def _form(
    parameter: Parameter,
    node: Node,
    annotation: Spec | None,
    hint: str,
    classes: Classes,
    facts: FunctionFacts,
    containers: bool,
) -> Spec:
    """Form of one argument from its body, its annotation deciding what kind of leaf it is."""
    if parameter.kind is ParameterKind.VAR_KEYWORD:
        return {"kind": "dict", "items": [[k, form_of(n, hint, classes)] for k, n in node.keys.items()]}
    if parameter.kind is ParameterKind.VAR_POSITIONAL:
        made = form_of(node, hint, classes)
        items = spec_children(made) or [unknown(Node(parameter.name), "data")] * 2
        return {"kind": "tuple", "items": items}
    if annotation is not None and annotation["kind"] == "class":
        fields = classes.fields[annotation["type"]]
        children = [(name, node.attributes.get(name, Node(name))) for name in fields]
        rows = [[name, form_of(child, hint, classes, containers=containers)] for name, child in children]
        return {"kind": "object", "type": annotation["type"], "items": rows}
    if node.module is not None and node.module[1].path:
        module, inputs, wrapped = node.module
        expression = f"{module}.init(jax.random.key(0), {inputs.path})"
        return {"kind": "python", "expr": expression + ("['params']" if wrapped else "")}
    form = form_of(node, hint, classes, containers=containers)
    if annotation is not None and form["kind"] in ("unknown", "tuple"):
        wanted = annotation["hint"]
        if wanted == "array":
            plain = form.get("hint", "") if form["kind"] == "unknown" else ""
            kept = (
                plain if plain not in ("scalar", "size", "flag", "step", "string", "key", "callable") else ""
            )
            return unknown(node, kept or ("parameter" if hint == "parameter" else "data"))
        if wanted == "string" and not node.values:
            return {
                "kind": "missing",
                "reason": "it is a string, and the body does not say which ones it knows",
            }
        return unknown(node, wanted)
    if form["kind"] == "unknown" and parameter.name not in facts.key_parameters and form["hint"] == "key":
        return unknown(node, "key" if "key" in node.uses else "data")
    if form["kind"] == "unknown" and form["hint"] == "key" and "key" not in node.uses and _attention(facts):
        return unknown(node, "sequence")
    return form


def _attention(facts: FunctionFacts) -> bool:
    """Whether `key` stands beside a query or a value, and so is no PRNG key."""
    names = {parameter.name for parameter in facts.parameters}
    return bool(names & {"query", "value", "queries", "values", "q", "v"})


def _tie(
    forms: dict[str, Spec], nodes: Mapping[str, Node], given: Mapping[str, Spec], *, by_name: bool
) -> None:
    """Arguments that are gradients or averages of another one take its form, by their names alone too."""
    names = list(forms)
    owner = next(
        (
            name
            for name in names
            if nodes[name].differentiated or nodes[name].word in ("params", "parameters", "model")
        ),
        next(
            (name for name in names if hint_of(name) == "parameter" and forms[name]["kind"] != "default"),
            None,
        ),
    )
    for name in names:
        if name in given or forms[name]["kind"] in ("default", "literal"):
            continue
        if (optimiser := nodes[name].optimiser) is not None:
            receiver, of = optimiser
            params = next((other for other in names if nodes[other] is of), owner)
            if params not in (None, name):
                forms[name] = {"kind": "python", "expr": f"{receiver}.init({params})"}
                continue
        if forms[name]["kind"] != "unknown":
            continue
        alike = next((other for other in names if nodes[name].alike is nodes[other]), None)
        if (
            alike is None
            and by_name
            and hint_of(name) == "like"
            and forms[name]["hint"] == "parameter"
            and owner not in (None, name)
        ):
            alike = owner
        if alike is not None and alike != name and forms[alike]["kind"] not in ("default", "like"):
            forms[name] = {"kind": "like", "of": alike}
