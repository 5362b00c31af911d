"""Pod and container of a process, from every way in which cgroups are written."""

import pytest

from tessera.agent.cgroups import Placement, bare_id, parse_cgroup

UID = "0f1d7d3e-57b1-4c61-9c4d-0e7d7a0c1b2a"
ID = "4f" * 32

LINES = {
    "cgroupfs v2": f"0::/kubepods/burstable/pod{UID}/{ID}\n",
    "cgroupfs v2, guaranteed": f"0::/kubepods/pod{UID}/{ID}\n",
    "hybrid": f"12:cpu,cpuacct:/kubepods/pod{UID}/{ID}\n1:name=systemd:/x\n0::/kubepods/pod{UID}/{ID}\n",
    "systemd, containerd": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
        f"cri-containerd-{ID}.scope\n"
    ),
    "systemd, CRI-O": (
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope\n"
    ),
    "a level below": f"0::/kubepods/pod{UID}/{ID}/nested/more\n",
    "crun's own level": (
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope/container\n"
    ),
    "below a host's own slice": f"0::/docker/{'ab' * 32}/kubepods/burstable/pod{UID}/{ID}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_pod_and_container_are_read(name):
    assert parse_cgroup(LINES[name]) == Placement(UID, ID)


def test_a_process_of_the_pods_own_cgroup_has_no_container():
    assert parse_cgroup(f"0::/kubepods/pod{UID}\n") == Placement(UID, "")


def test_a_static_pods_uid_has_no_dashes():
    assert parse_cgroup(f"0::/kubepods/pod{'ab' * 16}/{ID}\n") == Placement("ab" * 16, ID)


@pytest.mark.parametrize(
    "text", ["", "0::/\n", "0::/system.slice/sshd.service\n", f"0::/docker/{ID}\n", "garbage"]
)
def test_everybody_else_is_of_no_pod(text):
    assert parse_cgroup(text) is None


def test_a_container_id_is_compared_without_its_runtime():
    assert [bare_id(text) for text in ("containerd://abc", "cri-o://abc", "abc", "")] == ["abc", "abc", "abc", ""]
