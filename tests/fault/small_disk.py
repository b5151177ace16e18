"""A small file system that tests fill."""

import contextlib
import pathlib
import subprocess


class SmallDisk:
    """A file system of 24 MiB that can be full, in a mount namespace that ends with a process.

    Attributes:
        folder: where all processes see it.
        fills_up: False where this user may not mount: then it is an ordinary folder.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        folder.mkdir()
        mount = f"mount -t tmpfs -o size=24m none '{folder}' && echo mounted && exec cat"
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", mount], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.fills_up = self._keeper.stdout.readline() == b"mounted\n"
        if self.fills_up:
            self.folder = pathlib.Path(f"/proc/{self._keeper.pid}/root{folder}")

    def fill(self) -> None:
        with open(self.folder / "filler", "wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        self._keeper.stdin.close()
        self._keeper.wait()
