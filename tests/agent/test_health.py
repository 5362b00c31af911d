"""A device is fit for new shares unless a fault says otherwise, and for no longer than the fault lasts."""

import pytest

from tessera.agent.health import FaultBook, decode_fatal, encode_fatal, overridden, why_unfit
from tessera.core.errors import InputErrors
from tessera.vendors.faults import FaultClass
from tessera.vendors.nvidia_xid import UNKNOWN, XIDS


def a_book():
    return FaultBook(XIDS, UNKNOWN, quiet=30)


# Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (Ampere and newer), immediate actions by code.
ACTIONS = {
    "RESTART_APP": [8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86,
                    88, 89, 94, *range(96, 106), *range(126, 136), 139],
    "IGNORE": [37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161],
    "RESET_GPU": [46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158],
    "RESTART_BM": [79],
    "RESTART_VM": [151],
    "a workflow that may end in a reset": [48, 74, 144, 145, 146, 149, 150],
    "a workflow that never does": [45, 147, 148, 154],
    "a person's look": [54, 78, 142, 159],
    "unused, or none": [1, 12, 61, 65, 81, 90, 111, 125, 138, 162, 167, 172],
}  # fmt: skip
MEANING = {
    "RESTART_APP": "application",
    "IGNORE": "application",
    "RESET_GPU": "fatal",
    "RESTART_BM": "fatal",
    "RESTART_VM": "fatal",
    "a workflow that may end in a reset": "fatal",
    "a workflow that never does": "application",
    "a person's look": "transient",
    "unused, or none": "transient",
}
CLASSES = {code: MEANING[action] for action, codes in ACTIONS.items() for code in codes}


@pytest.mark.parametrize("code", CLASSES)
def test_the_table_agrees_with_the_catalogue(code):
    """Row 64."""
    assert a_book().row(code).kind == CLASSES[code]


def test_no_code_has_a_row_that_the_catalogue_gives_no_action():
    assert {row.code for row in XIDS} == CLASSES.keys() - set(ACTIONS["unused, or none"])


def test_every_code_has_one_row_with_a_reason_and_a_remedy():
    assert len({row.code for row in XIDS}) == len(XIDS)
    assert all(row.what and row.remedy for row in (*XIDS, UNKNOWN))


@pytest.mark.parametrize("code", [code for code, kind in CLASSES.items() if kind == "application"])
def test_a_programs_own_fault_leaves_the_device_in_use(code):
    """Row 63: one XID 31, and the device stays unhealthy until somebody restarts the plugin."""
    book = a_book()
    book.report("GPU-a", code, 100)
    assert book.reasons(100) == {}


def test_a_transient_fault_is_forgotten_after_a_quiet_period():
    book = a_book()
    book.report("GPU-a", 54, 100)
    assert "XID 54" in book.reasons(129.9)["GPU-a"]
    book.report("GPU-a", 54, 120)
    assert "GPU-a" in book.reasons(149.9)
    assert book.reasons(150) == {}


def test_a_fatal_fault_stays_and_is_told_first():
    book = a_book()
    book.report("GPU-a", 54, 100)
    book.report("GPU-a", 79, 100)
    assert book.reasons(1e9)["GPU-a"].startswith("XID 79: the device has fallen off the bus; ")


def test_faults_of_one_device_are_no_others():
    book = a_book()
    book.report("GPU-a", 79, 100)
    assert set(book.reasons(100)) == {"GPU-a"}


def test_an_unknown_code_sets_the_device_aside_for_a_while():
    book = a_book()
    book.report("GPU-a", 9999, 100)
    assert "XID 9999: a code that this version does not know" in book.reasons(100)["GPU-a"]
    assert book.reasons(131) == {}


def test_users_may_change_the_table():
    table = overridden(XIDS, UNKNOWN, b'{"94": {"class": "fatal"}, "7": {"class": "application"}}', "xid.json")
    book = FaultBook(table, UNKNOWN)
    assert book.row(94).kind is FaultClass.FATAL
    assert book.row(94).what == next(row.what for row in XIDS if row.code == 94)
    assert book.row(7).kind is FaultClass.APPLICATION
    assert book.row(95).kind is FaultClass.FATAL


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"x": {"class": "fatal"}}', b'{"94": {"class": "bad"}}', b'{"94": {"clas": "fatal"}}']
)
def test_a_wrong_table_is_refused_with_its_name(text):
    with pytest.raises(InputErrors, match=r"xid\.json: is no table of codes"):
        overridden(XIDS, UNKNOWN, text, "xid.json")


def test_fatal_faults_outlive_an_agent_and_not_a_restart_of_the_machine():
    book = a_book()
    for code in (54, 79, 48):
        book.report("GPU-a", code, 1)
    data = encode_fatal("boot-1", book.fatal())
    assert decode_fatal(data, "boot-1") == (("GPU-a", 48), ("GPU-a", 79))
    assert decode_fatal(data, "boot-2") == ()
    assert decode_fatal(b"{", "boot-1") == ()


def test_a_device_that_cannot_be_read_is_not_fit_whatever_it_reported():
    assert why_unfit("GPU-a", {"GPU-a": "XID 54"}, {"GPU-a": "lost"}) == "lost"
    assert why_unfit("GPU-a", {}, {}) == ""
