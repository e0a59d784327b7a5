"""Folders of a user without a home, and paths that compilers cannot read."""

import pwd

import pytest

from effbench.core import folders
from effbench.core.errors import ConfigError


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def getpwuid(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    monkeypatch.delenv("HOME", raising=False)
    with pytest.raises(ConfigError, match="no home folder; set HOME to a folder of your own"):
        folders.cache_home()


def test_the_cache_folder_is_that_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert folders.cache_home() == tmp_path / ".cache" / "effbench"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert folders.cache_home() == tmp_path / "x" / "effbench"


@pytest.mark.parametrize(
    ("path", "expanded"),
    [("~/x", "/home/me/x"), ("./~/x", "./~/x"), ("~root/x", "/root/x"), ("x~", "x~")],
)
def test_a_home_replaces_a_tilde(monkeypatch, path, expanded):
    monkeypatch.setenv("HOME", "/home/me")
    assert folders.expand_user(path, "db") == expanded


def test_a_user_that_does_not_exist():
    with pytest.raises(ConfigError, match="db=~nobody-at-all/x: this user has no home"):
        folders.expand_user("~nobody-at-all/x", "db")


@pytest.mark.parametrize("name", ["my cache", "it's", "a:b", "two\nlines"])
def test_a_path_that_compilers_cannot_read_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    with pytest.raises(ConfigError, match="another folder with XDG_CACHE_HOME"):
        folders.cache_home()
    folders.check_plain(tmp_path / "a-b_c.d+e@größe", "TMPDIR")
