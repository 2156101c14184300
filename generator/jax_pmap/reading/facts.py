"""The record `read` hands on: what the source says of one function."""

from __future__ import annotations

from dataclasses import dataclass

from jax_pmap.model import ParameterKind, Span


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the target as written."""

    name: str
    kind: ParameterKind
    #: Source of the annotation and the default; None where there is none.
    annotation: str | None
    default: str | None


@dataclass(frozen=True, slots=True)
class Decorator:
    """One decorator, resolved through the file's imports."""

    #: Source as written, without the ``@``.
    text: str
    #: Qualified name, e.g. ``"jax.jit"``; of the wrapped function for ``functools.partial(jax.jit, …)``.
    #: The source as written where there is none.
    name: str
    #: True when it only compiles or maps (jit, filter_jit, nnx.jit, pmap …) and is set aside.
    set_aside: bool
    span: Span
    #: True for one of the user's that hands on what the function is given and returns: see `wrappers`.
    passes_on: bool = False


@dataclass(frozen=True, slots=True)
class GradientCall:
    """A call of ``jax.value_and_grad(loss_fn)`` or a relative, at once or bound to a name first."""

    span: Span
    #: Source of the differentiated function, e.g. ``"loss_fn"``.
    function: str
    #: Source of the arguments the gradient is taken of, e.g. ``("params",)``; empty when it is computed.
    of: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FunctionRun:
    """A function that a call of jax's runs: the body of a scan, a branch of a cond, what vmap maps."""

    #: Place of the call.
    span: Span
    #: Source of the function, and its place.
    function: str
    function_span: Span
    #: Whether what it returns goes into its next run.
    repeats: bool = False
    #: Whether what it returns decides if there is another round.
    decides: bool = False
    #: Whether the second thing it returns is stacked, and does not go into its next run.
    stacks: bool = False
    #: Whether it is differentiated: ``jax.vmap(jax.grad(loss))(params)``.
    differentiated: bool = False


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective already in the body."""

    span: Span
    op: str
    #: Literal axis name, or None when it is computed.
    axis_name: str | None


@dataclass(frozen=True, slots=True)
class ImportedName:
    """How a free name of the body comes into the file through an import statement."""

    name: str
    #: A whole import statement that binds just this name, e.g. ``"import jax.numpy as jnp"``.
    #: A name can have several, as ``import a.b`` and ``import a.c`` both bind ``a``.
    statement: str
    #: True when the import stands under ``if TYPE_CHECKING:`` and must not run.
    typing_only: bool = False


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """Everything read from the source of the target."""

    name: str
    span: Span
    parameters: tuple[Parameter, ...]
    decorators: tuple[Decorator, ...]
    #: Evaluated docstring text, or None.
    docstring: str | None
    #: True for ``async def`` or a function with ``yield``.
    is_async: bool
    is_generator: bool
    #: Names outside the function that its body declares ``global`` or ``nonlocal``.
    global_names: tuple[str, ...]
    #: Free names of body, defaults and annotations that an import of the file binds.
    imported: tuple[ImportedName, ...]
    #: Free names that other top-level statements of the file bind (definitions, assignments).
    module_names: tuple[str, ...]
    #: Free names bound nowhere in the file and not builtins (typos, star imports).
    unknown_names: tuple[str, ...]
    #: All names bound at top level of the file, and all used in the function: taken.
    taken_names: frozenset[str]
    gradient_calls: tuple[GradientCall, ...]
    function_runs: tuple[FunctionRun, ...]
    #: Functions that `jax.pure_callback` and the like are given: nothing of them is traced.
    host_functions: frozenset[str]
    collectives: tuple[Collective, ...]
    #: Axes that maps in the body bind and collectives go over, and those of maps anywhere in the file.
    inner_axes: frozenset[str]
    mapped_axes: frozenset[str]
    #: Parameters static under the jit / pmap decorator (static_argnums, static_argnames …).
    static_parameters: tuple[str, ...]
    #: Parameters that a call by the target's own name gives up (donate_argnums …).
    donated_parameters: tuple[str, ...]
    #: Axis name and per-parameter in_axes of a pmap of this function in the same file
    #: (decorator or call), when literal: hints for roles. Empty when there is none.
    pmap_axis_name: str | None
    pmap_in_axes: tuple[tuple[str, int | None], ...]
    #: Names of parameters returned, in order of the returned tuple; "" for other elements.
    returned_names: tuple[str, ...]
    #: Parameters of which another one says which rows are meant: ``table`` of ``table[ids]``.
    looked_up_parameters: tuple[str, ...]
    #: Values (Python source) a parameter is compared with in the body: ("mode", "'train'").
    compared: tuple[tuple[str, str], ...]
    #: Parameters used as a callee in the body.
    called_parameters: tuple[str, ...]
    #: Parameters that flow into ``jax.random.*`` calls or are named like keys.
    key_parameters: tuple[str, ...]
    #: (parameter, other name) of what a jit of the target under another name gives up.
    donated_elsewhere: tuple[tuple[str, str], ...] = ()
    #: Parameters that the assignment which names the target binds by `partial`.
    bound_parameters: tuple[str, ...] = ()
    #: Free names that functions around the target bind: it is a closure over them.
    closure_names: tuple[str, ...] = ()
    #: The parameter that a method is called on (``self``, ``cls``); empty for anything else.
    receiver: str = ""
    #: What the target is defined in: ``"class"``, ``"function"``, or ``""`` for the module.
    owner: str = ""
    #: Whether a caller sees changes that the function makes in its arguments: not where `jax.jit` runs it
    #: on copies.
    changes_seen: bool = True
    #: Modules the file imports with a star: where unknown names may come from.
    star_imports: tuple[str, ...] = ()
    #: Whether the file has ``from __future__ import annotations``: its annotations are never evaluated.
    future_annotations: bool = False

    @property
    def found_in_module(self) -> tuple[str, ...]:
        """Free names that can be imported from the file: what a star import brings is found there too."""
        return (*self.module_names, *(self.unknown_names if self.star_imports else ()))

    @property
    def is_class_method(self) -> bool:
        """Whether it is called on its class, which importing the file makes."""
        return any(decorator.name == "builtins.classmethod" for decorator in self.decorators)
