"""The pair of a submission: known, and meant the same way by those who serve it."""

from dataclasses import dataclass

from sqlalchemy import Connection

from db.errors import PairConflict
from db.fleet import check_open_batches, get_pair, list_pairs, live_workers
from worker.wire.pairs import UnknownPair, fingerprint, load_pairs


@dataclass(frozen=True, slots=True)
class ChosenPair:
    name: str
    fingerprint: str
    live_workers: int
    defaults: dict[str, object] | None  # the model's own sampling, once a worker has resolved it


def choose_pair(conn: Connection, name: str) -> ChosenPair:
    """A pair is known from settings here or from the workers that served it."""
    declared = load_pairs()
    served = get_pair(conn, name)
    if name in declared:
        wanted = fingerprint(declared[name])
    elif served is not None:
        wanted = served.fingerprint
    else:
        raise UnknownPair(name, sorted({*declared, *(pair.name for pair in list_pairs(conn))}))
    workers = live_workers(conn, name)
    for worker in workers:
        if worker.pair_fingerprint != wanted:
            raise PairConflict(
                f'pair "{name}" has fingerprint {wanted} here, but the worker on {worker.host} serves it '
                f"with {worker.pair_fingerprint}; make [pairs.{name}] of specmill.toml the same on both, "
                "or give one another name"
            )
    check_open_batches(conn, name, wanted)
    same = served is not None and served.fingerprint == wanted
    return ChosenPair(
        name, wanted, len(workers), dict(served.generation_defaults) if served and same else None
    )
