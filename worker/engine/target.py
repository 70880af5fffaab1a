"""A transformers model with a cache for many rows: what is run for the target, and for a draft model too."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from worker.engine.architecture import inspect_model
from worker.engine.cache import Cache, Chunk, LayerShape
from worker.engine.caches import make_cache
from worker.engine.convolution import replace_convolutions
from worker.engine.cpu.prepare import prepare
from worker.engine.cuda.graphs import Graphs, graphs_for
from worker.engine.loading import LoadedModel
from worker.engine.taps import Taps
from worker.engine.transfer import to_device


class CachedModel:
    """Runs packed passes; the caller knows which positions of which slots are alive."""

    def __init__(
        self,
        loaded: LoadedModel,
        max_rows: int,
        context_limit: int,
        max_bytes: int | None = None,
        taps: Sequence[int] = (),
        more_layers: Sequence[LayerShape] = (),
    ) -> None:
        """`max_bytes`: of the cache; None: what all rows need at full length. `taps`: see `features`.

        `more_layers`: that the cache has beside the model's own, for whoever drafts.
        """
        self.name = loaded.name
        self.context_limit = context_limit
        self._model = cast(Any, loaded.model)
        self._device = str(loaded.model.device)
        replace_convolutions(loaded.model)
        shapes = inspect_model(loaded.model, loaded.name, context_limit)
        prepare(loaded.model, loaded.model.dtype, self._device, int8=loaded.int8, taps=taps)
        self.taps = tuple(taps)
        self.num_layers = len(shapes)
        self._taps = Taps(loaded.model, taps) if taps else None
        self.cache: Cache = make_cache(
            [*shapes, *more_layers], max_rows, context_limit, loaded.model.dtype, self._device, max_bytes
        )
        self.vocab_size = cast(int, self._model.get_input_embeddings().num_embeddings)
        self._graphs = graphs_for(self.cache, self._model, loaded.model.dtype, self._taps)
        self._replayed: Graphs | None = None

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Write the chunks' keys and values; logits [N, V] of the positions wanted, in the chunks' order."""
        self.cache.reserve(chunks)
        wanted = _wanted(chunks)
        self._replayed = None
        if self._graphs is not None and (logits := self._graphs.logits(chunks)) is not None:
            self._replayed = self._graphs
            return logits if len(wanted) == len(logits) else logits[self._on_device(wanted)]
        layout = self.cache.layout(chunks)
        token_ids = [token for chunk in chunks for token in chunk.token_ids]
        output = self._model(
            input_ids=self._on_device(token_ids)[None],
            position_ids=layout.positions[None],
            use_cache=False,
            logits_to_keep=self._on_device(wanted),
            packed=layout,
        )
        return output.logits[0]

    def features(self) -> Tensor:
        """[T, m * d] of the last pass's tokens: what came out of the m tapped decoder layers, from 0."""
        if self._taps is None:
            raise ValueError("no layer of this model is tapped")
        return self._taps.features() if self._replayed is None else self._replayed.features()

    @property
    def records_passes(self) -> bool:
        """Whether the first pass of a size takes far longer than those after it."""
        return self._graphs is not None

    def _on_device(self, numbers: Sequence[int]) -> Tensor:
        return to_device(torch.tensor(numbers, dtype=torch.int64), self._device)


def _wanted(chunks: Sequence[Chunk]) -> list[int]:
    """Which tokens of the pass logits are wanted of."""
    wanted: list[int] = []
    offset = 0
    for chunk in chunks:
        offset += len(chunk.token_ids)
        wanted.extend(range(offset - chunk.num_logits, offset))
    return wanted
