"""What the templates show of a woven function and its plan: every decision is made here, syntax is theirs."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import json
import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax_pmap.emit.axes import (
    collapse,
    spec_source,
    tree_source,
    tuple_source,
    type_imports,
    used_axes,
)
from jax_pmap.emit.function import EmitUnit, Intercepted
from jax_pmap.emit.header import Header
from jax_pmap.emit.imports import import_block
from jax_pmap.emit.names import ALIASES, Names
from jax_pmap.emit.partition import Partition, returns_value
from jax_pmap.emit.source import (
    assigned_names,
    escaped,
    indented,
    returned_names,
    signature,
    string,
    wrapped_f_string,
)
from jax_pmap.emit.specs import RESULT, partition_spec, placed_arguments, spec_table
from jax_pmap.emit.weave import written
from jax_pmap.model import (
    ADDED,
    AROUND,
    GATHERED,
    OWN_SHARE,
    OWN_SIZE,
    Argument,
    Axes,
    AxesNode,
    Backend,
    Leaf,
    ParameterKind,
    Plan,
    Role,
    moded,
)
from jax_pmap.reading.facts import Parameter

#: Columns for a docstring in a function at top level, quotes and indentation taken off.
DOCSTRING_WIDTH = 86

#: What a device gets of gradients, or has its part of.
_SCATTERED = {"psum": "sum", "pmean": "mean", "psum_scatter": "sum", "pmean_scatter": "mean"}

#: Forms of leaves that are alike from which on they are counted: the layers of a model.
MANY_FORMS = 4
#: What is imported for libraries whose layers are synchronised by intercepting calls.
LIBRARIES = {"nn": "flax.linen", "hk": "haiku", "numpyro": "numpyro"}
#: What stands before the names of sites of numpyro models among the layers of a plan.
SITE = "numpyro:"
#: Names that the helpers in the templates use beside the user's arguments.
HELPER_LOCALS = frozenset(
    {"axes", "axis", "count", "found", "getattr", "index", "isinstance", "kind", "leaf", "len", "list"}
    | {"longer", "name", "path", "rank", "rows", "set", "shape", "sizes", "sorted", "split", "there"}
    | {"tree"}
)


def libraries_of(layers: Iterable[str]) -> set[str]:
    """The libraries of which layers, or sites, are told the axis."""
    return {layer.partition(":")[0] for layer in layers}


def sites_in(layers: Iterable[str]) -> list[str]:
    """The names of sites of numpyro models among layers; ``""`` where a model has none that is told."""
    return [layer.removeprefix(SITE) for layer in layers if layer.startswith(SITE)]


def over_devices(
    n: Names, layers: Sequence[str], in_maps: bool, own: Sequence[Intercepted] = ()
) -> dict[str, Any]:
    """The variables of the helper that has layers of these libraries synchronised, and the user's `own`."""
    known = {
        "flax.linen": (n.nn, "axis_name", f"isinstance(layer, {n.nn}.BatchNorm)"),
        # Batch norms, and quantisers with their codebooks.
        "haiku": (n.hk, "cross_replica_axis", 'hasattr(layer, "cross_replica_axis")'),
    }
    sites = sites_in(layers)
    told = [known[layer] for layer in layers if layer in known]
    call = "return function(*args, **kwargs)"
    names = [(each[0], name) for each, name in zip(told, ("told", "told_too"), strict=False)]
    names += [(known[each][0], "copied") for each in dict.fromkeys(method.library for method in own)]
    if names:
        call = f"with {', '.join(f'{each}.intercept_methods({name})' for each, name in names)}: {call}"
    if sites:
        call = f"with OverDevices(): {call}"
    return {
        "over_devices": bool(layers or own),
        "models": bool(sites),
        "sites": ", ".join(map(json.dumps, filter(None, sites))),
        "told": told,
        "copies": [(each.method, each.copy) for each in own],
        "nnx_layers": "flax.nnx" in layers,
        "equinox_layers": "equinox.nn" in layers,
        "in_maps": in_maps,
        "call": call,
    }


