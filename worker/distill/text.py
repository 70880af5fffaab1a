"""A text that the target wrote, with all that a drafter learns from."""

from dataclasses import dataclass

from torch import Tensor

TOP = 64  # probabilities kept of each distribution; what is left is spread over the rest of the vocabulary


@dataclass(frozen=True, slots=True)
class Text:
    """Prompt and response, T tokens, of which the first `prompt_tokens` are the prompt.

    The last token was never run: it has no features, and nothing follows it.
    """

    prompt: int  # its place among the prompts
    tokens: Tensor  # [T] int32
    prompt_tokens: int
    features: Tensor  # [T - 1, m * d] bfloat16: of every position that was run
    top_ids: Tensor  # [R, TOP] int32: what the target thought of each of the R response tokens, before it
    top_probs: Tensor  # [R, TOP] float16, of the whole vocabulary's softmax; descending

    @property
    def response_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens
