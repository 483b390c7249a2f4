"""Public is what a package's `__all__` lists, and docs/api.md documents all of it."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import clearvit
from tests.helpers import ROOT

SOURCE = Path(clearvit.__file__).parent
PACKAGES = sorted(
    ".".join(stub.parent.relative_to(SOURCE.parent).parts) for stub in SOURCE.rglob("__init__.pyi")
)


def public_names():
    names = set()
    for package in PACKAGES:
        module = importlib.import_module(package)
        names |= {f"{package}.{name}" for name in module.__all__ if name != "testing"}
    return names


def documented_names():
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    return re.findall(r"^::: (clearvit[\w.]+)$", page, re.MULTILINE)


def test_public_names_are_the_documented_ones():
    documented = documented_names()
    assert sorted(documented) == sorted(public_names())
    assert len(documented) == len(set(documented)) <= 200


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_explained(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        found = getattr(module, name)
        assert not inspect.ismodule(found) or package == "clearvit", f"{package}.{name} is a module"
        if inspect.isclass(found) or inspect.isfunction(found):
            assert inspect.getdoc(found), f"{package}.{name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_stub_lists_what_it_imports(package):
    stub = SOURCE.parent.joinpath(*package.split(".")) / "__init__.pyi"
    tree = ast.parse(stub.read_text("utf-8"))
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == set(importlib.import_module(package).__all__)
