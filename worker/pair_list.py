"""What `worker pairs` prints: the declared pairs, and whether they can serve."""

import json
from dataclasses import asdict
from typing import Any

import click

from worker.wire.declaration import FolderSource, HubSource, PackageSource, PairSettings, Source
from worker.wire.pairs import fingerprint, get_pair, load_pairs


def print_pairs(checked: str | None, device: str, as_json: bool) -> int:
    """The exit code: 1 if a checked pair cannot serve."""
    pairs = load_pairs()
    if checked not in (None, "all"):
        pairs = {checked: get_pair(checked)}
    described = {name: _describe(pair) for name, pair in pairs.items()}
    failed = False
    if checked is not None:
        for name, pair in pairs.items():
            finding = _check(pair, device)
            failed = failed or "error" in finding
            described[name]["check"] = finding
    if as_json:
        click.echo(json.dumps(described, indent=2))
    else:
        click.echo("\n".join(line for name, values in described.items() for line in _lines(name, values)))
    return 1 if failed else 0


def _describe(pair: PairSettings) -> dict[str, Any]:
    return {
        "target": _name(pair.target),
        "draft": None if pair.draft is None else _name(pair.draft),
        "method": pair.method,
        "gamma": pair.gamma,
        "dtype": pair.dtype,
        "quantization": pair.quantization,
        "context_limit": pair.context_limit,
        "max_rows": pair.max_rows,
        "kv_cache": pair.kv_cache,
        "prefill_tokens": pair.prefill_tokens,
        "max_tokens": pair.max_tokens,
        "fingerprint": fingerprint(pair),
    }


def _check(pair: PairSettings, device: str) -> dict[str, Any]:
    """Load the models and judge them. Imports torch, which listing alone does not need."""
    from worker.engine.errors import EngineError
    from worker.engine.pair_check import check_pair
    from worker.pairs import to_engine

    try:
        check = check_pair(to_engine(pair, device))
    except EngineError as error:
        return {"error": str(error)}
    return {**asdict(check), "needed_memory": check.memory.total}


def _name(source: Source) -> str:
    match source:
        case HubSource(hub=repo, revision=revision):
            return f"{repo}@{revision}"
        case FolderSource(folder=folder):
            return folder
        case PackageSource(package=package, file=file):
            return f"{package}/{file}"


def _lines(name: str, values: dict[str, Any]) -> list[str]:
    shown = {key: value for key, value in values.items() if value is not None and key != "check"}
    lines = [name, *(f"  {key.replace('_', ' ')}: {value}" for key, value in shown.items())]
    finding = values.get("check")
    if finding is None:
        return lines
    if "error" in finding:
        return [*lines, f"  cannot serve: {finding['error']}"]
    needed, free = (finding[key] / 2**20 for key in ("needed_memory", "available_memory"))
    return [*lines, f"  can serve: needs about {needed:,.0f} MiB, {free:,.0f} MiB are free"]
