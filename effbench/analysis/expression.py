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
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from effbench.analysis import estimate
from effbench.analysis.estimate import ABSENT, Estimate, Vector, as_estimate, combine, each
from effbench.errors import UsageError

MAX_LENGTH = 2000
MAX_DEPTH = 60


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
        """Row by row: the value of the row that is the same but for `name`, which is `reference` there, ÷ its own.
        `values`: a column of `whole()`."""

    def whole(self) -> Scope:
        """Where this is a part of the rows: all of them."""

    def fact(self, name: str) -> Vector:
        """What the mode of each row said of its preparation; ABSENT where it said nothing of that name."""


ARITHMETIC: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
ORDER: dict[type, Callable[[Any, Any], estimate.Truth]] = {
    ast.Lt: lambda a, b: estimate.less(a, b, False),
    ast.LtE: lambda a, b: estimate.less(a, b, True),
    ast.Gt: lambda a, b: estimate.less(b, a, False),
    ast.GtE: lambda a, b: estimate.less(b, a, True),
}
COMPARISONS: dict[type, Callable[[Any, Any], estimate.Truth]] = {
    **ORDER,
    ast.Eq: estimate.equal,
    ast.NotEq: lambda a, b: estimate.negate(estimate.equal(a, b)),
    ast.In: lambda a, b: _contains(b, a),
    ast.NotIn: lambda a, b: estimate.negate(_contains(b, a)),
}
OPERATORS = (*ARITHMETIC, *COMPARISONS, ast.Not, ast.USub, ast.UAdd, ast.And, ast.Or)


def _contains(holder: Any, item: Any) -> estimate.Truth:
    if isinstance(holder, str) and isinstance(item, str):
        return item in holder
    if not isinstance(holder, list | Mapping):
        raise TypeError("`in` takes a list, such as mode in ['default', 'cuda-graph'], or two texts")
    return estimate.either(estimate.equal(item, _plain(other)) for other in holder)


def evaluate(text: str, scope: Scope) -> Any:
    """An Estimate, a Truth, a Vector, a text, a list or a mapping.

    Raises ExpressionError for what is not in the language or does not fit, NothingMeasured where no row is left.
    """
    tree = parse(text)
    try:
        return _Evaluator(text, scope).visit(tree.body)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ExpressionError(f"in {text!r}: {error}") from error


