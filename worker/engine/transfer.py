"""Numbers from the host onto a device, without waiting for what the device still does."""

import torch
from torch import Tensor


def to_device(numbers: Tensor, device: torch.device | str) -> Tensor:
    """A CPU tensor on the device; what is there already is not copied."""
    if torch.device(device).type != "cuda":
        return numbers.to(device)
    # Pinned memory is read while the host goes on; torch keeps it until then, whatever becomes of the tensor.
    return numbers.pin_memory().to(device, non_blocking=True)
