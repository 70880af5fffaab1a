"""Reading prompts: files and rows in, items and bad items out, one at a time."""

from producer.inputs.item import BadItem, InputError, Item, RowError
from producer.inputs.reader import InputOptions, Reader

__all__ = ["BadItem", "InputError", "InputOptions", "Item", "Reader", "RowError"]
