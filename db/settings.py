"""Where the database is: environment `SPECMILL_*`, then specmill.toml, then defaults."""

import os
import tomllib
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from db.errors import ConfigError

ENV_PREFIX = "SPECMILL_"

# Every key specmill.toml may hold, whichever room reads it: each room ignores the keys of the others, so only
# this list can tell a misspelt key from a neighbour's.
TOML_KEYS = frozenset({"database_url", "state_dir", "broker_url", "lease_seconds", "default_pair", "pairs"})


def config_file() -> Path | None:
    """`$SPECMILL_CONFIG`, which then must exist, or ./specmill.toml where there is one."""
    named = os.environ.get(ENV_PREFIX + "CONFIG")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"SPECMILL_CONFIG names {path}, which is not a file. Correct it or unset it.")
        return path
    path = Path("specmill.toml")
    return path if path.is_file() else None


class TomlSettings(BaseSettings):
    """Base of each room's settings: reads the environment, then specmill.toml, and fails as `ConfigError`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="ignore")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_explain(error)) from None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if unlisted := set(cls.model_fields) - TOML_KEYS:
            raise TypeError(f"{cls.__name__}: add {sorted(unlisted)} to db.settings.TOML_KEYS")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic passes it by name)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic names it)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = config_file()
        if path is None:
            return init_settings, env_settings
        _check_toml(path)
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, path)


class DatabaseSettings(TomlSettings):
    """The database and the folder of what is local to this machine."""

    database_url: SecretStr | None = None
    state_dir: Path = platformdirs.user_state_path("specmill")

    @field_validator("state_dir")
    @classmethod
    def _expand_home(cls, path: Path) -> Path:
        return path.expanduser()

    def url(self) -> str:
        """The configured database, else specmill.db in the state folder."""
        if self.database_url is None:
            return f"sqlite:///{self.state_dir / 'specmill.db'}"
        return with_driver(self.database_url.get_secret_value())


def with_driver(url: str) -> str:
    """PostgreSQL URLs as people write them, naming the driver we use."""
    for scheme in ("postgresql://", "postgres://"):
        if url.startswith(scheme):
            return "postgresql+psycopg://" + url.removeprefix(scheme)
    return url


def _check_toml(path: Path) -> None:
    try:
        keys = tomllib.loads(path.read_text("utf-8")).keys()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None
    if unknown := sorted(keys - TOML_KEYS):
        raise ConfigError(f"{path}: unknown key {unknown[0]!r}. Known keys: {', '.join(sorted(TOML_KEYS))}.")


def _explain(error: ValidationError) -> str:
    """One line a mistake, with its origin; the values stay out of it, as they may be secrets."""
    lines: list[str] = []
    for item in error.errors(include_input=False, include_url=False):
        keys = [str(part) for part in item["loc"]]
        variable = ENV_PREFIX + keys[0].upper() if keys else ""
        origin = variable if variable in os.environ else f"{config_file() or 'settings'}: {'.'.join(keys)}"
        lines.append(f"{origin}: {item['msg']}")
    return "\n".join(lines)
