"""What an expression gives, seen before there are rows: a figure, a condition, a text or a list, one or one a row.

Only what cannot be is refused. What evidence and parameters hold is known once they are there, and fits everything.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from effbench.analysis.expression import ARITHMETIC, ORDER, SIGNATURES, ExpressionError, parse

NUMBER, TRUTH, TEXT, LIST, EVIDENCE, ANY = "a number", "a condition", "a text", "a list", "evidence", "anything"
#: What can be reckoned with: a truth counts as 0 or 1.
FIGURES = (NUMBER, TRUTH, ANY)
TRUTHS = (TRUTH, ANY)
OF_NUMBERS = ("geomean", "mean", "sum", "median", "min", "max", "quantile")
OF_CONDITIONS = ("share", "all", "any")
ROW_BY_ROW = ("log", "exp", "sqrt", "abs")


@dataclass(frozen=True)
class Kind:
    """`a_row`: one value for each row."""

    of: str
    a_row: bool = False

    def __str__(self) -> str:
        return f"{self.of} for each row" if self.a_row else self.of


def kind_of(text: str, columns: Mapping[str, str]) -> Kind:
    """`columns`: what each name of a column holds, one of the words above; names that are not there may hold anything.

    Raises ExpressionError for what can never be evaluated.
    """
    tree = parse(text)
    return _Kinds(text, columns).visit(tree.body)


def need_figure(text: str, columns: Mapping[str, str]) -> None:
    """Raises ExpressionError for what can never be one number."""
    found = kind_of(text, columns)
    if found.a_row or found.of not in FIGURES:
        raise ExpressionError(f"{text!r} is {found}, and one number is meant, such as max(latency_ms)")


def need_condition(text: str, columns: Mapping[str, str]) -> None:
    """Raises ExpressionError for what can never be true or false as a whole."""
    found = kind_of(text, columns)
    if found.a_row or found.of not in TRUTHS:
        hint = f"all({text})" if found.of == TRUTH else "value > 1"
        raise ExpressionError(f"{text!r} is {found}, and one condition is meant, such as {hint}")


class _Kinds:
    def __init__(self, text: str, columns: Mapping[str, str]) -> None:
        self.text = text
        self.columns = columns
        self.known: dict[int, Kind] = {}  # each node is looked at once, however it is nested

    def visit(self, node: ast.expr) -> Kind:
        if id(node) not in self.known:
            self.known[id(node)] = getattr(self, f"visit_{type(node).__name__}")(node)
        return self.known[id(node)]

    def expect(self, node: ast.expr, allowed: tuple[str, ...], what: str) -> Kind:
        found = self.visit(node)
        if found.of not in allowed:
            raise ExpressionError(f"in {self.text!r}: {ast.unparse(node)!r} is {found}; {what}")
        return found

    def visit_Constant(self, node: ast.Constant) -> Kind:
        if isinstance(node.value, bool):
            return Kind(TRUTH)
        return Kind(ANY if node.value is None else TEXT if isinstance(node.value, str) else NUMBER)

    def visit_Name(self, node: ast.Name) -> Kind:
        if node.id == "evidence":
            return Kind(EVIDENCE)
        if node.id == "value":
            return Kind(NUMBER)
        return Kind(self.columns.get(node.id, ANY), a_row=True)

    def visit_Attribute(self, node: ast.Attribute) -> Kind:
        holder = self.visit(node.value)
        if holder.a_row or holder.of not in (EVIDENCE, ANY):
            has_none = f"{ast.unparse(node.value)!r} has no parts: only evidence has, as in evidence.piece.part"
            raise ExpressionError(f"in {self.text!r}: {has_none}")
        return Kind(ANY)

    def visit_Subscript(self, node: ast.Subscript) -> Kind:
        holder, chosen = self.visit(node.value), self.visit(node.slice)
        if holder.a_row:
            if not chosen.a_row or chosen.of not in TRUTHS:
                raise ExpressionError(
                    f"in {self.text!r}: {ast.unparse(node)!r}: a column takes a condition on rows in brackets"
                )
            return holder
        if holder.of not in (EVIDENCE, LIST, ANY) or chosen.a_row:
            raise ExpressionError(f"in {self.text!r}: {ast.unparse(node)!r}: {ast.unparse(node.value)!r} is {holder}")
        return Kind(ANY)

    def visit_List(self, node: ast.List | ast.Tuple) -> Kind:
        for item in node.elts:
            self.visit(item)
        return Kind(LIST)

    visit_Tuple = visit_List

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Kind:
        if isinstance(node.op, ast.Not):
            return Kind(TRUTH, self.expect(node.operand, TRUTHS, "`not` takes a condition, such as bs <= 8").a_row)
        return Kind(NUMBER, self.expect(node.operand, FIGURES, "a number is meant").a_row)

    def visit_BinOp(self, node: ast.BinOp) -> Kind:
        assert type(node.op) in ARITHMETIC
        sides = [self.expect(side, FIGURES, "only numbers are reckoned with") for side in (node.left, node.right)]
        return Kind(NUMBER, any(side.a_row for side in sides))

    def visit_BoolOp(self, node: ast.BoolOp) -> Kind:
        sides = [self.expect(side, TRUTHS, "a condition is meant, such as bs <= 8") for side in node.values]
        return Kind(TRUTH, any(side.a_row for side in sides))

    def visit_Compare(self, node: ast.Compare) -> Kind:
        parts = [node.left, *node.comparators]
        found = [self.visit(part) for part in parts]
        for index, op in enumerate(node.ops):
            if type(op) in ORDER:
                for part in parts[index : index + 2]:
                    self.expect(part, FIGURES, "only numbers are larger and smaller than others")
            if isinstance(op, ast.In | ast.NotIn):
                self.expect(parts[index + 1], (LIST, TEXT, EVIDENCE, ANY), "`in` takes a list or a text")
        return Kind(TRUTH, any(one.a_row for one in found))

    def visit_Call(self, node: ast.Call) -> Kind:
        name = node.func.id  # type: ignore[attr-defined] - parse() has seen to it
        usage = f"it is {name}({', '.join(SIGNATURES[name])})"
        first = self.visit(node.args[0])
        for argument in node.args[1:]:
            self.visit(argument)
        if name in OF_NUMBERS:
            self.expect(node.args[0], (*FIGURES, LIST), usage)
            return Kind(NUMBER)
        if name in OF_CONDITIONS:
            self.expect(node.args[0], (*TRUTHS, LIST), usage)
            return Kind(NUMBER if name == "share" else TRUTH)
        if name in ROW_BY_ROW:
            return Kind(NUMBER, self.expect(node.args[0], FIGURES, usage).a_row)
        if name == "relative":
            if not self.expect(node.args[0], FIGURES, usage).a_row:
                raise ExpressionError(f"in {self.text!r}: {ast.unparse(node.args[0])!r} is {first}; {usage}")
            self.expect(node.args[1], (TEXT, ANY), usage)
            return Kind(NUMBER, a_row=True)
        if name == "fact":
            self.expect(node.args[0], (TEXT,), usage)
            return Kind(ANY, a_row=True)
        if name == "values":
            self.expect(node.args[0], (EVIDENCE, LIST, ANY), usage)
            self.expect(node.args[1], (TEXT, ANY), usage)
            return Kind(LIST)
        if name == "only":
            return Kind(ANY if first.of == LIST else first.of)
        return Kind(NUMBER)  # count, len
