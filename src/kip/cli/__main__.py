"""The command line as `python -m kip.cli`."""

import sys

from kip.cli import main

sys.exit(main())
