"""What files share that check dozens of policies each."""

from functools import wraps

import pytest
from paceline.policies import check


@pytest.fixture(scope="module")
def half_of_the_requests():
    """Each policy is checked on half as many as a user's."""
    sessions = check._sessions

    @wraps(sessions)
    def fewer(*args, count, **options):
        return sessions(*args, count=count // 2, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "_sessions", fewer)
        yield
