"""The harness's JSON client, against a server of a few lines."""

import socket
import threading
from contextlib import closing

import pytest

from cluster.engine.api import Api, ApiFailure

OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{"n": %d}'
REFUSED = b"HTTP/1.1 409 Conflict\r\nContent-Length: 5\r\n\r\ntaken"


def serve(*answers):
    """A server that ends each connection after one answer without saying so, as one does with an idle client."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = [threading.Event() for _ in answers]

    def run():
        with listener:
            for answer, event in zip(answers, ended, strict=True):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
                event.set()

    thread = threading.Thread(target=run)
    thread.start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", ended, thread


def test_a_connection_that_the_server_ended_while_idle_is_replaced():
    server, ended, thread = serve(OK % 1, OK % 2)
    with closing(Api(server, None, None)) as api:
        assert api.get("/") == {"n": 1}
        assert ended[0].wait(10)
        assert api.get("/") == {"n": 2}
    thread.join(10)


def test_a_refusal_carries_the_status_and_the_body_unless_it_is_accepted():
    server, ended, thread = serve(REFUSED, REFUSED)
    with closing(Api(server, None, None)) as api:
        with pytest.raises(ApiFailure, match="POST /x: 409 taken") as refused:
            api.post("/x", {})
        assert refused.value.code == 409
        assert ended[0].wait(10)
        assert api.call("POST", "/x", {}, accepts=(409,)) == "taken"
    thread.join(10)


def test_a_server_that_is_away_is_an_os_error_and_answers_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with closing(Api(f"http://127.0.0.1:{port}", None, None)) as api:
        with pytest.raises(OSError, match=f"GET http://127.0.0.1:{port}/x"):
            api.get("/x")
        assert not api.answers("/x")
