"""The wish for another share, as people write it on a running pod."""

import pytest

from builders import a_claim, a_share
from tessera.core.request import Request
from tessera.core.share import ComputeMilli, MemoryFraction, MemoryMiB
from tessera.wire.kube.resize import Wish, decode_wishes, encode_wish, wished


@pytest.mark.parametrize(
    ("said", "wish"),
    [
        ('{"memory": "8Gi", "compute": "30%"}', Wish(MemoryMiB(8192), 300)),
        ('{"memory": "1"}', Wish(MemoryMiB(1), None)),
        ('{"memory": "1048577"}', Wish(MemoryMiB(2), None)),
        ('{"memory": "12.5%"}', Wish(MemoryFraction(125), None)),
        ('{"compute": "100 %"}', Wish(None, 1000)),
        ("{}", Wish(None, None)),
    ],
)
def test_a_wish_reads_as_it_is_documented(said: str, wish: Wish) -> None:
    assert decode_wishes(f'{{"main": {said}}}') == {"main": wish}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8Gi", "is no wish"),
        ("[]", "is no wish"),
        ('{"main": {"cores": "1"}}', "is no wish"),
        ('{"main": {"memory": 8}}', "is no wish"),
        ('{"main": {"memory": "lots"}}', "wishes memory 'lots' for main"),
        ('{"main": {"memory": "0"}}', "wishes memory '0'"),
        ('{"main": {"memory": "0%"}}', "wishes memory '0%'"),
        ('{"main": {"compute": "30"}}', "wishes compute '30' for main"),
        ('{"main": {"compute": "100.1%"}}', "wishes compute '100.1%'"),
        ('{"main": {"compute": "0.05%"}}', "wishes compute '0.05%'"),
    ],
)
def test_what_is_no_wish_is_refused_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_wishes(text)


def test_what_is_written_for_a_person_reads_back() -> None:
    assert decode_wishes(encode_wish("main", "4Gi", None)) == {"main": Wish(MemoryMiB(4096), None)}
    with pytest.raises(ValueError, match="wishes compute"):
        encode_wish("main", None, "all")


def test_a_wish_changes_the_claims_of_its_container_and_no_other() -> None:
    share = a_share(1000, 100)
    request = Request((a_claim(share, 2, "a"), a_claim(share, 1, ("a", "b")), a_claim(share, 1, "c")))
    found = wished(request, {"b": Wish(MemoryMiB(2000), None), "c": Wish(None, 300)})
    assert [(c.share.memory_limit, c.share.compute_limit) for c in found.claims] == [
        (MemoryMiB(1000), ComputeMilli(100)),
        (MemoryMiB(2000), ComputeMilli(100)),
        (MemoryMiB(1000), ComputeMilli(300)),
    ]
    assert wished(request, {"a": Wish(None, None)}) == request


def test_a_wish_for_a_container_without_a_share_is_named() -> None:
    with pytest.raises(ValueError, match=r"containers without a share \(x\); those with one: a"):
        wished(Request((a_claim(a_share(1, 1), 1, "a"),)), {"x": Wish(None, 300)})
