"""Old module names: they work, warn, and say what to write instead."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib import import_module

import pytest

import deepca
from deepca._util.renamed import RENAMED, replacement
from tests.support.paths import ROOT

BEFORE: dict[str, list[str]] = json.loads((ROOT / "tests/golden/v0.1.0/exports.json").read_text())
"""What the modules of version 0.1 exported."""
PUBLIC = [name for name in RENAMED if "." not in name and name not in ("certificate", "model", "result")]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh interpreter: no old name was used yet."""
    for name in RENAMED:
        monkeypatch.delitem(sys.modules, f"deepca.{name}", raising=False)
        monkeypatch.delitem(vars(deepca), name, raising=False)


@pytest.mark.parametrize("name", RENAMED)
def test_an_old_module_is_imported_with_a_warning(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module(f"deepca.{name.partition('.')[0]}")
        sys.modules.pop(f"deepca.{name}", None)
    with pytest.warns(DeprecationWarning, match=f"deepca.{name}") as heard:
        module = import_module(f"deepca.{name}")
    assert [str(one.message) for one in heard] == [replacement(name)]
    for new in RENAMED[name]:
        for entry in import_module(f"deepca.{new}").__all__:
            assert getattr(module, entry) is getattr(import_module(f"deepca.{new}"), entry)


@pytest.mark.parametrize("name", PUBLIC)
def test_an_old_attribute_of_the_package_warns_its_user(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"deepca.{name}") as heard:
        module = getattr(deepca, name)
    assert heard[0].filename == __file__
    assert set(module.__all__) >= set(import_module(f"deepca.{RENAMED[name][0]}").__all__)


def test_a_name_that_an_old_module_never_had_is_an_attribute_error() -> None:
    with pytest.warns(DeprecationWarning, match="consensus"):
        module = deepca.mixing
    with pytest.raises(AttributeError):
        _ = module.nothing_of_that_name
    with pytest.raises(AttributeError):
        _ = deepca.nothing_of_that_name
    with pytest.raises(ModuleNotFoundError):
        import_module("deepca.nothing_of_that_name")


def test_names_of_the_package_are_listed_without_the_old_ones() -> None:
    listed = set(dir(deepca))
    assert {"DecentralizedPCA", "DecentralizedEigen", "DecentralizedSVD", "solve", "topology"} <= listed
    assert not listed & set(RENAMED)


def test_nothing_warns_where_no_old_name_is_used() -> None:
    code = "import deepca, deepca.estimators; dir(deepca); deepca.DecentralizedPCA; deepca.topology.ring(3)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True)


@pytest.mark.parametrize("name", BEFORE)
def test_whatever_a_module_had_is_found_under_its_old_name(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = import_module(f"deepca.{name}")
        assert [entry for entry in BEFORE[name] if not hasattr(module, entry)] == []


@pytest.mark.parametrize("child", ["transports.memory", "transports.base", "networks.simulated", "networks.agent"])
@pytest.mark.parametrize("first", [True, False])
def test_modules_inside_old_packages_are_the_new_ones_whatever_is_imported_first(child: str, first: bool) -> None:
    parent = child.partition(".")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if first:
            getattr(deepca, parent)
        found = import_module(f"deepca.{child}")
    [new] = RENAMED[child]
    real = import_module(f"deepca.{new}")
    assert all(getattr(found, entry) is getattr(real, entry) for entry in real.__all__)
    with pytest.raises(ModuleNotFoundError):
        import_module(f"deepca.{child}.nothing_of_that_name")
