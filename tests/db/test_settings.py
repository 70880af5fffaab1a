"""Environment, then specmill.toml, then defaults; a mistake is named with its place."""

from pathlib import Path

import pytest

from db.errors import ConfigError
from db.settings import TOML_KEYS, DatabaseSettings, TomlSettings


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATABASE_URL", "STATE_DIR"):
        monkeypatch.delenv(f"SPECMILL_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


def test_nothing_configured_means_a_file_in_the_state_folder() -> None:
    settings = DatabaseSettings()
    assert settings.database_url is None
    assert settings.url() == f"sqlite:///{settings.state_dir}/specmill.db"
    assert settings.state_dir.name == "specmill"


def test_the_environment_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "specmill.toml").write_text('database_url = "sqlite:///from-file.db"\nstate_dir = "~/mill"\n')
    assert DatabaseSettings().url() == "sqlite:///from-file.db"
    assert DatabaseSettings().state_dir == Path.home() / "mill"

    monkeypatch.setenv("SPECMILL_DATABASE_URL", "sqlite:///from-environment.db")
    assert DatabaseSettings().url() == "sqlite:///from-environment.db"


def test_specmill_config_names_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.toml").write_text('state_dir = "/srv/mill"\n')
    monkeypatch.setenv("SPECMILL_CONFIG", str(tmp_path / "other.toml"))
    assert DatabaseSettings().state_dir == Path("/srv/mill")

    monkeypatch.setenv("SPECMILL_CONFIG", "missing.toml")
    with pytest.raises(ConfigError, match=r"SPECMILL_CONFIG names missing\.toml, which is not a file"):
        DatabaseSettings()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_postgresql_urls_get_the_driver_we_use(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECMILL_DATABASE_URL", f"{scheme}://me:secret@host/mill")
    settings = DatabaseSettings()
    assert settings.url() == "postgresql+psycopg://me:secret@host/mill"
    assert "secret" not in repr(settings)


def test_a_misspelt_key_is_refused_with_the_file_and_those_known(tmp_path: Path) -> None:
    (tmp_path / "specmill.toml").write_text('databse_url = "sqlite:///x.db"\n')
    with pytest.raises(ConfigError, match=r"specmill\.toml: unknown key 'databse_url'.*database_url"):
        DatabaseSettings()


def test_a_broken_file_is_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "specmill.toml").write_text('state_dir = "x"\nstate_dir = \n')
    with pytest.raises(ConfigError, match=r"specmill\.toml cannot be read as TOML: .*line 2"):
        DatabaseSettings()


def test_a_wrong_value_is_named_with_its_origin_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specmill.toml").write_text("database_url = 12345\n")
    with pytest.raises(ConfigError, match=r"^specmill\.toml: database_url: .*string") as refused:
        DatabaseSettings()
    assert "12345" not in str(refused.value)

    class Lease(TomlSettings):
        lease_seconds: float = 60

    (tmp_path / "specmill.toml").unlink()
    monkeypatch.setenv("SPECMILL_LEASE_SECONDS", "a minute")
    with pytest.raises(ConfigError, match=r"^SPECMILL_LEASE_SECONDS: .*valid number"):
        Lease()


def test_keys_of_other_rooms_are_left_to_them(tmp_path: Path) -> None:
    (tmp_path / "specmill.toml").write_text('default_pair = "mine"\n[pairs.mine]\ngamma = 3\n')
    assert DatabaseSettings().database_url is None


def test_a_room_cannot_add_a_key_that_the_file_check_would_refuse() -> None:
    assert "brand_new" not in TOML_KEYS
    with pytest.raises(TypeError, match="brand_new"):

        class _Room(TomlSettings):
            brand_new: int = 1
