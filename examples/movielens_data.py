"""MovieLens' files, and made-up ratings of the same shape, as one stream in time order.

Reads u.data, ratings.dat, ratings.csv and headered .tsv files, with the files on movies and users that
lie beside them. What is done with the stream is in movielens.py.
"""

from __future__ import annotations

import csv
import dataclasses
import pathlib
import re
import socket
import zipfile
from collections.abc import Iterator

import keras
import numpy as np
from absl import logging

ML_100K = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
ML_100K_MD5 = "0e33842e24a9c977be4e0107933c0723"

GENRES = (
    "unknown Action Adventure Animation Children's Comedy Crime Documentary Drama Fantasy Film-Noir "
    "Horror Musical Mystery Romance Sci-Fi Thriller War Western"
).split()


@dataclasses.dataclass
class Ratings:
    """Ratings in the order they were given, and what is known of movies and users.

    Attributes:
        source: where they come from, in words.
        users: int64 (n,).
        movies: int64 (n,).
        stars: float32 (n,).
        times: float64 (n,), seconds since 1970; made-up ratings come every ten seconds from 0 on.
        titles: of movies; may lack some.
        genres: of movies; empty if nothing is known.
        zips: zip codes of users; empty if nothing is known.
    """

    source: str
    users: np.ndarray
    movies: np.ndarray
    stars: np.ndarray
    times: np.ndarray
    titles: dict[int, str] = dataclasses.field(default_factory=dict)
    genres: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    zips: dict[int, str] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.stars)

    def first(self, number: int) -> Ratings:
        """The first ratings of the stream."""
        cut = {name: getattr(self, name)[:number] for name in ("users", "movies", "stars", "times")}
        return dataclasses.replace(self, **cut)

    def features(self, users: np.ndarray, movies: np.ndarray) -> dict[str, np.ndarray]:
        """What a model is given for pairs of user and movie, n of each.

        Returns:
            user and movie, int64 (n,); zip, strings (n,), and genres, strings (n, most genres of a
            movie), filled up with "", where such things are known.
        """
        features = {"user": users, "movie": movies}
        if self.zips:
            features["zip"] = np.array([self.zips.get(u, "unknown") for u in users.tolist()], object)
        if self.genres:
            width = max(map(len, self.genres.values()))
            bags = [self.genres.get(m) or ["unknown"] for m in movies.tolist()]
            features["genres"] = np.array([bag + [""] * (width - len(bag)) for bag in bags], object)
        return features


def load(path: str | None) -> Ratings:
    """The ratings in a file; without a path ml-100k from the network; without a network made-up ones."""
    if path:
        return read(pathlib.Path(path))
    timeout = socket.getdefaulttimeout()
    try:
        socket.setdefaulttimeout(20)
        archive = keras.utils.get_file("ml-100k.zip", origin=ML_100K, file_hash=ML_100K_MD5)
    except Exception as error:  # get_file raises nothing more specific
        logging.warning("Cannot download ml-100k (%s)", error)
        logging.warning("Going on with MADE-UP ratings of the same shape; --ratings takes real ones")
        return made_up()
    finally:
        socket.setdefaulttimeout(timeout)
    folder = pathlib.Path(archive).parent
    with zipfile.ZipFile(archive) as files:
        files.extractall(folder)
    return read(folder / "ml-100k" / "u.data")


# --- files -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Layout:
    """How one of MovieLens' releases lays out its files. No columns: the first line names them."""

    separator: str
    ratings: str = ""
    movies_file: str = ""
    movies: str = ""
    users_file: str = ""
    users: str = ""
    side_separator: str = ""


_LAYOUTS = {
    ".data": _Layout(
        "\t",
        "user movie rating timestamp",
        "u.item",
        "movie title released video url " + " ".join(GENRES),
        "u.user",
        "user age gender occupation zip",
        side_separator="|",
    ),
    ".dat": _Layout(
        "::",
        "user movie rating timestamp",
        "movies.dat",
        "movie title genres",
        "users.dat",
        "user gender age occupation zip",
    ),
    ".csv": _Layout(",", movies_file="movies.csv", users_file="users.csv"),
    ".tsv": _Layout("\t", movies_file="movies.tsv", users_file="users.tsv"),
}

_ALIASES = {
    "userid": "user",
    "itemid": "movie",
    "movieid": "movie",
    "movietitle": "title",
    "class": "genres",
    "zipcode": "zip",
}


