"""Checksums of rows, and the causes of errors."""

from __future__ import annotations

import json

import pytest

from app.stores.common import find_cause, row_number, rows_checksum


def error_of(call) -> BaseException:
    with pytest.raises(ValueError) as caught:
        call()
    return caught.value


def test_the_cause_of_an_error_that_was_raised_from_itself():
    error = error_of(lambda: json.loads("{"))
    error.__cause__ = error
    assert find_cause(error, KeyError) is None
    assert find_cause(error, json.JSONDecodeError) is error


def test_each_row_counts_in_a_checksum_and_their_order_does_not():
    numbers = [row_number(each) for each in (b"a", b"b", b"c")]
    heard: list[int] = []
    whole = rows_checksum([numbers], heard.append)
    assert rows_checksum([numbers[2:], numbers[:2]], heard.append) == whole
    assert heard == [3, 1, 3]
    for place in range(len(numbers)):
        changed = [number + (row == place) for row, number in enumerate(numbers)]
        assert rows_checksum([changed], heard.append).digest != whole.digest
        assert rows_checksum([numbers[:place], numbers[place + 1 :]], heard.append).rows == 2
