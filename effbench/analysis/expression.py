"""The little language in which an experiment's claims and tables are written: Python's expressions, and no Python.

An expression is parsed by `ast`, every kind of node is looked up here, and what is not here is refused: no attributes
but those of evidence, no calls but of the functions below, no names but the columns. Nothing is ever evaluated by
Python itself.

    geomean(speedup[mode == 'cuda-graph' and bs <= 8])
    share(relative(gpu_busy_ms, 'mode', 'eager') > 1.1) >= 0.5
    evidence.rebound.replay_is_stale
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from effbench.analysis import estimate
from effbench.analysis.estimate import Estimate, Vector, as_estimate, combine, each
from effbench.errors import UsageError

MAX_LENGTH = 2000


class ExpressionError(UsageError):
    """An expression that cannot be read, or that asks for what is not there."""


class NothingMeasured(Exception):
    """No row is left of which the expression could speak; the message says of what."""


class Scope(Protocol):
    """What the names of an expression mean."""

    def names(self) -> Sequence[str]:
        """All that `value_of` knows, for messages."""

    def value_of(self, name: str) -> Any:
        """A Vector, an Estimate, a plain value or a mapping. Raises KeyError for an unknown name."""

    def relative(self, values: Vector, name: str, reference: Any) -> Vector:
        """Row by row: the value of the row that is the same but for `name`, which is `reference` there, ÷ its own."""

    def fact(self, name: str) -> Vector:
        """What the mode of each row said of its preparation; None where it said nothing of that name."""


ARITHMETIC: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
COMPARISONS: dict[type, Callable[[Any, Any], estimate.Truth]] = {
    ast.Lt: lambda a, b: estimate.less(a, b, False),
    ast.LtE: lambda a, b: estimate.less(a, b, True),
    ast.Gt: lambda a, b: estimate.less(b, a, False),
    ast.GtE: lambda a, b: estimate.less(b, a, True),
    ast.Eq: estimate.equal,
    ast.NotEq: lambda a, b: estimate.negate(estimate.equal(a, b)),
    ast.In: lambda a, b: a in b if isinstance(b, str) else estimate.either(estimate.equal(a, item) for item in b),
}
COMPARISONS[ast.NotIn] = lambda a, b: estimate.negate(COMPARISONS[ast.In](a, b))


def evaluate(text: str, scope: Scope) -> Any:
    """An Estimate, a Truth, a Vector, a text, a list or a mapping.

    Raises ExpressionError for what is not in the language or does not fit, NothingMeasured where no row is left.
    """
    tree = parse(text)
    try:
        return _Evaluator(text, scope).visit(tree.body)
    except (TypeError, ValueError) as error:
        raise ExpressionError(f"in {text!r}: {error}") from error


def parse(text: str) -> ast.Expression:
    """Raises ExpressionError for what is no expression, or has a part that the language does not know."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression of {len(text)} characters; at most {MAX_LENGTH} are read")
    try:
        tree = ast.parse(text.strip().replace("\n", " "), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"cannot read {text!r}: {getattr(error, 'msg', error)}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not hasattr(_Evaluator, f"visit_{type(node).__name__}"):
            raise ExpressionError(f"in {text!r}: {ast.unparse(node)!r} is not part of the language of claims")
        if isinstance(node, ast.Call) and (not isinstance(node.func, ast.Name) or node.keywords):
            raise ExpressionError(f"in {text!r}: a call is the name of a function with plain arguments")
    return tree


def functions() -> list[str]:
    """Names of all functions of the language."""
    return sorted([*_REDUCTIONS, *_PLAIN, *_SPECIAL])


class _Evaluator:
    def __init__(self, text: str, scope: Scope) -> None:
        self.text = text
        self.scope = scope

    def visit(self, node: ast.expr) -> Any:
        return getattr(self, f"visit_{type(node).__name__}")(node)

    def visit_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, bool | str) or node.value is None:
            return node.value
        if isinstance(node.value, int | float):
            return Estimate.exact(float(node.value))
        raise ExpressionError(f"in {self.text!r}: {node.value!r} is neither a number nor a text")

    def visit_Name(self, node: ast.Name) -> Any:
        try:
            return self.scope.value_of(node.id)
        except KeyError:
            known = [*self.scope.names(), *functions()]
            near = difflib.get_close_matches(node.id, known, n=3)
            hint = f"nearest: {', '.join(near)}" if near else "names are the columns of the view `results`"
            raise ExpressionError(f"in {self.text!r}: no name {node.id!r}; {hint}") from None

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        return self.part(node.value, self.visit(node.value), node.attr)

    def part(self, node: ast.expr, holder: Any, name: str) -> Any:
        """One part of evidence."""
        if not isinstance(holder, Mapping):
            raise ExpressionError(f"in {self.text!r}: {ast.unparse(node)!r} has no parts")
        if name not in holder:
            if getattr(holder, "is_open", False):
                raise NothingMeasured(str(holder.reason))
            near = ", ".join(map(str, holder)) or "nothing"
            raise ExpressionError(f"in {self.text!r}: {ast.unparse(node)!r} has no {name!r}; it has {near}")
        return _plain(holder[name])

    def visit_List(self, node: ast.List) -> list[Any]:
        return [self.visit(item) for item in node.elts]

    visit_Tuple = visit_List

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return each(lambda truth: estimate.negate(_truth(truth)), operand, of_truths=True)
        if isinstance(node.op, ast.USub):
            return each(lambda value: combine(operator.mul, value, -1.0), operand)
        if isinstance(node.op, ast.UAdd):
            return operand
        raise ExpressionError(f"in {self.text!r}: {ast.unparse(node)!r} is not part of the language of claims")

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        function = ARITHMETIC.get(type(node.op))
        if function is None:
            raise ExpressionError(f"in {self.text!r}: {ast.unparse(node)!r} is not part of the language of claims")
        return each(lambda a, b: combine(function, a, b), self.visit(node.left), self.visit(node.right))

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        combine_ = estimate.both if isinstance(node.op, ast.And) else estimate.either
        operands = [self.visit(value) for value in node.values]
        return each(lambda *truths: combine_(map(_truth, truths)), *operands, of_truths=True)

    def visit_Compare(self, node: ast.Compare) -> Any:
        values = [self.visit(node.left), *(self.visit(value) for value in node.comparators)]
        found = []
        for index, op in enumerate(node.ops):
            function = COMPARISONS.get(type(op))
            if function is None:
                raise ExpressionError(f"in {self.text!r}: {ast.unparse(node)!r} is not part of the language of claims")
            found.append(each(function, values[index], values[index + 1]))
        return found[0] if len(found) == 1 else each(lambda *truths: estimate.both(truths), *found, of_truths=True)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        holder, chosen = self.visit(node.value), self.visit(node.slice)
        if isinstance(holder, Vector) and isinstance(chosen, Vector):
            return holder.where(chosen)
        if isinstance(holder, Mapping) and isinstance(chosen, str):
            return self.part(node.value, holder, chosen)
        if isinstance(holder, list) and isinstance(chosen, Estimate) and chosen.value.is_integer():
            if -len(holder) <= chosen.value < len(holder):
                return _plain(holder[int(chosen.value)])
            raise ExpressionError(f"in {self.text!r}: {ast.unparse(node)!r}: the list has {len(holder)} items")
        raise ExpressionError(
            f"in {self.text!r}: {ast.unparse(node)!r}: a column takes a condition on rows in brackets"
        )

    def visit_Call(self, node: ast.Call) -> Any:
        name = node.func.id  # type: ignore[attr-defined] - parse() has seen to it
        arguments = [self.visit(argument) for argument in node.args]
        if name == "relative":
            return self.relative(arguments)
        if name == "values":
            return self.values(node, arguments)
        if name == "fact":
            if len(arguments) != 1 or not isinstance(arguments[0], str):
                raise ExpressionError(f"in {self.text!r}: fact('name of a fact of the mode')")
            return self.scope.fact(arguments[0])
        if name in _REDUCTIONS:
            values, *rest = arguments or [None]
            items = values if isinstance(values, Vector | list) else [values]
            there = [value for value in items if value is not None or name in _OF_TRUTHS]
            if not there and name not in ("count", "any", "all"):
                raise NothingMeasured(f"nothing was measured of {ast.unparse(node.args[0])}")
            return _REDUCTIONS[name](there, *rest)
        if name in _PLAIN:
            return each(_PLAIN[name], *arguments)
        near = difflib.get_close_matches(name, functions(), n=3)
        raise ExpressionError(f"in {self.text!r}: no function {name}; {'nearest' if near else 'there are'}: "
                              f"{', '.join(near or functions())}")  # fmt: skip

    def values(self, node: ast.Call, arguments: list[Any]) -> list[Any]:
        """The part of this name of every part of a piece of evidence (or of every item of a list) that has it."""
        if len(arguments) != 2 or not isinstance(arguments[0], Mapping | list) or not isinstance(arguments[1], str):
            raise ExpressionError(f"in {self.text!r}: values(evidence or part of it, 'name of a part of its parts')")
        holder, name = arguments
        if getattr(holder, "is_open", False):
            raise NothingMeasured(str(holder.reason))
        inner = holder.values() if isinstance(holder, Mapping) else holder
        return [_plain(part[name]) for part in inner if isinstance(part, Mapping) and name in part]

    def relative(self, arguments: list[Any]) -> Vector:
        if len(arguments) != 3 or not isinstance(arguments[0], Vector) or not isinstance(arguments[1], str):
            raise ExpressionError(f"in {self.text!r}: relative(column, 'name', value of that name to compare with)")
        reference = arguments[2].value if isinstance(arguments[2], Estimate) else arguments[2]
        return self.scope.relative(arguments[0], arguments[1], reference)


