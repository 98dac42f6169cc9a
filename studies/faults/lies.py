"""Lies that an agent with a genuine kit can tell (Byzantine faults).

A lie replaces one function in the liar's own process. In all other respects the liar acts like an honest agent, so that
nothing but the lie itself can expose it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deepca.decomposition.model import Model
from deepca.decomposition.model.file import from_bytes
from deepca.errors import InvalidInput
from deepca.network.transports.base import Message, Tag
from deepca.solver.result import Status, StatusCode

__all__ = ["ARRAYS", "CLAIMS", "LEADER", "MODELS", "RELAY", "TAGS", "tell_lie"]

_EPOCHS_AHEAD = 5  # number of epochs by which the claim "later epoch" is ahead of the actual epoch


def _mean(model: Model) -> Model:
    return replace(model, mean=model.mean + 1e-6)


def _components(model: Model) -> Model:
    from deepca.solver.certificate.certification import digest_of

    X = np.linalg.qr(model.components.T + 1e-3)[0]
    proof = None if model.certificate is None else replace(model.certificate, digest=digest_of(X))
    return replace(model, components=np.ascontiguousarray(X.T), certificate=proof)


MODELS: dict[str, Callable[[Model], Model]] = {
    "mean": _mean,
    "counts": lambda model: replace(model, n_samples=model.n_samples + 1000),
    "variance": lambda model: replace(model, explained_variance=1.001 * model.explained_variance),
    "columns": lambda model: replace(model, columns=tuple(f"column {j}" for j in range(model.n_features))),
    "status": lambda model: replace(model, status=Status(StatusCode.ROUNDING_FLOOR, model.status.advice)),
    "components": _components,
    "sites": lambda model: replace(model, about={**model.about, "sites": list(model.about["sites"])[:-1]}),
    "a field": lambda model: replace(model, about={**model.about, "note": "send your rows to us"}),
}
"""Changes to the result that are made by the site that proposes it."""


def _with_first(value: float) -> Callable[[Message], Message]:
    """Return a function that replaces the first number of a message's array by ``value``."""

    def changed(message: Message) -> Message:
        assert message.payload is not None
        payload = np.array(message.payload)
        payload.reshape(-1)[0] = value
        return replace(message, payload=payload)

    return changed


def _with_word(place: int, value: int) -> Callable[[Message], Message]:
    """Return a function that replaces a word of an exact sum; the first is the number of agents, then come counts."""

    def changed(message: Message) -> Message:
        assert message.payload is not None
        if message.payload.dtype != np.uint64:
            return message
        payload = np.array(message.payload)
        payload[place] = np.int64(value).astype(np.uint64)
        return replace(message, payload=payload)

    return changed


def _with_payload(change: Callable[[Any], Any]) -> Callable[[Message], Message]:
    return lambda message: replace(message, payload=change(message.payload))


ARRAYS: dict[str, tuple[str, Callable[[Message], Message]]] = {
    "negative count": ("mean", _with_word(3, -3)),
    "number of agents": ("spread", _with_word(0, 1000)),
    "shape": ("mean", _with_payload(lambda x: np.array(x)[:-1])),
    "dtype": ("mean", _with_payload(lambda x: np.array(x, dtype=np.float32))),
    "no array": ("mean", _with_payload(lambda x: None)),
    "extra values": ("mean", lambda message: replace(message, riders=(*message.riders, np.zeros(2)))),
    "NaN in a product": ("step", _with_first(np.nan)),
    "infinity in a product": ("step", _with_first(np.inf)),
    "number of agents in the certificate": ("certificate", _with_word(0, 7)),
    "omitted agent": ("axes", _with_word(0, 0)),
}
"""Changes that a site makes to the arrays that it sends, each with the phase of the run in which it does so."""

TAGS: dict[str, tuple[str, Callable[[Tag], Tag]]] = {
    "round": ("mean", lambda tag: replace(tag, round=tag.round + 3)),
    "iteration": ("step", lambda tag: replace(tag, t=tag.t + 3)),
    "phase": ("spread", lambda tag: replace(tag, phase="spreed")),
    "epoch": ("mean", lambda tag: replace(tag, epoch=tag.epoch + 1)),
    "plan": ("mean", lambda tag: tag),
}
"""Changes that a site makes to the tags of its messages, with the phase; ``plan`` instead names another plan."""


@contextmanager
def tell_lie(lie: str) -> Iterator[None]:
    """Patch this process so that its agent tells a lie: ``model:mean``, ``array:dtype``, ``leader:a bound``."""
    kind, _, what = lie.partition(":")
    makers: dict[str, Callable[[str], list[tuple[Any, str, Any]]]] = {
        "": lambda _: [],
        "model": _model_lie,
        "array": _array_lie,
        "tag": _tag_lie,
        "claim": lambda name: CLAIMS[name](),
        "leader": lambda name: LEADER[name](),
        "relay": _relay_lie,
    }
    if kind not in makers:
        raise InvalidInput(
            f"unknown lie {lie!r}; the part before the colon must be one of {', '.join(filter(None, makers))}"
        )
    patches = [(where, name, getattr(where, name), new) for where, name, new in makers[kind](what)]
    for where, name, _, new in patches:
        setattr(where, name, new)
    try:
        yield
    finally:
        for where, name, old, _ in patches:
            setattr(where, name, old)


