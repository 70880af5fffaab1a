"""One row of a JSONL, JSON or CSV file as an item."""

import json
from typing import Any

from producer.inputs.item import Item, RowError
from producer.inputs.json_rows import Row, type_name
from producer.inputs.messages import checked_messages
from producer.inputs.openai_lines import is_openai_line, read_openai_line
from producer.inputs.options import SAMPLING_FIELDS, refuse_unknown, sampling_of
from producer.inputs.template import PromptTemplate

OWN_FIELDS = frozenset({"prompt", "messages", "custom_id", "metadata", "chat_template_kwargs"})
ROW_FIELDS = OWN_FIELDS | SAMPLING_FIELDS


def read_row(
    row: Row, item: Item, *, template: PromptTemplate | None, raw: bool, from_text: bool = False
) -> Item:
    """Fill `item`, which knows its place, from a row."""
    if is_openai_line(row):
        if template is not None:
            raise RowError("an OpenAI batch line is taken as it is; --template cannot apply to it")
        return read_openai_line(row, item)
    if from_text:
        row = _parse_cells(row)
    row = {name: value for name, value in row.items() if value is not None}
    extra = {name: value for name, value in row.items() if name not in ROW_FIELDS}
    if template is None:
        for name, value in extra.items():
            refuse_unknown(name, value)
        extra = {}
    item.custom_id = checked_custom_id(row)
    item.sampling = sampling_of(row, from_text=from_text)
    item.n = item.sampling.pop("n", None)
    item.chat_template_kwargs = _object(row, "chat_template_kwargs")
    # With a template every field is a variable; those that are no option stay visible as metadata.
    item.metadata = {**extra, **(_object(row, "metadata") or {})} or None
    _fill_prompt(row, item, template, raw)
    return item


def _fill_prompt(row: Row, item: Item, template: PromptTemplate | None, raw: bool) -> None:
    if "messages" in row:
        if "prompt" in row:
            raise RowError("has both prompt and messages; give one of them")
        if template is not None or raw:
            raise RowError(f"has messages; {'--raw' if raw else '--template'} needs prompt")
        item.messages = checked_messages(row["messages"])
        return
    if "prompt" not in row and template is None:
        raise RowError("has neither prompt nor messages")
    prompt = row.get("prompt", "")
    if not isinstance(prompt, str):
        raise RowError(f"prompt must be a string, got {type_name(prompt)}")
    set_prompt(item, template.render(row) if template else prompt, raw)


def set_prompt(item: Item, prompt: str, raw: bool) -> None:
    if not prompt.strip():
        raise RowError("the prompt is empty")
    if raw:
        item.text = prompt
    else:
        item.messages = [{"role": "user", "content": prompt}]


def checked_custom_id(row: Row) -> str:
    custom_id = row.get("custom_id", "")
    if not isinstance(custom_id, str):
        raise RowError(f"custom_id must be a string, got {type_name(custom_id)}")
    if not custom_id and "custom_id" in row:
        raise RowError("custom_id is empty; leave it out to have one made")
    return custom_id


def _object(row: Row, name: str) -> dict[str, Any] | None:
    value = row.get(name)
    if value is not None and not isinstance(value, dict):
        raise RowError(f"{name} must be an object, got {type_name(value)}")
    return value  # pyright: ignore[reportUnknownVariableType] (JSON has no narrower type)


def _parse_cells(row: Row) -> Row:
    """Cells that hold structure are written as JSON."""
    parsed = dict(row)
    for name in ("messages", "metadata", "chat_template_kwargs"):
        if name in parsed:
            try:
                parsed[name] = json.loads(parsed[name])
            except json.JSONDecodeError as error:
                raise RowError(f"column {name} is not JSON: {error.msg} at column {error.pos + 1}") from None
    return parsed
