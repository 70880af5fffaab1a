"""Database drivers' errors, told to a person."""

import os
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from db.errors import DatabaseError, DatabaseUnreachable, SchemaMismatch

NO_TABLES = "has no Specmill tables. Create them: producer db upgrade"


def describe(url: str | URL) -> str:
    """The URL with its password hidden, wherever it stands in it."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return "the database"
    if "password" in parsed.query:
        parsed = parsed.update_query_dict({"password": "***"})
    return parsed.render_as_string(hide_password=True)


def explain(error: DBAPIError, url: URL) -> DatabaseError | None:
    """What to tell the user where the database cannot be used; None for what is a bug of ours."""
    reason = str(error.orig).strip()
    if url.get_backend_name() == "sqlite":
        return _explain_sqlite(reason, Path(url.database or "."))
    return _explain_postgres(error, reason, describe(url))


def _explain_sqlite(reason: str, path: Path) -> DatabaseError | None:
    if reason.startswith("no such table"):
        return SchemaMismatch(f"The database {path} {NO_TABLES}")
    if "unable to open database file" in reason:
        if not path.parent.is_dir():
            return DatabaseUnreachable(
                f"The folder {path.parent} of the database does not exist. Create it first."
            )
        if path.is_dir():
            return DatabaseUnreachable(f"{path} is a folder; expected a SQLite file.")
        return DatabaseUnreachable(
            f"The database {path} cannot be opened: no permission to write in {path.parent}. "
            "Allow it, or name another folder with SPECMILL_STATE_DIR."
        )
    if "readonly database" in reason:
        what = path if path.exists() and not os.access(path, os.W_OK) else path.parent
        return DatabaseUnreachable(
            f"The database {path} cannot be written: {what} is read-only. Allow writing, or name "
            "another folder with SPECMILL_STATE_DIR."
        )
    if "locked" in reason or "busy" in reason:
        return DatabaseUnreachable(
            f"The database {path} stayed locked by another process. "
            "Find out which one holds it, or try again."
        )
    if "file is not a database" in reason or "malformed" in reason:
        return DatabaseUnreachable(f"{path} is not a SQLite database. Move it away or name another file.")
    if "disk is full" in reason or "disk I/O error" in reason:
        return DatabaseUnreachable(f"The database {path} cannot be written: {reason}. Look at the disk.")
    return None


def _explain_postgres(error: DBAPIError, reason: str, place: str) -> DatabaseError | None:
    first_line = reason.splitlines()[0] if reason else "no reason given"
    state = getattr(error.orig, "sqlstate", None)
    if state == "42P01":  # undefined_table
        return SchemaMismatch(f"The database {place} {NO_TABLES}")
    if state in {"25006", "42501"}:  # read_only_sql_transaction, insufficient_privilege
        return DatabaseUnreachable(
            f"{place} does not let us write: {first_line}. Use another role or server."
        )
    if "password authentication failed" in reason or "no password supplied" in reason:
        return DatabaseUnreachable(f"{place} refused the login: {first_line}. Correct SPECMILL_DATABASE_URL.")
    if error.connection_invalidated or _would_not_serve(error):
        return DatabaseUnreachable(
            f"{place} cannot be reached: {first_line}. Is the server running and SPECMILL_DATABASE_URL right?"
        )
    return None


def _would_not_serve(error: DBAPIError) -> bool:
    """No SQL state: no server answered. Classes 08, 28, 3D, 53 and 57P: one did, and refused."""
    if type(error.orig).__name__ not in {"OperationalError", "ConnectionTimeout", "AdminShutdown"}:
        return False
    state: str | None = getattr(error.orig, "sqlstate", None)
    return state is None or state[:2] in {"08", "28", "3D", "53"} or state.startswith("57P")
