"""The servers of the tests themselves."""

import os
import stat
from pathlib import Path

import psutil
import redis
from sqlalchemy import Engine, text

from db.connect import reading
from tests import servers


def test_valkey_listens_on_its_socket_only_and_is_gone_afterwards() -> None:
    with servers.run_valkey() as url:
        path = Path(url.removeprefix("redis+socket://"))
        assert stat.S_ISSOCK(path.stat().st_mode)
        with redis.Redis(unix_socket_path=str(path)) as client:
            assert client.config_get("port") == {"port": "0"}
            process = psutil.Process(int(client.info("server")["process_id"]))
        assert os.getsid(process.pid) != os.getsid(0)
    assert not process.is_running()
    assert not path.parent.exists()


def test_each_test_has_a_database_of_its_own_with_tables(database: Engine) -> None:
    with reading(database) as conn:
        assert conn.execute(text("SELECT count(*) FROM prompts")).scalar_one() == 0
