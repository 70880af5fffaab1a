"""Settings of the wire: the broker, the lease, and the pairs this host knows by name."""

from typing import Annotated

from pydantic import Field, SecretStr

from db.settings import TomlSettings
from worker.wire.declaration import PairName, PairSettings


class WireSettings(TomlSettings):
    """Read from SPECMILL_* and specmill.toml, once, at the edge."""

    broker_url: SecretStr | None = None  # none: the producer brings up an embedded broker
    lease_seconds: Annotated[float, Field(gt=0)] = 60.0  # a silent worker's prompts return after this
    default_pair: str = "smollm2"
    pairs: dict[PairName, PairSettings] = {}  # noqa: RUF012 (pydantic copies the default)
