"""What a DSpark network is made of, whatever packaging it came in."""

from dataclasses import dataclass
from typing import Literal

MarkovKind = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True, slots=True)
class DSparkConfig:
    """Sizes, and what a checkpoint's training has fixed."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int  # the target's, and that of the tokens that go in
    draft_vocab_size: int  # of the tokens that come out
    taps: tuple[int, ...]  # the target's decoder layers, from 0, whose raw outputs are the features
    block_size: int  # gamma: it must not draft beyond what it was trained for
    mask_token_id: int
    rope_theta: float
    rope_interleaved: bool = False  # pairs of neighbours are rotated, not of halves
    rms_norm_eps: float = 1e-6
    markov_rank: int = 0  # 0: no Markov head, which is DFlash
    markov_kind: MarkovKind = "vanilla"
    has_confidence: bool = False
    confidence_with_markov: bool = True
    window: int | None = None  # positions that a query sees, its own included; None: all
    unwindowed: frozenset[int] = frozenset()  # layers that see all the same
    is_causal: bool | None = False  # within the block; None: in layers with a window alone
    anchor_predicts: bool = True  # the block's first output is a proposal; else only those of the masks
    feeds_last_feature: bool = False  # into a block: what precedes the anchor; no public drafter does
    num_target_layers: int | None = None  # of the target it was trained for, where the checkpoint says so
    target: str | None = None  # the name of the target it was trained for, where the checkpoint says so

    @property
    def num_features(self) -> int:
        """Length of a position's features: all taps side by side. Taps are of the network's own width."""
        return len(self.taps) * self.hidden_size

    def window_of(self, layer: int) -> int | None:
        return None if layer in self.unwindowed else self.window

    def is_causal_in(self, layer: int) -> bool:
        return self.window_of(layer) is not None if self.is_causal is None else self.is_causal

    @property
    def block_inputs(self) -> int:
        """Tokens that go into a pass for block_size proposals."""
        return self.inputs_for(self.block_size)

    def inputs_for(self, proposals: int) -> int:
        """How many tokens go into a pass for so many: the anchor, and masks."""
        return proposals + (not self.anchor_predicts)
