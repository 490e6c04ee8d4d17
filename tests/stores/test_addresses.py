"""Names of addresses, and what errors repeat of them."""

from __future__ import annotations

import pytest

from app.errors import AddressNotListed
from app.stores.handles import StoreAddress, find_address

LISTED = {"main": StoreAddress("/srv/stores", frozenset({"p"}))}


def test_a_name_is_found_by_its_projects() -> None:
    assert find_address(LISTED, "main", "p").url == "/srv/stores"
    with pytest.raises(AddressNotListed, match="named 'main'"):
        find_address(LISTED, "main", "other")


def test_an_address_without_projects_belongs_to_the_default_one() -> None:
    listed = {"main": StoreAddress("/srv/stores")}
    assert find_address(listed, "main", "default").url == "/srv/stores"
    with pytest.raises(AddressNotListed, match="for this project"):
        find_address(listed, "main", "shop")


@pytest.mark.parametrize("sent", ["postgresql://u:correct-horse@h/x", "u:correct-horse@h"])
def test_a_url_that_somebody_sends_is_not_repeated(sent: str) -> None:
    with pytest.raises(AddressNotListed, match="no store address of that name") as caught:
        find_address(LISTED, sent, "p")
    assert "correct-horse" not in caught.value.detail
