"""`python -m tf_dynemb.storage` is `tf-dynemb storage`."""

import sys

from tf_dynemb_cli.storage import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m tf_dynemb.storage"))
