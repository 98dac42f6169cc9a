"""Find the files of a run on several ranks and open those of the local agents."""

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

__all__ = ["agree_on_files", "expand_patterns", "open_local_files"]


def expand_patterns(files: Sequence[Path]) -> list[Path]:
    """Replace patterns such as ``shards/*.npy`` by the files that match, in natural order (2 before 10).

    Raise DataError if a pattern matches no file.
    """
    found: list[Path] = []
    for file in files:
        if file.exists() or not has_magic(str(file)):
            found.append(file)
            continue
        matched = sorted(glob(str(file), recursive=True), key=_natural_order)  # noqa: PTH207 - patterns may be absolute
        if not matched:
            raise DataError(f"no file matches {file}; check the pattern and the working directory", file=str(file))
        found += map(Path, matched)
    return found


def open_local_files(
    ranks: Engine,
    files: Sequence[Path],
    agents_per_rank: Sequence[int],
    *,
    label_column: str | None = None,
    dataset: str | None = None,
) -> tuple[Source, ...]:
    """Open the files of the agents on this rank, one file per agent.

    svmlight files omit zeros, so the number of columns and the first index (0 or 1) are determined from the files of
    all ranks.
    """
    own = files[ranks.local_part(agents_per_rank)]
    with ranks.raise_on_all_ranks():
        sources = open_sources(own, label_column=label_column, dataset=dataset)
    if ranks.ranks > 1:
        indices = [[source.first_index, source.d] for source in sources]
        found = common_indices([pair for text in ranks.gather_texts(json.dumps(indices)) for pair in json.loads(text)])
        if found is not None:
            first, widest = found
            with ranks.raise_on_all_ranks():
                sources = open_sources(
                    own, label_column=label_column, dataset=dataset, n_features=widest, first_index=first
                )
    return tuple(sources)


def agree_on_files(ranks: Engine, files: Sequence[Path]) -> None:
    """Raise DataError if ranks find different files, since rows would be omitted or read twice."""
    names = [str(file) for file in files]
    rank = ranks.first_differing_rank(hashlib.sha256(json.dumps(names).encode()).hexdigest())
    if rank is None:
        return
    lists = [json.loads(text) for text in ranks.gather_texts(json.dumps(names))]
    only = sorted(set(lists[rank]).symmetric_difference(lists[0]))
    where = f"; {only[0]} exists for only one of them" if only else " in a different order"
    raise DataError(
        f"rank {rank} finds {len(lists[rank])} files, and rank 0 finds {len(lists[0])}{where}; keep shards in a folder "
        "that all ranks share, and complete it before the job starts",
        file=only[0] if only else None,
        value=rank,
    )


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares numbers within names by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
