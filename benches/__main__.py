"""`python -m benches`: the same as `ringduel`, where its script is not on the PATH."""

import sys

from benches.cli import main

sys.exit(main())
