"""`python -m tf_dynemb_launch` is `tf-dynemb-launch`."""

import sys

from tf_dynemb_launch.launcher import main

sys.exit(main())
