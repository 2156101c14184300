"""Reductions that no one collective mends, written as sums, means and maxima that one does."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jax_pmap.syntax.lines import parsed_expression
from jax_pmap.worker.scopes import names_in

#: What makes each of the parts of a decomposed reduction that of all devices, given the operator and source.
Collective = Callable[[str, str], str]

#: What is written out of jax.numpy, jax.nn, jax.scipy.special and the methods of arrays: its parameters, in
#: their order. Those in parentheses change the meaning into one that is not written here.
_MOMENT = "x axis (dtype) (out) ddof keepdims where"
PARAMETERS = {
    name: tuple(text.split())
    for name, text in {
        "mean": "x axis (dtype) (out) keepdims where",
        "nanmean": "x axis (dtype) (out) keepdims",
        "nanvar": "x axis (dtype) (out) ddof keepdims",
        "nanstd": "x axis (dtype) (out) ddof keepdims",
        "average": "x axis weights (returned) keepdims",
        "var": _MOMENT,
        "std": _MOMENT,
        "norm": "x ord axis keepdims",
        "vector_norm": "x axis keepdims ord",
        "ptp": "x axis (out) keepdims",
        "logsumexp": "x axis b keepdims (return_sign) where",
        "softmax": "x axis where",
        "standardize": "x axis (mean) (variance) epsilon where (algorithm)",
        "log_softmax": "x axis",
        "cov": "x y rowvar bias ddof",
        "corrcoef": "x y rowvar",
        "diag": "x (k)",
        "diagonal": "x (offset) (axis1) (axis2)",
        "trace": "x (offset) (axis1) (axis2) (dtype) (out)",
        "scatter_add": "x values (indices_are_sorted) (unique_indices) mode",
        "scatter_sub": "x values (indices_are_sorted) (unique_indices) mode",
    }.items()
}
#: What is written to an array, as in ``x.at[ids].add(values)``, by the name of the method.
UPDATES = {"add": "scatter_add", "subtract": "scatter_sub"}
#: What is written for these values alone, by parameter.
_LITERAL = {"rowvar": ("True", "False"), "bias": ("True", "False"), "ord": ("1", "2", "3", "4")}
#: Those that read the diagonal of a matrix of pairs of examples, of which a device has the rows or columns.
DIAGONALS = frozenset({"diag", "diagonal", "trace"})
#: How many arrays devices send to each other for one, each as large as the result.
TOGETHER = {
    **dict.fromkeys(PARAMETERS, 2),
    **dict.fromkeys(("norm", "vector_norm", "trace", *UPDATES.values()), 1),
    **dict.fromkeys(("diag", "diagonal"), 0),
}
#: Those of which every example has a part of the result, and not all of it.
BY_ROW = frozenset({"softmax", "log_softmax", "standardize", "diag", "diagonal"})
#: Where the functions are.
MODULES = frozenset({"jax.nn", "jax.numpy", "jax.numpy.linalg", "jax.scipy.special", "numpy", "numpy.linalg"})


@dataclass(frozen=True, slots=True)
class Reduction:
    """A call of one of the reductions: ``jnp.std(x, axis=0)``.

    `given` has the source of each argument by the name of its parameter, that of the array as ``"x"``, and
    `order` their places among the arguments of the call, behind the array where it is that of a method.
    `module` is what jax.numpy is called there, where the call names that.
    """

    name: str
    given: Mapping[str, str]
    order: Mapping[str, int]
    is_method: bool
    module: str

    @property
    def updates_made(self) -> bool:
        """Whether it adds to an array that is computed there: ``(0.9 * counts).at[ids].add(1)``."""
        updated = _updated(self.given["x"]) if self.name in UPDATES.values() else None
        return updated is not None and not _is_plain(updated[0])

    def written(
        self,
        collective: Collective = lambda _, source: source,
        jnp: str = "jnp",
        jax: str = "jax",
        named: Mapping[str, str] | None = None,
    ) -> str:
        """The call as sums and means, each in a `collective`; `jnp` is jax.numpy where the call names none.

        ``"jnp.mean((x - jnp.mean(x)) ** 2)"`` of ``jnp.var(x)``. `named` are names that stand for arguments.
        What is no name and is written several times is bound to one: ``(lambda values: …)(x @ w)``.
        """
        named = named or {}
        given = {**self.given, **named}

        def text(arguments: Mapping[str, str]) -> str:
            return _Form(self.name, arguments, collective, self.module or jnp, jax).text()

        if self.updates_made:
            # What is computed to be added to is computed once.
            table, (array, index) = free_name("table", self.given), _updated(self.given["x"]) or ("", "")
            return (
                f"(lambda {table}: {text({**given, 'x': f'{table}.at[{index}]'})})({named.get('x', array)})"
            )
        bound = {}
        for parameter, source in self.given.items():
            is_plain = _is_plain(source) and parameter not in named
            if not is_plain and text({**given, parameter: "__repeated__"}).count("__repeated__") > 1:
                bound[parameter] = free_name("values" if parameter == "x" else parameter, self.given)
        if not bound:
            return text(given)
        values = ", ".join(given[name] for name in bound)
        return f"(lambda {', '.join(bound.values())}: {text({**given, **bound})})({values})"


class _Form:
    """Source of one reduction in parts, with what its arguments are called in it."""

    def __init__(
        self, name: str, given: Mapping[str, str], collective: Collective, jnp: str, jax: str
    ) -> None:
        self.name, self.collective, self.given = name, collective, given
        self.jnp, self.jax = jnp, jax
        self.x = given["x"] if _is_operand(given["x"]) else f"({given['x']})"
        self.axis = f", axis={given['axis']}" if "axis" in given else ""
        self.where = f", where={given['where']}" if "where" in given else ""
        self.kept = f", keepdims={given['keepdims']}" if "keepdims" in given else ""

    def text(self) -> str:
        """The reduction."""
        return str(getattr(self, f"_{self.name}")())

    def reduced(self, op: str, by: str, source: str, *, keep: bool = False) -> str:
        """One part: `by` of jax.numpy over the axes of the reduction, on all devices."""
        # What is reduced over the first axis goes along with the others as it is.
        leading = self.axis in ("", ", axis=0")
        kept = self.kept if not keep else "" if leading else ", keepdims=True"
        return self.collective(op, f"{self.jnp}.{by}({source}{self.axis}{kept}{self.where})")

    def count(self, *, keep: bool = False) -> str:
        """How many numbers one of the result is made of."""
        if self.where:
            return self.reduced("psum", "sum", f"{self.jnp}.ones_like({self.x})", keep=keep)
        return self.collective("psum", f"{self.jnp}.size({self.x}{self.axis})")

    def _mean(self, *, keep: bool = False) -> str:
        if not self.where:
            return self.reduced("pmean", "mean", self.x, keep=keep)
        return f"{self.reduced('psum', 'sum', self.x, keep=keep)} / {self.count(keep=keep)}"

    def _nanmean(self, *, keep: bool = False) -> str:
        total = self.reduced("psum", "nansum", self.x, keep=keep)
        self.where = f", where=~{self.jnp}.isnan({self.x})"
        count, self.where = self.count(keep=keep), ""
        return f"{total} / {count}"

    def _average(self) -> str:
        weights = self.given.get("weights")
        if weights is None:
            return self.reduced("pmean", "mean", self.x)
        weights = weights if _is_operand(weights) else f"({weights})"
        each = self.free("each") if self.given.get("axis") == "0" else weights
        total = self.reduced("psum", "sum", f"{self.x} * {each}")
        quotient = f"{total} / {self.reduced('psum', 'sum', each)}"
        if each == weights:
            return quotient
        # One weight for each row goes along with the first axis, and not with the last.
        missing = f"tuple(range({weights}.ndim, {self.x}.ndim))"
        return f"(lambda {each}: {quotient})({self.jnp}.expand_dims({weights}, {missing}))"

    def _nanvar(self) -> str:
        # There is no derivative through what is not a number, either.
        apart = f"{self.jnp}.where({self.jnp}.isnan({self.x}), 0, {self.x} - {self._nanmean(keep=True)})"
        total, n = self.reduced("psum", "sum", f"{apart} ** 2"), self.free("n")
        total = f"{self.jnp}.where({n} <= 0, {self.jnp}.nan, {total})"
        count = self.reduced("psum", "sum", f"~{self.jnp}.isnan({self.x})")
        count += f" - {self.given['ddof']}" if "ddof" in self.given else ""
        return f"(lambda {n}: {total} / {self.jnp}.where({n} <= 0, 1, {n}))({count})"

    def _nanstd(self) -> str:
        return f"{self.jnp}.sqrt({self._nanvar()})"

    def _var(self) -> str:
        return self._squares(f"({self.x} - {self._mean(keep=True)}) ** 2")

    def _squares(self, squares: str) -> str:
        """The mean of squares that stand around their mean."""
        if not self.where and "ddof" not in self.given:
            return self.reduced("pmean", "mean", squares)
        ddof = self.given.get("ddof")
        total, count = self.reduced("psum", "sum", squares), self.count()
        if not self.where:
            return f"{total} / ({count} - {ddof})"
        count = f"{count} - {ddof}" if ddof else count
        n = self.free("n")
        # Of nothing it is not a number, and neither is a gradient through it.
        return f"(lambda {n}: {self.jnp}.where({n} > 0, {total} / {n}, {self.jnp}.nan))({count})"

    def _std(self) -> str:
        return f"{self.jnp}.sqrt({self._var()})"

    def _norm(self) -> str:
        order = self.given.get("ord", "2")
        if order == "1":
            return self.reduced("psum", "sum", f"{self.jnp}.abs({self.given['x']})")
        if order == "2":
            return f"{self.jnp}.sqrt({self.reduced('psum', 'sum', f'{self.x} ** 2')})"
        powers = f"{self.jnp}.abs({self.given['x']}) ** {order}.0"
        return f"{self.reduced('psum', 'sum', powers)} ** (1 / {order})"

    _vector_norm = _norm

    def _ptp(self) -> str:
        return f"{self.reduced('pmax', 'max', self.x)} - {self.reduced('pmin', 'min', self.x)}"

    def _largest(self, kept: str = ", keepdims=True") -> str:
        # There is no derivative of a maximum over devices, and none is needed.
        kept += f"{self.where}, initial=-{self.jnp}.inf" if self.where else ""
        largest = f"{self.jnp}.max({self.x}{self.axis}{kept})"
        return self.collective("pmax", f"{self.jax}.lax.stop_gradient({largest})")

    def _logsumexp(self) -> str:
        if not self.where:
            return self._log_of_sum()
        # What is left out has no gradient, either.
        x, self.x = self.x, self.free("apart")
        return f"(lambda {self.x}: {self._log_of_sum()})({self.jnp}.where({self.given['where']}, {x}, 0))"

    def _log_of_sum(self) -> str:
        largest, top, weight = self.free("largest"), self.free("top"), self.given.get("b", "")
        weight = f"({weight})" if weight and not _is_operand(weight) else weight
        counted, x = self.free("counted"), self.x
        self.x = counted if weight else x
        along = largest if self.kept or not self.axis else f"{self.jnp}.expand_dims({largest}{self.axis})"
        terms = f"{self.jnp}.exp({self.x} - {along})" + (f" * {weight}" if weight else "")
        total = self.reduced("psum", "sum", terms)
        finite = f"{self.jnp}.where({self.jnp}.isfinite({top}), {top}, 0)"
        largest_of_all = f"(lambda {top}: {finite})({self._largest(self.kept)})"
        if not weight:
            return f"(lambda {largest}: {self.jnp}.log({total}) + {largest})({largest_of_all})"
        n = self.free("total")
        sum_of_all = f"{self.jnp}.log({self.jnp}.abs({n})) + {largest}"
        # The logarithm of what is below zero is none, and terms without weight have no maximum.
        none = f"{self.jnp}.array({self.jnp}.nan, {counted}.dtype)"
        signed = f"(lambda {n}: {self.jnp}.where({self.jnp}.sign({n}) < 0, {none}, {sum_of_all}))({total})"
        with_weight = f"{self.jnp}.where({weight} != 0, {x}, -{self.jnp}.inf)"
        return f"(lambda {counted}: (lambda {largest}: {signed})({largest_of_all}))({with_weight})"

    def _softmax(self) -> str:
        self.axis = self.axis or ", axis=-1"
        weights, where = self.free("weights"), self.given.get("where")
        if where:
            self.where, self.x = "", f"{self.jnp}.where({where}, {self.x}, -{self.jnp}.inf)"
        total = self.reduced("psum", "sum", weights, keep=True)
        value = f"{self.jnp}.exp({self.x} - {self._largest()})"
        return f"(lambda {weights}: {weights} / {total})({value})"

    def _log_softmax(self) -> str:
        self.axis = self.axis or ", axis=-1"
        shifted = self.free("shifted")
        total = self.reduced("psum", "sum", f"{self.jnp}.exp({shifted})", keep=True)
        return f"(lambda {shifted}: {shifted} - {self.jnp}.log({total}))({self.x} - {self._largest()})"

    def _standardize(self) -> str:
        self.axis = self.axis or ", axis=-1"
        mean, epsilon = self.free("mean"), self.given.get("epsilon", "1e-5")
        x, average = self.x, self._mean(keep=True)
        self.x = f"{self.jnp}.square({x})"
        squares = self._mean(keep=True)
        variance = f"{self.jnp}.clip({squares} - {self.jnp}.square({mean}), 0)"
        scaled = f"({x} - {mean}) * {self.jax}.lax.rsqrt({variance} + {epsilon})"
        return f"(lambda {mean}: {scaled})({average})"

    def _cov(self) -> str:
        x, y = f"{self.jnp}.atleast_2d({self.x})", self.given.get("y")
        if self.given.get("rowvar") == "False":
            x = f"{self.x}.T"
        if y is not None:
            operand = y if _is_operand(y) else f"({y})"
            y = f"{operand}.T" if self.given.get("rowvar") == "False" else f"{self.jnp}.atleast_2d({y})"
            x = f"{self.jnp}.concatenate(({x}, {y}))"
        # Neither stands around an argument of the call.
        mean = self.collective("pmean", f"{self.jnp}.mean(rows, axis=1, keepdims=True)")
        products = self.collective("psum", "apart @ apart.T")
        count = self.collective("psum", "apart.shape[1]")
        ddof = self.given.get("ddof", "0" if self.given.get("bias") == "True" else "1")
        count = count if ddof == "0" else f"({count} - {ddof})"
        covariance = f"{self.jnp}.squeeze({products} / {count})"
        return f"(lambda apart: {covariance})((lambda rows: rows - {mean})({x}))"

    def _corrcoef(self) -> str:
        ratio = "covariances / deviations[:, None] / deviations[None, :]"
        scaled = f"(lambda deviations: {self.jnp}.clip({ratio}, -1, 1))"
        deviations = f"{self.jnp}.sqrt({self.jnp}.diag(covariances))"
        return f"(lambda covariances: {scaled}({deviations}))({self._cov()})"

    def _diag(self) -> str:
        own, shared, rows = self._of_own_rows()
        index = [own, own]
        index[1 - shared] = f"{self.collective('axis_index', '0')} * {rows} + {own}"
        return f"(lambda {own}: {self.x}[{', '.join(index)}])({self.jnp}.arange({rows}))"

    _diagonal = _diag

    def _trace(self) -> str:
        own, shared, rows = self._of_own_rows()
        along = "[:, None]" if shared == 0 else ""
        every = f"{self.jnp}.arange({self.x}.shape[{1 - shared}])" + ("" if along else "[:, None]")
        terms = f"{self.jnp}.where({own}{along} == {every}, {self.x}, 0)"
        first = f"{self.collective('axis_index', '0')} * {rows}"
        total = self.collective("psum", f"{self.jnp}.sum({terms})")
        return f"(lambda {own}: {total})({first} + {self.jnp}.arange({rows}))"

    def _of_own_rows(self) -> tuple[str, int, str]:
        """A name for the rows of this device, the axis that they are along, and how many they are."""
        shared = int(self.given.get("axis", "0"))
        return self.free("own"), shared, f"{self.x}.shape[{shared}]"

    def _scatter_add(self) -> str:
        return self._updates("add")

    def _scatter_sub(self) -> str:
        return self._updates("subtract")

    def _updates(self, method: str) -> str:
        """What all examples add to an array that all devices have: their sum is made from nothing on."""
        array, index = _updated(self.given["x"]) or ("", "")
        mode = f", mode={self.given['mode']}" if "mode" in self.given else ""
        nothing = f"{self.jnp}.zeros_like({array})"
        return f"{array} + " + self.collective(
            "psum", f"{nothing}.at[{index}].{method}({self.given['values']}{mode})"
        )

    def free(self, wanted: str) -> str:
        """A name that stands in none of the arguments."""
        return free_name(wanted, self.given)


def _is_operand(source: str) -> bool:
    """Whether an operator may follow an expression without parentheses around that."""
    return isinstance(
        ast.parse(source, mode="eval").body, ast.Name | ast.Attribute | ast.Subscript | ast.Call
    )


def _is_plain(source: str) -> bool:
    """Whether an expression is a name, an attribute, an item or a number, which may be written twice."""
    tree = ast.parse(source, mode="eval").body
    plain = ast.Name | ast.Attribute | ast.Subscript | ast.Constant | ast.Slice | ast.Tuple
    return all(isinstance(n, plain | ast.expr_context | ast.unaryop | ast.UnaryOp) for n in ast.walk(tree))


def _updated(source: str) -> tuple[str, str] | None:
    """Source of the array and of the index in ``x.at[ids]``, or None for anything else."""
    tree = ast.parse(source, mode="eval").body
    if not isinstance(tree, ast.Subscript) or not isinstance(tree.value, ast.Attribute):
        return None
    array = ast.unparse(tree.value.value)
    if tree.value.attr != "at":
        return None
    # Slices have no source of their own, and an operation gets parentheses.
    return array, ast.unparse(tree)[len(ast.unparse(tree.value)) + 1 : -1]


def free_name(wanted: str, given: Mapping[str, str]) -> str:
    """`wanted`, or that with a trailing underscore where one of the arguments has a name like it."""
    used = names_in(*map(ast.parse, given.values()))
    return free_name(f"{wanted}_", given) if wanted in used else wanted


def reduction(text: str, called: str) -> Reduction | None:
    """The call `text` of a variance, norm, covariance, softmax or their like, or None for anything else.

    Args:
        text: the source of the call.
        called: the qualified name of what it calls (``"jax.numpy.std"``), ``""`` of a method of an array, as
            in ``x.std(0)``.
    """
    try:
        call = parsed_expression(text)
    except (SyntaxError, ValueError):
        return None
    if not isinstance(call, ast.Call) or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    func, positional = call.func, list(call.args)
    origin, _, name = called.rpartition(".")
    if not called and isinstance(func, ast.Attribute):
        positional.insert(0, func.value)
        name = UPDATES.get(func.attr, func.attr)
        if name in UPDATES.values() and _updated(ast.unparse(func.value)) is None:
            return None
    elif origin not in MODULES:
        return None
    parameters = PARAMETERS.get(name, ())
    names = [*parameters[: len(positional)]]
    names += [
        {"a": "x", "m": "x", "v": "x", "correction": "ddof"}.get(k.arg or "", k.arg or "")
        for k in call.keywords
    ]
    nodes = [*positional, *(keyword.value for keyword in call.keywords)]
    if len(positional) > len(parameters) or len(set(names)) < len(names):
        return None
    order = {
        parameter: index
        for index, (parameter, node) in enumerate(zip(names, nodes, strict=True))
        if not (isinstance(node, ast.Constant) and node.value is None)
    }
    written = all(each in parameters and not each.startswith("(") for each in order)
    literal = {name: ast.unparse(nodes[order[name]]) for name in _LITERAL if name in order}
    if "x" not in order or not written or any(text not in _LITERAL[name] for name, text in literal.items()):
        return None
    spelled = ast.unparse(func)
    # What jax.numpy is called there: `jnp` where ``jax.numpy.linalg.norm`` is written ``jnp.linalg.norm``.
    modules = [module for module in ("jax.numpy", "numpy") if called.startswith(f"{module}.")]
    inner = called.removeprefix(modules[0]) if modules else ""
    return Reduction(
        name,
        {parameter: ast.unparse(nodes[index]) for parameter, index in order.items()},
        order,
        len(positional) > len(call.args),
        spelled.removesuffix(inner) if inner and spelled.endswith(inner) else "",
    )
