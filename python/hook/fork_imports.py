"""What a program will import, found by reading its files and not by running them.

It is a part of a fork server (`fork_server.py`), and runs in an interpreter that has come to `site`.
"""

import os
import sys


def main_directory():
    """What the interpreter will put at the beginning of `sys.path`; `None` if nothing."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    program = (getattr(sys, "argv", None) or [""])[0]
    if program == "-m":
        return os.getcwd()
    if program in ("", "-", "-c"):
        return ""
    path = os.path.realpath(program)
    # A directory or an archive is run by what is in it.
    return path if os.path.isdir(path) else os.path.dirname(path)


def main_file(first):
    """The file of the main module, if there is one."""
    program = (getattr(sys, "argv", None) or [""])[0]
    if program in ("", "-", "-c"):
        return None
    if program != "-m":
        path = os.path.realpath(program)
        return os.path.join(path, "__main__.py") if os.path.isdir(path) else path
    arguments = getattr(sys, "orig_argv", [])
    for at, word in enumerate(arguments[1:], 1):
        if word.startswith("-") and not word.startswith("--") and "m" in word:
            name = word.split("m", 1)[1] or (arguments[at + 1] if at + 1 < len(arguments) else "")
            path = os.path.join(first or "", *name.split("."))
            for file in (path + ".py", os.path.join(path, "__main__.py")):
                if os.path.isfile(file):
                    return file
            return None
    return None


def imports_of_main(first, is_deep):
    """The installed modules that the program's files import when they are run and imported, each with its place: file, line, and the name of the
    module that imports it. Files in the program's own directory are read, and not run. If it is deep, all that the main file imports anywhere."""
    wanted, seen = {}, set()
    file = main_file(first)
    waiting = [(file, "__main__", "")] if file else []
    while waiting:
        file, module, package = waiting.pop(0)
        if file in seen or len(seen) > 1000:
            continue
        seen.add(file)
        try:
            with open(file, "rb") as source:
                # The flag is that of `ast.parse`.
                tree = compile(source.read(), file, "exec", 0x400, dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            continue
        for name, line in imported(tree.body, package, is_deep):
            own = None if is_deep else own_file(first, name)
            if own is None:
                if name.partition(".")[0] not in NEVER:
                    wanted.setdefault(name, (file, line, module))
            elif own:
                inner = name if own.endswith("__init__.py") else name.rpartition(".")[0]
                waiting.append((own, name, inner))
    return wanted


# Their import connects processes, or starts threads.
NEVER = ("mpi4py", "mpi4jax", "horovod", "chainermn", "sitecustomize", "usercustomize", "__main__", "__future__")


def imported(body, package, is_deep):
    """The names that these statements import, with their lines, without those within functions unless it is deep."""
    for statement in body:
        kind = type(statement).__name__
        if kind == "Import":
            for alias in statement.names:
                yield alias.name, statement.lineno
        elif kind == "ImportFrom":
            module = statement.module or ""
            if statement.level:
                parents = package.split(".")
                parents = parents[: len(parents) - statement.level + 1]
                module = ".".join([part for part in parents + [module] if part])
                if not module:
                    continue
                for alias in statement.names:
                    yield module + "." + alias.name, statement.lineno
            if module:
                yield module, statement.lineno
        elif kind == "If" and is_for_types(statement.test):
            for found in imported(statement.orelse, package, is_deep):
                yield found
        elif is_deep or kind in ("If", "Try", "TryStar", "With"):
            for part in ("body", "orelse", "finalbody"):
                for found in imported(getattr(statement, part, None) or [], package, is_deep):
                    yield found


def is_for_types(test):
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))


def own_file(first, name):
    """The file of a module in the program's own directory: empty if it has none, `None` if it is not there."""
    if first is None:
        return None
    top = os.path.join(first or ".", name.partition(".")[0])
    if not os.path.isdir(top) and not os.path.isfile(top + ".py"):
        return None
    if "site-packages" in os.path.abspath(top).split(os.sep):
        return None
    path = os.path.join(first or ".", *name.split("."))
    for file in (path + ".py", os.path.join(path, "__init__.py")):
        if os.path.isfile(file):
            return file
    return ""
