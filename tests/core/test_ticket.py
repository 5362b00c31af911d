"""Tickets: every number in the range is a resource and a quantity, and comes back from them."""

import pytest

from tessera.core.ticket import KEYS, QUANTITIES, RESOURCES, TICKETS, Ticket, next_ticket, ticket_of


def test_every_number_comes_back_from_its_resource_and_quantity():
    written = {(Ticket(n).resource, Ticket(n).quantity): n for n in range(TICKETS)}
    assert len(written) == TICKETS == KEYS * QUANTITIES == 512
    assert all(ticket_of(resource, quantity) == Ticket(n) for (resource, quantity), n in written.items())


def test_the_ends_of_the_range():
    assert (Ticket(0).resource, Ticket(0).quantity) == ("tessera.dev/ticket-0", 1)
    assert (Ticket(31).resource, Ticket(31).quantity) == ("tessera.dev/ticket-0", 32)
    assert (Ticket(32).resource, Ticket(32).quantity) == ("tessera.dev/ticket-1", 1)
    assert (Ticket(511).resource, Ticket(511).quantity) == ("tessera.dev/ticket-f", 32)


@pytest.mark.parametrize("number", [-1, 512])
def test_a_number_out_of_range_is_no_ticket(number):
    with pytest.raises(ValueError, match="is not between 0 and 511"):
        Ticket(number)


@pytest.mark.parametrize(
    ("resource", "quantity"),
    [
        ("tessera.dev/ticket-0", 0),
        ("tessera.dev/ticket-0", 33),
        ("tessera.dev/ticket-10", 1),
        ("nvidia.com/gpu", 1),
    ],
)
def test_what_means_no_ticket(resource, quantity):
    assert ticket_of(resource, quantity) is None


def test_the_next_ticket_goes_round_the_end_and_past_what_is_taken():
    assert next_ticket(510, {510, 511, 0}) == Ticket(1)
    assert next_ticket(7, set()) == Ticket(7)
    assert next_ticket(7, range(TICKETS)) is None


def test_resources_are_named_by_one_hexadecimal_digit():
    assert RESOURCES[0] == "tessera.dev/ticket-0"
    assert RESOURCES[-1] == "tessera.dev/ticket-f"
