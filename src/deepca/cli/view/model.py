"""Show a model on the terminal, or summarize it for JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deepca._util.units import counted, format_bytes, plural
from deepca.cli.command import in_options
from deepca.cli.common import finite, print_unwrapped
from deepca.cli.view.tables import columns
from deepca.decomposition.model import Model
from deepca.solver.certificate.bounds import Certificate
from deepca.solver.result import StatusCode

__all__ = ["show_model", "show_status", "summary"]

_BAR_WIDTH = 16  # characters of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SHOWN_LOADINGS = 3  # columns named for each component


def show_model(console: Console, model: Model, *, most: int = 20) -> None:
    """Show the components with bars for their share of variance, and what is proven about them."""
    weight = "" if model.weight == model.n_samples else f" (weight {model.weight:g})"
    prepared = [
        word for word, on in (("centred", model.about.get("center", True)), ("scaled", model.scale is not None)) if on
    ]
    prepared += ["whitened scores"] if model.whiten else []
    console.print(
        f"[bold]{model.n_components} component{plural(model.n_components)}[/] of "
        f"{counted(model.n_samples, 'row')}{weight} × {counted(model.n_features, 'column')}"
        f" · {', '.join(prepared) or 'not centred'} · {model.dtype}",
        highlight=False,
    )
    console.print(_origin(model), highlight=False, style="dim", soft_wrap=True)
    for line in _sites(model):
        print_unwrapped(console, line)
    console.print(_table(model, most, console.width))
    left = model.n_components - most
    if left > 0:
        console.print(f"[dim]… and {left} more; --json lists all[/]")
    console.print()
    show_status(console, model)


def show_status(console: Console, model: Model) -> None:
    """Show how the run ended and what is proven."""
    converged = model.status.code == StatusCode.CONVERGED
    mark = "[green]✔[/]" if converged else "[yellow]![/]" if model.status.ok else "[red]✘[/]"
    text = "converged" if converged else in_options(str(model.status))
    tol = f", tolerance {model.about['tol']:.0e}" if converged and "tol" in model.about else ""
    print_unwrapped(console, f"{mark} {escape(text)}{tol}")
    proof = model.certificate
    if proof is None:
        console.print("[yellow]No certificate: nothing is proven about these components.[/]")
        return
    if model.dtype == np.float32:
        console.print("[dim]stored in single precision; the proof holds for the components before rounding[/]")
    grid = Table.grid(padding=(0, 2))
    for name, value in [*_proof_rows(proof), *_shown_rows(model)]:
        grid.add_row(f"[dim]{name}[/]", value)
    console.print(grid, highlight=False)


def summary(model: Model) -> dict[str, Any]:
    """Return everything except large arrays, as plain data for JSON."""
    proof = model.certificate
    return {
        "n_components": model.n_components,
        "n_known": model.n_known,
        "n_features": model.n_features,
        "n_samples": model.n_samples,
        "weight": model.weight,
        "dtype": str(model.dtype),
        "columns": None if model.columns is None else list(model.columns),
        "whiten": model.whiten,
        "scaled": model.scale is not None,
        "explained_variance": [float(v) for v in model.explained_variance],
        "explained_variance_ratio": [float(v) for v in model.explained_variance_ratio],
        "total_variance": model.total_variance,
        "noise_variance": model.noise_variance,
        "status": {"code": model.status.code, "ok": model.status.ok, "advice": in_options(model.status.advice)},
        "certificate": None
        if proof is None
        else {
            "tan_theta": finite(proof.proven_angle),
            "failure": proof.failure,
            "residual": finite(proof.residual),
            "next_eigenvalue_at_most": finite(proof.bound),
            "agents": proof.n_agents,
            "rows": proof.n_rows,
            "holds_for": "the rows that the sites said they have" if "sites" in model.about else "the rows given",
            "digest": proof.digest,
            "directions_shown": _directions_shown(model),
        },
        "about": dict(model.about),
    }


def _directions_shown(model: Model) -> int | None:
    """Return in how many directions totals showed the pooled covariance to all sites, at most; None if unknown."""
    count = model.about.get("directions_shown")
    return count if type(count) is int and 0 < count <= model.n_features else None


def _shown_rows(model: Model) -> list[tuple[str, str]]:
    count = _directions_shown(model)
    if count is None:
        return []
    return [("shown", f"totals in {count:,} of {model.n_features:,} directions of the pooled covariance, at most")]


def _origin(model: Model) -> str:
    about = model.about
    try:
        return (
            f"{counted(about['agents'], 'agent')} on {escape(_plain(about['topology']))}, "
            f"{counted(about['links'], 'link')} · {counted(about['iterations'], 'iteration')}, "
            f"{counted(about['rounds'], 'round')}, {format_bytes(about['bytes_per_agent'])} sent per "
            "agent"
        )
    except (KeyError, TypeError, ValueError):
        return "the file does not record how the model was computed"


def _sites(model: Model) -> list[str]:
    """Return lines naming the sites whose rows the model uses; none unless several sites computed it together."""
    names, left_out = model.about.get("sites"), model.about.get("left_out")
    if not isinstance(names, list) or not isinstance(left_out, list):
        return []
    lines = [
        f"[dim]run {escape(str(model.about.get('run')))}: rows of {escape(', '.join(map(str, names)))}[/]",
        *_privacy(model.about.get("privacy")),
        "[dim]the proof holds for the rows that these sites reported; a site can lie about its own rows[/]",
    ]
    if left_out:
        lines.append(f"[yellow]without the rows of {escape(', '.join(map(str, left_out)))}[/]")
    return lines


def _privacy(mode: object) -> list[str]:
    """Return a line that says whether the run hid the numbers of single sites; none for files that do not say."""
    lines = {
        "private": "[dim]private: only sums over all sites could be read[/]",
        "open": "[yellow]open: neighbours could learn the mean, covariance and row count of a site[/]",
    }
    return [lines[mode]] if isinstance(mode, str) and mode in lines else []


def _table(model: Model, most: int, width: int) -> Table:
    table = columns(right=("", "variance", "share"))
    wide = width >= 60  # narrow terminals have no room for bars and names
    if wide:
        table.add_column("", no_wrap=True)
    table.add_column("cumulative", justify="right", no_wrap=True)
    if wide:
        largest = "largest entries" if model.columns is None else "largest columns"
        table.add_column(largest, no_wrap=True, overflow="ellipsis", max_width=max(width - 58, 16))
    shares = np.asarray(model.explained_variance_ratio, dtype=np.float64)
    longest = max(float(shares.max()), 1e-300)
    for i, share in enumerate(shares[:most]):
        numbers = [f"PC{i + 1}", f"{float(model.explained_variance[i]):.6g}", f"{share:.2%}"]
        if i >= model.n_known and model.certificate is not None:
            numbers[1:] = [f"≤ {model.certificate.eigenvalue_bound(i + 1):.2g}", "unknown"]
        cumulative = f"{shares[: i + 1].sum():.2%}"
        if wide:
            table.add_row(
                *numbers, f"[cyan]{_bar(share / longest)}[/]", cumulative, f"[dim]{escape(_loadings(model, i))}[/]"
            )
        else:
            table.add_row(*numbers, cumulative)
    return table


def _bar(part: float) -> str:
    eighths = round(8 * _BAR_WIDTH * min(max(part, 0.0), 1.0))
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _loadings(model: Model, i: int) -> str:
    axis = model.components[i]
    largest = np.argsort(-np.abs(axis), kind="stable")[:_SHOWN_LOADINGS]
    names = model.columns or tuple(str(c) for c in range(model.n_features))
    return "  ".join(f"{axis[c]:+.2f} {_plain(names[c])}" for c in largest)


def _plain(text: object) -> str:
    """Return text without control characters."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def _proof_rows(proof: Certificate) -> list[tuple[str, str]]:
    rows = f", {counted(proof.n_rows, 'row')}" if proof.n_rows is not None else ""
    outside = (
        "nothing lies outside these components"
        if not proof.others
        else (f"the next variance is at most {proof.bound:.6g}, except with probability {proof.failure:.0e}")
    )
    proven = "nothing about the angle to the exact components"
    if math.isfinite(proof.proven_angle):
        proven = f"angle to the exact components: tan θ ≤ {proof.proven_angle:.1e} {proof.proven_for}"
    return [
        ("proven", proven),
        ("because", f"residual {proof.residual:.1e}, and {outside}"),
        ("covers", f"{counted(proof.n_agents, 'agent')}{rows}"),
        ("digest", proof.digest[:16]),
    ]
