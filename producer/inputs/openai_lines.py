"""OpenAI batch lines, as they are: {"custom_id", "method": "POST", "url", "body"}."""

from typing import Any

from producer.inputs.item import Item, RowError
from producer.inputs.json_rows import Row, type_name
from producer.inputs.messages import checked_messages
from producer.inputs.options import SAMPLING_FIELDS, refuse_unknown, sampling_of

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LINE_FIELDS = {"custom_id", "method", "url", "body"}

# Body options that say how or by whom to be served: what they may say without changing the answer.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "stream_options": (),
    "store": (False,),
    "service_tier": ("auto", "default", "flex"),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}


def is_openai_line(row: Row) -> bool:
    return "body" in row or "url" in row


def read_openai_line(row: Row, item: Item) -> Item:
    body = _checked_body(row)
    item.custom_id = _custom_id(row)
    item.sampling = sampling_of(body)
    item.n = item.sampling.pop("n", None)
    metadata: dict[str, Any] = body.get("metadata") or {}
    if not isinstance(metadata, dict):  # pyright: ignore[reportUnnecessaryIsInstance] (what JSON really held)
        raise RowError(f"body.metadata must be an object, got {type_name(metadata)}")
    item.chat_template_kwargs = body.get("chat_template_kwargs")
    if not isinstance(item.chat_template_kwargs, dict | None):  # pyright: ignore[reportUnnecessaryIsInstance] (JSON)
        raise RowError("body.chat_template_kwargs must be an object")
    # Who was asked is kept beside the answer; the pair decides who answers.
    kept = {name: body[name] for name in ("model", "user") if body.get(name) is not None}
    item.model = str(kept["model"]) if "model" in kept else None
    item.metadata = {**kept, **metadata} or None
    if row["url"] == CHAT:
        item.messages = checked_messages(body.get("messages"))
    else:
        prompt = body.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise RowError(f"body.prompt must be one string that is not empty, got {type_name(prompt)}")
        item.text = prompt
    return item


def _checked_body(row: Row) -> dict[str, Any]:
    for name in row.keys() - LINE_FIELDS:
        raise RowError(f'unknown field "{name}" in an OpenAI batch line')
    if row.get("url") not in (CHAT, COMPLETIONS):
        raise RowError(f"url must be {CHAT} or {COMPLETIONS}, got {row.get('url')!r}")
    if row.get("method", "POST") != "POST":
        raise RowError(f"method must be POST, got {row['method']!r}")
    body = row.get("body")
    if not isinstance(body, dict):
        raise RowError(f"body must be an object, got {type_name(body)}")
    checked: dict[str, Any] = {name: value for name, value in body.items() if value is not None}  # pyright: ignore[reportUnknownVariableType] (JSON)
    own = "messages" if row["url"] == CHAT else "prompt"
    for name, value in checked.items():
        if name in SAMPLING_FIELDS or name in (own, "model", "user", "metadata", "chat_template_kwargs"):
            continue
        if name in HARMLESS:
            if value not in HARMLESS[name]:
                raise RowError(f"body option {name}={value!r} is not supported; remove it")
        else:
            refuse_unknown(name, value)
    return checked


def _custom_id(row: Row) -> str:
    custom_id = row.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise RowError(f"custom_id must be a string that is not empty, got {custom_id!r}")
    return custom_id