def read(path: pathlib.Path) -> Ratings:
    """Reads a file of ratings, and the files on movies and users beside it.

    Raises:
        ValueError: a file of another form, or a line that makes no sense.
        FileNotFoundError: there is no such file.
    """
    layout = _LAYOUTS.get(path.suffix)
    if layout is None:
        raise ValueError(
            f"{path}: got a file of an unknown kind, want MovieLens' u.data, ratings.dat or "
            "ratings.csv, or a .tsv file whose first line names the columns"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    users, movies, stars, times = [], [], [], []
    for where, row in _rows(path, layout.separator, layout.ratings, "user movie rating timestamp"):
        users.append(_number(where, row, "user"))
        movies.append(_number(where, row, "movie"))
        stars.append(_number(where, row, "rating", float))
        times.append(_number(where, row, "timestamp", float))
    if not users:
        raise ValueError(f"{path}: got no ratings")
    order = np.argsort(np.array(times), kind="stable")
    ratings = Ratings(
        source=str(path),
        users=np.array(users, np.int64)[order],
        movies=np.array(movies, np.int64)[order],
        stars=np.array(stars, np.float32)[order],
        times=np.array(times)[order],
    )
    separator = layout.side_separator or layout.separator
    _read_movies(path.parent / layout.movies_file, separator, layout.movies, ratings)
    _read_users(path.parent / layout.users_file, separator, layout.users, ratings)
    return ratings


def _read_movies(path: pathlib.Path, separator: str, columns: str, ratings: Ratings) -> None:
    if not path.is_file():
        logging.warning("There is no %s: no titles, and genres are left out", path)
        return
    for where, row in _rows(path, separator, columns, "movie title"):
        movie = _number(where, row, "movie")
        year = row.get("releaseyear")
        ratings.titles[movie] = f"{row['title']} ({year})" if year else row["title"]
        if "genres" in row:
            genres = re.split("[| ]" if path.suffix == ".tsv" else "[|]", row["genres"])
        else:
            genres = [genre for genre in GENRES if row.get(genre) == "1"]
        ratings.genres[movie] = [genre for genre in genres if genre] or ["unknown"]


def _read_users(path: pathlib.Path, separator: str, columns: str, ratings: Ratings) -> None:
    if not path.is_file():
        logging.warning("There is no %s: zip codes are left out", path)
        return
    for where, row in _rows(path, separator, columns, "user zip"):
        ratings.zips[_number(where, row, "user")] = row["zip"]


def _rows(
    path: pathlib.Path, separator: str, columns: str, wanted: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """Each line's place, for messages, and its fields by the names of their columns."""
    encoding = "utf-8" if path.suffix in (".csv", ".tsv") else "latin-1"
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        if separator == ",":
            lines = csv.reader(file)
        else:
            lines = (line.rstrip("\r\n").split(separator) for line in file)
        names = columns.split() or [_column(name) for name in next(lines, [])]
        missing = [name for name in wanted.split() if name not in names]
        if missing:
            raise ValueError(
                f"{path}: got the columns {names}, want {wanted.split()} (userId, movie_id:token and "
                "the like are understood)"
            )
        for number, fields in enumerate(lines, start=1 if columns else 2):
            if fields and fields != [""]:
                yield f"{path}, line {number}", dict(zip(names, fields, strict=False))


def _column(name: str) -> str:
    """movieId, movie_id:token and item_id are all "movie"."""
    name = name.split(":")[0].strip().lower().replace("_", "")
    return _ALIASES.get(name, name)


def _number(where: str, row: dict[str, str], column: str, kind: type = np.int64):
    """A field as a 64-bit integer or a finite float."""
    try:
        number = kind(row[column])
        if np.isfinite(number):
            return number.item() if kind is np.int64 else number
    except (KeyError, ValueError, OverflowError):
        pass
    want = "a 64-bit integer" if kind is np.int64 else "a number"
    raise ValueError(f"{where}: got {row.get(column)!r} as {column}, want {want}")


# --- made-up ratings ---------------------------------------------------------------------------------


def made_up(users: int = 943, movies: int = 1682, seed: int = 0) -> Ratings:
    """Ratings by latent factors, about 106 per user, of the shape of ml-100k.

    Users come over time and rate in one sitting; some movies come out while the stream runs; ids are
    any 64-bit numbers, as they are in life.
    """
    rng = np.random.default_rng(seed)
    user_ids = rng.integers(-(2**63), 2**63 - 1, users)
    movie_ids = rng.integers(-(2**63), 2**63 - 1, movies)
    has_genre = rng.random((movies, len(GENRES) - 1)) < 0.09
    has_genre[np.arange(movies), rng.integers(0, len(GENRES) - 1, movies)] = True
    genres = [[GENRES[1 + g] for g in np.flatnonzero(row)[:4]] for row in has_genre]

    factors = 4
    genre_factors = rng.normal(0, 0.35, (len(GENRES) - 1, factors))
    movie_factors = has_genre @ genre_factors + rng.normal(0, 0.3, (movies, factors))
    user_factors = rng.normal(0, 0.5, (users, factors))
    movie_bias, user_bias = rng.normal(0, 0.5, movies), rng.normal(0, 0.45, users)
    popularity = rng.normal(0, 1.5, movies) + movie_bias
    release = np.where(rng.random(movies) < 0.8, 0.0, rng.random(movies) * 0.9)

    rows = []
    for user, arrival in enumerate(np.sort(rng.random(users))):
        number = min(20 + int(rng.lognormal(3.9, 1.0)), movies // 2)
        taste = np.where(release <= arrival, popularity + rng.gumbel(size=movies), -np.inf)
        seen = rng.permutation(np.argsort(-taste)[:number])
        liking = 3.6 + user_bias[user] + movie_bias[seen] + movie_factors[seen] @ user_factors[user]
        stars = np.clip(np.round(liking + rng.normal(0, 0.85, number)), 1, 5)
        rows.append(np.stack([np.full(number, user), seen, stars], axis=1))
    table = np.concatenate(rows)
    who, what = table[:, 0].astype(int), table[:, 1].astype(int)
    return Ratings(
        source=f"made-up ratings (seed {seed})",
        users=user_ids[who],
        movies=movie_ids[what],
        stars=table[:, 2].astype(np.float32),
        times=10.0 * np.arange(len(table)),
        titles={int(movie): f"Made-up movie {n}" for n, movie in enumerate(movie_ids)},
        genres={int(movie): genre for movie, genre in zip(movie_ids, genres, strict=True)},
        zips={int(user): f"{rng.integers(0, 800) * 125:05d}" for user in user_ids},
    )