def _plain(value: Any) -> Any:
    """A number of evidence as an exact estimate; everything else as it is."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Estimate.exact(float(value))
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _truth(value: Any) -> estimate.Truth:
    if value is None or isinstance(value, bool):
        return value
    raise TypeError("and, or, not take conditions, such as bs <= 8")


def _numbers(values: Sequence[Any]) -> list[Estimate]:
    return [as_estimate(value) for value in values]


def _only(values: Sequence[Any]) -> Any:
    if len(values) != 1:
        raise ValueError(f"only() takes one row, and the condition leaves {len(values)}")
    return values[0]


_OF_TRUTHS = ("share", "all", "any", "count")
#: Many values into one. `count` of a condition counts where it is true, of a column the rows that have it.
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "geomean": lambda values: estimate.geometric_mean(_numbers(values)),
    "mean": lambda values: estimate.mean(_numbers(values)),
    "sum": lambda values: estimate.total(_numbers(values)),
    "median": lambda values: estimate.quantile(_numbers(values), 0.5),
    "min": lambda values: estimate.quantile(_numbers(values), 0.0),
    "max": lambda values: estimate.quantile(_numbers(values), 1.0),
    "quantile": lambda values, share: estimate.quantile(_numbers(values), share.value),
    "share": lambda values: estimate.share([_truth(value) for value in values]),
    "all": lambda values: estimate.both(_truth(value) for value in values),
    "any": lambda values: estimate.either(_truth(value) for value in values),
    "count": lambda values: Estimate.exact(float(sum(value is not False and value is not None for value in values))),
    "only": _only,
    "len": lambda values: Estimate.exact(float(len(values))),
}
_PLAIN: dict[str, Callable[..., Any]] = {
    "log": lambda value: as_estimate(value).map(math.log),
    "exp": lambda value: as_estimate(value).map(math.exp),
    "sqrt": lambda value: as_estimate(value).map(math.sqrt),
    "abs": lambda value: _absolute(as_estimate(value)),
}
_SPECIAL = ("relative", "fact", "values")


def _absolute(value: Estimate) -> Estimate:
    if value.low <= 0 <= value.high:
        return Estimate(abs(value.value), 0.0, max(-value.low, value.high))
    return value.map(abs)
