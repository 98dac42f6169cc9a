"""Test that old module names work, warn, and name their replacement."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib import import_module

import pytest

import deepca
from deepca._util.renamed import NAMES, RENAMED, renamed_names, renamed_parameters, replacement
from deepca.topology import directed
from deepca.topology.time_varying import periodic
from tests.support.paths import ROOT

BEFORE: dict[str, list[str]] = json.loads((ROOT / "tests/golden/v0.1.0/exports.json").read_text())
"""Names that the modules of version 0.1 exported."""
PUBLIC = [name for name in RENAMED if "." not in name and name not in ("certificate", "model", "result")]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which old names were used, as in a fresh interpreter."""
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
    assert [str(one.message) for one in heard] == [replacement(name)]
    assert heard[0].filename == __file__
    assert set(module.__all__) >= set(import_module(f"deepca.{RENAMED[name][0]}").__all__)


def test_unknown_names_of_old_modules_raise_attribute_error() -> None:
    with pytest.warns(DeprecationWarning, match="deepca.mixing"):
        module = deepca.mixing
    with pytest.raises(AttributeError):
        _ = module.nothing_of_that_name
    with pytest.raises(AttributeError):
        _ = deepca.nothing_of_that_name
    with pytest.raises(ModuleNotFoundError):
        import_module("deepca.nothing_of_that_name")


def test_dir_does_not_list_old_names() -> None:
    listed = set(dir(deepca))
    assert {"DecentralizedPCA", "DecentralizedEigen", "DecentralizedSVD", "solve", "topology"} <= listed
    assert not listed & set(RENAMED)


def test_new_names_do_not_warn() -> None:
    code = "import deepca, deepca.estimators; dir(deepca); deepca.DecentralizedPCA; deepca.topology.ring(3)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True)


@pytest.mark.parametrize("name", BEFORE)
def test_old_modules_have_all_their_former_names(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = import_module(f"deepca.{name}")
        assert [entry for entry in BEFORE[name] if not hasattr(module, entry)] == []


@pytest.mark.parametrize("child", ["transports.memory", "transports.base", "networks.simulated", "networks.agent"])
@pytest.mark.parametrize("first", [True, False])
def test_submodules_of_old_packages_resolve_to_the_new_ones(child: str, first: bool) -> None:
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


def test_old_names_of_public_objects_warn_and_work() -> None:
    graph = directed.ring(3)
    network, varying = deepca.SimulatedNetwork(graph), periodic([graph])
    error = deepca.errors.DataError("'x' is not a number", redacted="not a number")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert getattr(deepca.operators, "PerAgent") is deepca.operators.MixedOperator  # noqa: B009
        assert getattr(deepca.planning, "Link") is deepca.planning.LinkSpeed  # noqa: B009
        assert error.discreet == "not a number"
        assert getattr(graph, "limit") is graph.stationary_distribution  # noqa: B009
        assert getattr(network, "leads") is network.is_leader_local  # noqa: B009
        assert getattr(varying, "keeps") is varying.preserves_sum  # noqa: B009
        assert getattr(varying, "one_way") is varying.needs_push_sum  # noqa: B009
    assert [(one.category, one.filename) for one in heard] == [(DeprecationWarning, __file__)] * 7


def test_old_names_of_attributes_warn_and_work() -> None:
    ring = deepca.topology.ring(5)
    with pytest.warns(DeprecationWarning, match="Topology.middle is now center") as heard:
        assert getattr(ring, "middle") == ring.center  # noqa: B009 (type checkers know the new name only)
    assert heard[0].filename == __file__
    view = deepca.topology.Neighbourhood.of(ring, 1)
    with pytest.warns(DeprecationWarning, match="Neighbourhood.stays is now static_undirected"):  # inherited
        assert getattr(view, "stays")  # noqa: B009
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        getattr(view, "nothing_of_that_name")  # noqa: B009
    assert not {"middle", "stays"} & set(dir(ring))


@pytest.mark.parametrize(("old", "new"), NAMES.items())
def test_new_names_of_renamed_objects_exist(old: str, new: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        places = [import_module(f"deepca.{name}") for name, entries in BEFORE.items() if old in entries]
    assert places
    assert all(getattr(place, old) is getattr(place, new) for place in places)


def test_old_names_of_parameters_warn_and_work() -> None:
    @renamed_parameters(methods="algorithms")
    def plan(*, algorithms: str = "auto") -> str:
        return algorithms

    old: dict[str, str] = {"methods": "deepca"}
    with pytest.warns(DeprecationWarning, match="'methods' of plan.* is now 'algorithms'") as heard:
        assert plan(**old) == "deepca"
    assert heard[0].filename == __file__
    assert plan(algorithms="krylov") == "krylov"
    with pytest.raises(TypeError):
        plan(algorithms="krylov", **old)


def test_old_names_in_a_module_warn_and_work() -> None:
    attribute = renamed_names("deepca", old_solve="solve")
    with pytest.warns(DeprecationWarning, match="deepca.old_solve is now deepca.solve") as heard:
        assert attribute("old_solve") is deepca.solve
    assert heard[0].filename == __file__
    with pytest.raises(AttributeError):
        attribute("nothing_of_that_name")
