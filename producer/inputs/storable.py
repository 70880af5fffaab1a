"""What no database can hold is refused where it stands, not at the insert."""

from typing import Any

from producer.inputs.item import RowError


def check_storable(value: Any) -> None:
    """Raise for a NUL character or half a surrogate pair anywhere inside."""
    if isinstance(value, str):
        if "\x00" in value:
            raise RowError("holds a NUL character (\\u0000), which databases refuse; remove it")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RowError(
                f"holds half a surrogate pair (\\u{ord(value[error.start]):04x}), which is no character; "
                "write the whole pair"
            ) from None
    elif isinstance(value, dict):
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType] (JSON has no narrower type)
            check_storable(key)
            check_storable(inner)
    elif isinstance(value, list):
        for inner in value:  # pyright: ignore[reportUnknownVariableType] (JSON has no narrower type)
            check_storable(inner)


def looks_unstorable(source: str) -> bool:
    """Cheap test of a row's source text: only such rows can hold what check_storable refuses."""
    return "\\u0000" in source or "\x00" in source or "\\ud" in source or "\\uD" in source
