"""What an output may look like: OpenAI's response_format, and `regex`, which is one more type of it here."""

import json
import re
from importlib.util import find_spec
from typing import Any

JSON_OBJECT = {"type": "object"}


def read_format(value: Any) -> dict[str, Any]:
    """A response_format as it is stored; ValueError says what is wrong with it.

    "json" and "text" are short for the types without a schema, and a string with an object in it is read.
    """
    if isinstance(value, str):
        value = _from_text(value)
    if not isinstance(value, dict):
        raise ValueError('response_format should be an object with a type, or "json"')
    given: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType] (JSON)
    match given.get("type"):
        case "text" | "json_object" as kind:
            return {"type": kind}
        case "json_schema":
            wrapped: Any = given.get("json_schema")
            if not isinstance(wrapped, dict) or not isinstance(wrapped.get("schema"), dict):
                raise ValueError("response_format of type json_schema needs json_schema.schema, an object")
            return {"type": "json_schema", "json_schema": wrapped}
        case "regex":
            pattern = given.get("regex")
            if not isinstance(pattern, str) or not pattern:
                raise ValueError("regex should be a string that is not empty")
            return {"type": "regex", "regex": pattern}
        case other:
            raise ValueError(
                f"response_format type should be text, json_object, json_schema or regex, not {other!r}"
            )


def schema_of(response_format: dict[str, Any]) -> str | None:
    """The JSON schema that it asks for, as text."""
    match response_format["type"]:
        case "json_object":
            return json.dumps(JSON_OBJECT)
        case "json_schema":
            return json.dumps(response_format["json_schema"]["schema"])
        case _:
            return None


def regex_of(response_format: dict[str, Any]) -> str | None:
    return response_format.get("regex")


def check_format(response_format: dict[str, Any]) -> None:
    """ValueError for a schema or regex that no worker can compile, where this host can tell.

    It can with llguidance, which a producer alone need not have: then the prompt fails at its worker.
    """
    if find_spec("llguidance") is None:
        return
    from llguidance import LLMatcher

    if (pattern := regex_of(response_format)) is not None:
        grammar = LLMatcher.grammar_from_regex(pattern)
    elif (schema := schema_of(response_format)) is not None:
        grammar = LLMatcher.grammar_from_json_schema(schema)
    else:
        return
    if problem := LLMatcher.validate_grammar(grammar):
        kind = "regex" if pattern is not None else "JSON schema"
        raise ValueError(f"the {kind} cannot be compiled: {_one_line(problem)}")


def _from_text(value: str) -> Any:
    if value in ("json", "json_object"):
        return {"type": "json_object"}
    if value == "text":
        return {"type": "text"}
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        raise ValueError(
            f'response_format should be an object with a type, or "json", not {value!r}'
        ) from None


def _one_line(message: str) -> str:
    return re.sub(r"\s+", " ", message).strip()[:500]
