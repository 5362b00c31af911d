"""The options of ``tessera run`` as requests."""

import pytest

from tessera.core.errors import InputErrors
from tessera.core.share import ComputeMilli, MemoryFraction, MemoryMiB, ShareSpec
from tessera.core.units import MiB, Milli
from tessera.local.ask import Ask, ask_text, check_ask, parse_compute, parse_memory, pod_of, share_spec


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("8Gi", 8192),
        ("8gib", 8192),
        ("8192Mi", 8192),
        ("1.5Gi", 1536),
        ("0.0005Ti", 524),  # 524.288 MiB
        ("8G", 7629),  # 8 * 10^9 bytes are 7629.39 MiB
        ("8GB", 7629),
        ("1048576k", 1000),  # 1048576000 bytes
        (" 2 Gi ", 2048),
    ],
)
def test_memory_with_a_unit_is_mib_rounded_down(text: str, mib: int) -> None:
    assert parse_memory(text) == MemoryMiB(MiB(mib))


@pytest.mark.parametrize(("text", "milli"), [("25%", 250), ("12.5%", 125), ("100%", 1000), ("0.1%", 1)])
def test_percent_is_a_part_of_the_device(text: str, milli: int) -> None:
    assert parse_memory(text) == MemoryFraction(Milli(milli))
    assert parse_compute(text) == milli


AMBIGUOUS = ("8", "0.25", "", "Gi", "-1Gi", "1e3Gi", "8Qi", "0Gi", "1Ki", "101%", "0%", "0.05%")


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_memory_that_could_mean_anything_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(InputErrors) as caught:
        parse_memory(text)
    (problem,) = caught.value.problems
    assert (problem.source, problem.value) == ("--memory", text)
    assert "8Gi" in problem.remedy


@pytest.mark.parametrize("text", ["30", "0.3", "8Gi", "100.1%", "0%"])
def test_compute_is_percent_and_nothing_else(text: str) -> None:
    with pytest.raises(InputErrors, match=r"30%"):
        parse_compute(text)


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(InputErrors) as caught:
        check_ask(Ask(devices=0, memory="8", compute="30"))
    assert [problem.source for problem in caught.value.problems] == ["--memory", "--compute", "--devices"]


WHOLE = MemoryFraction(Milli(1000))


@pytest.mark.parametrize(
    ("ask", "share"),
    [
        (
            Ask(),
            ShareSpec(WHOLE, WHOLE, ComputeMilli(Milli(1000)), ComputeMilli(Milli(1000)), exclusive=True),
        ),
        (
            Ask(memory="1Gi"),
            ShareSpec(
                MemoryMiB(MiB(1024)), MemoryMiB(MiB(1024)), ComputeMilli(Milli(0)), ComputeMilli(Milli(1000))
            ),
        ),
        (
            Ask(compute="30%"),
            ShareSpec(
                MemoryFraction(Milli(300)),
                MemoryFraction(Milli(300)),
                ComputeMilli(Milli(300)),
                ComputeMilli(Milli(300)),
            ),
        ),
    ],
)
def test_what_is_left_out_means_what_is_documented(ask: Ask, share: ShareSpec) -> None:
    assert share_spec(ask) == share


def test_a_count_alone_says_that_it_means_whole_devices() -> None:
    assert ask_text(Ask(devices=2)).startswith("2 whole devices, nobody else on them (because neither")


def test_a_model_is_a_part_of_a_name_or_the_name_of_the_table() -> None:
    patterns = []
    for model in ("A100", "A100_SXM"):
        request = pod_of(Ask(model=model), "u", "n").request
        assert request is not None
        patterns.append(request.constraints.models_allowed[0].pattern)
    assert patterns == ["A100", "NVIDIA A100-SXM4-80GB"]
