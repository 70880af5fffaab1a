"""Chat messages as OpenAI writes them."""

from typing import Any

from producer.inputs.item import RowError
from producer.inputs.json_rows import type_name

ROLES = ("system", "developer", "user", "assistant", "tool")


def checked_messages(value: Any) -> list[dict[str, Any]]:
    """Messages with a known role and text; text parts are joined, other kinds of content refused by name."""
    if not isinstance(value, list) or not value:
        raise RowError(f"messages must be a list with at least one message, got {type_name(value)}")
    listed: list[Any] = value
    return [_message(message, number) for number, message in enumerate(listed, start=1)]


def _message(value: Any, number: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RowError(f"message {number} must be an object, got {type_name(value)}")
    message: dict[str, Any] = {name: inner for name, inner in value.items() if inner is not None}  # pyright: ignore[reportUnknownVariableType] (JSON)
    if message.get("role") not in ROLES:
        raise RowError(
            f"message {number}: role must be one of {', '.join(ROLES)}, got {message.get('role')!r}"
        )
    for name in message.keys() - {"role", "content", "name"}:
        raise RowError(f'message {number}: field "{name}" is not supported')
    if not isinstance(message.get("name", ""), str):
        raise RowError(f"message {number}: name must be a string, got {type_name(message['name'])}")
    message["content"] = _content(message.get("content"), number)
    return message


def _content(content: Any, number: int) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(f"message {number}: content must be a string, got {type_name(content)}")
    parts: list[Any] = content
    texts: list[str] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else type_name(part)  # pyright: ignore[reportUnknownVariableType] (JSON)
        text = part.get("text") if kind == "text" else None
        if not isinstance(text, str):
            raise RowError(f"message {number}: only text content is supported, got {kind}")
        texts.append(text)
    return "".join(texts)