class Context:
    """Works out every value the templates show."""

    def __init__(self, unit: EmitUnit, plan: Plan, backend: Backend, header: Header, at: str = "") -> None:
        self.unit = unit
        self.plan = plan
        self.backend = backend
        self.header = header
        #: What stands before the names of functions beside the drop-in where it is a method: ``"Trainer."``.
        self.at = at
        # Explicit mode is as new as the short name.
        names = unit.names
        self.n = dataclasses.replace(names, P=f"{names.jax}.P") if unit.explicit else names
        self.pmap = backend is Backend.PMAP
        self.arguments = tuple(plan.arguments)
        #: Of minibatches, which `shard` puts along an axis of their own, the rows are behind that.
        self.axes = {
            a.name: 1 if plan.minibatches > 1 and used_axes(a.axes) else collapse(a.axes)
            for a in self.arguments
        }
        self.split = tuple(a for a in self.arguments if used_axes(a.axes))
        #: pmap with chosen ids and the mesh backends are made at the first call.
        self.lazy = not self.pmap or bool(plan.devices.ids)
        self.valued = not plan.mutated or returns_value(unit.body)
        self.result_axes = _outer_tuple_kept(plan.output_axes)
        #: Those of what the mapped function returns: behind the result, the arguments it changes.
        self.output_axes = self.result_axes
        if plan.mutated and self.valued:
            self.output_axes = AxesNode("tuple", (), (self.result_axes, None))
        enclosed = backend is Backend.SHARD_MAP
        self.partition = Partition(plan, unit.taken_names, self.n, enclosed=enclosed)
        #: How arrays lie on a mesh, and the arguments that are put there before the call.
        self.put = {a.name for a in placed_arguments(plan)}
        divided = bool(self.put) or any(leaf.spec and leaf.axis is None for leaf in plan.outputs)
        #: The argument that pmap maps over where it is to map over none of the user's.
        self.device = [] if self.split or not self.pmap else [_free("device", unit.taken_names)]
        # Results of shard_map code lie as its `out_specs` say.
        ruled = dataclasses.replace(plan, outputs=()) if backend is Backend.SHARD_MAP else plan
        self.specs = spec_table(ruled, valued=self.valued) if divided else {}
        #: Arguments that every device has whole and that a call gets back from the one before it.
        fed = {name for name, _ in plan.chain}.union(plan.mutated) - self.put
        whole = [a for a in self.arguments if not a.static and a not in self.split]
        self.replicated = {a.name for a in whole if a.name in fed}

    def values(self) -> Mapping[str, Any]:
        """The variables of the templates by name."""
        unit, plan, n = self.unit, self.plan, self.n
        mapped_parameters = [self._mapped_parameter(p) for p in unit.parameters]
        arrow = f" -> {unit.returns}" if unit.returns else ""
        mapped_parameters += [*self.partition.statics, *self.device]
        body = self.partition.body(unit.body, self.first_lines())
        body = indented(body, 8 if self.backend is Backend.SHARD_MAP else 4)
        shares = [sync for sync in written(plan, self.backend) if sync.op == OWN_SHARE]
        guards = [guard for argument in self.arguments for guard in self._guards(argument)]
        guards += [*self._aliases(), *self._captured()]
        refusals = [*self.first_lines(), *(f"raise {guard['error']}" for guard in guards)]
        context: dict[str, Any] = {
            "n": n,
            "at": self.at,
            "backend": self.backend.value,
            "function": unit.name,
            "header": self.header.text(),
            "docstring": self._docstring(),
            "axis_name": string(plan.axis_name),
            "microbatches": plan.microbatches,
            "minibatches": plan.minibatches,
            "settings": unit.settings,
            "set_by": unit.set_by,
            "enclosed": unit.enclosed,
            "definitions": [d.strip("\n") for d in unit.definitions],
            "signature": f"def {unit.name}({', '.join(signature(unit.parameters))}){arrow}:",
            "user_docstring": unit.docstring,
            "guards": guards,
            "overlap": len(self._apart()) > 1,
            "mapped_signature": f"def {n.mapped}({', '.join(mapped_parameters)}){arrow}:",
            "mapped_docstring": self._mapped_docstring(),
            "body": body,
            "devices": self._devices(),
            "shard": self._shard() if self.split else None,
            "sharding_mesh": self._sharding_mesh(),
            "replicated": bool(self.replicated),
            "across": self._across,
            **over_devices(n, self._told_layers(), plan.in_maps, self.unit.intercepted),
            "contents": self._told() or self.partition.wrapped,
            "scales": any(leaf.identity and leaf.dtype != "function" for leaf in plan.captured),
            "wrapped": self.partition.unwrapped(),
            "partition": any(not part.equinox for part in self.partition.parts),
            "before": [*self._switches(), *self.partition.before(), *self._fit_line()],
            "fit": self._fit(),
            "bound": self._bound(),
            "own_share": bool(shares),
            "own_size": any(sync.op == OWN_SIZE for sync in written(plan, self.backend)),
            "gather_joined": any(sync.joined for sync in written(plan, self.backend)),
            "own_share_of_trees": any(sync.paths != ("",) for sync in shares),
            "own_draws": self._changes_objects(AROUND),
            "summed": self._changes_objects(ADDED),
            "in_place_of": self.unit.is_substituted,
            "keeps": self.unit.keeps,
            "unseen": self.backend is not Backend.JIT and any(guard.is_side for guard in plan.guards),
            "unproved": any(f"raise {n.unproved}(" in line for line in refusals),
            "modes": any(self._moded(graph=True)),
            "flags": any(self._moded(graph=False)),
            "forms": any(not form.value for form in plan.forms),
            "form_kind": self._kind(
                [a for a in self.arguments if any(a.name == form.argument for form in plan.forms)], bits=True
            ),
            "result": self._result(),
            "place": self._place_docstring() if "place" in unit.helpers else None,
        }
        context |= self._pmap_values() if self.pmap else self._mesh_values()
        if unit.explicit:
            within = [f"with {n.jax}.set_mesh({n.mesh}()):", *(f"    {line}" for line in context["result"])]
            context["result"] = within
        types = [pair for pair in self.types if pair[0] not in unit.copied_from]
        types += [_imported_as(each, name) for each, name in self._imported.items()]
        context["imports"] = import_block(
            unit.imports, unit.user_imports, types, n, self._needed(), unit.first
        )
        return context

    def _docstring(self) -> str:
        same = f"same call and same results as {self.header.source}, on"
        if self.plan.mesh:
            return f"Parallel `{self.unit.name}`: {same} a mesh of {self._mesh_text()}."
        return f"Data-parallel `{self.unit.name}`: {same} N devices."

    def _mesh_text(self) -> str:
        return ", ".join(f"{axis.name}={axis.size}" for axis in self.plan.mesh)

    @property
    def types(self) -> list[tuple[str, str]]:
        """(module, name) of the container types that the axes trees name."""
        trees = [collapse(self.plan.output_axes), *self.axes.values()]
        return sorted({pair for tree in trees for pair in type_imports(tree)})

    def _bound(self) -> str | None:
        """The line that binds arguments of the drop-in, as the user's file does."""
        if self.unit.bound is None:
            return None
        name, arguments = self.unit.bound
        return f"{name} = {self.n.functools}.partial({self.unit.name}, {arguments})"

    def _needed(self) -> set[str]:
        """What the file imports for itself."""
        unused = set() if "place" in self.unit.helpers else {"collections"}
        if self.plan.mesh:
            unused.add("Mesh")
        if self.unit.explicit:
            unused.add("P")
        if self._sharding_mesh() is None:
            unused |= {"Mesh", "NamedSharding", "P"}
        if not (self.unit.processes and self.split):
            unused.add("multihost_utils")
        in_objects = self._changes_objects(AROUND) or self._changes_objects(ADDED)
        if not in_objects:
            unused.add("contextlib")
        if not self._told() and not self.partition.wrapped:
            unused |= {"hashlib", "sys", "types"}
        layers = self._told_layers()
        if not any(part.equinox for part in self.partition.parts) and "equinox.nn" not in layers:
            unused.add("eqx")
        graphs = self.plan.mutated or in_objects or self._moded(graph=True)
        if not graphs and "flax.nnx" not in layers:
            unused.add("nnx")
        libraries = {*libraries_of(layers), *(each.library for each in self.unit.intercepted)}
        unused |= {alias for alias, module in LIBRARIES.items() if module not in libraries}
        return ALIASES.keys() - unused

    def _told(self) -> bool:
        """Whether constants are told from others by what they are."""
        leaves = [leaf for argument in self.arguments for leaf in argument.leaves]
        return any(argument.functions for argument in self.arguments) or any(
            leaf.identity and leaf.imported not in self._imported for leaf in (*leaves, *self.plan.captured)
        )

    @functools.cached_property
    def _imported(self) -> dict[str, str]:
        """What constants are compared with: where it comes from, ``"jax.nn:relu"``, and its name in the file.

        Nothing where the code stands in the user's own file.
        """
        found: dict[str, str] = {}
        if self.unit.chosen_names is not None:
            return found
        taken = {*self.unit.taken_names, *dataclasses.astuple(self.n)}
        for leaf in (leaf for argument in self.arguments for leaf in argument.leaves):
            module, _, name = leaf.imported.partition(":")
            if module and leaf.imported not in found:
                found[leaf.imported] = _free(f"proved_{name}", {*taken, *found.values()})
        return found

    def _told_layers(self) -> tuple[str, ...]:
        """Libraries whose layers the code tells the axis."""
        return () if self.backend is Backend.JIT else self.plan.layers

    def _changes_objects(self, where: str) -> bool:
        """Whether keys inside objects are folded (`AROUND`), or what is added to them is summed (`ADDED`)."""
        return self.backend is not Backend.JIT and any(sync.where == where for sync in self.plan.syncs)

    def _moded(self, *, graph: bool) -> list[Argument]:
        """Arguments in which modules have a mode: as the attributes of a graph, or among the leaves."""
        if self.backend is Backend.JIT:  # The compiler keeps the meaning of either mode.
            return []
        found = moded(self.arguments, self.plan.switches)
        return [argument for argument in found if bool(argument.partition) is not graph]

    def first_lines(self) -> list[str]:
        """Lines of the mapped function ahead of the user's own."""
        return [*self._merged(), *self._mode_guards(), *self._form_guards()]

    def _merged(self) -> list[str]:
        """The line that has rows of all minibatches as one batch, as the user's lines do."""
        if self.plan.minibatches == 1:
            return []
        names = [argument.name for argument in self.split]
        given = names[0] if len(names) == 1 else tuple_source(names)
        return [f"{', '.join(names)} = {self.n.merged}({given})"]

    def _switches(self) -> list[str]:
        """Lines of the drop-in that set the mode of what the caller passes, as the original does."""
        switches = self.plan.switches
        return ["# The devices would switch a copy.", *switches] if switches else []

    def _mode_guards(self) -> list[str]:
        """Lines of the mapped function that refuse a mode that was not proved, once, while it is traced."""
        out = []
        for graph, helper in ((True, self.n.modes), (False, self.n.flags)):
            for argument in self._moded(graph=graph):
                name, modes = argument.name, ", ".join(argument.modes)
                proved = "{" + ", ".join(string(mode) for mode in argument.modes) + "}"
                expected = f"{self.unit.name}: `{name}` must have {modes}, as in the proof, not "
                found = "{sorted(" + f"{helper}({name})" + ")}"
                message = f"{escaped(expected)}{found}; for another mode, generate again with inputs in it"
                out += [
                    "# Asked once for each mode, while it is traced.",
                    f"if {helper}({name}) != {proved}:",
                    f"    raise ValueError({wrapped_f_string(message)})",
                ]
        return out

    def _form_guards(self) -> list[str]:
        """Lines of the mapped function that refuse inputs of forms for which it is not proved."""
        lines = []
        for argument in self.arguments:
            forms_of = [each for each in self.plan.forms if each.argument == argument.name]
            for each in forms_of:
                if (guard := self._guard(each.leaf, (each.value,) if each.value else ())) is not None:
                    lines += [f"if {guard['condition']}:", f"    raise {guard['error']}"]
            if not (own := [each for each in forms_of if not each.value]):
                continue
            forms = []
            for leaf in argument.leaves:
                axes = {each.axis for each in own if each.leaf == leaf.path}
                sizes = (
                    self._size_there(leaf, at) if at in axes else "None" for at in range(len(leaf.shape))
                )
                forms.append(tuple_source([string(_kind(leaf.dtype, bits=True)), *sizes]))
            called = string(f"{self.unit.name}: `{argument.name}`")
            rows = [(form, len([*alike])) for form, alike in itertools.groupby(forms)]
            listed = [f"*[{form}] * {n}" if n >= MANY_FORMS else ", ".join([form] * n) for form, n in rows]
            lines.append(f"{self.n.as_proved}({called}, {argument.name}, {', '.join(listed)})")
        return ["# Asked once for each form, while it is traced.", *lines] if lines else []

    def _size_there(self, leaf: Leaf, at: int) -> str:
        """Source of the size that a dimension of an array has where the function runs."""
        names = leaf.spec[at] if self.backend is Backend.SHARD_MAP and at < len(leaf.spec) else ()
        shape = f"{self.n.mesh}().shape"
        of = (self.n.axis if name == self.plan.axis_name else string(name) for name in names)
        return " // ".join([str(leaf.shape[at]), *(f"{shape}[{axis}]" for axis in of)])

    # --- the mapped function --------------------------------------------------------------

    def _mapped_parameter(self, parameter: Parameter) -> str:
        # The annotation of *xs and **kwargs is that of one element, not of the container.
        whole = parameter.kind not in (ParameterKind.VAR_POSITIONAL, ParameterKind.VAR_KEYWORD)
        if parameter.annotation is None or not whole:
            return parameter.name
        return f"{parameter.name}: {parameter.annotation}"

    def _mapped_docstring(self) -> str:
        name = self.unit.name
        if self.backend is Backend.JIT:
            return f"`{name}` on the whole batch; the compiler divides the work."
        if self.backend is Backend.SHARD_MAP:
            return f"`{name}` over the mesh: whole arrays outside, one device's share inside."
        # pmap: say what the shapes are, the thing a caller of it has to know.
        parts = []
        for mixed in (False, True):
            by_axis: dict[tuple[int, ...], list[str]] = {}
            for argument in self.split:
                if isinstance(self.axes[argument.name], AxesNode) is mixed:
                    by_axis.setdefault(used_axes(argument.axes), []).append(f"`{argument.name}`")
            for axes, names in by_axis.items():
                *first, last = names
                leaves_of = (f"{', '.join(first)} and " if first else "") + last
                leaves_of += " leaves that are split" if mixed else " leaves"
                where = (
                    "are (devices, per_device, ...)"
                    if axes == (0,) and self.plan.minibatches == 1
                    else f"are ({self.plan.minibatches}, devices, per_device, ...)"
                    if self.plan.minibatches > 1
                    else f"have (devices, per_device) at axis {' or '.join(map(str, axes))}"
                )
                parts.append(f"{leaves_of} {where}")
        if self.device:
            parts.append(f"`{self.device[0]}` is its number, since pmap has to map over something")
        shapes = ", ".join(parts)
        one_line = f"`{name}` on one device's share; {shapes}."
        if len(one_line) <= DOCSTRING_WIDTH:
            return one_line
        lines = textwrap.wrap(f"{shapes}.", DOCSTRING_WIDTH, break_on_hyphens=False)
        return "\n    ".join([f"`{name}` on one device's share.\n", *lines, ""])

    def _positions(self, chosen: Iterable[bool]) -> str | None:
        positions = [str(i) for i, each in enumerate(chosen) if each]
        if not positions:
            return None
        return positions[0] if len(positions) == 1 else tuple_source(positions)

    def _options(self, static_option: str) -> list[str]:
        options = []
        constants = [*(a.static for a in self.arguments), *(True for _ in self.partition.parts)]
        if (static := self._positions(constants)) is not None:
            options.append(f"{static_option}={static}")
        if (donated := self._positions(a.donated for a in self.arguments)) is not None:
            options.append(f"donate_argnums={donated}")
        return options

    def _pmap_values(self) -> dict[str, Any]:
        axes = [tree_source(axes) for axes in self._in_axes()]
        in_axes = tuple_source([*axes, *("None" for _ in self.partition.parts), *("0" for _ in self.device)])
        return {
            "pmap_options": [
                f"axis_name={self.n.axis}",
                f"in_axes={in_axes}",
                f"out_axes={tree_source(self.output_axes)}",
                *self._options("static_broadcasted_argnums"),
            ],
            "chosen_ids": bool(self.plan.devices.ids),
            "unshard": self._unshard(),
        }

    def _in_axes(self) -> list[Axes]:
        """`in_axes`, one container (of the batch, if any) spelled out where pmap misreads the short form.

        jax takes a flat tuple to name leaves, not arguments, when there are as many of the one as of the
        other: an argument without leaves (the state of plain SGD) makes up for a dict with two.
        """
        dynamic = [a for a in self.arguments if not a.static]
        counts = [sum(leaf.role is not Role.STATIC for leaf in a.leaves) for a in dynamic]
        misread = sum(counts) == len(counts) and 0 in counts
        trees = dict(self.axes)
        misread = misread and not any(isinstance(trees[a.name], AxesNode) for a in dynamic)
        for argument in sorted(dynamic, key=lambda a: trees[a.name] is None) if misread else ():
            axes = trees[argument.name]
            if not isinstance(axes, AxesNode) and (spelled := _spelled_out(argument, axes)) is not None:
                trees[argument.name] = spelled
                break
        return [trees[a.name] for a in self.arguments]

    def _mesh_values(self) -> dict[str, Any]:
        n, unit = self.n, self.unit
        dynamic = [a for a in self.arguments if not a.static]
        axes = [self.axes[a.name] for a in dynamic]
        spec = functools.partial(spec_source, spec=n.P, axis_constant=n.axis)
        result = collapse(self.output_axes)
        # A static argument that the body assigns to has to be a local of the inner function.
        assigned = assigned_names(unit.body)
        inner = _free("per_device", unit.taken_names | assigned)
        parameters = [a.name for a in dynamic]
        parameters += [f"{a.name}={a.name}" for a in self.arguments if a.static and a.name in assigned]
        return {
            "mesh_devices": self._device_list(),
            "grid": self._grid(),
            "explicit": unit.explicit,
            "unshard": None,
            "in_specs": tuple_source(
                [
                    self._specs_of(a.name) if a.name in self.put else tree_source(tree, spec)
                    for a, tree in zip(dynamic, axes, strict=True)
                ]
            ),
            "out_specs": self._out_specs(spec),
            "parts": bool(self.put) and self.backend is Backend.SHARD_MAP,
            **self._parts(),
            "inner": inner,
            "inner_signature": f"def {inner}({', '.join(parameters)}):",
            "dynamic": [a.name for a in dynamic],
            "in_shardings": tuple_source([tree_source(tree, self._sharding) for tree in axes]),
            "out_shardings": tree_source(result, self._sharding),
            "jit_options": self._options("static_argnums"),
        }

    def _parts(self) -> dict[str, Any]:
        """What the helpers of arrays in parts need: along which axes they are gathered, summed and cut."""
        plan, n = self.plan, self.n
        names = {"": n.axis} | {axis.name: string(axis.name) for axis in plan.mesh}
        gathered = next((sync.along for sync in plan.syncs if sync.op == GATHERED), ())
        scattered = next((sync for sync in plan.syncs if sync.like and sync.op in _SCATTERED), None)
        op = _SCATTERED[scattered.op] if scattered is not None else ""
        summed = scattered.along if scattered is not None else ()
        kept = [names[name] for name in summed if name]
        every = {name for leaves in self.specs.values() for names_ in leaves for name in names_}
        return {
            "gathered": [names[name] for name in gathered],
            "all_gathered": len(every) == len(gathered),
            "gathers": "is not None"
            if len(every) == len(gathered)
            else _one_of([names[name] for name in gathered]),
            "scattered": op,
            "cuts": _one_of([names[name] for name in gathered if name]),
            "kept": kept,
            "along": tuple_source([names[name] for name in summed]),
            "total": f"{n.jax}.lax.p{op}",
            "divides": "" in gathered,
        }

    def _specs_of(self, name: str) -> str:
        return f'{self.n.specs_of}("{name}", {name})'

    def _out_specs(self, spec: Callable[[int | None], str]) -> str:
        """Source of how results lie: those that are the next call's arguments in parts, as these."""
        fed = {path: self._specs_of(name) for name, path in self.plan.chain if name in self.put}
        tree = self.plan.output_axes
        if "" in fed:
            return fed[""]
        if not fed or not isinstance(tree, AxesNode):
            return tree_source(self.output_axes, spec)
        keys = tree.keys or range(len(tree.children))
        rows = [
            fed.get(f"[{key}]") or tree_source(collapse(child), spec)
            for key, child in zip(keys, tree.children, strict=True)
        ]
        if tree.kind == "dict":
            return "{" + ", ".join(f"{key}: {row}" for key, row in zip(keys, rows, strict=True)) + "}"
        return tuple_source(rows) if tree.kind == "tuple" else f"[{', '.join(rows)}]"

    # --- devices and placement ------------------------------------------------------------

    def _grid(self) -> dict[str, Any] | None:
        """A mesh of its own axes, and where arrays lie on it."""
        mesh, n = self.plan.mesh, self.n
        if not mesh:
            return None
        constants = {self.plan.axis_name: n.axis}
        table = self.specs
        return {
            "text": self._mesh_text(),
            "number": math.prod(axis.size for axis in mesh),
            "rank": len(mesh),
            "sizes": tuple_source([str(axis.size) for axis in mesh]),
            "names": tuple_source([constants.get(axis.name, string(axis.name)) for axis in mesh]),
            "specs": {string(end): partition_spec(spec, constants, n.P) for end, spec in table.items()},
            "put": bool(self.put),
            "result": RESULT,
        }

    def _all_devices(self) -> str:
        # pmap takes the arrays of this process; a mesh spans all processes.
        return f"{self.n.jax}.{'local_devices' if self.pmap else 'devices'}()"

    def _device_list(self) -> str:
        return f"{self.n.devices_in_use}()" if self._devices() is not None else self._all_devices()

    def _devices(self) -> dict[str, Any] | None:
        chosen = self.plan.devices
        if chosen.number is None and "devices" not in self.unit.helpers:
            return None
        if chosen.ids:
            which = f"Devices {', '.join(map(str, chosen.ids))}, in this order"
        elif chosen.count:
            which = f"The first {chosen.count} devices" if chosen.count > 1 else "The first device"
        else:
            which = "All devices of this process" if self.pmap else "All devices"
        return {
            "docstring": f"{which}: `{self.unit.name}` runs on these.",
            "ids": tuple_source([str(i) for i in chosen.ids]) if chosen.ids else "",
            "count": chosen.count,
            "all": self._all_devices(),
        }

    def _shard(self) -> dict[str, Any]:
        n = self.n
        names = [a.name for a in self.split]
        one = len(names) == 1
        parameters = [self._parameter(name) for name in names]
        trees = [self.axes[name] for name in names]
        uniform = trees[0] if all(tree == trees[0] and isinstance(tree, int) for tree in trees) else None
        # A leaf is told its axis where they have several.
        distinct = sorted({axis for a in self.split for axis in used_axes(a.axes)})
        axis = str(distinct[0]) if len(distinct) == 1 else "axis"
        groups = self.plan.minibatches if self.plan.minibatches > 1 else 0
        lies = self._sharding("1" if groups else axis)
        devices = self._batch_devices()
        parts = [*([str(groups)] if groups else []), *([devices] if self.pmap else [])]
        # NumPy tells no size from the others where an array has no elements.
        empty = any(0 in leaf.shape for a in self.split for leaf in a.leaves)
        rows = " // ".join([f"leaf.shape[{axis}]", *parts]) if empty else "-1"
        shape = f"{', '.join([*_before(axis), *parts, rows])}, *leaf.shape[{_next(axis)}:]"
        value = parameters[0] if one else tuple_source(parameters)
        put = n.assemble if self._across else f"{n.jax}.device_put"
        proved = self._proved()
        refused, message = self._refused_batch(axis, proved=bool(proved))
        return {
            "arguments": names,
            "parameters": parameters,
            "one": one,
            "value": value,
            "axes": None if uniform is not None else self._shard_axes(names),
            "agree": self._sizes_agree(),
            "proved": proved,
            "kind": self._kind(self.split),
            "refused": refused,
            "message": message,
            "size": f"shape[{axis}:{_next(axis)}]" if axis != "0" else "shape[:1]",
            "again": self._again(groups, lies) if proved and self.unit.remainder is None else "",
            "axis": axis,
            "count": devices,
            "shape": shape if parts else "",
            "sharding": lies,
            "put": f"{put}(leaf, {lies})",
            "pmap": self.pmap,
            # Where the shardings of arguments are given, a call places what is on the host, in less time.
            "host": not self._across and not self.specs,
            "early": self._early(names, uniform),
            "assemble": self._across,
            "processes": self.unit.processes,
            "docstring": self._shard_docstring(uniform),
            "leaf_name": self._leaf_name(names),
        }

    def _again(self, groups: int, lies: str) -> str:
        """Source of what holds of an array of an earlier call; of a mesh, only minibatches tell one."""
        if not self.pmap and not groups:
            return ""
        tests = [f'getattr(leaf, "sharding", None) is {lies}']
        tests += [f"len(shape) == rank + {self.pmap + bool(groups)}"]
        tests += [f"shape[0] == {groups}"] if groups else []
        return " and ".join(tests)

    def _sharding(self, axis: str | int | None) -> str:
        """Source of the sharding of an array of which this axis is divided; ``"axis"`` is a variable."""
        if axis == "axis":
            return f"{self.n.sharding}(*[None] * axis, {self.n.axis})"
        return spec_source(None if axis is None else int(axis), self.n.sharding, self.n.axis)

    def _sharding_mesh(self) -> str | None:
        """Source of the mesh of all shardings, or None where none is needed."""
        n = self.n
        given = not self.pmap and not self.specs
        if not (given or self.split or self.replicated):
            return None
        return f"{n.Mesh}({n.np}.array({self._device_list()}), ({n.axis},))" if self.pmap else f"{n.mesh}()"

    def _early(self, names: Sequence[str], uniform: Axes) -> str:
        """Source of the shardings of what `shard` gives, as a prefix of its tree."""
        if isinstance(uniform, int):
            return self._sharding(uniform)

        def leaf(axis: int | None) -> str:
            return "None" if axis is None else self._sharding(axis)

        trees = [tree_source(self.axes[name], leaf) for name in names]
        return trees[0] if len(trees) == 1 else tuple_source(trees)

    def _parameter(self, name: str) -> str:
        """What the helpers call the argument `name`."""
        taken = HELPER_LOCALS | {*dataclasses.asdict(self.n).values()}
        return f"{name}_" if name in taken else name

    def _leaf_name(self, names: Sequence[str]) -> str:
        """Source of a leaf's name, below one argument or the tuple of several."""
        keystr = f"{self.n.jax}.tree_util.keystr"
        if len(names) == 1:
            return f'f"{names[0]}{{{keystr}(path)}}"'
        return f"{tuple_source([string(name) for name in names])}[path[0].idx] + {keystr}(path[1:])"

    @property
    def _across(self) -> bool:
        """Whether arrays of all processes are made of this one's rows; pmap takes these as they are."""
        return self.unit.processes and not self.pmap

    def _refused_batch(self, axis: str, *, proved: bool) -> tuple[str, str]:
        """The test in `shard` that finds a leaf which cannot be split as it was proved, and the message."""
        multiple, agree = self.plan.multiple_of, self._sizes_agree()
        number = "count" if multiple == 1 else f"{multiple} * count"
        each = "" if multiple == 1 else f"{multiple} for each of the "
        of = " of this process" if self.unit.processes else ""
        along = f" along {{{self.n.axis}}}" if len(self.plan.mesh) > 1 else ""
        tests = ["not shape" if axis == "0" else f"len(shape) <= {axis}"]
        message = f"{self.unit.name}: {{name}} is of shape {{shape}}; expected "
        if proved:
            tests = ["(found, len(shape)) != (kind, rank)"]
            message = f"{self.unit.name}: {{name}} is {{found}}{{list(shape)}}; "
            message += "expected {kind} of rank {rank}, "
        message += f"axis {'{axis}' if axis == 'axis' else axis} a multiple of {{{number}}} "
        message += f"({each}devices{of}{along})"
        if agree:
            tests.append("len(sizes) > 1")
            message += ", the same in all of the batch (found {sizes})"
        tests.append(f"shape[{axis}] % {number if multiple == 1 else f'({number})'}")
        if self.plan.too_few:
            size = f"shape[{axis}]"
            whole = [] if self.unit.processes else [size]
            tests.append(f"not {{{', '.join([*whole, f'{size} // count'])}}}.isdisjoint({self._too_few()})")
            message += f"; not {self.plan.too_few_rows} for a device, or in all"
        return " or ".join(tests), wrapped_f_string(message)

    def _too_few(self) -> str:
        """Source of the numbers of rows on a device with which a batch is refused."""
        return tuple_source(
            [str(low) if low == high else f"*range({low}, {high + 1})" for low, high in self.plan.too_few]
        )

    def _batch_devices(self) -> str:
        """Source of the number of devices that an argument's batch is divided among."""
        if self.pmap:
            listed = self._devices() is not None
            return f"len({self._device_list()})" if listed else f"{self.n.jax}.local_device_count()"
        mesh = f"{self.n.mesh}()"
        if self._across:
            return f"{mesh}.local_mesh.shape[{self.n.axis}]"
        return f"{mesh}.shape[{self.n.axis}]" if self.plan.mesh else f"{mesh}.size"

    def _shard_axes(self, names: list[str]) -> str:
        trees = [tree_source(self.axes[name]) for name in names]
        return trees[0] if len(trees) == 1 else tuple_source(trees)

    def _sizes_agree(self) -> bool:
        """Whether leaves that had one batch size in the plan must have one in every call."""
        batch = [leaf for a in self.split for leaf in a.leaves if leaf.axis is not None]
        sizes = [leaf.shape[leaf.axis] for leaf in batch if leaf.axis is not None]
        return len(sizes) != 1 and len(set(sizes)) <= 1

    def _proved(self) -> dict[str, str]:
        """Kind and rank of every leaf of the batch, by its path, for `shard` to hold a batch to.

        Operations along ``axis=-1`` and broadcasting are others for another rank: ``x - y`` couples the
        examples where `y` is (B, 1) and `x` is (B,). So are those for another kind: a mean that is cast by
        ``.astype(x.dtype)`` is cut to an integer on every device where `x` holds integers. The compiler
        keeps the meaning of that, too.
        """
        if self.backend is Backend.JIT and self.plan.minibatches == 1:
            return {}
        batch = [leaf for a in self.split for leaf in a.leaves if leaf.axis is not None]
        rows = {leaf.path: (_kind(leaf.dtype), len(leaf.shape)) for leaf in batch}
        return {string(path): f'("{kind}", {rank})' for path, (kind, rank) in rows.items()}

    def _kind(self, arguments: Iterable[Argument], *, bits: bool = False) -> str:
        """Source of the kind of a leaf of some arguments, as `_kind` calls it."""
        jax, np = self.n.jax, self.n.np
        kind = f"{jax}.dtypes.scalar_type_of(leaf).__name__"
        kinds = {_kind(leaf.dtype) for a in arguments for leaf in a.leaves}
        if bits and "int" in kinds:
            dtype = f"{jax}.typeof(leaf).dtype"
            wide = f'{kind} != "int" or {np}.can_cast({np}.int32, {dtype})'
            kind = f"({kind} if {wide} else {dtype}.name)"
        if "key" not in kinds:
            return kind
        is_key = f"{jax}.dtypes.issubdtype({jax}.typeof(leaf).dtype, {jax}.dtypes.prng_key)"
        return f'"key" if {is_key} else {kind}'

    def _shard_docstring(self, uniform: Axes) -> str:
        if self._across:
            along = "`axes`; what has None stays as it is" if uniform is None else f"axis {uniform}"
            return f"The rows of this process on its devices, as part of all processes' batch, along {along}."
        if (groups := self.plan.minibatches) > 1:
            shape = f"{groups}, devices, rows, ..." if self.pmap else f"{groups}, B // {groups}, ..."
            return f"(B, ...) -> ({shape}): of each minibatch a part for each device."
        if self.pmap:
            if uniform is None:
                return "Split along `axes`: B becomes (devices, B // devices); what has None stays whole."
            if uniform == 0:
                return "(B, ...) -> (devices, B // devices, ...), a part for each device."
            return f"Axis {uniform}: B becomes (devices, B // devices), a part for each device."
        if uniform is None:
            return "Put arrays on the devices, split along `axes`; what has None stays as it is."
        return f"Put arrays on the devices, split along axis {uniform}."

    def _place_docstring(self) -> str:
        taker = self.unit.name
        if self.pmap and not self._shard()["again"]:
            taker = f"{self.n.compiled}()" if self.lazy else self.n.mapped
        what = "" if len(self.split) == 1 else f" ({', '.join(a.name for a in self.split)})"
        return f"Put the next batch{what} on the devices while `{taker}` works on this one."

    # --- the drop-in ----------------------------------------------------------------------

    def _call(self) -> str:
        function = self.at + (f"{self.n.compiled}()" if self.lazy else self.n.mapped)
        only = self.split[0].name if len(self.split) == 1 else None
        # What is changed in place stays the caller's own object: only the call gets it from `replicate`.
        takers = dict.fromkeys(self.replicated, self.n.replicate)
        takers |= {} if only is None else {only: self.n.shard}
        passed = {a.name: self.partition.passed(a.name) for a in self.arguments}
        values = [f"{takers[name]}({v})" if name in takers else v for name, v in passed.items()]
        values = [
            f'{self.n.put}("{a.name}", {value})' if a.name in self.put else value
            for a, value in zip(self.arguments, values, strict=True)
        ]
        values += self.partition.statics
        if self.device:
            values.append(f"{self.n.np}.arange(len({self._device_list()}))")
        return f"{function}({', '.join(values)})"

    def _result_and_changes(self) -> list[str]:
        """The last lines where arguments are changed in place: the caller's own objects get the new state."""
        call, changed, update = self._call(), self.n.changed, self.partition.update()
        if not self.valued:
            return [f"{changed} = {call}", update]
        unshard = self._unshard() if self.pmap else None
        if unshard is not None and unshard["returned"]:
            names = ", ".join(unshard["returned"])
            return [f"({names}), {changed} = {call}", update, f"return {', '.join(unshard['merged'])}"]
        value = "result" if unshard is None else f"{self.n.unshard}(result)"
        return [f"result, {changed} = {call}", update, f"return {value}"]

    def _result(self) -> list[str]:
        """The last lines of the drop-in: the call, and what makes its result that of the original."""
        call, names, values = self._call(), [], []
        unshard = self._unshard() if self.pmap else None
        if unshard is not None and unshard["returned"]:
            names, values = unshard["returned"], unshard["merged"]
        elif unshard is not None:
            call = f"{self.n.unshard}({call})"
        if self.plan.mutated:
            return self._result_and_changes()
        if rows := self._rows():
            return self._cut(call, names, values, rows)
        if self.partition.kept:
            return self.partition.result(self.unit.body, call, names, values)
        if names:
            return [f"{', '.join(names)} = {call}", f"return {', '.join(values)}"]
        return [f"return {call}"]

    def _cut(self, call: str, names: list[str], values: list[str], rows: str) -> list[str]:
        """The lines behind the call that also take the added rows off."""
        if not names:
            return [f"return {self.n.cut}({call}, {rows})"]
        merged = f"({', '.join(values)})"
        return [f"{', '.join(names)} = {call}", f"return {self.n.cut}({merged}, {rows})"]

    # --- uneven batches -------------------------------------------------------------------

    def _rows(self) -> str | None:
        """The drop-in's name for the batch's own size, where results are cut to it."""
        remainder = self.unit.remainder
        if remainder is None or remainder.mode == "drop" or not used_axes(self.plan.output_axes):
            return None
        rows = "rows"
        while rows in self.unit.taken_names | {a.name for a in self.arguments}:
            rows += "_"
        return rows

    def _fit_line(self) -> list[str]:
        if self.unit.remainder is None:
            return []
        names = [a.name for a in self.split]
        rows = self._rows()
        return [f"{', '.join([*names, rows] if rows else names)} = {self.n.fit}({', '.join(names)})"]

    def _fit(self) -> dict[str, Any] | None:
        remainder, n = self.unit.remainder, self.n
        if remainder is None:
            return None
        names, axis, pad = [a.name for a in self.split], remainder.axis, remainder.mode == "pad"
        what = f"`{names[0]}`" if len(names) == 1 else "The arguments"
        docstring = f"{what} without the last rows, as many as the devices share evenly."
        if pad:
            docstring = f"{what} with rows added at the end, as many as the devices share evenly."
        if remainder.zeros:
            zero = ", ".join(f"`{path}`" for path in remainder.zeros)
            docstring += f"\n\n    They repeat the last row; {zero} has 0 there, which leaves them out.\n    "
        output = self.output_axes
        ahead = ":, " * axis
        returned = [self._parameter(name) for name in names]
        return {
            "pad": pad,
            "axis": axis,
            "count": self._batch_devices(),
            "docstring": docstring,
            "taken": f"leaf[{ahead}index]",
            "within": f"({n.np}.arange(len(index)) < rows).reshape(-1, *[1] * (leaf.ndim - {axis + 1}))",
            "name": self._leaf_name(names),
            "zeros": tuple_source([string(path) for path in remainder.zeros]) if remainder.zeros else "",
            "returned": ", ".join([*returned, "rows"] if self._rows() else returned),
            "cut": self._rows() is not None,
            "cut_axes": None if isinstance(output, int) else tree_source(output),
            "kept": f"leaf[{':, ' * output}:rows]" if isinstance(output, int) else "",
            "names": ", ".join(self._parameter(name) for name in names),
        }

    def _guards(self, argument: Argument) -> Iterator[dict[str, str]]:
        """What holds an argument to the values that the plan was observed with."""
        rows = [(leaf.path, leaf.value) for leaf in argument.leaves if leaf.value]
        if argument.static and len(rows) > 1:
            yield self._at_once(rows, argument.name)
            return
        for name, values in ((argument.name, argument.proved_values), *((p, (v,)) for p, v in rows)):
            guard = self._guard(name, values, typed=argument.typed)
            if guard is not None:
                yield guard
        yield from (self._same(leaf) for leaf in argument.leaves if leaf.identity)
        for path, kind, digest in argument.functions:
            yield self._same(Leaf(path, Role.STATIC, None, (), kind, identity=digest))
        for path, limit in argument.fits:
            yield self._fits(path, limit, next(leaf.dtype for leaf in argument.leaves if leaf.path == path))

    def _captured(self) -> Iterator[dict[str, str]]:
        """What holds the object of a method, and variables around, to what the plan was observed with."""
        rows = [(leaf.path, leaf.value) for leaf in self.plan.captured if leaf.value]
        # What may be an array is not compared with several others in one go.
        apart = [row for row in rows if row[1] == "None" or len(rows) == 1]
        for path, value in apart:
            if (guard := self._guard(path, (value,))) is not None:
                yield guard
        if rows := [row for row in rows if row not in apart]:
            yield self._at_once(rows, tuple_source([path for path, _ in rows]))
        for leaf in (leaf for leaf in self.plan.captured if leaf.identity):
            yield self._same(leaf, "" if leaf.dtype == "function" else ", scales=False")

    def _at_once(self, rows: Sequence[tuple[str, str]], shown: str) -> dict[str, str]:
        """What compares several constants with their values, `rows` of both, and names what is `shown`."""
        paths, values = (tuple_source([*each]) for each in zip(*rows, strict=True))
        wanted = ", ".join(f"{path} = {value}" for path, value in rows)
        return {"condition": f"{paths} != {values}", "error": self._unproved(f"expected {wanted}", shown)}

    def _aliases(self) -> Iterator[dict[str, str]]:
        """What holds Flax NNX objects to be one where they were, and apart where they were."""
        function = self.unit.name
        for place, other in self._shared():
            message = f"{function}: `{place}` has to be `{other}` itself, as in the proof; for another one, "
            yield {
                "condition": f"{place} is not {other}",
                "error": _value_error(f"{message}generate again with inputs that have it"),
            }
        apart = self._apart()
        if len(apart) > 1:
            parts = [other for place, other in self._shared() if {_root(place), _root(other)} <= {*apart}]
            but = f", but={tuple_source(parts)}" if parts else ""
            names = " and ".join(f"`{name}`" for name in apart)
            message = (
                f"{function}: {names} have variables in common that they had not in the proof; "
                "generate again with inputs that have them"
            )
            yield {
                "condition": f"{self.n.overlap}({', '.join(apart)}{but})",
                "error": _value_error(message),
            }

    def _shared(self) -> list[tuple[str, str]]:
        """Places in one argument of what another one holds."""
        return [(place, other) for place, other in self.plan.shared if _root(place) != _root(other)]

    def _apart(self) -> list[str]:
        """Flax NNX objects, of which the function changes some, but for those that hold another one whole."""
        plan = self.plan
        around = {_root(place) for place, other in self._shared() if other == _root(other)}
        objects = [a for a in self.arguments if a.name in plan.mutated or (a.modes and not a.partition)]
        return [a.name for a in objects if plan.mutated and a.name not in around]

    def _same(self, leaf: Leaf, but: str = "") -> dict[str, str]:
        """What refuses another constant than the plan was observed with, `but` for some of it."""
        imported = self._imported.get(leaf.imported)
        if imported is not None:
            name = leaf.imported.replace(":", ".")
            message = (
                f"{self.unit.name}: `{leaf.path}` is not `{name}`, with which this was proved; to allow "
                "another, generate again with inputs that use it"
            )
            return {
                "condition": f"{leaf.path} is not {imported}",
                "error": _value_error(message),
            }
        # Functions are told from others by their bytecode, which no two versions of Python have in common.
        message = (
            f"{self.unit.name}: `{leaf.path}` is not the {leaf.dtype} of the run this file was made from, on "
            "which the reduction may depend, or Python is of another version; generate again with inputs "
            "that use it, under this Python"
        )
        return {
            "condition": f"{self.n.contents}({leaf.path}{but})[0] != {string(leaf.identity)}",
            "error": _value_error(message),
        }

    def _fits(self, path: str, limit: int, dtype: str) -> dict[str, str]:
        """What refuses integers too large for 32 bits, where the original computes with 64."""
        function = self.unit.name
        wide = f'getattr({path}, "dtype", None) in ("int64", "uint64")'
        condition = f"{wide} and (abs({path}) > {limit}).any()"
        if dtype == "int":
            condition = f"(isinstance({path}, int) or {wide}) and abs({path}) > {limit}"
        found = f"`{path}` goes above {limit}, where 32 bits may not hold what is computed with it"
        instead = f"do before the call what `{function}` does with it in Python or NumPy"
        return {
            "condition": condition,
            "error": _value_error(f"{function}: {found}; {instead}"),
        }

    def _guard(self, name: str, values: tuple[str, ...], *, typed: bool = False) -> dict[str, str] | None:
        if not values:
            return None
        if len(values) > 1:
            condition = f"{name} not in {tuple_source(list(values))}"
        elif values[0] in ("None", "True", "False", "...") or re.fullmatch(r"type\(.*\)", name):
            condition = f"{name} is not {values[0]}"
        else:
            condition = f"{name} != {values[0]}"
        if typed:  # A number equals others of other types.
            pairs = [tuple_source([type(ast.literal_eval(value)).__name__, value]) for value in values]
            condition = f"(type({name}), {name}) not in {tuple_source(pairs)}"
        expected = f"`{name}` must be {' or '.join(values)}"
        return {"condition": condition, "error": self._unproved(expected, name)}

    def _unproved(self, expected: str, found: str) -> str:
        """The error where an input is none of those of the proof."""
        return f"{self.n.unproved}({wrapped_f_string(escaped(expected))}, {found})"

    def _unshard(self) -> dict[str, Any] | None:
        axes = used_axes(self.plan.output_axes)
        if not axes:
            return None
        result = self.result_axes
        returned: list[str] = []
        merged: list[str] = []
        uniform = len(axes) == 1
        if isinstance(result, AxesNode):
            names = returned_names(self.unit.body, len(result.children))
            flat = result.kind == "tuple" and not any(isinstance(c, AxesNode) for c in result.children)
            if flat and names:
                returned = names
                second = "" if uniform else ", {}"
                merged = [
                    name if child is None else f"{self.n.unshard}({name}{second.format(child)})"
                    for name, child in zip(names, result.children, strict=True)
                ]
        general = isinstance(result, AxesNode) and not returned
        axis = str(axes[0]) if uniform else "axis"
        after = f"leaf.shape[{axis}] * leaf.shape[{_next(axis)}], *leaf.shape[{_next(axis, 2)}:]"
        where = "`axes`" if general else "`axis`" if axis == "axis" else f"axis {axis}"
        docstring = f"Merge (devices, per_device) at {where}."
        if axis == "0" and not general:
            docstring = "(devices, per_device, ...) -> (devices * per_device, ...)."
        return {
            "axes": tree_source(collapse(result)) if general else None,
            "takes_axis": axis == "axis" and not general,
            "returned": returned,
            "merged": merged,
            "new_shape": ", ".join([*_before(axis), after]),
            "docstring": docstring,
        }