def parse(text: str) -> ast.Expression:
    """Raises ExpressionError for what is no expression, or has a part that the language does not know."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression of {len(text)} characters; at most {MAX_LENGTH} are read")
    try:
        tree = ast.parse(text.strip().replace("\n", " "), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"cannot read {text!r}: {getattr(error, 'msg', error)}") from error
    if depth(tree) > MAX_DEPTH:
        raise ExpressionError(f"{text[:40]!r}… is nested more than {MAX_DEPTH} deep")
    for node in ast.walk(tree):
        check(text, node)
    return tree


def check(text: str, node: ast.AST) -> None:
    """Raises ExpressionError where the language does not have this node, whatever it holds."""
    known = True
    if isinstance(node, ast.expr):
        known = hasattr(_Evaluator, f"visit_{type(node).__name__}")
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.BoolOp):
        known = isinstance(node.op, OPERATORS)
    if isinstance(node, ast.Compare):
        known = all(isinstance(op, OPERATORS) for op in node.ops)
    if isinstance(node, ast.Constant):
        known = node.value is None or isinstance(node.value, bool | int | float | str)
    if not known:
        raise ExpressionError(f"in {text!r}: {ast.unparse(node)!r} is not part of the language of claims")
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise ExpressionError(f"in {text!r}: a call is the name of a function with plain arguments")
        name, count = node.func.id, len(node.args)
        if name not in functions():
            near = difflib.get_close_matches(name, functions(), n=3)
            there = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(functions())}"
            raise ExpressionError(f"in {text!r}: no function {name!r}; {there}")
        if count != len(SIGNATURES[name]):
            raise ExpressionError(f"in {text!r}: it is {name}({', '.join(SIGNATURES[name])})")


def depth(tree: ast.AST) -> int:
    """Levels of nesting, found without recursion."""
    level, deepest = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        deepest += 1
    return deepest


def names_in(text: str) -> set[str]:
    """Names of columns (and `evidence`, `value`) that an expression speaks of; of evidence `evidence.piece` too."""
    found: set[str] = set()
    called = set()
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Call):
            called.add(id(node.func))
            if node.func.id == "fact":  # type: ignore[attr-defined]
                found.add("fact")
            if node.func.id == "relative" and isinstance(node.args[1], ast.Constant):  # type: ignore[attr-defined]
                found |= {str(node.args[1].value), f"relative.{node.args[1].value}"}
        if isinstance(node, ast.Name) and id(node) not in called:
            found.add(node.id)
        holder = getattr(node, "value", None)
        if isinstance(holder, ast.Name) and holder.id == "evidence":
            if isinstance(node, ast.Attribute):
                found.add(f"evidence.{node.attr}")
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                found.add(f"evidence.{node.slice.value}")
    return found


def chosen(text: str, name: str) -> set[str] | None:
    """Texts that a column must be one of wherever the expression selects by it; None where it may be others too."""
    found: set[str] = set()
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == name:
            if not isinstance(node.ops[0], ast.Eq | ast.In):
                return None
            texts = (one.value for one in ast.walk(node.comparators[0]) if isinstance(one, ast.Constant))
            found.update(text for text in texts if isinstance(text, str))
    return found or None


def functions() -> list[str]:
    """Names of all functions of the language."""
    return sorted(SIGNATURES)


class _Evaluator:
    def __init__(self, text: str, scope: Scope) -> None:
        self.text = text
        self.scope = scope

    def visit(self, node: ast.expr) -> Any:
        return getattr(self, f"visit_{type(node).__name__}")(node)

    def visit_Constant(self, node: ast.Constant) -> Any:
        return _plain(node.value)

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
            if reason := why_missing(holder):
                raise NothingMeasured(reason)
            near = ", ".join(map(str, holder)) or "nothing"
            raise ExpressionError(f"in {self.text!r}: {ast.unparse(node)!r} has no {name!r}; it has {near}")
        return _plain(holder[name])

    def visit_List(self, node: ast.List) -> list[Any]:
        return [self.visit(item) for item in node.elts]

    visit_Tuple = visit_List

    def there(self, node: ast.expr) -> Any:
        """Its value. Raises NothingMeasured where evidence says null: nothing of the kind was found."""
        value = self.visit(node)
        if value is None:
            raise NothingMeasured(f"{ast.unparse(node)} has no value")
        return value

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return each(lambda truth: estimate.negate(_truth(truth)), self.visit(node.operand), of_truths=True)
        operand = self.there(node.operand)
        sign = -1.0 if isinstance(node.op, ast.USub) else 1.0
        return each(lambda value: combine(operator.mul, value, sign), operand)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        function = ARITHMETIC[type(node.op)]
        return each(lambda a, b: combine(function, a, b), self.there(node.left), self.there(node.right))

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        combine_ = estimate.both if isinstance(node.op, ast.And) else estimate.either
        operands = [self.visit(value) for value in node.values]
        return each(lambda *truths: combine_(map(_truth, truths)), *operands, of_truths=True)

    def visit_Compare(self, node: ast.Compare) -> Any:
        in_order = any(type(op) in ORDER for op in node.ops)
        values = [(self.there if in_order else self.visit)(part) for part in (node.left, *node.comparators)]
        found = [each(COMPARISONS[type(op)], *values[index : index + 2]) for index, op in enumerate(node.ops)]
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
        if name == "relative":
            return self.relative(*node.args)
        arguments = [self.visit(argument) for argument in node.args]
        if name == "values":
            return self.values(*arguments)
        if name == "fact":
            if not isinstance(arguments[0], str):
                raise ExpressionError(f"in {self.text!r}: it is {_usage(name)}")
            return self.scope.fact(arguments[0])
        if name in _PLAIN:
            return each(_PLAIN[name], self.there(node.args[0]))
        return self.reduced(name, node.args[0], *arguments)

    def reduced(self, name: str, node: ast.expr, values: Any, *rest: Any) -> Any:
        """Many values into one. Rows that lack the figure are left out; a null of evidence is no number."""
        items = values if isinstance(values, Vector | list) else [values]
        left_out = (ABSENT,) if name in _OF_TRUTHS else (ABSENT, None)
        there = [value for value in items if not any(value is one for one in left_out)]
        if not there and name not in ("count", "len"):
            raise NothingMeasured(f"nothing was measured of {ast.unparse(node)}")
        return _REDUCTIONS[name](there, *rest)

    def values(self, holder: Any, name: Any) -> list[Any]:
        """The part of this name of every part of a piece of evidence (or of every item of a list) that has it."""
        if not isinstance(holder, Mapping | list) or not isinstance(name, str):
            raise ExpressionError(f"in {self.text!r}: it is {_usage('values')}")
        if getattr(holder, "is_open", False):
            raise NothingMeasured(str(holder.reason))
        inner = holder.values() if isinstance(holder, Mapping) else holder
        return [_plain(part[name]) for part in inner if isinstance(part, Mapping) and name in part]

    def relative(self, column: ast.expr, name: ast.expr, reference: ast.expr) -> Vector:
        # what to compare with may lie in another part of the rows
        values = _Evaluator(self.text, self.scope.whole()).visit(column)
        of, to = self.visit(name), self.visit(reference)
        if not isinstance(values, Vector) or not isinstance(of, str) or isinstance(to, Vector | list | Mapping):
            raise ExpressionError(f"in {self.text!r}: it is {_usage('relative')}")
        return self.scope.relative(values, of, to.value if isinstance(to, Estimate) else to)


def why_missing(holder: Mapping[str, Any]) -> str | None:
    """Why a piece of evidence, or a part of one, lacks what is asked of it; None where it should be there."""
    if getattr(holder, "is_open", False):
        return str(holder.reason)  # type: ignore[attr-defined]
    if isinstance(holder.get("unsupported"), str):
        return f"unsupported: {holder['unsupported']}"
    if holder.get("succeeded") is False:
        return f"{holder.get('error_type') or 'error'}: {holder.get('error') or 'no reason recorded'}"
    return None


def _usage(name: str) -> str:
    return f"{name}({', '.join(SIGNATURES[name])})"


def _plain(value: Any) -> Any:
    """A number of evidence as an exact estimate; everything else as it is."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Estimate.exact(float(value))
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _truth(value: Any) -> Any:
    if value is None or value is ABSENT or isinstance(value, bool):
        return value
    raise TypeError("conditions are meant here, such as bs <= 8")


