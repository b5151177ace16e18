"""`python -m tf_dynemb.server` is `tf-dynemb server`."""

import sys

from tf_dynemb_cli.server import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m tf_dynemb.server"))
