"""Shares and limiters on disk: whole or not at all, kept as they are, gone when nobody needs them."""

import ctypes
import os
import shutil

import pytest

from agent.world import a_container_grant
from tessera.agent.layout import Layout
from tessera.agent.payload import LibraryChecks, install, is_mapped, sweep_versions, versions
from tessera.agent.store import ShareStore, living, read_region
from tessera.core.errors import UnavailableError
from tessera.runtime.native import LIMITER, NATIVE
from tessera.wire.shm import FIELDS, Region

GATE = NATIVE / "tessera-gate"


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "tessera/agent")


@pytest.fixture
def store(layout):
    return ShareStore(layout)


def test_a_share_is_read_as_it_was_written(store, layout):
    grant = a_container_grant()
    share = store.put(grant)
    assert store.find("uid-p", "main") == share
    region = read_region(layout.region("uid-p", "main"))
    assert isinstance(region, Region)
    assert [(d.uuid, d.memory_limit, d.compute_limit_milli) for d in region.devices] == [
        ("GPU-aaaa", 1 << 30, 500)
    ]


def test_a_context_that_cannot_be_measured_costs_what_the_node_was_told(layout):
    share = ShareStore(layout, context_bytes=300 << 20).put(a_container_grant())
    control = FIELDS["region.control"][0] + FIELDS["control.device"][0]
    at, size = FIELDS["device_control.context_bytes"]
    found = share.region.read_bytes()[control + at : control + at + size]
    assert int.from_bytes(found, "little") == 300 << 20


def test_the_same_share_is_found_and_left_alone(store):
    """Allocate is called again for a container that has its share: nobody's region is replaced under it."""
    first = store.put(a_container_grant())
    store.admit(first, "c1")
    inode = first.region.stat().st_ino
    second = store.put(a_container_grant())
    assert (second.region.stat().st_ino, second.gated) == (inode, "c1")


def test_a_share_that_changed_before_anybody_used_it_is_written_anew(store):
    store.put(a_container_grant(memory=512))
    share = store.put(a_container_grant(memory=2048))
    region = read_region(share.region)
    assert isinstance(region, Region)
    assert region.devices[0].memory_limit == 2048 << 20


@pytest.mark.parametrize("damage", [b"", b"TESSERA\0", bytes(1196032)])
def test_a_damaged_region_is_replaced_when_the_kubelet_asks_again(store, damage):
    share = store.put(a_container_grant())
    share.region.write_bytes(damage)
    assert isinstance(read_region(share.region), str)
    assert isinstance(read_region(store.put(a_container_grant()).region), Region)


def test_a_share_without_room_on_the_disk_is_refused_with_the_pod_and_leaves_nothing(store, layout):
    layout.containers.parent.mkdir(parents=True)
    layout.containers.write_text("a file where the directory should be")
    with pytest.raises(UnavailableError, match="share of container main of pod team/p cannot be written"):
        store.put(a_container_grant())


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden"])
def test_what_is_no_name_is_no_path(layout, name):
    with pytest.raises(ValueError, match="is no name"):
        layout.share("uid", name)
    with pytest.raises(ValueError, match="is no name"):
        layout.share(name, "main")


def test_a_pods_shares_go_together(store, layout):
    for container in ("a", "b"):
        store.put(a_container_grant(container=container))
    store.put(a_container_grant(uid="uid-q"))
    store.remove("uid-p")
    assert [share.grant.uid for share in store.shares()] == ["uid-q"]
    assert set(store.pod_directories()) == {"uid-q"}


def test_a_record_that_cannot_be_read_hides_no_other(store, layout):
    store.put(a_container_grant())
    broken = layout.share("uid-x", "main")
    broken.mkdir(parents=True)
    (broken / "share.json").write_text("{")
    assert [share.grant.uid for share in store.shares()] == ["uid-p"]
    with pytest.raises(ValueError, match="is no record of a grant"):
        store.find("uid-x", "main")


def test_nobody_lives_in_a_region_that_is_not_there(tmp_path):
    assert living(tmp_path / "none") == ()


def test_a_limiter_is_installed_once_and_never_touched_again(native, layout):
    """Row 62: a library that is replaced in place ends every process that has it mapped."""
    first = install(layout, LIMITER, GATE)
    inodes = [path.stat().st_ino for path in (first.library, first.preload, first.gate)]
    for _ in range(100):
        again = install(layout, LIMITER, GATE)
    assert [path.stat().st_ino for path in (again.library, again.preload, again.gate)] == inodes
    assert again == first
    assert os.access(first.gate, os.X_OK)


def test_another_version_lies_beside_the_first(native, layout, tmp_path):
    first = install(layout, LIMITER, GATE)
    newer = tmp_path / "libtessera.so"
    shutil.copy(LIMITER, newer)
    with newer.open("ab") as file:
        file.write(b"\0newer")
    second = install(layout, newer, GATE)
    assert second.digest != first.digest
    assert versions(layout) == tuple(sorted((first.digest, second.digest)))
    assert first.library.exists()


def test_only_limiters_that_nobody_wants_or_maps_are_removed(native, layout, tmp_path):
    mapped = install(layout, LIMITER, GATE)
    ctypes.CDLL(str(mapped.library))
    for name in ("wanted", "unused"):
        copy = layout.libraries / name / "libtessera.so"
        copy.parent.mkdir()
        shutil.copy(LIMITER, copy)
    assert is_mapped(mapped.library)
    assert not is_mapped(layout.libraries / "unused/libtessera.so")
    assert sweep_versions(layout, ["wanted"], is_mapped) == ("unused",)
    assert set(versions(layout)) == {"wanted", mapped.digest}


@pytest.mark.parametrize("damage", [b"", b"garbage"])
def test_a_limiter_that_was_changed_on_the_node_is_noticed(native, layout, damage):
    payload = install(layout, LIMITER, GATE)
    checks = LibraryChecks(layout)
    assert checks.fault(payload.digest) == ""
    payload.library.write_bytes(damage)
    assert "was changed" in checks.fault(payload.digest)
    with pytest.raises(UnavailableError, match="is damaged"):
        install(layout, LIMITER, GATE)
    payload.library.unlink()
    assert "No such file" in checks.fault(payload.digest)


def test_a_missing_limiter_or_gate_is_an_error_with_a_remedy(native, layout, tmp_path):
    for library, gate in ((tmp_path / "none.so", GATE), (LIMITER, tmp_path / "none")):
        with pytest.raises(UnavailableError, match="is missing"):
            install(layout, library, gate)
