"""``deepca trial``: run a trial network on this machine. Also runs ``deepca demo --real``."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

from deepca.cli.command import Command, examples
from deepca.cli.common import check_agents_in_name, errors, handle_signals, require_agent
from deepca.cli.options import (
    ALGORITHM,
    DATA,
    OUTPUT,
    TOLERANCE,
    TOPOLOGY,
    AlgorithmOption,
    CenterOption,
    ComponentsOrShareOption,
    DatasetOption,
    FixedTopologyOption,
    JsonOption,
    LabelColumnOption,
    ScaleOption,
    SeedOption,
    SilentOption,
    ToleranceOption,
    parse_components,
    parse_duration,
)
from deepca.cli.view.trial_network import TrialResult, agent_progress, report_trial, show_demo, show_failures
from deepca.engines.shards import expand_patterns
from deepca.errors import InvalidInput, ParameterError

__all__ = ["EXAMPLES", "cluster", "real_demo", "trial"]

EXAMPLES = (
    "deepca trial --agents 10 all.npy -k 4 -o models",
    "deepca trial north.csv south.csv west.csv -k 0.95 --scale --label-column diagnosis -o models",
    "deepca trial 'sites/*.csv' -k 3 --scale --label-column class -o models",
    "deepca trial --agents 5 all.npy -k 4 -o models --keep",
)

_FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="One file per agent, or any number of files with --agents; patterns in quotes are expanded.",
    ),
]
_OutOption = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="FOLDER", rich_help_panel=OUTPUT, help="Folder for the model files of all sites."
    ),
]
_AgentsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="M", rich_help_panel=DATA, help="Split all rows over this many agents."),
]
_OnLossOption = Annotated[
    str,
    typer.Option(
        metavar="ACTION",
        rich_help_panel=ALGORITHM,
        help="What to do if an agent is lost: wait for it, or shrink (continue without it).",
    ),
]
_PrivacyOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        rich_help_panel=ALGORITHM,
        help="private: sums hide what each agent adds to them; open: neighbours see it. By default, private where "
        "that is possible.",
    ),
]
_PatienceOption = Annotated[
    str,
    typer.Option(
        metavar="TIME", rich_help_panel=ALGORITHM, help="How long an agent may be silent before it counts as lost."
    ),
]
_DeadlineOption = Annotated[
    str, typer.Option(metavar="TIME", rich_help_panel=ALGORITHM, help="Time limit of the run, such as 90s or 2h.")
]
_KeepOption = Annotated[
    bool, typer.Option("--keep", rich_help_panel=OUTPUT, help="Keep kits, logs and checkpoints in FOLDER/kits.")
]


def trial(
    files: _FilesArgument,
    components: ComponentsOrShareOption,
    out: _OutOption,
    agents: _AgentsOption = None,
    topology: FixedTopologyOption = TOPOLOGY,
    algorithm: AlgorithmOption = "auto",
    center: CenterOption = True,
    scale: ScaleOption = False,
    tol: ToleranceOption = TOLERANCE,
    label_column: LabelColumnOption = None,
    dataset: DatasetOption = None,
    privacy: _PrivacyOption = None,
    on_loss: _OnLossOption = "wait",
    patience: _PatienceOption = "60s",
    deadline: _DeadlineOption = "1h",
    seed: SeedOption = 0,
    keep: _KeepOption = False,
    as_json: JsonOption = False,
    quiet: SilentOption = False,
) -> None:
    """Run a trial network of agents on this machine.

    Each agent runs in its own process, with real connections. Certificates are made for this run only. Every site
    writes the model to FOLDER/<site>/model.npz; it is an error if these files are not identical.

    Exit codes:

      0    a result was written
      1    no usable result, or an agent died
      2    a mistake in the options, files or settings
      3    unfinished at the deadline
      4    a result without the rows of all sites
      130  stopped by Ctrl-C or SIGTERM
    """
    with errors(), _stop_on_sigterm():
        require_agent()
        limit = parse_duration(deadline, "deadline")
        found = expand_patterns(files)
        check_agents_in_name(topology, agents, len(found))
        options = {
            "name": "trial",
            "components": parse_components(components),
            "topology_name": topology,
            "algorithm": algorithm,
            "tolerance": tol,
            "center": center,
            "scale": scale,
            "seed": seed,
            "privacy": privacy,
            "on_loss": on_loss,
            "patience": parse_duration(patience, "patience"),
        }
        _check_folder(out, keep=keep)
        with _work_folder(out / "kits" if keep else None) as folder:
            reading = {"label_column": label_column, "dataset": dataset}
            result = _run(found, agents, folder, options, reading, deadline=limit, quiet=quiet or as_json)
            code = report_trial(result, out, as_json=as_json, quiet=quiet, kits=folder if keep else None)
    if code:
        raise typer.Exit(code)


class _Renamed(Command):
    """The earlier name of ``deepca trial``."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command after a notice."""
        notice = "deprecated: deepca cluster up is now deepca trial; the old name will be removed in the next release"
        typer.echo(notice, err=True)
        return super().invoke(ctx)


