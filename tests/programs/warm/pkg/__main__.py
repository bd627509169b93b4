import os
import sys

from . import inner

print("[%s]" % os.environ["RANK"], __name__, __spec__.name, __package__, sys.argv[1:], sys.path[0], inner.VALUE, flush=True)
