"""Captured texts on disk: one safetensors file for some hundred of them, read through the page cache."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast, overload

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from worker.distill.text import Text

TEXTS_PER_SHARD = 256


class ShardWriter:
    """Writes a shard whenever enough texts have come. What an interrupt loses is less than one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._texts: list[Text] = []

    def add(self, texts: Sequence[Text]) -> None:
        self._texts.extend(texts)
        while len(self._texts) >= TEXTS_PER_SHARD:
            self._write(self._texts[:TEXTS_PER_SHARD])
            del self._texts[:TEXTS_PER_SHARD]

    def close(self) -> None:
        """Write what is left."""
        if self._texts:
            self._write(self._texts)
        self._texts = []

    def _write(self, texts: Sequence[Text]) -> None:
        tensors = {
            "prompts": torch.tensor([text.prompt for text in texts]),
            "lengths": torch.tensor([len(text.tokens) for text in texts]),
            "prompt_lengths": torch.tensor([text.prompt_tokens for text in texts]),
            "tokens": torch.cat([text.tokens for text in texts]),
            "features": torch.cat([text.features for text in texts]),
            "top_ids": torch.cat([text.top_ids for text in texts]),
            "top_probs": torch.cat([text.top_probs for text in texts]),
        }
        number = len(_files(self._folder))
        unfinished = self._folder / "unfinished"
        save_file(tensors, unfinished)
        unfinished.replace(self._folder / f"texts-{number:05}.safetensors")


class Shards(Sequence[Text]):
    """Texts of a folder, read when they are asked for."""

    def __init__(self, places: "Sequence[tuple[_Shard, int]]", with_features: bool = True) -> None:
        self._places = places
        self._with_features = with_features

    @classmethod
    def read(cls, folder: Path) -> "Shards":
        shards = [_Shard(file) for file in _files(folder)]
        return cls([(shard, index) for shard in shards for index in range(len(shard.prompts))])

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Text: ...
    @overload
    def __getitem__(self, index: slice) -> "list[Text]": ...
    def __getitem__(self, index: int | slice) -> "Text | list[Text]":
        if isinstance(index, slice):
            return [shard.text(place, self._with_features) for shard, place in self._places[index]]
        shard, place = self._places[index]
        return shard.text(place, self._with_features)

    @property
    def prompts(self) -> list[int]:
        """The place of each text's prompt among the prompts."""
        return [shard.prompts[place] for shard, place in self._places]

    @property
    def response_tokens(self) -> int:
        return sum(end - prompt for prompt, end in self.sizes)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Of each text: the tokens of its prompt, and all its tokens."""
        return [(shard.prompt_lengths[place], shard.lengths[place]) for shard, place in self._places]

    def chosen(self, wanted: Callable[[int], bool]) -> "Shards":
        """Those whose prompts' places are wanted."""
        return Shards([(shard, place) for shard, place in self._places if wanted(shard.prompts[place])])

    def without_features(self) -> "Shards":
        """The same texts with none, which are most of what there is to read."""
        return Shards(self._places, with_features=False)


class _Shard:
    def __init__(self, file: Path) -> None:
        # Memory-mapped: a slice is read when it is asked for.
        self._data: Any = safe_open(file, framework="pt").__enter__()
        self.prompts = self._numbers("prompts")
        self.lengths = self._numbers("lengths")
        self.prompt_lengths = self._numbers("prompt_lengths")
        self._tokens = _starts(self.lengths)
        self._features = _starts([length - 1 for length in self.lengths])
        self._responses = _starts([a - b for a, b in zip(self.lengths, self.prompt_lengths, strict=True)])

    def text(self, place: int, with_features: bool) -> Text:
        features = self._slice("features", self._features, place) if with_features else torch.empty(0)
        return Text(
            prompt=self.prompts[place],
            tokens=self._slice("tokens", self._tokens, place),
            prompt_tokens=self.prompt_lengths[place],
            features=features,
            top_ids=self._slice("top_ids", self._responses, place),
            top_probs=self._slice("top_probs", self._responses, place),
        )

    def _numbers(self, name: str) -> list[int]:
        return cast(list[int], self._data.get_tensor(name).tolist())

    def _slice(self, name: str, starts: Sequence[int], place: int) -> Tensor:
        return cast(Tensor, self._data.get_slice(name)[starts[place] : starts[place + 1]])


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("texts-*.safetensors"))


def _starts(lengths: Sequence[int]) -> list[int]:
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    return starts
