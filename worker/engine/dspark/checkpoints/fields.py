"""A config.json read key by key, with one message for whatever is not as expected."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from worker.engine.errors import ModelLoadError


class Fields:
    """A JSON object. A key that is null counts as absent; one without a default must be there."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = {key: value for key, value in values.items() if value is not None}
        self.where = where

    @classmethod
    def read(cls, folder: Path, name: str) -> "Fields":
        path = folder / "config.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ModelLoadError(
                f"there is no drafter in {name}: config.json and *.safetensors were expected"
            ) from error
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"cannot read config.json of the drafter {name}: {error}") from error
        if not isinstance(values, dict):
            raise ModelLoadError(f"config.json of the drafter {name} is not a JSON object")
        return cls(cast(dict[str, object], values), f"config.json of the drafter {name}")

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refusal(key, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refusal(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false")
        return value

    def word(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self.refusal(key, "a text")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        values = self._list(key, "a list of integers")
        numbers = tuple(value for value in values if isinstance(value, int))
        if len(numbers) < len(values):
            raise self.refusal(key, "a list of integers")
        return numbers

    def words(self, key: str) -> tuple[str, ...]:
        return tuple(str(value) for value in self._list(key, "a list of texts"))

    def table(self, key: str) -> "Fields":
        """The object under a key, empty if there is none."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.refusal(key, "an object")
        return Fields(cast(dict[str, object], value), f"{key} in {self.where}")

    def tables(self, key: str) -> tuple["Fields", ...]:
        """The objects in the list under a key, none if there is no list."""
        values = self._list(key, "a list of objects") if key in self else []
        return tuple(
            Fields(cast(dict[str, object], value), f"{key} in {self.where}")
            for value in values
            if isinstance(value, dict)
        )

    def refusal(self, key: str, expected: str) -> ModelLoadError:
        found = f"says {key} = {self.values[key]!r}" if key in self else f"does not say {key}"
        return ModelLoadError(f"{self.where} {found}: {expected} was expected")

    def _list(self, key: str, expected: str) -> list[object]:
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.refusal(key, expected)
        return cast(list[object], value)