def _value_error(message: str) -> str:
    """Source of the error that says `message`."""
    return f"ValueError({wrapped_f_string(escaped(message))})"


def _spelled_out(argument: Argument, axis: int | None) -> AxesNode | None:
    """``{"x": 0, "y": 0}`` for a dict or tuple whose leaves all have their batch on one axis."""
    steps = [re.match(r"\[(\d+|'[^']*')\]", leaf.path[len(argument.name) :]) for leaf in argument.leaves]
    keys = tuple(dict.fromkeys(step[1] for step in steps if step))
    if not keys or not all(steps):
        return None
    kind = "tuple" if keys[0].isdigit() else "dict"
    names = () if kind == "tuple" else tuple(f'"{key[1:-1]}"' for key in keys)
    return AxesNode(kind, names, (axis,) * len(keys))


def _one_of(names: Sequence[str]) -> str:
    """Source behind a value that tells whether it is one of some names; ``""`` of none."""
    if not names:
        return ""
    return f"== {names[0]}" if len(names) == 1 else f"in {tuple_source([*names])}"


def _outer_tuple_kept(axes: Axes) -> Axes:
    """Collapse, but keep a result tuple element by element: the reader sees what is returned."""
    if isinstance(axes, AxesNode) and axes.kind == "tuple":
        return AxesNode("tuple", (), tuple(collapse(child) for child in axes.children))
    return collapse(axes)


