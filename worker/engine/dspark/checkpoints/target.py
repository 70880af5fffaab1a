"""What a drafter's checkpoint needs of its target, and whether it was trained for it."""

import re
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from worker.engine.dspark.config import DSparkConfig
from worker.engine.errors import ModelLoadError
from worker.engine.loading import LoadedModel


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Of the target as it is loaded; the drafter takes its dtype and device from the embeddings."""

    name: str  # as `name_of` gives it
    hidden_size: int
    num_layers: int
    embeddings: Tensor  # [V, d]
    head: Tensor  # [V, d]; the same tensor where they are tied

    @classmethod
    def of(cls, loaded: LoadedModel) -> "TargetFacts":
        """Before the model is prepared for serving: that may pack its head."""
        model = cast(Any, loaded.model)
        text = model.config.get_text_config()
        return cls(
            name=loaded.name,
            hidden_size=text.hidden_size,
            num_layers=text.num_hidden_layers,
            embeddings=model.get_input_embeddings().weight,
            head=model.get_output_embeddings().weight,
        )

    @property
    def vocab_size(self) -> int:
        return len(self.embeddings)


def check_target(config: DSparkConfig, target: TargetFacts, name: str) -> None:
    """Raise ModelLoadError, both named, unless the drafter `name` was trained for this target."""
    trained_for = config.target or "another target"
    differences = [
        f"{what} {trained} instead of {found}"
        for what, trained, found in (
            ("hidden size", config.hidden_size, target.hidden_size),
            ("layers", config.num_target_layers or target.num_layers, target.num_layers),
            ("vocabulary", config.vocab_size, target.vocab_size),
        )
        if trained != found
    ]
    if differences or _are_different_models(config.target, target.name):
        reason = f" ({', '.join(differences)})" if differences else ""
        raise ModelLoadError(
            f"the drafter {name} was trained for {trained_for}{reason}, not for {target.name}: "
            "choose a drafter of this target, or the method prompt_lookup, which needs none"
        )
    if not config.taps or not all(0 <= tap < target.num_layers - 1 for tap in config.taps):
        raise ModelLoadError(
            f"the drafter {name} taps the layers {list(config.taps)} of its target: "
            f"of the {target.num_layers} of {target.name}, 0 to {target.num_layers - 2} can be tapped"
        )
    if not 0 <= config.mask_token_id < config.vocab_size:
        raise ModelLoadError(
            f"the drafter {name} has mask_token_id {config.mask_token_id}, "
            f"outside its vocabulary of {config.vocab_size} tokens"
        )


def _are_different_models(trained_for: str | None, target: str) -> bool:
    """Only two names on the hub can be compared: a folder may hold anything, and its sizes decide."""
    trained_for, target_name = ((name or "").partition("@")[0].lower() for name in (trained_for, target))
    if not _HUB_NAME.fullmatch(trained_for) or "@" not in target:
        return False
    return trained_for != target_name


_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # owner/repository
