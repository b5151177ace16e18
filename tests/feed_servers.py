"""`tf-dynemb feed`, the server of a feed, in a process of its own; and certificates for it."""

import contextlib
import os
import subprocess
import sys

HERE = "127.0.0.1:0"


class served:
    """The server of a folder; what it says on standard error goes to the file `errors`, if given."""

    def __init__(self, folder, *flags, errors=None):
        command = [
            sys.executable,
            "-m",
            "tf_dynemb_cli",
            "feed",
            str(folder),
            f"--listen={HERE}",
            *flags,
        ]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with contextlib.ExitStack() as stack:
            file = None if errors is None else stack.enter_context(open(errors, "w"))
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment
            )

    def __enter__(self):
        return self.process.stdout.readline().strip().partition("://")[2]

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()
        assert self.process.returncode == 0


def make_certificates(folder, kind="ECDSA"):
    """Files of a certificate of this machine, its key of a kind, and of who has signed it."""
    import trustme  # which tests without TLS do without

    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType[kind])
    issued.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return folder
