"""What the gate lets through: exactly the container that the share was granted to, seeing exactly that share."""

from dataclasses import replace

import pytest

from agent.world import UUID, a_container_grant
from tessera.agent.store import limits_of, read_region
from tessera.agent.verdict import Expected, Observed, refusal_of
from tessera.runtime.native import create_region
from tessera.wire.kubelet.oci import Identity, OciConfig, OciDevice, OciLinux, OciMount, OciProcess

WHO = Identity("uid-p", "team", "p", "main")
GRANT = a_container_grant()
EXPECTED = Expected(GRANT, "/s/region", "/l/feed/libtessera.so", "/l/feed/ld.so.preload", frozenset({"/dev/gpu0"}))
MOUNTS = (
    OciMount("/proc", "proc", "proc"),
    OciMount("/etc/ld.so.preload", "/l/feed/ld.so.preload", "bind"),
    OciMount("/run/tessera/region", "/s/region", "bind"),
    OciMount("/run/tessera/lib/feed/libtessera.so", "/l/feed/libtessera.so", "bind"),
)
ENVIRONMENT = ("PATH=/bin", f"TESSERA_DEVICE_0={UUID}")
DEVICES = (OciDevice("/dev/null"), OciDevice("/dev/gpu0"))


def a_config(mounts=MOUNTS, environment=ENVIRONMENT, devices=DEVICES):
    return OciConfig(OciProcess(environment), mounts, OciLinux(devices))


@pytest.fixture
def seen(native, tmp_path):
    create_region(tmp_path / "region", "uid-p/main", limits_of(GRANT))
    region = read_region(tmp_path / "region")
    assert not isinstance(region, str)
    owners = {"/s/other": "container main of pod team/q"}
    return Observed(region, "", {UUID: 1024}, owners, frozenset({"/dev/gpu0", "/dev/gpu1"}))


def test_the_container_that_was_granted_the_share_starts(seen):
    assert refusal_of(WHO, a_config(), EXPECTED, seen) == ""


def test_a_pod_that_the_watch_has_not_shown_starts_by_what_lies_on_disk(seen):
    assert refusal_of(WHO, a_config(), EXPECTED, replace(seen, allocated=None)) == ""


def changed(index, **facts):
    mount = MOUNTS[index]
    facts = {"destination": mount.destination, "source": mount.source, "type": mount.type, **facts}
    return (*MOUNTS[:index], OciMount(**facts), *MOUNTS[index + 1 :])


SHADOWED = {
    "the share of another container": (
        changed(2, source="/s/other"),
        "given the share of container main of pod team/q",
    ),
    "no region": (MOUNTS[:2] + MOUNTS[3:], "nothing is mounted at /run/tessera/region"),
    "another library": (changed(3, source="/tmp/x"), "/tmp/x is mounted at"),
    "no preload": (changed(1, source="/dev/null"), "/dev/null is mounted at /etc/ld.so.preload"),
    "a volume over the region": (
        (*MOUNTS, OciMount("/run/tessera", "/v", "bind")),
        "/v is mounted at /run/tessera",
    ),
    "a volume over /etc": ((*MOUNTS, OciMount("/etc", "/v", "bind")), "/v is mounted at /etc"),
    "a temporary file system over /run": ((*MOUNTS, OciMount("/run", "", "tmpfs")), "tmpfs is mounted at /run"),
}


@pytest.mark.parametrize("name", SHADOWED)
def test_whatever_lies_over_region_limiter_or_preload_is_refused(seen, name):
    mounts, why = SHADOWED[name]
    assert why in refusal_of(WHO, a_config(mounts), EXPECTED, seen)


def test_a_volume_below_is_no_harm(seen):
    mounts = (OciMount("/run", "", "tmpfs"), *MOUNTS, OciMount("/run/tessera/regions", "/v", "bind"))
    assert refusal_of(WHO, a_config(mounts), EXPECTED, seen) == ""


def test_another_containers_grant_never_passes(seen):
    for who in (replace(WHO, uid="uid-q"), replace(WHO, container="side")):
        assert "its share was granted to container main of pod team/p" in refusal_of(
            who, a_config(), EXPECTED, seen
        )


def test_a_container_without_a_grant_is_refused_and_told_whose_share_it_has(seen):
    mounts = changed(2, source="/s/other")
    why = refusal_of(WHO, a_config(mounts), None, seen)
    assert "no share was granted to it; it was given the share of container main of pod team/q" in why


@pytest.mark.parametrize("memory", [512, 1025])
def test_a_region_with_another_limit_than_granted_is_refused(seen, memory):
    expected = replace(EXPECTED, grant=a_container_grant(memory=memory))
    why = refusal_of(WHO, a_config(), expected, replace(seen, allocated={UUID: memory}))
    assert f"the region allows 1073741824 bytes of {UUID}, not {memory * 1024 * 1024}" in why


def test_a_grant_unlike_the_pods_allocation_is_refused(seen):
    why = refusal_of(WHO, a_config(), EXPECTED, replace(seen, allocated={UUID: 2048}))
    assert f"allocation says {UUID} (2048 MiB), its share is {UUID} (1024 MiB)" in why
    assert "allocation says nothing" in refusal_of(WHO, a_config(), EXPECTED, replace(seen, allocated={}))


def test_a_damaged_region_is_refused(seen):
    why = refusal_of(WHO, a_config(), EXPECTED, replace(seen, region="/s/region: the region's header is damaged"))
    assert "cannot be enforced: /s/region: the region's header is damaged" in why


def test_a_changed_limiter_is_refused(seen):
    assert "/l was changed" in refusal_of(WHO, a_config(), EXPECTED, replace(seen, library="/l was changed"))


DEVICES_WRONG = {
    "another device": (("TESSERA_DEVICE_1=GPU-b",), DEVICES, "it has the devices GPU-b, granted are GPU-aaaa"),
    "one more device": ((*ENVIRONMENT, "TESSERA_DEVICE_1=GPU-b"), DEVICES, "GPU-aaaa, GPU-b, granted are GPU-a"),
    "no device": ((), DEVICES, "it has the devices none"),
    "every node, as a privileged container has": (
        ENVIRONMENT, (*DEVICES, OciDevice("/dev/gpu1")), "/dev/gpu1 of other shares; a container with a share",
    ),
    "no node": (ENVIRONMENT, DEVICES[:1], "/dev/gpu0 of its device is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEVICES_WRONG)
def test_devices_that_were_not_granted_are_refused(seen, name):
    environment, devices, why = DEVICES_WRONG[name]
    assert why in refusal_of(WHO, a_config(environment=environment, devices=devices), EXPECTED, seen)
