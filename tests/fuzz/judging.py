"""What is wrong with an answer."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import symtable
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping

from tests.helpers.migrating import migrate

TRACEBACK, CHECK = "traceback", "self-check needed"
COMPILES, SECOND = "does not compile", "second run not empty"
UNBOUND, UNUSED = "new unbound name", "new unused name"
KINDS = (TRACEBACK, CHECK, COMPILES, SECOND, UNBOUND, UNUSED)
_UNBOUND = re.compile("that nothing binds: (.*)")
LINE = re.compile(r" from line \d+")
TYPES = frozenset({"Annotated", "Literal"})  # of `typing`, with texts that are no types
RUFF = ("--isolated", "--no-cache", "--select=F401,F811,F821,F823,F841", "--output-format=json")


def faults(text: str) -> Iterator[tuple[str, str]]:
    """Each fault with what it is."""
    before = {"program.py": text}
    try:
        result, after = migrate(before)
    except Exception as error:
        yield TRACEBACK, f"{type(error).__name__}: {error}"
        return
    for problem in result.problems:
        kind = TRACEBACK if " failed here: " in problem.message else CHECK
        unbound = _UNBOUND.search(problem.message)
        if unbound and _unbound(_said(text)) & {*re.findall(r"\w+", unbound[1])}:
            continue  # nor does anything in the program
        yield kind, f"{problem.line}: {problem.message}"
    if after == before:
        return
    for name, new in after.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(new, name, "exec", dont_inherit=True)
        except SyntaxError as error:
            yield COMPILES, f"{name}:{error.lineno}: {error.msg}"
            return
    try:
        again, twice = migrate(after)
    except Exception as error:
        yield TRACEBACK, f"the second time: {type(error).__name__}: {error}"
        return
    if twice != after:
        changed = [name for name in twice if twice[name] != after.get(name)]
        codes = {d.code for d in again.decisions if d.edits}
        yield SECOND, f"{', '.join(changed)} {sorted(codes)}"
    yield from names(before, after)


def names(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What a linter says of names in an answer, and did not say of the program."""
    old, new = before["program.py"], after["program.py"]
    known = _said(old)
    unbound = _unbound(known)
    imported = Counter(
        alias.asname or alias.name
        for node in ast.walk(ast.parse(old))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    )
    if unbound & imported.keys():
        return  # it asks for names in front of their imports, and so does what is made of it
    shared = {_quoted(message) for code, message in known if code == "F811"}
    told = "\n".join(re.findall(r"(?m)^ *# (?:TODO|    ).*$", new))
    early = {_quoted(message) for code, message in known if code == "F823"}
    for said, number in (_said(new) - known).items():
        code, message = said
        if code == "F823" or _quoted(message) in early:
            continue  # a function asks for it in front of what binds it there, and stops
        if code == "F821" and _quoted(message) in unbound:
            continue  # it is asked for more often
        if code == "F821" and all(_is_local(_quoted(message), text) for text in (old, new)):
            continue  # a function binds it behind where it asks for it, and stops
        if code == "F821" and unbound & TYPES and _is_quoted_alone(_quoted(message), new):
            continue  # the linter takes a text for a type, as it does not know what it is given to
        if code == "F811" and imported[_quoted(message)] > 1:
            continue  # the second import stands where it stood
        if code == "F811" and _is_idle(_quoted(message), old):
            continue  # the linter did not see that nothing asked for it before
        if code == "F401" and _has_reason(_quoted(message), shared, new):
            continue
        if code == "F841" and _quoted(message) in told:
            continue  # a marker tells what to do with it
        if code == "F841" and _is_asked_first(_quoted(message), new):
            continue  # a function asks for it in front of what binds it there, and stops
        yield UNBOUND if code == "F821" else UNUSED, f"{message}" + (f" ({number})" * (number > 1))


def _has_reason(imported: str, shared: set[str], text: str) -> bool:
    """Whether an import stays for what this linter does not read, a type comment or a text that is
    evaluated; or two imports gave it one name, and one of them had no use."""
    tree = ast.parse(text)
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if f".{alias.name}".endswith(f".{imported.rpartition('.')[2]}")
    }
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    commented = {*re.findall(r"\w+", "\n".join(re.findall("# type: (.*)", text)))}
    return not names.isdisjoint(shared | commented | texts)


def _is_quoted_alone(name: str, text: str) -> bool:
    """Whether a program has a name in texts alone."""
    return not any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(ast.parse(text)))


def _is_local(name: str, text: str) -> bool:
    """Whether each function that asks for a name binds it itself."""
    tables = [symtable.symtable(text, "program.py", "exec")]
    found = []
    for table in tables:
        tables += table.get_children()
        if name in table.get_identifiers() and table.lookup(name).is_referenced():
            found.append(table.get_type() == "function" and table.lookup(name).is_local())
    return bool(found) and all(found)


def _is_idle(name: str, text: str) -> bool:
    """Whether nothing asks for a name of a module: functions that do bind it themselves."""
    tables = [symtable.symtable(text, "program.py", "exec")]
    top = tables[0]
    for table in tables:
        tables += table.get_children()
        if name in table.get_identifiers():
            symbol = table.lookup(name)
            if symbol.is_referenced() and (table is top or symbol.is_global()):
                return False
    return True


def _is_asked_first(name: str, text: str) -> bool:
    """Whether a function asks for a name in front of what binds it there, and nowhere else. What a
    statement binds a name to is in front of it."""
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            found = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
            bound = {n: n.lineno for n in found if isinstance(n.ctx, ast.Store)}
            for statement in ast.walk(function):
                if isinstance(statement, ast.Assign):
                    ends = dict.fromkeys(statement.targets, (statement.end_lineno or 0) + 1)
                    bound |= {n: ends[n] for n in bound.keys() & ends.keys()}
            reads = [n.lineno for n in found if isinstance(n.ctx, ast.Load)]
            if reads and bound and max(reads) < min(bound.values()):
                return True
    return False


def _unbound(said: Counter[tuple[str, str]]) -> set[str]:
    return {_quoted(message) for code, message in said if code == "F821"}


def _quoted(message: str) -> str:
    """The name in a linter's message."""
    return message.partition("`")[2].partition("`")[0]


def _said(text: str) -> Counter[tuple[str, str]]:
    """What a linter says of names, each as often as it does."""
    command = [sys.executable, "-m", "ruff", "check", *RUFF, "--stdin-filename=program.py", "-"]
    answer = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    found = json.loads(answer.stdout or b"[]")
    return Counter((each["code"], LINE.sub("", each["message"])) for each in found)
