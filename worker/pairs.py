"""A declared pair as the engine's own dataclass."""

from pathlib import Path

from worker.engine.types import FolderModel, HubModel, ModelSource, PackageModel, Pair
from worker.wire.declaration import FolderSource, HubSource, PackageSource, PairSettings, Source


def to_engine(pair: PairSettings, device: str) -> Pair:
    return Pair(
        target=_source(pair.target),
        method=pair.method,
        draft=None if pair.draft is None else _source(pair.draft),
        gamma=pair.gamma,
        dtype=pair.dtype,
        quantization=pair.quantization,
        context_limit=pair.context_limit,
        max_rows=pair.max_rows,
        kv_cache=pair.kv_cache,
        prefill_tokens=pair.prefill_tokens,
        baseline_share=pair.baseline_share,
        device=device,
        trust_remote_code=pair.trust_remote_code,
    )


def _source(source: Source) -> ModelSource:
    match source:
        case HubSource(hub=repo, revision=revision):
            return HubModel(repo, revision)
        case FolderSource(folder=folder):
            return FolderModel(Path(folder).expanduser())
        case PackageSource(package=package, file=file):
            return PackageModel(package, file)
