"""JP120: gradients that `shard_map` has summed already are averaged over the devices."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.gradients import Gradients, gradients
from jax_pmap.checking.mapped import Collective, Mapping, Mappings
from jax_pmap.checking.module import FunctionRef, Module, names_in, parameters
from jax_pmap.checking.rule import Rule, diagnostic

INVALID = (
    """\
import jax
from jax.sharding import PartitionSpec as P
from model import apply, mesh


def loss_fn(params, batch):
    return ((apply(params, batch["x"]) - batch["y"]) ** 2).mean()


def train_step(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    grads = jax.lax.pmean(grads, "batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


step = jax.jit(jax.shard_map(train_step, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P()))
""",
    """\
import functools

import jax
from jax import shard_map
from jax.sharding import PartitionSpec
from model import mesh


def loss_fn(w, x):
    return (x @ w).mean()


@functools.partial(
    shard_map, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("i")), out_specs=PartitionSpec()
)
def train_step(w, x):
    loss, grads = jax.value_and_grad(loss_fn)(w, x)
    loss, grads = jax.lax.pmean((loss, grads), "i")
    return w - 0.1 * grads
""",
)
VALID = (
    """\
import jax
from jax.sharding import PartitionSpec as P
from model import apply, mesh


def loss_fn(params, batch):
    return ((apply(params, batch["x"]) - batch["y"]) ** 2).mean()


def train_step(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    grads = jax.lax.pmean(grads, "batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


step = jax.jit(
    jax.shard_map(train_step, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P(), check_vma=False)
)
""",
    """\
import jax
from jax.sharding import PartitionSpec as P
from model import elsewhere, loss_of, mesh


def loss_fn(params, batch):
    return loss_of(params, batch)


def another_file_may_hold_the_collective(params, batch):
    return jax.lax.pmean(jax.grad(elsewhere)(params, batch), "batch")


def the_loss_is_that_of_all_devices(params, batch):
    def loss(params):
        return jax.lax.pmean(loss_fn(params, batch), "batch")

    grads = jax.lax.pmean(jax.grad(loss)(params), "batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def parameters_are_made_to_vary(params, batch):
    params = jax.lax.pcast(params, "batch", to="varying")
    grads = jax.grad(loss_fn)(params, batch)
    return jax.lax.pmean(grads, "batch")


def divided_by_the_number_of_devices(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    grads = grads / jax.lax.psum(1, "batch")
    return jax.lax.pmean(grads, "batch")


def the_same_batch_on_all_devices(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    return jax.lax.pmean(grads, "batch")


def along_an_axis_that_splits_nothing(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    return jax.lax.pmean(grads, "model")


def not_of_what_is_replicated(params, batch):
    grads = jax.grad(loss_fn)(batch, params)
    return jax.lax.pmean(grads, "batch")


def copies_with_a_device_axis(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    return jax.lax.pmean(grads, "batch")


in_specs = (P(), P("batch"))
a = jax.shard_map(the_loss_is_that_of_all_devices, mesh=mesh, in_specs=in_specs, out_specs=P())
b = jax.shard_map(parameters_are_made_to_vary, mesh=mesh, in_specs=in_specs, out_specs=P())
c = jax.shard_map(not_of_what_is_replicated, mesh=mesh, in_specs=in_specs, out_specs=P())
e = jax.shard_map(another_file_may_hold_the_collective, mesh=mesh, in_specs=in_specs, out_specs=P())
f = jax.shard_map(divided_by_the_number_of_devices, mesh=mesh, in_specs=in_specs, out_specs=P())
g = jax.shard_map(the_same_batch_on_all_devices, mesh=mesh, in_specs=(P(), P()), out_specs=P())
h = jax.shard_map(along_an_axis_that_splits_nothing, mesh=mesh, in_specs=in_specs, out_specs=P())
d = jax.shard_map(copies_with_a_device_axis, mesh=mesh, in_specs=P("batch"), out_specs=P())
""",
)
#: Functions after which a value counts as another one on every device.
_VARY = ("pvary", "pcast", "pbroadcast")


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Gradients of replicated parameters, of a loss without a collective, that a collective takes."""
    seen: set[object] = set()
    for mapping in mappings.all:
        if mapping.kind != "shard_map" or mapping.function is None or not _is_checked(module, mapping):
            continue
        function = mapping.function.node
        whole = _replicated(module, mapping, mapping.function)
        if not whole or function in seen or isinstance(function, ast.Lambda):
            continue
        seen.add(function)
        if not whole.isdisjoint(_assigned(function)) or mappings.mentioned(function) & set(_VARY):
            continue
        for made in gradients(module, mappings, function):
            first = made.call.args[0] if made.call.args else None
            axes = _split(module, mapping, mapping.function, made)
            if not isinstance(first, ast.Name) or first.id not in whole or not _is_local(mappings, made):
                continue
            collective = _taken(module, mappings, function, made)
            if collective is None or collective.axis not in axes:
                continue
            if _is_changed(module, function, made, collective):
                continue
            name = sorted(made.names)[0]
            yield module.finding(
                "JP120",
                collective.call,
                f"`{name}` is the gradient of `{first.id}`, which `shard_map` has summed over the devices "
                f"already; after `{collective.name}` it is N times too large",
                "Pass `check_vma=False` (`check_rep=False` before jax 0.7) to `shard_map`, as a `pmap` body "
                "needs it; or take the gradient of `jax.lax.pmean(loss, …)` and leave this out",
            )


def _is_checked(module: Module, mapping: Mapping) -> bool:
    """Whether the replication of values is followed, as it is unless it is switched off."""
    application = mapping.application
    off = [application.keywords.get(name) for name in ("check_vma", "check_rep", "auto", "axis_names")]
    return not application.open and application.qualname == "jax.shard_map" and not any(off)


def _replicated(module: Module, mapping: Mapping, function: FunctionRef) -> set[str]:
    """Parameters whose entry in `in_specs` is a `PartitionSpec()`."""
    specs = module.assigned(mapping.application.keywords.get("in_specs"))
    if not isinstance(specs, ast.Tuple) or function.keywords:
        return set()
    names = parameters(function.node)[function.bound :]
    return {name for name, spec in zip(names, specs.elts, strict=False) if _is_empty(module, spec)}


def _split(module: Module, mapping: Mapping, function: FunctionRef, made: Gradients) -> set[str]:
    """Axes over which something is split that the gradient is computed from."""
    specs = module.assigned(mapping.application.keywords.get("in_specs"))
    if not isinstance(specs, ast.Tuple) or made.loss is None:
        return set()
    used = names_in(made.call) | names_in(made.loss.node)
    found: set[str] = set()
    for name, spec in zip(parameters(function.node)[function.bound :], specs.elts, strict=False):
        made_spec = module.assigned(spec)
        if name in used and isinstance(made_spec, ast.Call) and made_spec.args:
            axes = [module.constant(argument) for argument in made_spec.args]
            found |= {axis for axis in axes if isinstance(axis, str)}
    return found


def _is_empty(module: Module, spec: ast.expr) -> bool:
    made = module.assigned(spec)
    if not isinstance(made, ast.Call) or made.args or made.keywords:
        return False
    return (module.qualname(made.func) or "").rpartition(".")[2] in ("PartitionSpec", "P")


def _assigned(function: ast.AST) -> set[str]:
    """Names that are assigned in `function`: what they stand for at some place cannot be told."""
    return {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _is_local(mappings: Mappings, made: Gradients) -> bool:
    """Whether the loss is one of this module, with no collective in it."""
    if made.loss is None:
        return False
    return not any(True for node in mappings.reachable(made.loss.node) for _ in mappings.collectives(node))


def _taken(module: Module, mappings: Mappings, function: ast.AST, made: Gradients) -> Collective | None:
    """The first `psum` or `pmean` that is given the gradients themselves."""
    for collective in mappings.collectives(function):
        if collective.name not in ("psum", "pmean") or collective.call.lineno <= made.call.lineno:
            continue
        value = collective.call.args[0] if collective.call.args else None
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        if any(isinstance(part, ast.Name) and part.id in made.names for part in parts):
            return collective
        lambdas = isinstance(value, ast.AST) and bool(names_in(value) & made.names)
        if lambdas and module.enclosing_function(collective.call) is function:
            return None
    return None


def _is_changed(module: Module, function: ast.AST, made: Gradients, collective: Collective) -> bool:
    """Whether the gradients are assigned in another place too, where they may be divided."""
    own = {module.statement(made.call), module.statement(collective.call)}
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id in made.names
        and module.statement(node) not in own
        for node in ast.walk(function)
    )


RULE = Rule(
    diagnostic(
        "JP120",
        "gradients of `shard_map` averaged twice",
        meaning=(
            "The body of a `shard_map` takes the gradient of a replicated argument and applies `pmean` or "
            "`psum` to it, as the body of a `pmap` has to."
        ),
        why=(
            "With `check_vma=True`, the default, `shard_map` knows that the argument is the same on every "
            "device, and sums its gradient over the devices by itself. A `pmean` after it changes nothing "
            "then, and the gradient stays N times too large; a `psum` makes it N² times too large. Nothing "
            "fails."
        ),
        cure=(
            "Switch the check off, so that the body means what it means under `pmap`; or take the gradient "
            "of the averaged loss."
        ),
        invalid=INVALID[0],
        valid=VALID[0],
    ),
    find,
    VALID,
    INVALID,
)
DIAGNOSTIC = RULE.diagnostic
