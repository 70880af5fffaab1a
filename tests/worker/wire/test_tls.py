"""With TLS, broker and database must prove who they are before a password is sent."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trustme
from kombu import pools

from db.connect import connect, reading
from db.errors import DatabaseUnreachable
from tests.servers import free_port, redis_binary
from tests.worker.waiting import until
from worker.wire.app import BrokerUnreachable, check_broker, make_app
from worker.wire.bells import ring, waiting


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A broker that speaks only TLS and wants a password, and its authority's certificate."""
    binary = redis_binary()
    if binary is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server), and Valkey's has no TLS")
    folder, authority, port = tmp_path_factory.mktemp("tls"), trustme.CA(), free_port()
    server = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server.private_key_pem.write_to_path(folder / "key.pem")
    server.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    command = [binary, "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", ""]
    files = {"cert": "cert.pem", "key": "key.pem", "ca-cert": "ca.pem"}
    command += [part for name, file in files.items() for part in (f"--tls-{name}-file", str(folder / file))]
    command += ["--tls-auth-clients", "no", "--requirepass", "hunter2"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        client = redis.Redis(
            host="localhost", port=port, password="hunter2", ssl=True, ssl_ca_certs=str(folder / "ca.pem")
        )

        def answers() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        until(answers, "redis-server answers")
        yield f"rediss://:hunter2@localhost:{port}/0", folder / "ca.pem"
        process.terminate()
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _connect_anew() -> None:
    """Kombu pools connections by their address, however they were verified."""
    pools.reset()


def test_a_broker_whose_authority_is_known_is_rung_through_tls(tls: tuple[str, Path]) -> None:
    url, authority = tls
    trusted = f"{url}?ssl_ca_certs={authority}"
    assert check_broker(trusted) == []
    app = make_app(trusted)
    assert ring(app, "tiny", 3) == 3
    assert waiting(app, "tiny") == 3


def test_a_broker_that_nobody_vouches_for_is_refused(tls: tuple[str, Path]) -> None:
    """Kombu alone would have accepted it."""
    url, _ = tls
    with pytest.raises(BrokerUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        check_broker(url)
    with pytest.raises(BrokerUnreachable, match="CERTIFICATE_VERIFY_FAILED") as caught:
        ring(make_app(url), "tiny", 1)
    assert "hunter2" not in str(caught.value)


def test_a_broker_under_another_name_is_refused(tls: tuple[str, Path]) -> None:
    url, authority = tls
    elsewhere = f"{url.replace('localhost', '127.0.0.1')}?ssl_ca_certs={authority}"
    with pytest.raises(BrokerUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        ring(make_app(elsewhere), "tiny", 1)


def test_who_wants_no_verification_must_say_so(tls: tuple[str, Path]) -> None:
    url, _ = tls
    assert ring(make_app(f"{url}?ssl_cert_reqs=none&ssl_check_hostname=false"), "another", 1) == 1


SSL_REQUEST = bytes.fromhex("0000000804d2162f")


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_a_database_without_tls_is_refused_before_it_is_told_anything(mode: str) -> None:
    """PostgreSQL's own `sslmode`, as part of the URL."""
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            client, _ = server.accept()
            with client:
                heard.extend(client.recv(8))
                client.sendall(b"N")
                while more := client.recv(1024):
                    heard.extend(more)

        thread = threading.Thread(target=refuse)
        thread.start()
        port = server.getsockname()[1]
        url = f"postgresql://me:hunter2@127.0.0.1:{port}/mill?sslmode={mode}&gssencmode=disable"
        with pytest.raises(DatabaseUnreachable, match="SSL") as caught, reading(connect(url)):
            pass
        thread.join(10)
    assert bytes(heard) == SSL_REQUEST
    assert "hunter2" not in str(caught.value)
