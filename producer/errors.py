"""Errors whose message is for the person. Whatever else is raised is a bug, and shows as one."""

import sys


class ProducerError(Exception):
    """Something the user can mend; the message says what happened and what to do."""


def message_for(error: BaseException) -> str | None:
    """The message of an error that is meant for the user; None for a bug."""
    return str(error) if isinstance(error, _user_errors()) else None


def _user_errors() -> tuple[type[BaseException], ...]:
    from db.errors import ConfigError, DatabaseError

    errors: list[type[BaseException]] = [ProducerError, ConfigError, DatabaseError]
    # Imported by whoever raised it; not imported for an error that it cannot have raised.
    for module, name in (
        ("producer.inputs.item", "InputError"),
        ("worker.wire.app", "BrokerError"),
        ("worker.wire.pairs", "UnknownPair"),
    ):
        if module in sys.modules:
            errors.append(getattr(sys.modules[module], name))
    return tuple(errors)
