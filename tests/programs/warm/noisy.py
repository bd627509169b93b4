"""A module that writes when it is imported."""

import os
import sys
import warnings

print("noisy is imported")
sys.stderr.write("noisy says so on stderr\n")
os.write(1, b"and past Python's streams\n")
warnings.warn("noisy is old", DeprecationWarning)
VALUE = 4
warnings.warn("whoever imports it should not", DeprecationWarning, stacklevel=2)
