"""The target's own responses to prompts, captured as they are generated."""

from collections.abc import Callable, Iterable
from time import monotonic

from worker.distill.capturing import CapturingDrafter
from worker.distill.shards import ShardWriter
from worker.engine import Engine, Request
from worker.engine.types import Failure

_SAY_EVERY = 15.0  # seconds


def generate(
    engine: Engine,
    capturing: CapturingDrafter,
    requests: Iterable[Request],
    writer: ShardWriter,
    tokens: int,
    say: Callable[[str], None],
) -> None:
    """Run requests, in their order, until so many response tokens are captured and what runs has ended.

    The engine's drafter is `capturing`. An interrupt keeps the shards that are written.
    """
    waiting = iter(requests)
    said, told = monotonic(), 0
    captured, texts, failed = 0, 0, 0
    while True:
        while captured < tokens and engine.num_waiting < 8 and (request := next(waiting, None)):
            engine.submit(request)
        if not engine.busy:
            break
        failed += sum(isinstance(result, Failure) for result in engine.step())
        if done := capturing.take():
            writer.add(done)
            captured += sum(text.response_tokens for text in done)
            texts += len(done)
        if (now := monotonic()) - said > _SAY_EVERY or not engine.busy:
            speed = (captured - told) / (now - said)
            left = f", at most {max(tokens - captured, 0) / speed / 60:.0f} min left" if speed else ""
            say(f"capture: {texts} responses, {captured:,} tokens, {speed:,.0f} tok/s{left}")
            said, told = now, captured
    writer.close()
    if failed or capturing.lost:
        say(f"capture: {failed} prompts failed, {capturing.lost} responses were not seen whole")
