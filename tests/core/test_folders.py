"""Folders of a user without a home or a name, and paths that compilers cannot read."""

import os
import pwd
import stat
import tempfile

import pytest

from effbench.core import folders
from effbench.core.errors import ConfigError

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An empty temporary folder, and no variables that name folders."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for name in ("HOME", "XDG_CACHE_HOME", *NAMES):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def nobody(temporary, monkeypatch):
    """The user has no entry in the user database, and no HOME. Its own temporary folder."""

    def getpwuid(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    return temporary / f"effbench-{os.getuid()}"


class TestWithoutHome:
    def test_caches_have_a_folder_of_the_user(self, nobody):
        assert folders.home_folder() is None
        assert folders.cache_home() == nobody / "cache" / "effbench"
        assert stat.S_IMODE(nobody.stat().st_mode) == 0o700

    def test_workers_get_a_home_and_a_name(self, nobody):
        assert folders.worker_variables() == {"HOME": str(nobody), "USER": f"uid{os.getuid()}"}

    @pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
    def test_a_folder_that_others_can_change_is_not_used(self, nobody, tmp_path, kind):
        if kind == "open to others":
            nobody.mkdir()
            nobody.chmod(0o777)
        elif kind == "a link":
            nobody.symlink_to(tmp_path)
        else:
            nobody.touch()
        with pytest.raises(ConfigError, match="set HOME or XDG_CACHE_HOME to a folder of your own"):
            folders.cache_home()


class TestHome:
    def test_an_unusable_one_is_replaced(self, temporary, tmp_path, monkeypatch):
        own = temporary / f"effbench-{os.getuid()}"
        (tmp_path / "file").touch()
        # as with HOME=/ for a user that cannot write to it
        monkeypatch.setenv("HOME", str(tmp_path / "file"))
        assert folders.cache_home() == own / "cache" / "effbench"
        assert folders.worker_variables()["HOME"] == str(own)

    def test_it_is_used(self, temporary, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("USER", "me")
        assert folders.cache_home() == tmp_path / ".cache" / "effbench"
        assert folders.worker_variables() == {}

    @pytest.mark.parametrize(
        ("path", "expanded"),
        [("~/x", "/home/me/x"), ("./~/x", "./~/x"), ("~root/x", "/root/x"), ("x~", "x~")],
    )
    def test_it_replaces_a_tilde(self, monkeypatch, path, expanded):
        monkeypatch.setenv("HOME", "/home/me")
        assert folders.expand_user(path, "db") == expanded

    def test_a_user_that_does_not_exist(self):
        with pytest.raises(ConfigError, match="db=~nobody-at-all/x: ~nobody-at-all has no home"):
            folders.expand_user("~nobody-at-all/x", "db")


class TestPlainPaths:
    def test_a_plain_one_is_kept(self, tmp_path):
        assert folders.plain_path(tmp_path / "a-b_c.d+e@f", "x") == tmp_path / "a-b_c.d+e@f"

    @pytest.mark.parametrize("name", ["my cache", "it's", "größe", "a:b", "two\nlines"])
    def test_a_path_that_compilers_cannot_read_gets_a_link(self, temporary, tmp_path, name):
        folder = tmp_path / name
        folder.mkdir()
        plain = folders.plain_path(folder, "executor.cache_dir")
        assert folders.is_plain(plain)
        assert plain.samefile(folder)
        assert plain.is_relative_to(temporary / f"effbench-{os.getuid()}")
        assert folders.plain_path(folder, "executor.cache_dir") == plain, (
            "the same for the next process"
        )

    def test_a_link_to_another_folder_is_replaced(self, temporary, tmp_path):
        plain = folders.plain_path(tmp_path / "a b", "x")
        assert plain.is_dir(), "torch cannot create a folder through a link that leads nowhere"
        plain.unlink()
        plain.symlink_to("/elsewhere")
        assert folders.plain_path(tmp_path / "a b", "x").readlink() == tmp_path / "a b"

    def test_without_a_place_for_links_the_setting_is_named(self, tmp_path, monkeypatch):
        odd = tmp_path / "t m p"
        odd.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(odd))
        monkeypatch.setattr(folders, "TEMPORARY", (str(tmp_path / "missing"),))
        with pytest.raises(
            ConfigError,
            match=r"cannot read the path .*\nchoose another folder with executor.cache_dir",
        ):
            folders.plain_path(tmp_path / "a b", "executor.cache_dir")
