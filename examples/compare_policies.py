"""The table of the README, through the Python API: no command line.

`examples/compare_policies.out` beside this file is what it prints at 100 columns.
"""

import paceline

recording = paceline.open_recording("smollm2")  # it comes with the package; or the path of yours
print(paceline.compare(recording))