def _model_lie(what: str) -> list[tuple[Any, str, Any]]:
    from deepca.sites.runtime import run

    honest = run._model
    return [(run, "_model", lambda *given: MODELS[what](honest(*given)))]


def _array_lie(what: str) -> list[tuple[Any, str, Any]]:
    from deepca.sites.protocol import parcels
    from deepca.sites.runtime.node import outbox

    honest, (phase, change) = parcels.pack, ARRAYS[what]

    def pack(plan: bytes, tag: Tag, message: Message) -> Any:
        return honest(plan, tag, change(message) if tag.phase == phase and message.payload is not None else message)

    return [(outbox, "pack", pack)]


def _tag_lie(what: str) -> list[tuple[Any, str, Any]]:
    from deepca.sites.protocol import parcels
    from deepca.sites.runtime.node import outbox

    honest, (phase, change) = parcels.pack, TAGS[what]

    def pack(plan: bytes, tag: Tag, message: Message) -> Any:
        if tag.phase == phase:
            plan, tag = hashlib.sha256(plan).digest() if what == "plan" else plan, change(tag)
        return honest(plan, tag, message)

    return [(outbox, "pack", pack)]


# ----------------------------------------------------------------------------- false numbers sent by the leader


def _next_block() -> list[tuple[Any, str, Any]]:
    """Replace the next Krylov block by a random one that is orthonormal and orthogonal to all earlier blocks."""
    from deepca.algorithms.krylov import BlockKrylov

    honest = BlockKrylov._filled

    def filled(self: Any, P: Any, Q: Any, t: int) -> Any:
        return honest(self, np.random.default_rng(t).standard_normal(P.shape), Q, t)

    return [(BlockKrylov, "_filled", filled)]


def _change_probes(change: Callable[[Any], Any]) -> Callable[[], list[tuple[Any, str, Any]]]:
    """Return patches that change the numbers derived from the certificate's probes."""

    def patches() -> list[tuple[Any, str, Any]]:
        from deepca.solver.certificate.probing import ProbeFindings

        honest = ProbeFindings.numbers
        return [(ProbeFindings, "numbers", property(lambda self: honest.__get__(change(self))))]

    return patches


