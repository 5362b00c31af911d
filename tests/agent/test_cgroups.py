"""Pod and container of a process, from every way in which cgroups are written."""

import pytest

from agent.tree import Tree
from tessera.agent.cgroups import CgroupTree, Placement, bare_id, is_populated, parse_cgroup, unified_path

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


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/kubepods/a\n", "/kubepods/a"),
        ("12:cpu,cpuacct:/x\n1:name=systemd:/y\n0::/z\n", "/z"),
        ("0::/../../init.scope\n", "/../../init.scope"),
        ("0::/with:colons:in it\n", "/with:colons:in it"),
        ("12:cpu:/x\n", None),
        ("0::\n", None),
        ("", None),
    ],
)
def test_the_path_of_cgroup_v2_is_read_beside_whatever_other_trees(text, path):
    """kai 3.7: a parser that wants three fields of the whole file fails where both versions are mounted."""
    assert unified_path(text) == path


def a_tree(tmp_path, pid_path, **own):
    """A tree whose process 7 says that it is at a path."""
    tree = Tree(tmp_path / "cgroup")
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text(f"0::{pid_path}\n")
    return tree, CgroupTree(tree.root, proc=tmp_path / "proc", **own)


@pytest.mark.parametrize("below", [(), ("container",), ("a", "b")])
def test_a_containers_cgroup_is_the_topmost_of_its_name_whatever_runtimes_add_below(tmp_path, below):
    """Who is exec'd into the container later may be put beside its first process, and is bound all the same."""
    names = ("kubepods.slice", "kubepods-pod1.slice", f"crio-{ID}.scope")
    tree, found = a_tree(tmp_path, "/" + "/".join((*names, *below)))
    tree.group(*names, *below)
    assert found.group_of(7, ID) == tree.root.joinpath(*names)


def test_a_cgroup_that_is_not_named_after_its_container_is_the_processs_own(tmp_path):
    tree, found = a_tree(tmp_path, "/machine/x")
    group = tree.group("machine", "x")
    assert found.group_of(7, ID) == found.group_of(7, "") == group


@pytest.mark.parametrize("path", ["/", "/gone", "/../../elsewhere", "/../cgroup-of-others"])
def test_what_is_no_cgroup_of_its_own_below_the_root_is_none(tmp_path, path):
    _, found = a_tree(tmp_path, path)
    (tmp_path / "cgroup-of-others").mkdir()
    assert found.group_of(7, ID) is None
    assert found.group_of(8, ID) is None, "a process that is gone"


def test_paths_told_inside_a_cgroup_namespace_of_our_own_are_found_from_where_we_are(tmp_path):
    """An agent that is not privileged has one: its own cgroup is the root of what it is told."""
    tree, _ = a_tree(tmp_path, "/../../pod2/c")
    agent, tenant = tree.group("kubepods", "pod1", "agent"), tree.group("kubepods", "pod2", "c")
    found = CgroupTree(tree.root, own_tree=agent, proc=tmp_path / "proc")
    assert found.group_of(7, "") == tenant


def test_a_cgroup_is_populated_until_the_kernel_says_that_it_is_not(tmp_path):
    tree = Tree(tmp_path / "cgroup")
    group = tree.group("a")
    assert is_populated(group)
    tree.populate(group, populated=False)
    assert not is_populated(group)
    (group / "cgroup.events").unlink()
    assert is_populated(group)
    tree.remove(group)
    with pytest.raises(FileNotFoundError):
        is_populated(group)
