"""`python -m tests.faults.table_worker`: worker.process as it is, on an engine that answers from a table.

torch and transformers take seconds to import and the table needs neither: what the worker's modules name of
them is stood in for here, before they are imported. Everything else is the real thing.
"""

import os
import signal
import sys
import time
from collections.abc import Hashable, Sequence
from types import ModuleType
from typing import Any

from tests.faults import table, triggers


class Tokenizer:
    """One token a byte."""

    bos_token = None
    bos_token_id = None
    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002 (the caller names it)
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        return bytes(token_ids).decode()


def _stand_in(name: str, **members: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


class Engine:
    """Rows step together; each ends with the text that the table has for it."""

    generation_defaults: dict[str, Any] = {"temperature": 0.0}  # noqa: RUF012 (never changed)
    context_limit = 4096

    def __init__(self, pair: Any) -> None:
        self.tokenizer = Tokenizer()
        self.max_rows = pair.max_rows
        self._waiting: dict[Hashable, Any] = {}
        self._rows: dict[Hashable, list[Any]] = {}  # request, prompt, steps left
        self.step_seconds = float(os.environ.get("SPECMILL_FAULTS_STEP", table.STEP_SECONDS))

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._rows)

    @property
    def rows_in_flight(self) -> int:
        return len(self._rows)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def submit(self, request: Any) -> None:
        self._waiting[request.id] = request

    def cancel(self, request_id: Hashable) -> None:
        self._waiting.pop(request_id, None)
        self._rows.pop(request_id, None)

    def take_comparisons(self) -> list[Any]:
        return []

    def step(self) -> list[Any]:
        while self._waiting and len(self._rows) < self.max_rows:
            request_id, request = next(iter(self._waiting.items()))
            del self._waiting[request_id]
            prompt = self.tokenizer.decode(request.token_ids)
            self._rows[request_id] = [request, prompt, table.steps(prompt, request.sample_index)]
        if self.step_seconds:
            time.sleep(self.step_seconds)
        if any(table.POISON in prompt for _, prompt, _ in self._rows.values()):
            os.kill(os.getpid(), signal.SIGKILL)
        if triggers.was_pulled(triggers.OUT_OF_MEMORY):
            return self._fail_all()
        ended: list[Any] = []
        for row in list(self._rows.values()):
            row[2] -= 1
            if row[2] <= 0 or not self.step_seconds:
                del self._rows[row[0].id]
                ended.append(_generation(*row[:2]))
        return ended

    def _fail_all(self) -> list[Any]:
        """As the real engine does when a step finds no memory."""
        from worker.engine.types import Failure

        failed = [
            Failure(request.id, request.sample_index, "out_of_memory", "no memory, by order", retryable=True)
            for request, *_ in self._rows.values()
        ]
        self._rows.clear()
        return failed


def _generation(request: Any, prompt: str) -> Any:
    from worker.engine.types import Generation

    count = table.steps(prompt, request.sample_index)
    return Generation(
        request_id=request.id,
        sample_index=request.sample_index,
        text=table.answer(prompt, request.sample_index),
        token_ids=tuple(range(count)),
        finish_reason="stop",
        prompt_tokens=len(request.token_ids),
        cached_tokens=0,
        waited_seconds=0.0,
        prefill_seconds=0.01,
        first_token_seconds=0.01,
        decode_seconds=0.01 * count,
        method="none",
        spec_disabled_reason=None,
        num_steps=count,
        num_spec_steps=0,
        num_draft_tokens=0,
        num_accepted_draft_tokens=0,
        acceptance_histogram=(0,),
        rows_in_flight=1.0,
    )


def main() -> None:
    _stand_in("torch", __version__="none")
    _stand_in("transformers", PreTrainedTokenizerBase=Tokenizer)
    _stand_in("worker.engine.engine", Engine=Engine)
    from tests.faults.faulty_process import run

    run()


if __name__ == "__main__":
    main()
