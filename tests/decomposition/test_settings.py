"""Test settings: conversion to plain numbers, and errors that name the parameter."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

import deepca
from deepca.decomposition.settings import Settings, check_network, check_settings
from deepca.errors import ParameterError
from deepca.network.simulated import SimulatedNetwork
from deepca.topology.names import from_name
from tests.support.errors import raises


def test_numpy_scalars_become_plain_numbers() -> None:
    """Plain numbers can be written as JSON, and are recognised as integers or as shares of the variance."""
    share, number = np.float32(0.75), np.int64(3)
    given: dict[str, Any] = {"n_components": share, "rounds": number, "seed": np.uint8(4), "tol": np.float32(0.5)}
    settings = Settings(**given)
    check_settings(settings)
    assert json.loads(json.dumps(asdict(settings))) == asdict(Settings(0.75, rounds=3, seed=4, tol=0.5))
    assert type(Settings(**{**given, "n_components": number}).n_components) is int


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("n_components", 0),
        ("n_components", 1.0),
        ("n_components", True),
        ("n_components", "2"),
        ("rounds", 0),
        ("rounds", "some"),
        ("seed", -1),
        ("seed", 0.5),
        ("algorithm", "power"),
        ("messages", "int8"),
        ("tol", 0.0),
        ("tol", float("nan")),
    ],
)
def test_invalid_settings_name_the_parameter(parameter: str, value: Any) -> None:
    with raises(ParameterError, parameter=parameter, value=value, file=None):
        check_settings(Settings(**{parameter: value}))


@pytest.mark.parametrize("algorithm", ["krylov", "covariance"])
def test_exact_averages_choose_their_number_of_rounds(algorithm: str) -> None:
    ring = from_name("ring:4")
    for name in (algorithm, "auto"):
        with raises(ParameterError, parameter="rounds", value=3):
            check_network(Settings(algorithm=name, rounds=3), ring)
    check_network(Settings(rounds=3, messages="float32"), ring)  # "auto" selects an algorithm that gossips
    check_network(Settings(rounds=3), from_name("one-peer:4"))
    for name in (algorithm, "auto", "accelerated"):
        check_network(Settings(algorithm=name), ring)


@pytest.mark.parametrize("algorithm", ["krylov", "covariance", "auto"])
def test_rounds_are_ignored_by_estimators_whose_algorithm_averages_exactly(algorithm: str) -> None:
    """As parameters of scikit-learn are that do not apply to the chosen solver."""
    X = np.random.default_rng(0).standard_normal((40, 5))
    default, three = (
        deepca.DecentralizedPCA(2, n_agents=4, algorithm=algorithm, rounds=rounds).fit(X).components_
        for rounds in ("auto", 3)
    )
    np.testing.assert_array_equal(default, three)


@pytest.mark.parametrize("algorithm", ["krylov", "covariance"])
def test_exact_averages_need_a_static_network(algorithm: str) -> None:
    changing = from_name("one-peer:4")
    with raises(ParameterError, parameter="algorithm", value=algorithm):
        check_network(Settings(algorithm=algorithm), changing)
    check_network(Settings(algorithm=algorithm), from_name("ring:4"))
    for other in ("auto", "accelerated", "deepca", "depca"):
        check_network(Settings(algorithm=other), changing)


@pytest.mark.parametrize("algorithm", ["krylov", "covariance"])
def test_exact_averages_need_float64_messages(algorithm: str) -> None:
    with raises(ParameterError, parameter="messages", value="float32"):
        check_settings(Settings(algorithm=algorithm, messages="float32"))


@pytest.mark.parametrize("search", [deepca.eigenpairs, deepca.singular_triplets])
@pytest.mark.parametrize("unknown", ["tolerance", "scale", "n_components"])
def test_a_search_rejects_unknown_options(search: Callable[..., Any], unknown: str) -> None:
    """Settings that only apply to rows are rejected as well."""
    network = SimulatedNetwork(deepca.topology.ring(3))
    with pytest.raises(TypeError, match=rf"{search.__name__}\(\).*'{unknown}'"):
        search(np.ones((3, 2, 2)), network, 1, **{unknown: 1})


@pytest.mark.parametrize("search", [deepca.eigenpairs, deepca.singular_triplets])
def test_the_signature_of_a_search_shows_options_with_defaults(search: Callable[..., Any]) -> None:
    parameters = inspect.signature(search).parameters
    for name in ("algorithm", "rounds", "tol", "max_iter", "seed"):
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == getattr(Settings(), name)
    assert "options" not in parameters
