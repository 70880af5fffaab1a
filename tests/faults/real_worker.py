"""`python -m tests.faults.real_worker`: worker.process, whose engine runs out of memory by order."""

from typing import Any

from tests.faults import triggers
from tests.faults.faulty_process import run


def main() -> None:
    import torch

    from worker.engine import target

    forward = target.CachedModel.forward

    def hungry_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if triggers.was_pulled(triggers.OUT_OF_MEMORY):
            raise torch.OutOfMemoryError("no memory, by order")
        return forward(self, *args, **kwargs)

    target.CachedModel.forward = hungry_forward
    run()


if __name__ == "__main__":
    main()
