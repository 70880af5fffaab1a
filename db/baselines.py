"""How fast a pair decodes plainly on a device: what `worker bench` measured last."""

from collections.abc import Mapping

from sqlalchemy import Connection, delete, insert

from db.clock import now
from db.tables import Baseline


def record(
    conn: Connection, pair: str, pair_fingerprint: str, device_name: str, speeds: Mapping[int, float]
) -> None:
    """`speeds`: tokens a second by rows in flight. Those known of the same rows are replaced."""
    time = now(conn)
    same = (Baseline.pair_fingerprint == pair_fingerprint, Baseline.device_name == device_name)
    conn.execute(delete(Baseline).where(*same, Baseline.rows_in_flight.in_(speeds)))
    rows = [
        {
            "pair": pair,
            "pair_fingerprint": pair_fingerprint,
            "device_name": device_name,
            "rows_in_flight": rows_in_flight,
            "tokens_per_second": speed,
            "measured_at": time,
        }
        for rows_in_flight, speed in speeds.items()
    ]
    conn.execute(insert(Baseline), rows)