def _numbers(values: Sequence[Any]) -> list[Estimate]:
    return [as_estimate(value) for value in values]


def _only(values: Sequence[Any]) -> Any:
    if len(values) != 1:
        raise ValueError(f"only() takes one row, and the condition leaves {len(values)}")
    return values[0]


def _count(values: Sequence[Any]) -> Estimate:
    """Where it is true, with those that cannot be decided on top; of a column the rows that have it."""
    open_ = sum(value is None for value in values)
    sure = sum(value is not False for value in values) - open_
    return Estimate(float(sure), float(sure), float(sure + open_))


def _quantile(values: Sequence[Any], share: Any) -> Estimate:
    return estimate.quantile(_numbers(values), as_estimate(share).value)


_OF_TRUTHS = ("share", "all", "any", "count")
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "geomean": lambda values: estimate.geometric_mean(_numbers(values)),
    "mean": lambda values: estimate.mean(_numbers(values)),
    "sum": lambda values: estimate.total(_numbers(values)),
    "median": lambda values: estimate.quantile(_numbers(values), 0.5),
    "min": lambda values: estimate.quantile(_numbers(values), 0.0),
    "max": lambda values: estimate.quantile(_numbers(values), 1.0),
    "quantile": _quantile,
    "share": lambda values: estimate.share([_truth(value) for value in values]),
    "all": lambda values: estimate.both(_truth(value) for value in values),
    "any": lambda values: estimate.either(_truth(value) for value in values),
    "count": _count,
    "only": _only,
    "len": lambda values: Estimate.exact(float(len(values))),
}
_PLAIN: dict[str, Callable[..., Any]] = {
    "log": lambda value: as_estimate(value).map(estimate.log),
    "exp": lambda value: as_estimate(value).map(estimate.exp),
    "sqrt": lambda value: as_estimate(value).map(estimate.sqrt),
    "abs": lambda value: estimate.absolute(as_estimate(value)),
}
#: Name of each function -> what it takes.
SIGNATURES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_REDUCTIONS, ("column or list",)),
    **dict.fromkeys(("share", "all", "any"), ("condition",)),
    "quantile": ("column or list", "share from 0 to 1"),
    **dict.fromkeys(_PLAIN, ("number or column",)),
    "relative": ("column", "'name'", "value of that name to compare with"),
    "fact": ("'name of a fact of the mode'",),
    "values": ("evidence or a part of it", "'name of a part of its parts'"),
}