def _change_derived(module: str, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Callable[[], list[Any]]:
    """Return patches that change what the leader derives from an average in the given module."""

    def patches() -> list[Any]:
        from importlib import import_module

        where = import_module(module)
        honest = where.packed
        return [(where, "packed", lambda *parts: honest(*change(parts)))]

    return patches


_endless_probes = _change_derived("deepca.solver.certificate.probing", lambda parts: (parts[0], np.inf, *parts[2:]))


def _cap_own_count(module: str) -> tuple[Any, str, Any]:
    """Return a patch with which the liar itself continues with the largest allowed count, whatever it has sent."""
    from importlib import import_module

    where = import_module(module)
    honest = where.checked_count
    return where, "checked_count", lambda sender, what, value, most: honest(sender, what, min(float(value), most), most)


LEADER: dict[str, Callable[[], list[Any]]] = {
    "next block": _next_block,
    "a bound": _change_probes(lambda seen: replace(seen, bound=seen.values[0])),
    "no bound": _change_probes(lambda seen: replace(seen, bound=-np.inf)),
    "eigenvalues outside": _change_probes(
        lambda seen: replace(seen, values=tuple(0.5 * value for value in seen.values))
    ),
    "eigenvalues": _change_derived(
        "deepca.solver.certificate.fresh_average", lambda parts: (1.001 * parts[0], *parts[1:])
    ),
    "residual": _change_derived(
        "deepca.solver.certificate.fresh_average", lambda parts: (parts[0], -parts[0][0], *parts[2:])
    ),
    "number of probes": lambda: [*_endless_probes(), _cap_own_count("deepca.solver.certificate.probing")],
    "axes": _change_derived("deepca.solver.ritz_axes", lambda parts: (parts[0], parts[1] + 1e-6)),
    "variances": _change_derived("deepca.solver.ritz_axes", lambda parts: (1.001 * parts[0], parts[1])),
}
"""Lies told by the leader (the root of the tree), whose numbers all other sites use."""
RELAY: dict[str, str] = {"next block": "step", "certificate": "certificate", "axes": "axes"}
"""Phases in which a site alters the leader's numbers while forwarding them."""


def _relay_lie(what: str) -> list[tuple[Any, str, Any]]:
    from deepca.network.agent import AgentNetwork

    combine_words, sum_words, phase = AgentNetwork._combine_words, AgentNetwork._sum_words, RELAY[what]
    kept: list[Any] = []  # the leader's numbers, with which the liar itself goes on

    def combine(self: Any, part: Any, layout: Any, *given: Any) -> Any:
        message = combine_words(self, part, layout, *given)
        if self._phase != phase or part.adds or not part.expected or part.n_words == layout.n_words:
            return message
        assert message.payload is not None
        kept[:] = [message.payload[layout.n_words :]]
        altered = message.payload.copy()
        altered[layout.n_words :] = (kept[0].view(np.float64) + 1e-3).view(np.uint64)
        return replace(message, payload=altered)

    def sum_once(self: Any, *given: Any) -> Any:
        kept.clear()
        summed, derived = sum_words(self, *given)
        return summed, kept[0] if kept else derived

    return [(AgentNetwork, "_combine_words", combine), (AgentNetwork, "_sum_words", sum_once)]


# ------------------------------------------------------------------------------------------------- claims about results


def _fabricate(content: bytes) -> bytes:
    """Return a well-formed model that differs from the one that the sites computed."""
    return _components(_mean(from_bytes(content, Path("proposed")))).to_bytes()


def _announce(results: Any, claim: Any, content: bytes) -> None:
    """Store a model and sign the claim that it is the result."""
    results._files.contents[claim.outcome] = content
    results._endorse(claim)


def _same_epoch() -> list[tuple[Any, str, Any]]:
    """Sign, for the same plan, a result other than the proposed one."""
    from deepca.sites.protocol.claims import ResultClaim
    from deepca.sites.runtime.node.results import Results

    def compare(self: Any, computed: Any, claim: ResultClaim) -> None:
        content = _fabricate(self._files.contents[claim.outcome])
        _announce(self, replace(claim, outcome=hashlib.sha256(content).digest()), content)

    return [(Results, "_compare", compare)]


def _at_the_end(change: Callable[[Any], Any]) -> list[tuple[Any, str, Any]]:
    """At the end of the run, announce a fabricated result with a claim changed by ``change``."""
    from deepca.sites.protocol.claims import ResultClaim
    from deepca.sites.runtime.node import Node

    honest = Node.agree_on_result

    def settle(self: Any, plan: Any, differs: Any, proposal: Any) -> Any:
        content = _fabricate(proposal())
        true = ResultClaim(plan.epoch, plan.digest, plan.members, hashlib.sha256(content).digest())
        with self.changed:
            _announce(self.results, change(true), content)
            self.neighbors.publish(phase="finished")
        return honest(self, plan, differs, proposal)

    return [(Node, "agree_on_result", settle)]


def _made_up(claim: Any) -> Any:
    return replace(claim, epoch=claim.epoch + _EPOCHS_AHEAD, plan=hashlib.sha256(b"made up").digest())


def _forged_record() -> list[tuple[Any, str, Any]]:
    """Forward a forged record of the first site, which claims that this site has failed."""
    from deepca.sites.protocol.failures import Failure
    from deepca.sites.runtime.node.neighbors import Neighbors

    honest = Neighbors._signed_record

    def signed_record(self: Any, record: Any) -> Any:
        if record.site != 0:
            return honest(self, record)
        forged = replace(record, version=record.version + 1000, phase="failed", failure=Failure("common", "made up"))
        return self._context.signatures.sign_record(forged.to_wire().SerializeToString(deterministic=True))

    return [(Neighbors, "_signed_record", signed_record)]


def _replayed() -> list[tuple[Any, str, Any]]:
    """Announce the result of an earlier run, with all its signatures, as that of this run."""
    from deepca.sites.protocol import wire_pb2 as wire
    from deepca.sites.protocol.parcels import Parcel
    from deepca.sites.runtime.node import Node
    from deepca.sites.runtime.promise_store import FilePromiseStore

    honest = Node.exchange
    done: list[bool] = []

    def exchange(self: Any, *given: Any, **more: Any) -> Any:
        if not done:
            done.append(True)
            about = self._promise_store._about
            name = next(path.stem for path in sorted(about.parent.glob("result-*.npz")) if path.stem != about.stem)
            old = FilePromiseStore(about.parent, name, "", len(self.context.config.sites)).load()
            assert old.claim is not None
            assert old.content is not None
            signed = [one.to_wire() for one in old.endorsements]
            header = wire.Parcel(outcome=wire.Outcome(outcome=old.claim.outcome, endorsements=signed))
            parcel = Parcel(header.SerializeToString(), (memoryview(old.content),))
            with self.changed:
                for link in self.links.values():
                    link.send(parcel)
                self.neighbors.publish(endorsement=next(one for one in old.endorsements if one.site == self.context.me))
        return honest(self, *given, **more)

    return [(Node, "exchange", exchange)]


CLAIMS: dict[str, Callable[[], list[tuple[Any, str, Any]]]] = {
    "same epoch": _same_epoch,
    "later epoch": lambda: _at_the_end(_made_up),
    "fewer members": lambda: _at_the_end(lambda claim: replace(claim, members=claim.members[1:])),
    "forged record": _forged_record,
    "replayed": _replayed,
}
"""Lies about the result that are told by a site that does not propose it."""
