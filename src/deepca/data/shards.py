"""The files of a run that several processes share: which there are, and those of one process's agents."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

from deepca.data.readers import open_sources
from deepca.data.sources import Source
from deepca.engines import Engine
from deepca.errors import DataError

__all__ = ["expanded", "open_shares"]


def expanded(files: Sequence[Path]) -> list[Path]:
    """Files, and patterns such as ``shards/*.npy`` replaced by what they match: 2 comes before 10."""
    found: list[Path] = []
    for file in files:
        if file.exists() or not has_magic(str(file)):
            found.append(file)
            continue
        matched = sorted(glob(str(file), recursive=True), key=_in_order)  # noqa: PTH207 - patterns may be absolute
        if not matched:
            raise DataError(f"no file matches {file}")
        found += map(Path, matched)
    return found


def open_shares(
    ranks: Engine,
    files: Sequence[Path],
    shares: Sequence[int],
    *,
    label_column: str | None = None,
    dataset: str | None = None,
) -> tuple[Source, ...]:
    """This rank's share of the files, one per agent; those of other ranks are not opened.

    svmlight leaves out zeros, so what a file shows of the columns (how many, counted from 0 or 1) is told to all ranks.
    """
    first = sum(shares[: ranks.rank])
    own = files[first : first + shares[ranks.rank]]
    with ranks.together():
        sources = open_sources(own, label_column=label_column, dataset=dataset)
    if ranks.ranks > 1:
        told = [[s.first_index, s.first_index + s.d] for s in sources if s.first_index is not None]
        everyone = [pair for text in ranks.texts(json.dumps(told)) for pair in json.loads(text)]
        if everyone and told:
            begin, end = min(low for low, _ in everyone), max(high for _, high in everyone)
            with ranks.together():
                sources = open_sources(
                    own, label_column=label_column, dataset=dataset, n_features=end - begin, first_index=begin
                )
        elif everyone:
            with ranks.together():  # the others open theirs again
                pass
    return tuple(sources)


def _in_order(name: str) -> list[tuple[int, str]]:
    """Numbers in a name count by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
