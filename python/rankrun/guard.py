"""What of the main module stands below `if __name__ == "__main__":`, and so does not exist where a rank imports it."""

import ast
import functools
import sys
from types import CodeType
from typing import Any, Iterator, List, NamedTuple, Optional, Set, Tuple


class Guards(NamedTuple):
    """The guards of a module, each as the lines from its `if` to its end, and the names defined in and outside of them."""

    lines: List[Tuple[int, int]]
    inside: Set[str]
    outside: Set[str]


def guard_of(obj: Any) -> Optional[int]:
    """The line of the guard below which a function or class of the main module is defined, if it is defined below one."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    guards = _read(path) if path is not None else None
    if guards is None:
        return None
    code = getattr(obj, "__code__", None)
    if isinstance(code, CodeType) and code.co_filename == path:
        line = code.co_firstlineno
        return next((first for first, last in guards.lines if first <= line <= last), None)
    # A class, or a function that a decorator of another module has wrapped.
    name = obj.__qualname__.split(".")[0]
    if name in guards.inside and name not in guards.outside:
        return guards.lines[0][0]
    return None


@functools.lru_cache(maxsize=1)
def _read(path: str) -> Optional[Guards]:
    try:
        with open(path, "rb") as file:
            return find_guards(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def find_guards(source: bytes) -> Guards:
    guards = Guards([], set(), set())
    _visit(ast.parse(source).body, False, guards)
    return guards


def _visit(body: List[ast.stmt], inside: bool, guards: Guards) -> None:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            # What is defined within it cannot be pickled by its name, wherever it stands.
            (guards.inside if inside else guards.outside).add(statement.name)
            continue
        is_guard = not inside and isinstance(statement, ast.If) and _is_guard(statement.test)
        if is_guard and isinstance(statement, ast.If):
            guards.lines.append((statement.lineno, statement.body[-1].end_lineno or statement.lineno))
            _visit(statement.body, True, guards)
            _visit(statement.orelse, False, guards)
            continue
        for block in _blocks(statement):
            _visit(block, inside, guards)


def _blocks(statement: ast.stmt) -> Iterator[List[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for part in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
        yield part.body


def _is_guard(test: ast.expr) -> bool:
    """`__name__ == "__main__"`, either way round, alone or with more conditions."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_is_guard(part) for part in test.values)
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = [test.left, test.comparators[0]]
    has_name = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    return has_name and any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)
