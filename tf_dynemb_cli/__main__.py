"""`python -m tf_dynemb_cli` is `tf-dynemb`."""

import sys

from tf_dynemb_cli.command import main

sys.exit(main())
