"""Loading without progress bars and chatter: a worker's standard error is for its own messages."""

import logging as levels
import os
from collections.abc import Generator
from contextlib import contextmanager

from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging


@contextmanager
def quiet() -> Generator[None]:
    """Silence transformers and the hub's client, and put their settings back: a program may use them too."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    conversion = os.environ.get("DISABLE_SAFETENSORS_CONVERSION")
    logging.set_verbosity(levels.CRITICAL)
    logging.disable_progress_bar()
    disable_progress_bars()
    # Else a repository without safetensors is sent to a third party's converter, in the background.
    os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
        if hub_bars:
            enable_progress_bars()
        if conversion is None:
            del os.environ["DISABLE_SAFETENSORS_CONVERSION"]
        else:
            os.environ["DISABLE_SAFETENSORS_CONVERSION"] = conversion
