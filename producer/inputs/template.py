"""--template: a Jinja template that makes the prompt from a row's fields."""

from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from producer.inputs.item import InputError, RowError


class PromptTemplate:
    """Variables are the row's fields, `prompt` among them; a missing one is an error, never empty text."""

    def __init__(self, path: Path) -> None:
        # Sandboxed: a template may come with a data set from elsewhere.
        environment = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
        try:
            self._template = environment.from_string(path.read_text(encoding="utf-8-sig"))
        except TemplateSyntaxError as error:
            raise InputError(f"{path}:{error.lineno}: not a Jinja template: {error.message}") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 at byte offset {error.start}; save it as UTF-8") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None

    def render(self, fields: dict[str, Any]) -> str:
        try:
            return self._template.render(fields)
        except TemplateError as error:
            raise RowError(f"--template fails on this row: {error.message}") from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise RowError(f"--template fails on this row: {error}") from None
