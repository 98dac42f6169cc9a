"""Test what all commands have in common: help, options, and reports of mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from deepca.cli import command as module
from deepca.cli.app import app
from deepca.cli.command import MAX_WIDTH, Command, in_options, message_for
from deepca.errors import InvalidInput, ParameterError
from deepca.solver import sentences

RENAMED = {
    "--tol": "--tolerance",
    "--iterations": "--max-iter",
    "--network": "--links",
    "--agents": "--machines",
    "--revoked": "--revocation-list",
}


def commands(group: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all commands by the words that call them."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, *names, name)
        else:
            yield (*names, name), one


COMMANDS = dict(commands(get_command(app)))
OPTIONS = [
    pytest.param(words, param, id=f"{' '.join(words)} {param.opts[0]}")
    for words, one in COMMANDS.items()
    for param in one.params
    if param.param_type_name == "option"
]
EVERY_COMMAND = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


def run(*words: str, width: int = 80, **more: Any) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": str(width), "TERM": "dumb"}, **more)


def long_name(param: Any) -> str:
    return str(max(param.opts, key=len))


def assert_mistake(done: Any, *words: str) -> None:
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


# --------------------------------------------------------------------------------------------------------------- help


def test_all_commands_are_found() -> None:
    assert {("fit",), ("agent", "run"), ("trial",), ("cluster", "up"), ("demo",)} <= COMMANDS.keys()
    assert all(isinstance(one, Command) for one in COMMANDS.values())


@pytest.mark.parametrize("width", [80, 140])
@EVERY_COMMAND
def test_help_is_complete_and_fits(words: tuple[str, ...], width: int) -> None:
    shown = run(*words, "--help", width=width).stdout
    assert max(map(len, shown.splitlines())) <= min(width, MAX_WIDTH)
    assert "…" not in shown
    assert "\x1b" not in shown
    for param in COMMANDS[words].params:
        for name in (*param.opts, *param.secondary_opts):
            assert not name.startswith("-") or re.search(rf"(?m)^  .*{name}\b", shown), name
    assert "Examples:\n" in shown


@EVERY_COMMAND
def test_paragraphs_of_the_help_are_not_broken(words: tuple[str, ...]) -> None:
    """Only the last line of a paragraph, and lines of an indented list, may be short."""
    description = re.split(r"\n\n\S.*:\n", run(*words, "--help").stdout.split("\n\n", 1)[1])[0]
    for paragraph in description.split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        if not paragraph.startswith("    "):
            for line, following in pairwise(lines):
                assert len(line) + len(following.split()[0]) >= 76, line


def test_examples_are_broken_as_a_shell_expects() -> None:
    narrow, wide = (run("plan", "--help", width=width).stdout.split("Examples:\n")[1] for width in (80, 140))
    assert "\\\n" in narrow
    assert narrow.replace("\\\n", "").split() == wide.replace("\\\n", "").split()
    assert re.search(r"\S \\\n +--bandwidth 1Gbit", narrow)  # an option stays with its value


def test_colons_and_brackets_are_shown_as_they_are() -> None:
    shown = run("topology", "--help").stdout
    assert "periodic:ring:50+star:50" in shown
    assert "matchings:torus:5x10" in shown
    assert "jq '.trials[] | {algorithm, seconds}'" in run("simulate", "--help", width=140).stdout


@EVERY_COMMAND
def test_every_parameter_is_described(words: tuple[str, ...]) -> None:
    for param in COMMANDS[words].params:
        assert (param.help or "").endswith("."), param.name
        assert param.metavar or param.is_flag, param.name


def test_the_list_of_commands_is_not_truncated() -> None:
    for words in ((), ("agent",), ("cluster",)):
        shown = run(*words, "--help").stdout
        assert "..." not in shown.replace("[ARGS]...", "")


# ------------------------------------------------------------------------------------------------- names and defaults


def test_options_with_the_same_name_have_the_same_default() -> None:
    own = {  # options whose default belongs to the command
        "--agents",
        "--deadline",
        "--max-iter",  # reproduce: as many as the experiment needs
        "--out",
        "--components",  # demo: 4, where close eigenvalues of the digits show what the methods do
        "--rounds",  # demo: those of the methods as printed
    }
    defaults: dict[str, set[object]] = defaultdict(set)
    for one in COMMANDS.values():
        for param in one.params:
            if param.param_type_name == "option" and not param.required:
                defaults[long_name(param)].add(param.default)
    assert {name for name, values in defaults.items() if len(values) > 1} <= own
    assert defaults["--tolerance"] == {1e-10}
    assert defaults["--topology"] == {"erdos-renyi:0.5"}


def test_short_options_mean_the_same_everywhere() -> None:
    names = defaultdict(set)
    for one in COMMANDS.values():
        for param in one.params:
            for short in param.opts:
                if len(short) == 2:
                    names[short].add(long_name(param))
    assert names == {"-k": {"--components"}, "-o": {"--out"}, "-q": {"--quiet"}}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
@EVERY_COMMAND
def test_renamed_options_still_work_with_a_notice(words: tuple[str, ...], old: str, new: str) -> None:
    known = {name for param in COMMANDS[words].params for name in param.opts}
    assert old not in known or new not in known
    for arguments in ((old, "wrong"), (f"{old}=wrong",)):
        done = run(*words, *arguments)
        notices = [line for line in done.stderr.splitlines() if line.startswith("deprecated:")]
        assert done.exit_code == 2
        if new in known:
            (notice,) = notices
            assert re.findall(r"--[\w-]+", notice) == [old, new, old]
            assert "next release" in notice
        else:
            assert notices == []


def test_a_renamed_option_has_the_effect_of_the_new_one(tmp_path: Path) -> None:
    plan = (
        "plan",
        "--topology",
        "ring:4",
        "--dim",
        "6",
        "-k",
        "1",
        "--latency",
        "1ms",
        "--bandwidth",
        "1Gbit",
        "--json",
    )
    old, new = run(*plan, "--tol", "1e-3"), run(*plan, "--tolerance", "1e-3")
    assert old.stdout == new.stdout
    assert new.stderr == ""
    assert old.stderr.count("\n") == 1


@pytest.mark.parametrize(("rank", "notices"), [("0", 1), ("1", 0)])
def test_only_rank_0_prints_the_notice(rank: str, notices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
    assert run("demo", "--tol", "wrong").stderr.count("deprecated:") == notices


def test_arguments_after_two_dashes_are_not_options() -> None:
    assert "deprecated" not in run("inspect", "--", "--tol").stderr
    assert "--tol" in run("inspect", "--", "--tol").stderr


# --------------------------------------------------------------------------------------------------- repeated options


@pytest.mark.parametrize(("words", "param"), OPTIONS)
def test_an_option_with_one_value_is_refused_twice(words: tuple[str, ...], param: Any) -> None:
    name = long_name(param)
    if param.is_flag:
        repeated = [name, param.secondary_opts[0]] if param.secondary_opts else []
    else:
        repeated = [name, "1", param.opts[-1], "2"]
    if repeated and not param.multiple:
        assert_mistake(run(*words, *repeated), name)
        assert "more than once" in run(*words, *repeated).stderr
    elif repeated:
        assert "more than once" not in run(*words, *repeated).stderr


def test_renamed_and_new_name_count_together() -> None:
    assert_mistake(run("demo", "--tol", "1e-3", "--tolerance", "1e-4"), "--tolerance")


def test_a_flag_may_be_repeated() -> None:
    done = run("topology", "ring:4", "--json", "--json")
    assert done.exit_code == 0, done.output


def test_repeated_list_options_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried = []

    def stop(*_: object, algorithms: list[str] | None, **__: object) -> None:
        tried.append(algorithms)
        raise InvalidInput("enough")

    monkeypatch.setattr("deepca.cli.commands.simulate.run_simulation", stop)
    (tmp_path / "links.csv").write_text(run("simulate", "--example").stdout, encoding="utf-8")
    words = ("simulate", "--links", str(tmp_path / "links.csv"), "--dim", "8", "-k", "2")
    run(*words, "--algorithms", "krylov", "--algorithms", "deepca, depca")
    run(*words)
    assert tried == [["krylov", "deepca", "depca"], None]  # by default, those that are possible


# ----------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(("words", "param"), OPTIONS)
def test_errors_name_the_option_of_a_parameter(
    words: tuple[str, ...], param: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = COMMANDS[words]
    context = SimpleNamespace(command=SimpleNamespace(get_params=lambda ctx: one.params))
    monkeypatch.setattr(module, "_running", SimpleNamespace(get=lambda: context))
    error = ParameterError(param.name, 3, "expected less")
    assert message_for(error) == f"{long_name(param)} 3: expected less"
    from_file = ParameterError(param.name, 3, "expected less", file="network.toml", line=2)
    assert message_for(from_file) == str(from_file)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("fit", "x.npy", "-o", "m.npz", "-k", "0"), "--components 0"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--tolerance", "2"), "--tolerance 2:"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--rounds", "0"), "--rounds 0"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--messages", "int8"), "--messages int8"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--engine", "slurm"), "--engine slurm"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--messages", "float32", "--algorithm", "krylov"), "--algorithm"),
        (("topology", "ring:5", "--accuracy", "2"), "--accuracy 2"),
        (("topology", "ring:5", "--rule", "equal"), "--rule equal"),
        (("sample", "wine", "--format", "xls"), "--format xls"),
        (("sample", "whine"), "NAME whine"),
        (("reproduce", "a9a", "--seeds", "0"), "--seeds 0"),
        (("reproduce", "a9a", "--max-iter", "3"), "--max-iter 3"),
        (("demo", "--quiet", "--tolerance", "0"), "--tolerance 0:"),
        (("inspect", "m.npz", "--plot", "m.gif"), "m.npz"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--tolerance", "abc"), "--tolerance abc: expected a number"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--agents", "2.5"), "--agents 2.5: expected a whole number"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--agents", "0"), "--agents 0"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--rounds", "3", "--algorithm", "krylov"), "--rounds 3"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--rounds", "3", "--algorithm", "covariance"), "--rounds 3"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--algorithm", "krylov", "--topology", "one-peer"), "--algorithm"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--topology", "rign"), "--topology rign"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--topology", "torus:5x10"), "--agents 50"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--topology", "ring:3", "--agents", "4"), "--agents 3"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--engine", "mpi", "--timeout", "soon"), "--timeout soon"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--engine", "mpi", "--timeout", "10ms"), "--timeout 10ms"),
        (("fit", "x.npy", "-o", "m.npz", "-k", "2", "--checkpoint-every", "5"), "--checkpoints"),
        (("topology", "rign"), "NAME rign"),
        (("topology", "ring"), "--agents"),
        (("topology", "erdos-renyi:0.01:50"), "erdos-renyi:0.16:50"),
        (("topology", "random-regular:7:5"), "random-regular:4:5"),
        (("sample", "wine", "--agents", "1000"), "--agents 1000"),
        (("demo", "--rounds", "0"), "--rounds 0"),
        (("demo", "--real", "--rounds", "5"), "--rounds"),
        (("demo", "--real", "--out", "here"), "--out"),
        (("reproduce", "a9a", "--study", "signs", "--seeds", "3"), "--seeds"),
        (("reproduce", "a9a", "--data", "nope"), "--data nope"),
        (("init", "network.toml", "--days", "30"), "--days"),
        (("join", "site.toml", "--days", "30"), "--days"),
        (("plan", "--topology", "ring:4", "--dim", "1", "-k", "1"), "--dim 1"),
        (("simulate", "--rows-per-agent", "1"), "--rows-per-agent 1"),
    ],
)
def test_a_mistake_names_its_option(
    words: tuple[str, ...], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert_mistake(done, option)
    assert done.stderr.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


def test_advice_of_the_library_names_options(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(command=SimpleNamespace(get_params=lambda ctx: COMMANDS["fit",].params))
    monkeypatch.setattr(module, "_running", SimpleNamespace(get=lambda: context))
    for text, expected in (
        ("Raise max_iter, or go on", "Raise --max-iter, or go on"),
        ("use algorithm = 'accelerated'.", "use --algorithm accelerated."),
        ('use rounds="auto", or a larger number of rounds', "use --rounds auto, or a larger number of rounds"),
        ("Raise max_iter" + sentences.RESUME, "Raise --max-iter"),
        ("tol = 2.0: too large", "--tolerance 2.0: too large"),
        ("n_components = 9, but 5 columns", "--components 9, but 5 columns"),
        ("exclude it, or omit scale=True", "exclude it, or omit --scale"),
        ("k = 3 components", "k = 3 components"),
        ("give --max-iter 5", "give --max-iter 5"),
    ):
        assert in_options(text) == expected


def test_outside_of_a_command_messages_stay_as_they_are() -> None:
    error = ParameterError("max_iter", 0, "a whole number of at least 1")
    assert message_for(error) == str(error)


def test_all_missing_options_are_named_at_once() -> None:
    assert_mistake(run("plan"), "--topology", "--components", "--latency", "--bandwidth")
    assert_mistake(run("plan", "--topology", "ring:4", "--latency", "1ms"), "--components", "--bandwidth")
    assert "--topology" not in run("plan", "--topology", "ring:4", "--latency", "1ms").stderr
    assert_mistake(run("fit"), "FILE", "--components", "--out")


@pytest.mark.parametrize("missing", [("inspect", "nope.npz"), ("fit", "nope.csv", "-o", "m.npz", "-k", "2")])
def test_a_missing_file_is_named_as_typed(
    missing: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_mistake(run(*missing), f"error: {missing[1]}: file not found")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell with pipes")
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_closed_pipe_ends_a_command_silently(more: tuple[str, ...]) -> None:
    code = "from deepca.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "topology", "hypercube:8", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_a_system_error_names_the_file(tmp_path: Path) -> None:
    assert message_for(OSError(28, "No space left on device", "model.npz")) == "model.npz: No space left on device"


@EVERY_COMMAND
def test_unknown_and_incomplete_options_are_mistakes(words: tuple[str, ...]) -> None:
    assert_mistake(run(*words, "--no-such-option"), "--no-such-option")
    assert_mistake(run(*words, *("--seed",) if words != ("doctor",) else ("--nothing",)))


def test_errors_name_keys_of_network_toml_where_a_site_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(command=SimpleNamespace(get_params=lambda ctx: COMMANDS["agent", "run"].params))
    monkeypatch.setattr(module, "_running", SimpleNamespace(get=lambda: context))
    assert in_options("n_components = 6 is too many") == "components = 6 is too many"
    assert in_options("tol = 2: a tolerance below 1") == "tolerance = 2: a tolerance below 1"
