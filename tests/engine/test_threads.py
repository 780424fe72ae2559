"""How threads wait, unless the user settled it."""

import pytest

from hipcli.engine.threads import SPIN_COUNT, prepare_threads


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": SPIN_COUNT}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_the_users_choice_stays(given: dict[str, str], expected: dict[str, str]) -> None:
    environment = dict(given)
    prepare_threads(environment)
    assert environment == expected
