"""``deepca cluster``: a whole network of agents on this machine, to see what happens. ``deepca demo --real`` is one."""

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

from deepca.cli.common import errors, examples, handling, require_agent
from deepca.cli.options import (
    AlgorithmOption,
    CenterOption,
    ComponentsOrShareOption,
    DatasetOption,
    LabelColumnOption,
    ScaleOption,
    SeedOption,
    SummaryOption,
    ToleranceOption,
    TopologyOption,
    parse_components,
)
from deepca.cli.view.trial_network import Done, complain, report_trial, show_real, watching
from deepca.errors import InvalidInput, ParameterError
from deepca.sites.config.toml import duration

__all__ = ["cluster", "real_demo"]


cluster = typer.Typer(
    name="cluster",
    help="A whole network of agents on this machine, to try things out.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@cluster.callback()
def _group() -> None:
    """A whole network of agents on this machine, to try things out."""


_FilesArgument = Annotated[list[Path], typer.Argument(help="One file per agent; or any files, together with --agents.")]
_OutOption = Annotated[Path, typer.Option("--out", "-o", help="Folder for the model file of every site.")]
_AgentsOption = Annotated[int | None, typer.Option(help="Spread all rows over that many agents.")]
_OnLossOption = Annotated[str, typer.Option(help="If an agent is lost: wait for it, or shrink (go on without).")]
_PatienceOption = Annotated[str, typer.Option(help="How long an agent may be silent before it counts as lost.")]
_DeadlineOption = Annotated[str, typer.Option(help="After which the run ends as unfinished.")]
_KeepOption = Annotated[bool, typer.Option("--keep", help="Keep kits, logs and checkpoints in OUT/kits.")]
_QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, and nothing but errors.")]


@cluster.command(
    epilog=examples(
        "deepca cluster up --agents 10 all.npy -k 4 -o models",
        "deepca cluster up north.csv south.csv west.csv -k 0.95 --scale --label-column diagnosis -o models",
        "deepca cluster up --agents 5 all.npy -k 4 -o models --keep   # then look at models/kits",
    ),
)
def up(
    files: _FilesArgument,
    components: ComponentsOrShareOption,
    out: _OutOption,
    agents: _AgentsOption = None,
    topology: TopologyOption = "ring",
    algorithm: AlgorithmOption = "auto",
    tol: ToleranceOption = 1e-10,
    center: CenterOption = True,
    scale: ScaleOption = False,
    label_column: LabelColumnOption = None,
    dataset: DatasetOption = None,
    on_loss: _OnLossOption = "wait",
    patience: _PatienceOption = "30s",
    deadline: _DeadlineOption = "1h",
    seed: SeedOption = 0,
    keep: _KeepOption = False,
    as_json: SummaryOption = False,
    quiet: _QuietOption = False,
) -> None:
    """Run agents as processes of their own on this machine: real connections, throw-away certificates.

    Every site ends with its model file in OUT/<site>/model.npz; all of them are the same to the last byte, or this is
    an error.

    Exit codes: 0 result; 1 no usable result, or an agent died; 2 a mistake to mend; 3 unfinished at the deadline;
    4 a result without all sites; 130 stopped.
    """
    with errors(), _stopped_by_sigterm():
        require_agent()
        limit = _seconds(deadline, "--deadline")
        options = {
            "name": "cluster",
            "components": parse_components(components),
            "topology_name": topology,
            "algorithm": algorithm,
            "tolerance": tol,
            "center": center,
            "scale": scale,
            "seed": seed,
            "on_loss": on_loss,
            "patience": _seconds(patience, "--patience"),
        }
        _check_folder(out, keep=keep)
        with _workplace(out / "kits" if keep else None) as folder:
            done = _run(
                files,
                agents,
                folder,
                options,
                deadline=limit,
                label_column=label_column,
                dataset=dataset,
                quiet=quiet or as_json,
            )
            code = report_trial(done, out, as_json=as_json, quiet=quiet, kits=folder if keep else None)
    if code:
        raise typer.Exit(code)


# ------------------------------------------------------------------------------------------------------------- running


def _run(
    files: Sequence[Path],
    agents: int | None,
    folder: Path,
    options: dict[str, Any],
    *,
    deadline: float,
    label_column: str | None = None,
    dataset: str | None = None,
    quiet: bool,
) -> Done:
    from deepca.decomposition.model.file import from_bytes
    from deepca.sites.admin.trial_network import run_cluster
    from deepca.sites.admin.trial_setup import deal, describe

    shares = deal(files, agents, folder, label_column=label_column, dataset=dataset)
    network = describe(shares, **options)
    with watching(Console(stderr=True, emoji=False), quiet=quiet) as watch:
        outcome = run_cluster(shares, network, folder, deadline=deadline, watch=watch)
    content = outcome.content
    return Done(shares, outcome, None if content is None else from_bytes(content, Path("the common result")))


@contextmanager
def _workplace(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept
    else:
        with TemporaryDirectory(prefix="deepca-cluster-") as folder:
            yield Path(folder)


def _stopped_by_sigterm() -> AbstractContextManager[None]:
    """SIGTERM and a closed terminal end this like Ctrl-C, so that no agent is left behind."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    names = [number for number in (getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")) if number is not None]
    return handling(names, stop)


# ----------------------------------------------------------------------------------------------------------- reporting


def _check_folder(out: Path, *, keep: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"--out {out}: this is a file; give the name of a folder")
    if keep and (out / "kits").exists():
        raise InvalidInput(f"--keep: {out / 'kits'} is there already and is not overwritten; remove it first")
    out.mkdir(parents=True, exist_ok=True)


def _seconds(given: str, option: str) -> float:
    try:
        return duration(given)
    except ParameterError as error:
        raise InvalidInput(f"{option} {given!r}: {error.expected}") from None


# ------------------------------------------------------------------------------------------------------ demo, for real


def real_demo(*, agents: int, k: int, tol: float, seed: int, as_json: bool, quiet: bool) -> int:
    """The digits of scikit-learn over real processes, compared with PCA of the pooled rows; the exit code."""
    require_agent()
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    from deepca.operators.linalg import tan_theta

    X = np.asarray(load_digits().data, dtype=np.float64)
    options = {"name": "demo", "components": k, "topology_name": "ring", "tolerance": tol, "seed": seed}
    with _stopped_by_sigterm(), TemporaryDirectory(prefix="deepca-demo-") as name:
        folder = Path(name)
        np.save(folder / "digits.npy", X)
        files = [folder / "digits.npy"]
        done = _run(files, agents, folder / "kits", options, deadline=600.0, quiet=quiet or as_json)
    outcome, model = done.outcome, done.model
    if model is None:
        complain(Console(stderr=True, emoji=False), outcome, None, shown=False)
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
        show_real(Console(emoji=False), found, tol)
    return outcome.code
