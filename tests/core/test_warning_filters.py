"""Warning filters of a user that would raise in effbench's own code."""

import warnings

import pytest

from effbench.core.warning_filters import print_instead_of_raising, without_errors


def test_filters_that_raise_print_instead(recwarn):
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filterwarnings("ignore", message="quiet")
        warnings.filterwarnings("error", category=UserWarning, module=r"effbench\..*")
        warnings.simplefilter("error", append=True)
        print_instead_of_raising()
        assert [action for action, *_ in warnings.filters] == ["default", "ignore", "default"]
        warnings.warn("loud", DeprecationWarning, stacklevel=1)
        warnings.warn("quiet", DeprecationWarning, stacklevel=1)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("error", "default"),
        ("e", "default"),
        (
            "error::ResourceWarning,ignore::DeprecationWarning",
            "default::ResourceWarning,ignore::DeprecationWarning",
        ),
        ("ignore:error in x:UserWarning", "ignore:error in x:UserWarning"),
        (" error:text", "default:text"),
        ("", ""),
        ("always", "always"),
    ],
)
def test_the_variable(filters, expected):
    assert without_errors(filters) == expected
