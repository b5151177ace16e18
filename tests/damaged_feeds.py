"""What may happen to the files of a feed at tmp_path / "feed", of which generation N is harmed."""

import os
import pathlib
import shutil

from tf_dynemb.serving.feed import Feed


def manifest_of(tmp_path, number):
    return Feed(tmp_path / "feed").read(number)


def delta_folder(tmp_path, number):
    return str(tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder / "delta")


def flip(path, at):
    """Flips a bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def damage_delta(tmp_path, number):
    flip(max(pathlib.Path(delta_folder(tmp_path, number)).glob("rows-*")), 60)


def remove_manifest(tmp_path, number):
    os.remove(tmp_path / "feed" / "generations" / f"{number:012}")


def damage_manifest(tmp_path, number):
    flip(tmp_path / "feed" / "generations" / f"{number:012}", 40)


def damage_weights(tmp_path, number):
    flip(tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder / "weights", 3)


def remove_data(tmp_path, number):
    shutil.rmtree(tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder)


def double(tmp_path, number):
    """The manifest of the generation before once more, as that of this one."""
    feed = Feed(tmp_path / "feed")
    before = feed.read(number - 1)
    feed.commit(type(before)(**vars(before) | {"number": number}))


def damage_full(tmp_path, number):
    folder = tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder / "full"
    flip(max(folder.glob("rows-*"), key=lambda path: path.stat().st_size), 60)


def remove_delta(tmp_path, number):
    shutil.rmtree(tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder / "delta")


def remove_rows(tmp_path, number):
    folder = tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder / "full"
    min(folder.glob("rows-*")).unlink()


def cut_rows(tmp_path, number):
    folder = tmp_path / "feed" / "data" / manifest_of(tmp_path, number).folder / "delta"
    file = min(folder.glob("rows-*"))
    file.write_bytes(file.read_bytes()[:-1])
