"""A small file system that tests fill."""

import contextlib
import pathlib
import subprocess


class SmallDisk:
    """A file system of 24 MiB that can be full, in a mount namespace that ends with a process.

    Attributes:
        within: what starts a process that sees it.
        folder: where such a process sees it.
        from_here: the same for this process.
        fills_up: False where this user may not mount: then it is an ordinary folder.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = self.from_here = folder
        self.within: list[str] = []
        folder.mkdir()
        mount = f"mount -t tmpfs -o size=24m none '{folder}' && echo mounted && exec cat"
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", mount], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.fills_up = self._keeper.stdout.readline() == b"mounted\n"
        if self.fills_up:
            self.within = ["nsenter", f"--mount=/proc/{self._keeper.pid}/ns/mnt"]
            self.from_here = pathlib.Path(f"/proc/{self._keeper.pid}/root{folder}")

    def fill(self) -> None:
        with open(self.from_here / "filler", "wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        (self.from_here / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        self._keeper.stdin.close()
        self._keeper.wait()
