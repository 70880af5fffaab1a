"""`submit --no-wait` with nothing configured: real processes that finish by themselves, and are gone then."""

import os
import subprocess
import sys
from pathlib import Path

from db.connect import connect, reading
from db.reports import progress
from tests.producer.test_local_process import until

PRODUCER = Path(sys.executable).with_name("producer")


def test_the_work_goes_on_in_the_background_until_the_batch_has_ended(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Say hello.")
    submit = [PRODUCER, "submit", "a.txt", "--max-tokens", "2", "--no-wait"]
    done = subprocess.run(
        submit,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    batch_id = done.stdout.strip()
    assert f"until the batch has ended: producer watch {batch_id}" in done.stderr
    state = tmp_path / "state"
    assert list((state / "local").glob("worker-*.lock"))

    watched = subprocess.run(
        [PRODUCER, "watch", batch_id], capture_output=True, text=True, timeout=120, check=False
    )

    assert watched.returncode == 0, watched.stderr
    with reading(connect(f"sqlite:///{state / 'specmill.db'}")) as conn:
        assert progress(conn, batch_id).prompts["succeeded"] == 1
    until(
        lambda: not list((state / "local").glob("*.sock")) and not list((state / "local").glob("worker-*")),
        30,
    )
