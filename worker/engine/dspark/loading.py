"""The drafter that a pair names, from a folder, a package or the hub, judged before the pair serves."""

from pathlib import Path

from huggingface_hub import snapshot_download

from worker.engine.conversion import package_folder
from worker.engine.dspark.checkpoints import TargetFacts, load_network, read_config
from worker.engine.dspark.config import DSparkConfig
from worker.engine.dspark.network import DSparkNetwork
from worker.engine.errors import EngineError, ModelLoadError
from worker.engine.loading import LoadedModel, name_of
from worker.engine.quiet import quiet
from worker.engine.types import FolderModel, HubModel, ModelSource, PackageModel, Pair

_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")


def load_drafter(pair: Pair, target: LoadedModel) -> DSparkNetwork:
    """The network of a pair of method "dspark"; raises EngineError if it cannot draft for this target."""
    source = _source(pair)
    name = name_of(source)
    network = load_network(folder_of(source), TargetFacts.of(target), name)
    if pair.gamma > network.config.block_size:
        raise ModelLoadError(
            f"the pair's gamma is {pair.gamma}, but the drafter {name} was trained to propose "
            f"{network.config.block_size} tokens: lower it"
        )
    return network


def describe_drafter(pair: Pair) -> DSparkConfig:
    """What the drafter of a pair of method "dspark" is made of, before its weights are loaded."""
    source = _source(pair)
    return read_config(folder_of(source), name_of(source))


def _source(pair: Pair) -> ModelSource:
    if pair.draft is None:
        raise EngineError("method dspark needs a trained drafter: name one as the pair's `draft`")
    return pair.draft


def folder_of(source: ModelSource) -> Path:
    """Where a drafter's files are, downloaded if they are on the hub."""
    match source:
        case FolderModel(path):
            return path
        case HubModel(repo, revision):
            try:
                with quiet():
                    return Path(snapshot_download(repo, revision=revision, allow_patterns=list(_FILES)))
            except Exception as error:  # whatever the hub's client or the network raises
                reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
                raise ModelLoadError(
                    f"cannot download the drafter {name_of(source)}: {reason}. Check the name, the revision "
                    "and the connection to the hub (HF_TOKEN for a gated one), or download it elsewhere and "
                    "give the pair its folder"
                ) from error
        case PackageModel():
            return package_folder(source)