def _root(place: str) -> str:
    """``"state"`` of ``"state.model['head']"``."""
    return re.split(r"\W", place)[0]


def _imported_as(imported: str, name: str) -> tuple[str, str]:
    """The module and the member of ``"jax.nn:relu"``: ``("jax.nn", "relu as proved_relu")``."""
    module, _, member = imported.partition(":")
    return module, f"{member} as {name}"


def _free(name: str, taken: Collection[str]) -> str:
    """`name`, with underscores behind it as long as that is taken."""
    return _free(name + "_", taken) if name in taken else name


def _kind(dtype: str, *, bits: bool = False) -> str:
    """The kind of a dtype of any width, as `jax.dtypes.scalar_type_of` says, or ``"key"``.

    With `bits`, whole numbers that int32 does not fit into are called as their dtype is.
    """
    if bits and "int" in dtype and dtype not in ("int32", "int64"):
        return dtype
    kinds = ("bool", "uint", "int", "complex", "key")
    return next((each for each in kinds if dtype.startswith(each)), "float").removeprefix("u")


def _next(axis: str, by: int = 1) -> str:
    return str(int(axis) + by) if axis.isdigit() else f"{axis} + {by}"


def _before(axis: str) -> list[str]:
    """Sources of the sizes of `leaf` before `axis`."""
    return {"0": [], "1": ["leaf.shape[0]"]}.get(axis, [f"*leaf.shape[:{axis}]"])
