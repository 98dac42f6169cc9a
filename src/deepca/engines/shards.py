"""The files of a run that several processes share: which there are, and those of one process's agents."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

from deepca.data.readers import common_indices, open_sources
from deepca.data.sources import Source
from deepca.engines.local import Engine
from deepca.errors import DataError

__all__ = ["agree_on_files", "expanded", "open_shares"]


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
    own = files[ranks.own(shares)]
    with ranks.together():
        sources = open_sources(own, label_column=label_column, dataset=dataset)
    if ranks.ranks > 1:
        told = [[source.first_index, source.d] for source in sources]
        found = common_indices([pair for text in ranks.texts(json.dumps(told)) for pair in json.loads(text)])
        if found is not None:
            first, widest = found
            with ranks.together():
                sources = open_sources(
                    own, label_column=label_column, dataset=dataset, n_features=widest, first_index=first
                )
    return tuple(sources)


def agree_on_files(ranks: Engine, files: Sequence[Path]) -> None:
    """An error where ranks see other files: one would leave some out, or read some that another reads, too."""
    names = [str(file) for file in files]
    rank = ranks.differing(hashlib.sha256(json.dumps(names).encode()).hexdigest())
    if rank is None:
        return
    lists = [json.loads(text) for text in ranks.texts(json.dumps(names))]
    only = sorted(set(lists[rank]).symmetric_difference(lists[0]))
    where = f"; {only[0]} is there for one of them only" if only else " in another order"
    raise DataError(
        f"rank {rank} finds {len(lists[rank])} files and rank 0 {len(lists[0])}{where}; shards must be in a folder "
        "that all ranks see, and all of them must be there before the job begins"
    )


def _in_order(name: str) -> list[tuple[int, str]]:
    """Numbers in a name count by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
