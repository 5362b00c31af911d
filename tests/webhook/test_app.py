"""The process put together, in memory but for its sockets: TLS, health, metrics, and how it ends."""

import asyncio
import json
import random
import re
import ssl
from base64 import b64decode
from contextlib import asynccontextmanager

import aiohttp

from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.kube.port import MUTATING_WEBHOOKS
from tessera.runtime.serve import parse_bind
from tessera.runtime.shell import Shell
from tessera.webhook.app import Settings, start
from tessera.webhook.certificate import VALIDATING_WEBHOOKS, Place
from tessera.webhook.profiles import PROFILES
from tessera.wire.kube.webhooks import Target, mutating, validating
from wire.kube.reviews import review_of
from wire.objects import container, pod, served

SHARE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}


def free_binds():
    import socket  # noqa: PLC0415

    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return tuple(parse_bind(f"127.0.0.1:{each.getsockname()[1]}") for each in (one, other))


@asynccontextmanager
async def running():
    """A webhook of one replica: the cluster, two addresses, and a client that trusts what the cluster trusts."""
    cluster = MemoryCluster()
    for kind, made in ((MUTATING_WEBHOOKS, mutating), (VALIDATING_WEBHOOKS, validating)):
        await cluster.create(kind, made(Target()), dict)
    bind, side = free_binds()
    place = Place("tessera-system", "tls", "tessera-webhook")
    settings = Settings(bind, side, place, ("127.0.0.1",), linger=0, chance=random.Random(1))
    shell = Shell()
    await start(shell, cluster, settings)
    found = await cluster.get(MUTATING_WEBHOOKS, "tessera-webhook", dict)
    bundle = b64decode(found["webhooks"][0]["clientConfig"]["caBundle"]).decode()
    tls = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=bundle))
    try:
        async with aiohttp.ClientSession(connector=tls) as http:
            yield cluster, f"https://{bind}", f"http://{side}", http
    finally:
        await shell.end()


async def post(http, url, body):
    async with http.post(f"{url}/v1/pods", data=body) as answer:
        return answer.status, await answer.read()


async def page(http, url):
    async with http.get(url) as answer:
        return answer.status, await answer.text()


def counted(text):
    """How many reviews there were, by dialect and outcome; in an exposition labels come in any order."""
    lines = re.findall(r"^tessera_webhook_reviews_total\{(.*)\} (.*)$", text, re.MULTILINE)
    found = [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in lines]
    return {(labels["dialect"], labels["outcome"]): value for labels, value in found if value}


def test_a_review_is_answered_over_tls_that_the_configuration_trusts_and_is_counted():
    async def scenario():
        async with running() as (_, url, side, http):
            status, body = await post(http, url, review_of(served(pod(container(limits=SHARE)))))
            assert (status, json.loads(body)["response"]["patchType"]) == (200, "JSONPatch")
            wrong = pod(container(limits={"nvidia.com/gpumem-percentage": "120"}))
            status, body = await post(http, url, review_of(wrong))
            assert (status, json.loads(body)["response"]["allowed"]) == (200, False)
            assert (await post(http, url, b"nonsense"))[0] == 400
            assert (await page(http, url))[0] == 405
            _, text = await page(http, f"{side}/metrics")
            assert counted(text) == {("hami", "patched"): 1, ("hami", "denied"): 1, ("", "malformed"): 1}
            assert "tessera_webhook_review_seconds_count 2.0" in text
            assert "tessera_webhook_certificate_expiry_timestamp_seconds 1" in text or "e+09" in text

    asyncio.run(scenario())


def test_it_is_ready_when_the_certificate_is_trusted_and_it_listens():
    async def scenario():
        async with running() as (_, _, side, http):
            for _ in range(100):
                status, text = await page(http, f"{side}/readyz")
                if status == 200:
                    break
                await asyncio.sleep(0.02)  # polls with a deadline
            assert status == 200, text
            assert {line for line in text.splitlines() if line.startswith("[")} == {
                f"[+] {name}: ok" for name in ("certificate", "profiles", "server", "shell")
            }

    asyncio.run(scenario())


def test_a_profile_that_nobody_heard_of_yet_is_looked_up_before_the_pod_is_refused():
    async def scenario():
        async with running() as (cluster, url, _, http):
            named = pod(
                container(),
                labels={"tensor-fusion.ai/enabled": "true"},
                annotations={"tensor-fusion.ai/workload-profile": "new"},
            )
            _, body = await post(http, url, review_of(named))
            assert "names a WorkloadProfile" in json.loads(body)["response"]["status"]["message"]
            profile = {"metadata": {"name": "new"}, "spec": {"resources": {"requests": {"vram": "1Gi"}}}}
            await cluster.create(PROFILES, profile, dict, namespace="team")
            cluster.end_streams()  # whoever watches learns of it later
            _, body = await post(http, url, review_of(named))
            assert json.loads(body)["response"]["allowed"]

    asyncio.run(scenario())
