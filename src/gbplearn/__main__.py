"""`python -m gbplearn`: the command line, where the script `gbplearn` is not on the path."""

import sys

from .cli import main

sys.exit(main())
