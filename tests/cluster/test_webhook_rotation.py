"""The webhook under load while its certificate, its authority and its replicas are replaced: no pod may notice."""

import asyncio
import base64
import json
import os
import signal
import socket
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from cluster.engine.nodes import open_session
from cluster.engine.plane import ControlPlane, Options
from cluster.engine.ports import free_port
from cluster.engine.service import Service, wait_until
from cluster.webhook_objects import SHARE, pod
from cluster.webhook_process import Webhook, install
from tessera.wire.kube.request import decode_request

MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tessera-webhook"
PER_TENTH = 10
"""Pods in a tenth of a second: 100 a second."""
MOST_WAITING = 50
"""Where the machine cannot keep up, the rate falls; a queue without end would measure the machine."""


@pytest.fixture
def plane(engine, tmp_path_factory):
    """A control plane of one test, without a scheduler."""
    with ControlPlane(
        tmp_path_factory.mktemp("rotation-plane"), Options(scheduler=False, controller_manager=False)
    ) as plane:
        plane.new_namespace("team")
        yield plane


class Load:
    """Pods of ours created at a steady rate, and what failed of them."""

    def __init__(self, plane):
        self.plane = plane
        self.created = 0
        self.failures = []

    async def run(self, until):
        """Create pods until ``until()``, which is asked ten times a second."""
        async with open_session(self.plane) as session:
            waiting = set()
            while not until():
                room = MOST_WAITING - len(waiting)
                waiting |= {asyncio.create_task(self._create(session)) for _ in range(min(room, PER_TENTH))}
                await asyncio.sleep(0.1)  # the rate, not a wait for anything
                waiting = {task for task in waiting if not task.done()}
            await asyncio.gather(*waiting)

    async def _create(self, session):
        self.created += 1
        try:
            await session.call("POST", "/api/v1/namespaces/team/pods", pod(f"p{self.created}", limits=SHARE))
        except (AssertionError, OSError) as error:
            self.failures.append(str(error)[:300])


def a_service(plane, folder, *replicas) -> int:
    """What a Service is to the API server: one port, and each connection to a replica that is ready; the port."""
    port = free_port()
    pairs = [f"{replica.port}:{replica.metrics_port}" for replica in replicas]
    script = Path(__file__).with_name("service_proxy.py")

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    command = [sys.executable, str(script), str(port), *pairs]
    plane.add_service(Service("service", command, folder / "service.log", ready=listens)).start()
    return port


def bundle_of(plane):
    return base64.b64decode(plane.api.get(MUTATING)["webhooks"][0]["clientConfig"]["caBundle"])


def served_by(port, bundle):
    """The certificate of a new handshake, which must verify against ``bundle`` (PEM)."""
    context = ssl.create_default_context(cadata=bundle.decode())
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        return wrapped.getpeercert(binary_form=True)


def test_row_60_certificates_and_authorities_change_under_100_pods_a_second_and_no_admission_fails(
    plane, tmp_path
):
    flags = (
        "--authority-lifetime",
        "36",
        "--certificate-lifetime",
        "12",
        "--authority-notice",
        "3",
        "--linger",
        "0",
    )
    replica = Webhook(plane, tmp_path, *flags)
    install(plane, replica.url)
    replica.start()
    leaves, trusted, broken = set(), set(), []

    def turned_over() -> bool:
        """Whether a second authority signs; each time a new client, with the trust of now, shakes hands."""
        bundle = bundle_of(plane)
        trusted.add(len(x509.load_pem_x509_certificates(bundle)))
        try:
            leaves.add(served_by(replica.port, bundle))
        except OSError as error:
            broken.append(str(error))
        return len({x509.load_der_x509_certificate(leaf).issuer for leaf in leaves}) == 2

    load = Load(plane)
    asyncio.run(asyncio.wait_for(load.run(turned_over), 90))
    assert load.failures == []
    assert broken == []
    assert len(leaves) >= 3
    assert trusted == {1, 2}  # the second authority was trusted beside the first before it signed
    assert load.created >= 500
    pods = plane.api.get("/api/v1/namespaces/team/pods")["items"]
    assert len(pods) == load.created
    assert all("tessera.dev/request" in one["metadata"]["annotations"] for one in pods)


def test_row_61_a_replica_that_ends_hands_over_without_a_failed_admission_and_a_killed_one_is_replaced(
    plane, tmp_path
):
    first = Webhook(plane, tmp_path, "--linger", "4", name="first")
    second = Webhook(plane, tmp_path, "--linger", "4", name="second")
    install(plane, f"https://127.0.0.1:{a_service(plane, tmp_path, first, second)}")
    first.start()
    second.start()
    rounds = iter(range(70))

    def after_a_while() -> bool:
        """The first replica is asked to end after a second; the load goes on until after its end."""
        place = next(rounds)
        if place == 10:
            os.kill(first.service.pid, signal.SIGTERM)
        return place == 69

    load = Load(plane)
    asyncio.run(load.run(after_a_while))
    assert not first.service.alive
    assert load.failures == []
    assert load.created >= 200
    second.service.kill()
    first.service.start()
    wait_until(lambda: passes(plane), "the other replica to answer", 15)


def passes(plane):
    status = plane.api.call(
        "POST",
        "/api/v1/namespaces/team/pods?dryRun=All",
        pod("again", limits=SHARE),
        accepts=(201, 400, 403, 422, 500),
    )
    return status["kind"] == "Pod"


# reinvocation


class Meddler(BaseHTTPRequestHandler):
    """A webhook of somebody else, which runs after ours and adds a container that asks for a share."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        added = {"name": "late", "image": "none", "resources": {"limits": SHARE, "requests": SHARE}}
        there = [c["name"] for c in asked["request"]["object"]["spec"]["containers"]]
        patch = [] if "late" in there else [{"op": "add", "path": "/spec/containers/-", "value": added}]
        response = {
            "uid": asked["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
        }
        body = json.dumps({**{k: asked[k] for k in ("apiVersion", "kind")}, "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_container_that_another_webhook_adds_after_us_is_seen_by_a_second_review(plane, tmp_path):
    replica = Webhook(plane, tmp_path, "--linger", "0")
    install(plane, replica.url)
    replica.start()
    pair = plane.authority.server("meddler", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Meddler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "zz-after-ours"},
            "webhooks": [
                {
                    "name": "after.ours.example",
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "clientConfig": {
                        "url": f"https://127.0.0.1:{server.server_address[1]}/",
                        "caBundle": base64.b64encode(plane.authority.certificate.read_bytes()).decode(),
                    },
                    "rules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                    ],
                }
            ],
        }
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(configuration))
        names, made = iter(range(1000)), []

        def meddled() -> bool:
            made.append(plane.api.post("/api/v1/namespaces/team/pods", pod(f"m{next(names)}", limits=SHARE)))
            return len(made[-1]["spec"]["containers"]) == 2

        wait_until(meddled, "the other webhook to be asked", 15)
    finally:
        server.shutdown()
        server.server_close()
    stored = made[-1]
    request, _ = decode_request(stored["metadata"]["annotations"]["tessera.dev/request"])
    assert [claim.containers for claim in request.claims] == [("main",), ("late",)]
    held = [
        [(n, q) for n, q in c["resources"]["limits"].items() if n.startswith("tessera.dev/ticket-")]
        for c in stored["spec"]["containers"]
    ]
    assert [len(names) for names in held] == [1, 1]
    assert held[0] != held[1]
