"""`python -m tf_dynemb.launch` is `tf-dynemb launch`."""

import sys

from tf_dynemb_cli.launcher import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m tf_dynemb.launch"))
