"""Log lines: their form, and what never stands in one."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tessera.runtime.log import REDACTED, _Direct, configure, logger, scrub


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Leaves the process's logging as it was found."""
    root = logging.getLogger()
    tessera = logging.getLogger("tessera")
    kept = (root.handlers[:], root.level, tessera.level, logging.logThreads, logging.logProcesses)
    flags = (logging.logMultiprocessing, logging._srcfile)
    direct = _Direct.current
    yield
    _Direct.current = direct
    root.handlers[:], level, own, logging.logThreads, logging.logProcesses = kept
    root.setLevel(level)
    tessera.setLevel(own)
    logging.logMultiprocessing, logging._srcfile = flags
    logging.captureWarnings(capture=False)


def lines(level: str = "info", *, human: bool = False) -> io.StringIO:
    stream = io.StringIO()
    configure(level, human=human, stream=stream)
    return stream


def test_a_line_is_one_json_object_with_time_level_logger_message_and_fields() -> None:
    out = lines()
    logger("scheduler").info("placed", pod="team/a", devices=("GPU-1", "GPU-2"))
    line = json.loads(out.getvalue())
    assert out.getvalue().count("\n") == 1
    assert list(line)[:4] == ["time", "level", "logger", "message"]
    assert (line["level"], line["logger"], line["message"]) == ("info", "scheduler", "placed")
    assert (line["pod"], line["devices"]) == ("team/a", ["GPU-1", "GPU-2"])


def test_time_is_rfc_3339_in_utc_with_milliseconds() -> None:
    out = lines()
    record = logging.makeLogRecord({"name": "tessera.x", "levelname": "INFO", "msg": "m", "created": 86400.5})
    logging.getLogger().handlers[0].handle(record)
    assert json.loads(out.getvalue())["time"] == "1970-01-02T00:00:00.500Z"


def test_fields_never_hide_what_every_line_has() -> None:
    out = lines()
    logger("x").info("real", level="fake", message="fake")
    line = json.loads(out.getvalue())
    assert (line["level"], line["message"], line["level_"], line["message_"]) == ("info", "real", "fake", "fake")


@pytest.mark.parametrize(
    "field", ["token", "bearer_token", "Authorization", "password", "tls.key", "private_key", "client-key-data"]
)
def test_a_field_that_is_named_like_a_secret_is_not_shown(field: str) -> None:
    out = lines()
    logger("x").info("m", **{field: "hunter2"})
    assert json.loads(out.getvalue())[field] == REDACTED


@pytest.mark.parametrize("field", ["ticket", "tokens_left", "secret", "key", "keys"])
def test_a_field_that_only_resembles_one_is_shown(field: str) -> None:
    out = lines()
    logger("x").info("m", **{field: "kube-system/name"})
    assert json.loads(out.getvalue())[field] == "kube-system/name"


def test_data_of_a_secret_is_not_shown_wherever_it_hangs() -> None:
    out = lines()
    secret = {"kind": "Secret", "data": {"a": "aHVudGVyMg=="}, "metadata": {"name": "s"}}
    logger("x").info("m", objects=[{"item": secret}], headers={"Authorization": "Basic aHVudGVyMg=="})
    assert "aHVudGVyMg" not in out.getvalue()
    assert json.loads(out.getvalue())["objects"][0]["item"]["metadata"] == {"name": "s"}


@pytest.mark.parametrize("human", [False, True])
def test_tokens_and_keys_inside_text_are_not_shown(human: bool) -> None:
    out = lines(human=human)
    key = "-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----"
    jwt = "eyJhbGciOiJSUzI1NiJ9.eyJodW50ZXIyIjoxfQ.c2lnbmF0dXJl"
    logger("x").info("m", error=f"401 for Bearer hunter2.x, key {key} and {jwt} end")
    assert "hunter2" not in out.getvalue()
    assert "eyJ" not in out.getvalue()
    assert "end" in out.getvalue()


def test_text_without_secrets_is_untouched() -> None:
    assert scrub("PRIVATE KEYS are for the bearer of news") == "PRIVATE KEYS are for the bearer of news"


def test_below_its_level_nothing_is_written_and_other_packages_are_heard_from_warning_on() -> None:
    out = lines("warning")
    logger("x").info("quiet")
    logging.getLogger("aiohttp").info("quiet")
    logging.getLogger("aiohttp").warning("%s bottles", 3)
    assert [json.loads(line)["message"] for line in out.getvalue().splitlines()] == ["3 bottles"]


def test_an_error_carries_where_it_happened() -> None:
    out = lines()
    try:
        raise ValueError("boom")
    except ValueError as error:
        logger("x").error("failed", trace=error)
    assert "ValueError: boom" in json.loads(out.getvalue())["trace"]


def test_what_json_does_not_know_is_written_as_text() -> None:
    out = lines()
    logger("x").info("m", value=complex(1, 2), number=float("nan"))
    line = json.loads(out.getvalue())
    assert (line["value"], line["number"]) == ("(1+2j)", None)


def test_a_readable_line_stays_one_line() -> None:
    out = lines(human=True)
    logger("x").info("m", note="two\nlines", pod="team/a")
    assert out.getvalue().count("\n") == 1
    assert "x: m" in out.getvalue()
    assert "pod=team/a" in out.getvalue()


def test_who_else_listens_hears_every_line(caplog: pytest.LogCaptureFixture) -> None:
    out = lines()
    logging.getLogger().addHandler(caplog.handler)
    logger("x").info("heard", pod="team/a")
    assert [record.getMessage() for record in caplog.records] == ["heard"]
    assert json.loads(out.getvalue())["pod"] == "team/a"


def test_both_roads_write_the_same_line() -> None:
    out = lines()
    fields: dict[str, object] = {"pod": "team/a", "token": "hunter2", "level": "y", "items": [1, None]}
    logger("x").info("m", **fields)
    logging.getLogger().addHandler(logging.NullHandler())
    logger("x").info("m", **fields)
    short, long = (json.loads(line) for line in out.getvalue().splitlines())
    assert {**short, "time": 0} == {**long, "time": 0}


def test_a_stream_that_was_closed_costs_the_line_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    out = lines()
    out.close()
    logger("x").info("m")
    assert "I/O operation on closed file" in capsys.readouterr().err