cluster = typer.Typer(
    name="cluster",
    help="Earlier name of deepca trial.",
    hidden=True,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@cluster.callback()
def _group() -> None:
    """Accept the earlier name of ``deepca trial``."""


cluster.command("up", cls=_Renamed, epilog=examples(*EXAMPLES))(trial)


# ------------------------------------------------------------------------------------------------------------- running


def _run(
    files: Sequence[Path],
    agents: int | None,
    folder: Path,
    options: dict[str, Any],
    reading: dict[str, str | None],
    *,
    deadline: float,
    quiet: bool,
) -> TrialResult:
    from deepca.decomposition.model.file import from_bytes
    from deepca.sites.admin.trial_network import run_trial
    from deepca.sites.admin.trial_setup import allocate_rows, trial_network

    shares = allocate_rows(files, agents, folder, **reading)
    network = trial_network(shares, **options)
    with agent_progress(Console(stderr=True, emoji=False), quiet=quiet) as watch:
        outcome = run_trial(shares, network, folder, deadline=deadline, watch=watch)
    content = outcome.content
    return TrialResult(shares, outcome, None if content is None else from_bytes(content, Path("the common result")))


@contextmanager
def _work_folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept
    else:
        with TemporaryDirectory(prefix="deepca-trial-") as folder:
            yield Path(folder)


def _stop_on_sigterm() -> AbstractContextManager[None]:
    """Treat SIGTERM and a closed terminal like Ctrl-C, so that no agent is left running."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    names = [number for number in (getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")) if number is not None]
    return handle_signals(names, stop)


# ------------------------------------------------------------------------------------------------ checks of the options


def _check_folder(out: Path, *, keep: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ParameterError("out", out, "this is a file; give the name of a folder")
    if keep and (out / "kits").exists():
        raise InvalidInput(
            f"--keep: {out / 'kits'} exists and would be overwritten; remove it first", parameter="keep", value=True
        )
    out.mkdir(parents=True, exist_ok=True)


# ------------------------------------------------------------------------------------------------- deepca demo --real


def real_demo(*, agents: int, k: int, tol: float, seed: int, as_json: bool, quiet: bool) -> int:
    """Run agents on the digits data, compare with PCA of the pooled rows, and return the exit code."""
    require_agent()
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    from deepca.operators.linalg import tan_theta

    X = np.asarray(load_digits().data, dtype=np.float64)
    options = {"name": "demo", "components": k, "topology_name": "ring", "tolerance": tol, "seed": seed}
    with _stop_on_sigterm(), TemporaryDirectory(prefix="deepca-demo-") as name:
        folder = Path(name)
        np.save(folder / "digits.npy", X)
        files = [folder / "digits.npy"]
        result = _run(files, agents, folder / "kits", options, {}, deadline=600.0, quiet=quiet or as_json)
    outcome, model = result.outcome, result.model
    if model is None:
        show_failures(Console(stderr=True, emoji=False), outcome, None, shown=False)
        return outcome.code or 1
    pooled = PCA(n_components=k, svd_solver="full").fit(X)
    U, W = (np.asarray(of, dtype=np.float64).T for of in (pooled.components_, model.components))
    angle = float(np.max(tan_theta(U, W)))
    found = {
        "sites": [{"site": agent.site, "rows": agent.rows} for agent in outcome.agents],
        "topology": model.about["topology"],
        "links": model.about["links"],
        "iterations": model.about["iterations"],
        "rounds": model.about["rounds"],
        "bytes_per_agent": model.about["bytes_per_agent"],
        "seconds": round(outcome.seconds, 3),
        "status": model.status.code,
        "proven": None if (proof := model.certificate) is None else proof.proven_angle,
        "tan_theta": angle,
        "sha256": outcome.sha256,
        "model_files": sum(agent.model is not None for agent in outcome.agents),
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        show_demo(Console(emoji=False), found, tol)
    return outcome.code
