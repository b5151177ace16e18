"""`python -m tf_dynemb.snapshot` is `tf-dynemb snapshot`."""

import sys

from tf_dynemb_cli.snapshot import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m tf_dynemb.snapshot"))
