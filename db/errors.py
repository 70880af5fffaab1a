"""What can be wrong with the database, said to a person: each message tells what happened and what to do."""


class DatabaseError(Exception):
    """Base of the errors whose text is meant for the user. Passwords never appear in it."""


class DatabaseUnreachable(DatabaseError):
    """The server is away, the file cannot be opened or written, or another process holds it locked."""


class SchemaMismatch(DatabaseError):
    """The database has no tables, older ones or newer ones than this version of Specmill."""


class UnknownBatch(DatabaseError):
    """No batch, or more than one, has that id, name or prefix."""


class BatchInUse(DatabaseError):
    """Other batches reuse this one's results."""


class ActionRefused(DatabaseError):
    """What is asked for cannot be done to a batch in this state."""


class PairConflict(DatabaseError):
    """A live worker or an open batch means another pair by the same name."""


class ConfigError(Exception):
    """specmill.toml or an environment variable cannot be used: which one, and why."""
